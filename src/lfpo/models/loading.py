"""Reads and writes checkpoints in each family's own layout: config.json, safetensors, tokenizer files.

Nothing is unpickled, and no code from a checkpoint is run.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError, safe_open
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from lfpo.base import distributed
from lfpo.base.errors import UserError
from lfpo.base.files import read_json, write_json
from lfpo.models.backbone import build_backbone, saved_buffers
from lfpo.models.dream import DREAM
from lfpo.models.family import Family
from lfpo.models.four_bit import linear_weights, quantize_one
from lfpo.models.fsdp import assign, shard
from lfpo.models.key_map import Piece, checkpoint_shapes, overlap, part_of, pieces
from lfpo.models.llada import LLADA
from lfpo.models.llada2 import LLADA2
from lfpo.models.llada_moe import LLADA_MOE
from lfpo.models.masked_lm import MaskedDiffusionLM
from lfpo.models.sdar import SDAR, SDAR_MOE
from lfpo.models.settings import SHIPPED_MODELS, check_model_name
from lfpo.models.tensor_files import local, own_rows, write_shards

FAMILIES: dict[str, Family] = {
    "llada": LLADA,
    "llada_moe": LLADA_MOE,
    "llada2": LLADA2,
    "dream": DREAM,
    "sdar": SDAR,
    "sdar_moe": SDAR_MOE,
}

# Folders of the package's own models: one with full attention, one that attends in blocks of 8 tokens.
SHIPPED = {name: Path(__file__).parent / name.replace("-", "_") for name in SHIPPED_MODELS}
EMBEDDED = SHIPPED["embedded"]
# Copied unread from a loaded checkpoint to a saved one, for other tools.
_COMPANIONS = (
    "tokenizer*.json",
    "vocab.json",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "generation_config.json",
    "chat_template.jinja",
    "*.py",
)


def name_of(model: str | Path | MaskedDiffusionLM) -> str | None:
    """The name by which `load_model` finds a model again; None for a model object that was not loaded from a folder."""
    if not isinstance(model, MaskedDiffusionLM):
        return str(model)
    if model.source is None:
        return None
    return next((name for name, folder in SHIPPED.items() if folder == model.source), str(model.source))


def resolve(name: str | Path) -> Path:
    """The local folder of a checkpoint: a folder, one of SHIPPED_MODELS, or a hub id (downloaded once).

    Raises UserError where there is no such folder or hub repository, or where it holds the model in `model/`.
    """
    if str(name) in SHIPPED:
        return SHIPPED[str(name)]
    check_model_name(name)
    path, text = Path(name).expanduser(), str(name)
    if path.is_dir():
        if not (path / "config.json").exists() and (path / "model/config.json").exists():
            raise UserError(f"model {text!r}: the folder of a run or a checkpoint; its model is in {path / 'model'}")
        return path
    try:
        return Path(snapshot_download(text, allow_patterns=["*.json", "*.safetensors", "*.txt", "*.jinja", "*.py"]))
    except (OSError, ValueError) as error:  # the hub's errors (offline, gated, not found) are OSErrors
        reason = str(error).splitlines()[0]
        raise UserError(
            f"model {text!r}: no such folder, and the download from the hub failed ({reason}); download the model on "
            "another machine and give its folder"
        ) from error


def family_of(config: dict[str, Any], where: object) -> Family:
    """The family that a config.json's `model_type` selects; of two families with one model_type that with experts, if
    there are any. Raises UserError, beginning with `where`, for another."""
    model_type = config.get("model_type")
    found = [family for family in FAMILIES.values() if model_type in family.model_types]
    if len(found) > 1:
        experts = config.get("num_experts") is not None or "moe" in str(config.get("architectures")).lower()
        found = [family for family in found if bool(family.stacked) == experts]
    if found:
        return found[0]
    known = sorted({t for family in FAMILIES.values() for t in family.model_types})
    raise UserError(f"{where}: model_type {model_type!r} is not a known family; known: {', '.join(known)}")


def trained_block_length(model: str | Path | MaskedDiffusionLM) -> int | None:
    """MaskedDiffusionLM.block_length of a model; that of a checkpoint from its config.json alone."""
    if isinstance(model, MaskedDiffusionLM):
        return model.block_length
    source = resolve(model)
    config = read_json(source / "config.json")
    return family_of(config, source / "config.json").block_length(config)


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
    source = resolve(name)
    config = read_json(source / "config.json")
    family = family_of(config, source / "config.json")
    backbone: Any = build_backbone(family, config, source / "config.json")
    files = tensor_files(backbone, family, source)
    _tie(backbone)
    backbone.model.rotary_emb.to(device)
    model = _finish(backbone, family, config, source)
    if mesh is not None:
        shard(model, mesh, cast=cast)
    quantized = [] if four_bit is None else linear_weights(backbone)
    old, state = backbone.state_dict(), dict[str, torch.Tensor]()
    own_dtype = dict.fromkeys((name for name, _ in saved_buffers(backbone)), torch.float32)
    with _reader(files) as read:
        for name, parts in _parts(model).items():
            value = _value(old[name], parts, read, own_dtype.get(name, dtype), device)
            if name in quantized and four_bit is not None:
                quantize_one(backbone, name, value, device, four_bit)
            else:
                state[name] = value
    assign(backbone, state)
    for p in backbone.parameters():
        p.requires_grad_(p.is_floating_point())  # 4-bit weights are bytes
    return model


def init_model(
    config: dict[str, Any],
    *,
    seed: int,
    tokenizer: Any = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> MaskedDiffusionLM:
    """A randomly initialised model of a family's config.json: normal weights of standard deviation `init_std` (0.02),
    unit norms, zero biases. tokenizer: supplies token ids that the config does not name.

    Raises UserError for an unknown family and a missing or wrong field.
    """
    family = family_of(config, "init config")
    backbone: Any = build_backbone(family, config, "init config")
    generator = torch.Generator(device=device).manual_seed(seed)
    std = float(config.get("init_std", 0.02))
    _tie(backbone)
    backbone.model.rotary_emb.to(device)
    empty = {name: torch.empty(p.shape, dtype=dtype, device=device) for name, p in backbone.named_parameters()}
    zeros = {name: torch.zeros(b.shape, dtype=b.dtype, device=device) for name, b in saved_buffers(backbone)}
    assign(backbone, empty | zeros)
    with torch.no_grad():
        for name, weight in backbone.named_parameters():
            if name.endswith("bias"):
                weight.zero_()
            elif weight.ndim == 1:
                weight.fill_(1)
            else:
                weight.normal_(std=std, generator=generator)
    backbone.requires_grad_(True)
    return _finish(backbone, family, config, None, tokenizer)


def weight_files(source: Path) -> list[Path]:
    """The safetensors files of a checkpoint. Raises UserError where there is none, or one that the index names is
    missing."""
    files = sorted(source.glob("*.safetensors"))
    index = source / "model.safetensors.index.json"
    if index.exists():
        named = sorted(set(read_json(index).get("weight_map", {}).values()))
        missing = [n for n in named if not (source / n).exists()]
        if missing:
            raise UserError(f"{source}: {missing[0]}, named by {index.name}, is missing; copy the checkpoint again")
        files = [source / n for n in named]
    if not files:
        raise UserError(
            f"{source}: no *.safetensors file; pickled checkpoints are not read, convert this one to safetensors"
        )
    return files


@contextlib.contextmanager
def _reading(file: Path) -> Iterator[None]:
    """Raises UserError where a safetensors file cannot be opened or read in the block."""
    try:
        yield
    except (SafetensorError, OSError) as error:
        raise UserError(f"{file}: corrupt or truncated safetensors file ({error}); copy it again") from error


Read = Callable[[str, slice], torch.Tensor]  # (tensor of the checkpoint, rows) -> those rows


@contextlib.contextmanager
def _reader(files: dict[str, Path]) -> Iterator[Read]:
    """Reads rows of a checkpoint's tensors, mapped from their files, which are open in the block."""
    with contextlib.ExitStack() as stack:
        opened: dict[Path, Any] = {}

        def read(key: str, rows: slice) -> torch.Tensor:
            file = files[key]
            with _reading(file):
                if file not in opened:
                    opened[file] = stack.enter_context(safe_open(file, framework="pt"))
                return opened[file].get_slice(key)[rows]

        yield read


