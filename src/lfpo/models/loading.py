"""Reads and writes checkpoints in each family's own layout: config.json, safetensors, tokenizer files.

Nothing is unpickled, and no code from a checkpoint is run.
"""

import functools
import re
import shutil
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from torch.distributed.device_mesh import DeviceMesh

from lfpo.base import distributed
from lfpo.config.errors import UserError, first_line
from lfpo.config.files import read_json, user_path, write_json
from lfpo.config.json import Json
from lfpo.config.models import SHIPPED_MODELS, check_model_folder, check_model_name
from lfpo.core import collectives
from lfpo.core.model import NO_TOKEN, MaskedDiffusionLM, saved_buffers
from lfpo.models.experts import routers
from lfpo.models.families import family_of
from lfpo.models.family import Family, build_backbone
from lfpo.models.fsdp import assign, shard, tie
from lfpo.models.narrow_products import is_slow, run_in_float32
from lfpo.models.placement import merged
from lfpo.models.router_measures import watched_routers
from lfpo.models.tensor_files import whole_on, write_shards
from lfpo.models.weights import (
    carried_tensors,
    checkpoint_shapes,
    pieces_of_each,
    place_weights,
    saved_weights,
    tensor_files,
)

# Folders of the package's own models: one with full attention, two with blocks of 8 tokens, over the blocks before or
# over a causal context, and one with canvases of 16 uniform draws.
SHIPPED = {name: Path(__file__).parent / name.replace("-", "_") for name in SHIPPED_MODELS}
EMBEDDED = SHIPPED["embedded"]
GENERATION = "generation_config.json"
# Copied unread from a loaded checkpoint to a saved one: what says how the model is used (here and by other tools), and
# its tokenizer's files, unless a tokenizer is saved.
_COMPANIONS = (GENERATION, "*processor_config.json")
TOKENIZER_FILES = (
    "tokenizer*.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "additional_chat_templates/*.jinja",
)


def name_of(model: str | Path | MaskedDiffusionLM) -> str | None:
    """The name by which `load_model` finds a model again; None for a model object that was not loaded from a folder."""
    if not isinstance(model, MaskedDiffusionLM):
        check_model_name(model)
        return str(model)
    if model.source is None:
        return None
    return next((name for name, folder in SHIPPED.items() if folder == model.source), str(model.source))


def resolve(name: str | Path) -> Path:
    """The local folder of a checkpoint: a folder, one of SHIPPED_MODELS, or a hub id (downloaded once). Raises
    UserError where there is no such folder or hub repository, or where it holds the model in `model/`."""
    check_model_name(name)
    if str(name) in SHIPPED:
        return SHIPPED[str(name)]
    path, text = user_path(name), str(name)
    if path.is_dir():
        check_model_folder(path)
        return path
    try:
        return Path(snapshot_download(text, allow_patterns=["*.json", "*.safetensors", "*.txt", "*.jinja", "*.py"]))
    except (OSError, ValueError) as error:  # the hub's errors (offline, gated, not found) are OSErrors
        raise UserError(
            f"model {text!r}: no such folder, and the download from the hub failed ({first_line(error)}); download the "
            "model on another machine and give its folder"
        ) from error


def read_config(source: Path) -> tuple[Family, Json]:
    """The family and config.json of a checkpoint's folder, with the block length where its name tells it. Raises
    UserError as `family_of`."""
    config = read_json(source / "config.json")
    family = family_of(config, source / "config.json")
    if family.named_block is not None and family.block_key not in config:  # null says that there are no blocks
        pattern, length = family.named_block
        named = re.search(pattern, _own_name(source))
        if length := family.block_default if named is None else length or int(named[1]):
            config[str(family.block_key)] = length  # what is saved says it too, whatever its folder's name
    return family, config


def _own_name(source: Path) -> str:
    """The name of a checkpoint's folder; of one that the hub's cache holds, that of its repository."""
    folder = source.resolve()
    return folder.parent.parent.name if folder.parent.name == "snapshots" else folder.name


def trained_block_length(model: str | Path | MaskedDiffusionLM) -> int | None:
    """MaskedDiffusionLM.block_length of a model; that of a checkpoint from its config.json alone."""
    if isinstance(model, MaskedDiffusionLM):
        return model.block_length
    family, config = read_config(resolve(model))
    return family.block_length(config)


def without_weights(name: str | Path) -> MaskedDiffusionLM:
    """A model whose weights are on the meta device: it says what prompts fit. Raises UserError as `load_model`."""
    source = resolve(name)
    family, config = read_config(source)
    backbone: Any = build_backbone(family, config)
    ids = token_ids(config, source)
    return _model(backbone, family, config, source, **ids)


def load_model(
    name: str | Path,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    mesh: DeviceMesh | None = None,
    cast: bool = False,
    four_bit: torch.dtype | None = None,
) -> MaskedDiffusionLM:
    """Load a masked diffusion language model from a folder, `embedded`, or a hub id; weights are cast to `dtype`.

    bfloat16 weights of a bfloat16 checkpoint stay mapped from its files on a CPU; a page that is written to is copied
    first, so the files never change.
    mesh: split the weights over its ranks; each reads its own rows only. cast: see lfpo.models.fsdp.shard.
    four_bit: hold the layers' matrices in 4 bits, each quantised as it is read; the dtype of their products.
    Raises UserError for a missing or corrupt checkpoint, an unknown family, or tensors that do not match the config.
    """
    model = without_weights(name)
    backbone = model.backbone
    assert model.source is not None
    # All names and shapes are compared before a weight is read. Weights are split before they are read, too, so that a
    # rank never holds those of others.
    files = tensor_files(backbone, model.family, model.source)
    tie(backbone)
    backbone.model.rotary_emb.to(device)
    if mesh is not None:
        shard(model, mesh, cast=cast)
    place_weights(model, files, dtype, device, four_bit)
    _freeze_routers(model)
    if is_slow(dtype, device):
        run_in_float32(backbone)
    return model


def init_model(
    config: Json,
    *,
    seed: int,
    tokenizer: object = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> MaskedDiffusionLM:
    """A randomly initialised model of a family's config.json: normal weights of standard deviation `init_std` (0.02),
    unit norms and factors, zero biases. tokenizer: supplies token ids that the config does not name.

    Raises UserError for an unknown family and a missing or wrong field.
    """
    family = family_of(config, "init config")
    backbone: Any = build_backbone(family, config)
    generator = torch.Generator(device=device).manual_seed(seed)
    std = float(config.get("init_std", 0.02))
    tie(backbone)
    backbone.model.rotary_emb.to(device)
    empty = {name: torch.empty(p.shape, dtype=dtype, device=device) for name, p in backbone.named_parameters()}
    buffers = {  # biases of routers, and factors of layers
        name: torch.full(b.shape, float(name.endswith("scalar")), dtype=b.dtype, device=device)
        for name, b in saved_buffers(backbone)
    }
    assign(backbone, empty | buffers)
    with torch.no_grad():
        for name, weight in backbone.named_parameters():
            if name.endswith("bias"):
                weight.zero_()
            elif weight.ndim == 1:
                weight.fill_(1)
            else:
                weight.normal_(std=std, generator=generator)
        # The columns behind those of the hidden states: the bias, and padding (modernbert.EXTRA).
        if family.head_bias is not None:
            backbone.lm_head.weight[:, backbone.config.hidden_size :] = 0
    backbone.requires_grad_(True)
    ids = token_ids(config, None, tokenizer)
    model = _model(backbone, family, config, None, **ids)
    _freeze_routers(model)
    return model


def _model(backbone: object, family: Family, config: Json, source: Path | None, **token_ids: int) -> MaskedDiffusionLM:
    model = family.model(backbone, family, config, source=source, **token_ids)
    if routers(backbone):
        model.measure_pass = functools.partial(watched_routers, backbone)
    return model


def _freeze_routers(model: MaskedDiffusionLM) -> None:
    """Where the family's routers stay as they were trained."""
    for router in routers(model.backbone) if model.family.frozen_routers else []:
        router.requires_grad_(False)


def token_ids(config: Json, source: Path | None, tokenizer: Any = None) -> Json:
    """The ids of the mask, eos and pad tokens (mask_id ...), from the configuration or else from the tokenizer."""
    where = source or "init config"
    family = family_of(config, where)
    # 1. What config.json says, in its section of the text model or at the top.
    fields = {**config.get(family.text_section or "", {}), **config}
    ids: Json = {name: fields.get(f"{name}_token_id") for name in ("mask", "eos", "pad")}
    if family.mask_token is None:
        ids["mask"] = NO_TOKEN
    ends = listed(ids["eos"])  # all that may end a completion
    ids["eos"] = ends[0] if ends else None
    if ids["pad"] == -1:  # some publish it for a model without a padding token
        ids["pad"] = None
    # 2. What it leaves open the tokenizer says. It is read only where it is needed: reading it takes seconds.
    if tokenizer is None and source is not None:
        own_padding = family.padding is not None and _tokenizer_class(source, family) is not None
        tokenizer = load_tokenizer(source) if own_padding or None in ids.values() else None
    for name, value in ids.items():
        if value is None:
            ids[name] = getattr(tokenizer, f"{name}_token_id", None)
    # 3. Where published checkpoints end or pad completions by another token than config.json names (see Family).
    vocabulary = {} if family.padding is None or tokenizer is None else tokenizer.get_vocab()
    if family.padding in vocabulary:
        ids["pad"] = vocabulary[family.padding]
    if family.ends_with_pad or family.padding in vocabulary:
        ids["eos"] = ids["pad"]
    # 4. A chat model ends its turn with a token of its own. It is EOS where one of the checkpoint's files lists it.
    turn_end = None if source is None else family.turn_end
    if source is not None and turn_end is not None:
        if (source / GENERATION).exists():
            ends += listed(read_json(source / GENERATION).get("eos_token_id"))
        if any(end != ids["eos"] for end in ends):
            turn_end_id = (tokenizer or load_tokenizer(source)).convert_tokens_to_ids(turn_end)
            ids["eos"] = turn_end_id if turn_end_id is not None and turn_end_id in ends else ids["eos"]
    if ids["pad"] is None:
        ids["pad"] = ids["eos"]
    for name, value in ids.items():
        if value is None:
            raise UserError(f"{where}: neither the configuration nor the tokenizer names the {name} token")
    for name in ("eos", "pad"):
        if ids["mask"] == ids[name]:  # a finished completion would be one of blanks
            raise UserError(f"{where}: the mask token is the {name} token, too (id {ids['mask']}); it must be another")
    return {f"{name}_id": value for name, value in ids.items()}


def listed(ids: Any) -> list[Any]:
    """Token ids of a field that holds one, several or none."""
    return list(ids) if isinstance(ids, list) else [] if ids is None else [ids]


def load_tokenizer(name: str | Path) -> Any:
    """The tokenizer of a checkpoint (`name` as in `load_model`), with its mask token set; remote code is not run.
    Raises UserError for missing tokenizer files, and for one without a mask token."""
    source = resolve(name)
    family, config = read_config(source)
    tokenizer = read_tokenizer(source, family)
    named = config.get("mask_token_id")
    token = tokenizer.convert_ids_to_tokens(named) if isinstance(named, int) and named >= 0 else None
    # A token that says so is taken before the tokenizer's own: SDAR's files give the token of this id two texts.
    if token is not None and ("mask" in token.lower() or tokenizer.mask_token is None):
        tokenizer.mask_token = token
    if tokenizer.mask_token is None and family.mask_token is not None:
        if family.mask_token not in tokenizer.get_vocab():
            raise UserError(
                f"{source}: the tokenizer has no mask token (neither mask_token nor {family.mask_token!r}); "
                "a masked diffusion model needs one"
            )
        tokenizer.mask_token = family.mask_token
    template = tokenizer.chat_template
    if isinstance(template, str) and not template.startswith(family.template_prefix):
        tokenizer.chat_template = family.template_prefix + template
    return tokenizer


def _tokenizer_class(folder: Path, family: Family) -> str | None:
    """transformers' class for the tokenizer files of a folder; None where it has none."""
    if (folder / "tokenizer.json").exists():
        return "PreTrainedTokenizerFast"
    return family.tokenizer_class if (folder / "vocab.json").exists() else None


def read_tokenizer(folder: Path, family: Family) -> Any:
    """The tokenizer of a folder as it is; remote code is not run. Raises UserError where there is none."""
    import transformers

    class_name = _tokenizer_class(folder, family)
    if class_name is None:
        raise UserError(f"{folder}: no tokenizer.json; copy the tokenizer files beside config.json")
    # Some tokenizers ask for BERT's rule, which takes the blank before punctuation out of a decoded text; only some
    # versions of transformers follow it. A completion's text is that of its tokens.
    return getattr(transformers, class_name).from_pretrained(folder, clean_up_tokenization_spaces=False)


def save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Write tokenizer files that AutoTokenizer reads without remote code, that of transformers 4 too."""
    tokenizer.save_pretrained(folder)
    settings = read_json(folder / "tokenizer_config.json")
    for name in ("auto_map", "is_local", "local_files_only"):
        settings.pop(name, None)
    if settings.get("tokenizer_class") == "TokenizersBackend":  # a name that transformers 4 does not know
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    write_json(folder / "tokenizer_config.json", settings)


def save_model(model: MaskedDiffusionLM, folder: str | Path, tokenizer: Any = None) -> None:
    """Write a checkpoint with the family's own key names, config.json and tokenizer files; `load_model` reads it back.
    A collective: every rank writes its share of the tensors. tokenizer: None for the files of the loaded checkpoint.

    Raises OSError or SafetensorError where a file cannot be written.
    """
    folder = Path(folder)
    tied = model.backbone.config.tie_word_embeddings
    weights = {name: p for name, p in saved_weights(model).items() if not (tied and name == "lm_head.weight")}
    if model.family.buffers_like_weights:
        weights |= {name: buffer.to(model.dtype) for name, buffer in saved_buffers(model.backbone)}
    shapes = {name: p.shape for name, p in weights.items()}
    pieces_of_key = pieces_of_each("key", model.family, shapes)
    # The experts' tensors of one parameter follow each other, so each parameter is gathered once.
    value_of = functools.lru_cache(maxsize=1)(
        lambda name, writer: merged(model, name, lambda weight: whole_on(weight, writer))
    )

    carried = {} if model.source is None else carried_tensors(model.family, model.source)

    def value(key: str, writer: int) -> torch.Tensor | None:
        if key in carried:
            return carried[key]() if collectives.rank() == writer else None
        parts = []
        for piece in pieces_of_key[key]:
            matrix = value_of(piece.name, writer)
            if matrix is not None:
                matrix = (matrix if piece.expert is None else matrix[piece.expert]).to(weights[piece.name].dtype)
                parts.append(piece.of(matrix[piece.offset : piece.offset + piece.rows]))
        return torch.cat(parts) if len(parts) > 1 else parts[0] if parts else None

    empty = {
        key: torch.empty(shape, dtype=weights[pieces_of_key[key][0].name].dtype, device="meta")
        for key, shape in checkpoint_shapes(model.family, shapes).items()
    }
    empty |= {key: read() for key, read in carried.items()}  # mapped from their files
    distributed.by_first(lambda: folder.mkdir(parents=True, exist_ok=True))
    write_shards(empty, folder, "model", value)
    distributed.by_first(lambda: _write_companions(model, folder, tokenizer))


def _write_companions(model: MaskedDiffusionLM, folder: Path, tokenizer: Any) -> None:
    dtype = str(model.dtype).removeprefix("torch.")
    write_json(folder / "config.json", model.config | {k: dtype for k in ("dtype", "torch_dtype") if k in model.config})
    if model.source is not None and model.source.resolve() != folder.resolve():
        code = ("*.py",) if "auto_map" in model.config else ()  # else Python files beside weights are the user's own
        copy_files(model.source, folder, *_COMPANIONS, *code, *(TOKENIZER_FILES if tokenizer is None else ()))
    if tokenizer is not None:
        try:
            save_tokenizer(tokenizer, folder)
        except Exception as error:
            # tokenizers has no class for a write that failed; as an OSError the run says so and keeps what it saved.
            if type(error) is not Exception:
                raise
            raise OSError(f"{folder}: {error}") from error


def copy_files(source: Path, folder: Path, *patterns: str) -> None:
    """Copy the files of a checkpoint that match the patterns, without their modes: the hub's may be read-only."""
    for file in (file for pattern in patterns for file in source.glob(pattern)):
        target = folder / file.relative_to(source)
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(file, target)
