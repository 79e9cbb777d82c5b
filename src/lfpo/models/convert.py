"""`lfpo convert`: a masked diffusion model from a plain autoregressive one, tensor by tensor.

Only attention and the reading of the logits change, so the weights stay as they are but for the mask token's embedding,
which starts as the mean of the others. Written in the layout of dllm's a2d models: the class's own names, `a2d-` before
its model type, and the fields `block_size`, `logit_shift` and `mask_token_id`.
"""

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from lfpo.config.convert import ConvertConfig
from lfpo.config.errors import UserError
from lfpo.config.files import new_folder, read_json, user_path, write_json
from lfpo.config.json import Json
from lfpo.models.ar_families import CONVERTIBLE
from lfpo.models.families import family_of
from lfpo.models.family import build_backbone, replace_prefix
from lfpo.models.gguf_tokenizer import ADVICE, own_tokenizer
from lfpo.models.loading import GENERATION, listed, read_tokenizer, resolve, save_tokenizer
from lfpo.models.mask_token import MaskToken, set_mask_token
from lfpo.models.tensor_files import write_shards
from lfpo.models.weights import ROWS, reading, tensor_files

TABLES = ("model.embed_tokens.weight", "lm_head.weight")  # with a row for each token
# Names of tensors in GGUF -> transformers' names; "N" stands for the layer number.
GGUF_NAMES = (
    ("token_embd", "model.embed_tokens"),
    ("output_norm", "model.norm"),
    ("output", "lm_head"),
    ("blk.N.attn_norm", "model.layers.N.input_layernorm"),
    ("blk.N.attn_q", "model.layers.N.self_attn.q_proj"),
    ("blk.N.attn_k", "model.layers.N.self_attn.k_proj"),
    ("blk.N.attn_v", "model.layers.N.self_attn.v_proj"),
    ("blk.N.attn_output", "model.layers.N.self_attn.o_proj"),
    ("blk.N.attn_q_norm", "model.layers.N.self_attn.q_norm"),
    ("blk.N.attn_k_norm", "model.layers.N.self_attn.k_norm"),
    ("blk.N.ffn_norm", "model.layers.N.post_attention_layernorm"),
    ("blk.N.ffn_gate", "model.layers.N.mlp.gate_proj"),
    ("blk.N.ffn_up", "model.layers.N.mlp.up_proj"),
    ("blk.N.ffn_down", "model.layers.N.mlp.down_proj"),
)
# Fields of GGUF, behind the architecture's name, that a model is read wrong without.
GGUF_FIELDS: tuple[str, ...] = ("context_length", "embedding_length", "block_count", "feed_forward_length")
GGUF_FIELDS += ("attention.head_count", "attention.head_count_kv", "attention.layer_norm_rms_epsilon")
ROPE_FACTORS = "rope_freqs.weight"  # in GGUF: by what each rotary frequency is divided
# The scaling of Llama 3.1 to 3.3. GGUF holds only the factors that follow from it.
LLAMA3_ROPE = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
DROPPED = (
    "auto_map",
    "transformers_version",
    "_name_or_path",
    "_model_name_or_path",
    "torch_dtype",
    "dtype",
    "quantization_config",
)


@dataclass(frozen=True)
class Autoregressive:
    """An autoregressive model: its config.json and tokenizer; shapes and dtypes of its tensors, and how to read rows of
    one. where: for messages."""

    where: Path
    config: Json
    tokenizer: Any
    like: dict[str, torch.Tensor]  # on the meta device
    read: Callable[[str, slice], torch.Tensor]


def run_convert(settings: ConvertConfig) -> Path:
    """Write the folder, under a hidden name until it is complete; print and return its path. Raises UserError where
    the source cannot be converted."""
    folder, source = user_path(settings.folder), open_source(settings)
    with new_folder(folder) as partial:
        mask = write_model(source, settings, partial)
    attends = f"blocks of {settings.block_length} tokens" if settings.block_length else "full"
    print(f"mask token  {mask.text} (id {mask.id}): {mask.about}")
    print(f"attention   {attends}")
    print(f"logits      at position i predict token {'i + 1' if settings.shift else 'i'}")
    print(f"model       {folder}\nIt has to be trained before it can denoise: lfpo sft --model {folder} ...")
    return folder