def tensor_files(backbone: Any, family: Family, source: Path) -> dict[str, Path]:
    """The file of each tensor of a checkpoint, by the tensor's name there; a tied head's copy is left out.

    Raises UserError unless names and shapes are those that the backbone's parameters need.
    """
    files: dict[str, Path] = {}
    shapes: dict[str, list[int]] = {}
    for file in weight_files(source):
        with _reading(file), safe_open(file, framework="pt") as opened:
            for key in opened.keys():  # noqa: SIM118
                files[key], shapes[key] = file, opened.get_slice(key).get_shape()
    if backbone.config.tie_word_embeddings:
        for found in (files, shapes):
            found.pop(family.to_checkpoint("lm_head.weight"), None)
    own = state_shapes(backbone)
    expected = checkpoint_shapes(pieces(family, own), own)
    if missing := sorted(expected.keys() - shapes.keys()):
        raise UserError(f"{source}: {len(missing)} tensors are missing, first {missing[0]!r}")
    if extra := sorted(shapes.keys() - expected.keys()):
        raise UserError(f"{source}: {len(extra)} tensors do not belong to this architecture, first {extra[0]!r}")
    for key, shape in expected.items():
        if shapes[key] != shape:
            raise UserError(f"{source}: {key} has shape {shapes[key]}, config.json says {shape}")
    return files


def state_shapes(backbone: Any) -> dict[str, torch.Size]:
    """Shapes of the parameters and buffers that checkpoints hold, by their transformers names."""
    tied = backbone.config.tie_word_embeddings
    return {k: v.shape for k, v in backbone.state_dict().items() if not (tied and k == "lm_head.weight")}


def read_weights(model: MaskedDiffusionLM, source: Path) -> None:
    """Copy a checkpoint's weights into a model's parameters and buffers, in place, one tensor at a time; of split
    parameters this rank's rows. They keep their dtypes.

    Raises UserError as `load_model` does.
    """
    own = model.backbone.state_dict()
    with _reader(tensor_files(model.backbone, model.family, source)) as read:
        for name, parts in _parts(model).items():
            _fill(local(own[name]), own_rows(own[name]), parts, read)


def _parts(model: MaskedDiffusionLM) -> dict[str, list[Piece]]:
    """The pieces of each parameter and buffer, by its name."""
    found: dict[str, list[Piece]] = {}
    for piece in pieces(model.family, state_shapes(model.backbone)):
        found.setdefault(piece.name, []).append(piece)
    return found


def _value(like: torch.Tensor, parts: list[Piece], read: Read, dtype: torch.dtype, device: Any) -> torch.Tensor:
    """What a checkpoint holds for a tensor that is shaped and split as `like`: mapped from its file where it is one
    piece in bfloat16 and stays so, else in new memory."""
    (first, *others), held = parts, own_rows(like)
    if not others and first.expert is None and held == slice(None) and torch.device(device).type == "cpu":
        found = read(first.key, slice(first.start, first.start + first.rows))
        if found.dtype == dtype == torch.bfloat16:
            return found
    target = torch.empty(local(like).shape, dtype=dtype, device=device)
    _fill(target, held, parts, read)
    return target


def _fill(target: torch.Tensor, held: slice, parts: list[Piece], read: Read) -> None:
    """Copy to `target`, the rows `held` of a parameter, what a checkpoint holds for them."""
    for piece in parts:
        if (part := overlap(piece, held, target)) is not None:
            rows, place = part
            place.copy_(read(piece.key, rows))


def _tie(backbone: Any) -> None:
    if backbone.config.tie_word_embeddings:
        backbone.lm_head.weight = backbone.model.embed_tokens.weight


def _finish(
    backbone: nn.Module, family: Family, config: dict[str, Any], source: Path | None, tokenizer: Any = None
) -> MaskedDiffusionLM:
    ids = token_ids(config, backbone.config.vocab_size, source, tokenizer)  # type: ignore[union-attr,arg-type]
    return MaskedDiffusionLM(
        backbone,
        family,
        config,
        mask_id=ids["mask"],
        eos_id=ids["eos"],
        pad_id=ids["pad"],
        source=source,
    )


def token_ids(config: dict[str, Any], vocab_size: int, source: Path | None, tokenizer: Any = None) -> dict[str, int]:
    """The ids of the mask, eos and pad tokens, from the configuration or else from the tokenizer."""
    where = source or "init config"
    ids: dict[str, Any] = {name: config.get(f"{name}_token_id") for name in ("mask", "eos", "pad")}
    if None in ids.values():
        if tokenizer is None and source is not None:
            tokenizer = load_tokenizer(source)
        for name, value in ids.items():
            if value is None:
                ids[name] = getattr(tokenizer, f"{name}_token_id", None)
    if source is not None:
        ids["eos"] = _turn_end(config, source, tokenizer) or ids["eos"]
    if ids["pad"] is None:
        ids["pad"] = ids["eos"]
    for name, value in ids.items():
        if value is None:
            raise UserError(f"{where}: neither the configuration nor the tokenizer names the {name} token")
        if not isinstance(value, int) or not 0 <= value < vocab_size:
            raise UserError(f"{where}: {name}_token_id {value!r} must be a whole number from 0 to {vocab_size - 1}")
    return ids