def open_source(settings: ConvertConfig) -> Autoregressive:
    """The source, of which only headers are read yet; a .gguf file is read whole. Raises UserError where it cannot be
    converted."""
    if settings.is_gguf:
        return gguf_source(user_path(settings.source), settings.dtype)
    folder = resolve(settings.source)
    config = read_json(folder / "config.json")
    check_kind(config, folder / "config.json")
    family = family_of({**config, "model_type": f"a2d-{config['model_type']}"}, folder / "config.json")
    backbone: Any = build_backbone(family, config)
    files = tensor_files(backbone, family, folder)

    def read(name: str, rows: slice) -> torch.Tensor:
        # Opened anew for each read: what stays open stays mapped, in the end the whole model.
        with reading(files[name]), safe_open(files[name], framework="pt") as file:
            part: torch.Tensor = file.get_slice(name)[rows]
        return part

    like, state = {}, backbone.state_dict()
    for name in files:
        like[name] = torch.empty(state[name].shape, dtype=read(name, slice(0, 1)).dtype, device="meta")
    return Autoregressive(folder, config, read_tokenizer(folder, family), like, read)


def check_kind(config: Json, where: object) -> None:
    """Raise UserError, beginning with `where`, unless a config.json is that of a model that can be converted."""
    kind, classes = str(config.get("model_type")), " ".join(config.get("architectures") or [])
    # logit_shift: in what lfpo writes under model types of autoregressive models.
    if "logit_shift" in config or kind.startswith("a2d-"):
        raise UserError(
            f"{where}: is a masked diffusion model already (model_type {kind!r}), which lfpo loads as it is"
        )
    if kind not in CONVERTIBLE:
        why = f"model_type {kind!r}"
    elif classes and "ForCausalLM" not in classes:
        why = f"a model without a language model's head ({classes})"
    else:
        return
    raise UserError(f"{where}: lfpo convert takes plain Llama, Qwen2 and Qwen3 language models; {why}")


def gguf_source(path: Path, dtype: str | None) -> Autoregressive:
    """A .gguf file, which transformers reads with the package gguf: all its weights at once, not tensor by tensor."""
    place = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    hf_config = transformers.AutoConfig.from_pretrained(**place)  # says so where the package gguf is missing
    from gguf import GGUFReader

    held = GGUFReader(path)
    fields = {name: field.contents() for name, field in held.fields.items()}
    check_kind({**hf_config.to_dict(), "architectures": None}, path)
    check_fields(path, fields)
    tokenizer = own_tokenizer(transformers.AutoTokenizer.from_pretrained(**place), fields, path)
    weights_dtype = getattr(torch, dtype or "float32")
    with torch.device("meta"):
        state = transformers.AutoModelForCausalLM.from_config(hf_config).state_dict()
    needed = set(state) - ({TABLES[1]} if hf_config.tie_word_embeddings else set())
    tensors = {tensor.name: tensor for tensor in held.tensors}
    if ROPE_FACTORS in tensors and scale_rope(hf_config, torch.tensor(tensors[ROPE_FACTORS].data)):
        del tensors[ROPE_FACTORS]
    check_gguf(path, needed, list(tensors), fields)
    model = transformers.AutoModelForCausalLM.from_pretrained(**place, dtype=weights_dtype)
    # The classes have defaults for ids, which are those of other models.
    ids = {f"{role}_token_id": getattr(tokenizer, f"{role}_token_id") for role in ("bos", "eos", "pad")}
    # The end of a chat turn, where the file names it beside the end of a text.
    ids["eos_token_id"] = [ids["eos_token_id"], *listed(fields.get("tokenizer.ggml.eot_token_id"))]
    config = {**model.config.to_dict(), "rope_parameters": hf_config.rope_parameters, **ids}
    config = {k: v for k, v in config.items() if k not in DROPPED}
    state = {name: tensor for name, tensor in model.state_dict().items() if name in needed}
    like = {name: tensor.to("meta") for name, tensor in state.items()}
    return Autoregressive(path, config, tokenizer, like, lambda name, rows: state[name][rows])


def scale_rope(config: transformers.PreTrainedConfig, factors: torch.Tensor) -> bool:
    """Set the configuration's rotary embeddings to Llama 3's scaling. False, and nothing set, where the factors
    [head_dim / 2] of a .gguf file are not those of this scaling."""
    plain = dict(config.rope_parameters)
    # The lowest frequencies are divided by the scaling's own factor, which is the largest.
    config.rope_parameters = {**plain, **LLAMA3_ROPE, "rope_type": "llama3", "factor": float(factors.max())}
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, device="cpu")
    exponents = torch.arange(len(factors), dtype=torch.float32) / len(factors)
    same = len(scaled) == len(factors) and torch.allclose(scaled * factors, plain["rope_theta"] ** -exponents)
    if not same:
        config.rope_parameters = plain
    return same