def _turn_end(config: dict[str, Any], source: Path, tokenizer: Any) -> int | None:
    """The id of the family's `turn_end` if the checkpoint's generation_config.json lists it."""
    text, file = family_of(config, source / "config.json").turn_end, source / "generation_config.json"
    if text is None or not file.exists():
        return None
    listed = read_json(file).get("eos_token_id")
    found = (tokenizer or load_tokenizer(source)).convert_tokens_to_ids(text)
    return found if found in (listed if isinstance(listed, list) else [listed]) and found is not None else None


def load_tokenizer(name: str | Path) -> Any:
    """The tokenizer of a checkpoint: a transformers fast tokenizer with its mask token set. Remote code is not run.

    name: as in `load_model`. Raises UserError for missing or corrupt tokenizer files, and for one without a mask token.
    """
    import transformers

    source = resolve(name)
    config = read_json(source / "config.json")
    family = family_of(config, source / "config.json")
    class_name = "PreTrainedTokenizerFast"
    if not (source / "tokenizer.json").exists():
        if family.tokenizer_class is None or not (source / "vocab.json").exists():
            raise UserError(f"{source}: no tokenizer.json; copy the tokenizer files beside config.json")
        class_name = family.tokenizer_class
    try:
        tokenizer = getattr(transformers, class_name).from_pretrained(source)
    except Exception as error:  # the tokenizers library raises bare Exception for a malformed file
        raise UserError(f"{source}: the tokenizer files are corrupt ({error})") from error
    named = config.get("mask_token_id")
    token = tokenizer.convert_ids_to_tokens(named) if isinstance(named, int) else None
    if token is not None and "mask" in token.lower():
        tokenizer.mask_token = token  # SDAR's tokenizer files give the token of this id two texts
    if tokenizer.mask_token is None:
        if family.mask_token not in tokenizer.get_vocab():
            raise UserError(
                f"{source}: the tokenizer has no mask token (neither mask_token nor {family.mask_token!r}); "
                "a masked diffusion model needs one"
            )
        tokenizer.mask_token = family.mask_token
    return tokenizer


def save_model(model: MaskedDiffusionLM, folder: str | Path, tokenizer: Any = None) -> None:
    """Write a checkpoint with the family's own key names, config.json and tokenizer files; `load_model` reads it back.
    A collective: every rank calls it and writes its share of the tensors.

    tokenizer: saved when given; otherwise the tokenizer files of the loaded checkpoint are copied.
    Raises OSError or SafetensorError where a file cannot be written.
    """
    folder = Path(folder)
    tied = model.backbone.config.tie_word_embeddings
    weights = {name: p for name, p in model.weights().items() if not (tied and name == "lm_head.weight")}
    shapes = {name: p.shape for name, p in weights.items()}
    found: dict[str, list[Piece]] = {}
    for piece in pieces(model.family, shapes):
        found.setdefault(piece.key, []).append(piece)
    # The experts' tensors of one parameter follow each other, so each parameter is gathered once.
    merged = functools.lru_cache(maxsize=1)(model.merged)

    def value(key: str) -> torch.Tensor:
        parts = [part_of(merged(piece.name), piece) for piece in found[key]]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    sizes = checkpoint_shapes([piece for parts in found.values() for piece in parts], shapes)
    empty = {
        key: torch.empty(shape, dtype=weights[found[key][0].name].dtype, device="meta") for key, shape in sizes.items()
    }
    distributed.by_first(lambda: folder.mkdir(parents=True, exist_ok=True))
    write_shards(empty, value, folder, "model")
    distributed.by_first(lambda: _write_companions(model, folder, tokenizer))


def _write_companions(model: MaskedDiffusionLM, folder: Path, tokenizer: Any) -> None:
    write_json(folder / "config.json", model.config)
    if tokenizer is not None:
        try:
            tokenizer.save_pretrained(folder)
        except Exception as error:
            if type(error) is not Exception:
                raise
            # The tokenizers library raises a bare Exception for a failed write.
            raise OSError(f"{folder}: {error}") from error
    elif model.source is not None and model.source.resolve() != folder.resolve():
        for pattern in _COMPANIONS:
            for file in model.source.glob(pattern):
                if not file.name.endswith(".index.json"):
                    shutil.copy2(file, folder / file.name)