def check_fields(path: Path, fields: Json) -> None:
    """Raise UserError where a .gguf file lacks a field for which transformers would take the value of another model."""
    kind = fields["general.architecture"]
    words = {"gpt2": ["merges"], "llama": ["scores"]}.get(fields.get("tokenizer.ggml.model", ""), [])
    needed = [f"{kind}.{name}" for name in GGUF_FIELDS]
    needed += [f"tokenizer.ggml.{name}" for name in ("model", "tokens", "eos_token_id", *words)]
    if missing := [name for name in needed if name not in fields]:
        raise UserError(f"{path}: the field {missing[0]!r} is missing; {ADVICE}")


def check_gguf(path: Path, needed: set[str], tensors: Iterable[str], fields: Json) -> None:
    """Raise UserError where transformers would read another model than a .gguf file holds: it leaves out tensors and
    fields that it does not know, and takes random numbers for missing tensors.

    needed: names of the parameters of the model that transformers makes. tensors: names of the file's.
    """
    found = {replace_prefix(name, GGUF_NAMES): name for name in tensors}
    if missing := sorted(needed - found.keys()):
        raise UserError(
            f"{path}: {len(missing)} tensors are missing, first {missing[0]!r}; make one file of the parts of a split "
            f"model (llama.cpp's gguf-split --merge), or {ADVICE}"
        )
    if extra := sorted(found[name] for name in found.keys() - needed):
        raise UserError(f"{path}: {len(extra)} tensors are not read from GGUF, first {extra[0]!r}; {ADVICE}")
    if scaled := [name for name in fields if ".rope.scal" in name]:
        raise UserError(f"{path}: scaled rotary embeddings ({scaled[0]}) are not read from GGUF; {ADVICE}")


def write_model(source: Autoregressive, settings: ConvertConfig, folder: Path) -> MaskToken:
    """Write weights, config.json and tokenizer into the existing `folder`; its mask token."""
    rows = source.like[TABLES[0]].shape[0]
    known = len(source.tokenizer)
    tokenizer, mask = set_mask_token(source.tokenizer, rows, settings.mask_token)
    # All tokens that end a completion, the tokenizer's first.
    ends = list(dict.fromkeys(listed(tokenizer.eos_token_id) + listed(source.config.get("eos_token_id"))))
    new_rows = max(rows, max(tokenizer.get_vocab().values()) + 1)  # tokens may have been added
    dtype = None if settings.dtype is None else getattr(torch, settings.dtype)
    target = {
        name: torch.empty(
            (new_rows, *t.shape[1:]) if name in TABLES else t.shape, dtype=dtype or t.dtype, device="meta"
        )
        for name, t in source.like.items()
    }

    def value(name: str, writer: int) -> torch.Tensor:
        like = target[name]
        if name not in TABLES or (mask.own and new_rows == rows):
            return source.read(name, slice(None)).to(like.dtype)
        table = torch.empty(like.shape, dtype=like.dtype)
        total = torch.zeros(like.shape[1], dtype=torch.float64)
        for first in range(0, rows, ROWS):  # a slice at a time, so that one table is held, not two
            part = source.read(name, slice(first, min(first + ROWS, rows)))
            table[first : first + len(part)] = part
            total += part[: max(0, known - first)].double().sum(0)
        table[rows:] = (total / min(known, rows)).to(like.dtype)
        if not mask.own:
            table[mask.id] = (total / min(known, rows)).to(like.dtype)
        return table

    write_shards(target, folder, "model", value)
    config = {name: v for name, v in source.config.items() if name not in DROPPED}
    own = {
        "model_type": f"a2d-{source.config['model_type']}",
        "architectures": [f"A2D{source.config['model_type'].capitalize()}LMHeadModel"],
        "is_causal": False,  # transformers' own class then attends to all tokens
        "logit_shift": int(settings.shift),
        "block_size": settings.block_length,  # null too, so that no name of the folder stands for one
        "dtype": str(target[TABLES[0]].dtype).removeprefix("torch."),
        "vocab_size": new_rows,
        "mask_token_id": mask.id,
        "eos_token_id": ends if len(ends) > 1 else ends[0],
        "pad_token_id": ends[0] if tokenizer.pad_token_id is None else tokenizer.pad_token_id,
    }
    write_json(folder / "config.json", {**config, **own})
    save_tokenizer(tokenizer, folder)
    if (source.where / GENERATION).is_file():  # it may list the end of a chat turn
        shutil.copyfile(source.where / GENERATION, folder / GENERATION)
    return mask
