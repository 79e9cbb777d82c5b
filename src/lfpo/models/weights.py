"""Which rows of a checkpoint's tensors are which rows of a model's parameters, and how they are read.

One list of pieces serves loading, saving and export: a tensor may hold the rows of several parameters, and a parameter
the matrices of many tensors.
"""

import contextlib
import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from lfpo.config.errors import UserError
from lfpo.config.files import read_json
from lfpo.core.collectives import local
from lfpo.core.model import MaskedDiffusionLM, saved_buffers
from lfpo.models.family import Family, replace_prefix
from lfpo.models.four_bit import linear_weights, original_shape, quantize_one
from lfpo.models.fsdp import assign
from lfpo.models.modernbert import EXTRA
from lfpo.models.tensor_files import own_rows

EMBEDDINGS = "model.embed_tokens.weight"
ROWS = 4096  # of a table that are read at a time


def saved_weights(model: MaskedDiffusionLM) -> dict[str, torch.Tensor]:
    """The backbone's parameters, and the buffers that checkpoints hold, without adapters. Split parameters are
    DTensors. Those that are held in another dtype than the model's, in 4 bits or as a bias that bitsandbytes has cast
    to the dtype of its input, are meta tensors of their original shape, in the model's dtype."""
    saved = [*model.backbone.named_parameters(remove_duplicate=False), *saved_buffers(model.backbone)]
    return {
        re.sub(r"(\.base_layer)+\.", ".", name): p
        if p.dtype == model.dtype or not isinstance(p, nn.Parameter)
        else torch.empty(original_shape(p), dtype=model.dtype, device="meta")
        for name, p in saved
        if "lora_" not in name
    }


@dataclass(frozen=True)
class Piece:
    """The `rows` rows that a checkpoint's tensor `key` has from row `start`, and the parameter `name` from `offset`.

    expert: which matrix of a parameter that stacks the experts' matrices (None: the parameter is one matrix or vector).
    columns: which columns of the parameter the tensor holds, or which one (None: it has all).
    """

    key: str
    start: int
    rows: int
    name: str
    expert: int | None = None
    offset: int = 0
    columns: slice | int | None = None

    def of(self, rows: torch.Tensor) -> torch.Tensor:
        """What the tensor holds of some rows of the parameter."""
        return rows if self.columns is None else rows[:, self.columns]


def pieces(family: Family, shapes: Mapping[str, Sequence[int]]) -> list[Piece]:
    """The pieces of all parameters, in their order; those of a checkpoint tensor are in the order of its rows.

    shapes: of the parameters and buffers, by their transformers names.
    """
    listed: list[Piece] = []
    for name, shape in shapes.items():
        # A tensor that several parameters share holds them one after the other: q, k and v, as an example.
        before: list[str] = []  # parameters whose rows precede this one's in its tensor
        for _, parts in family.fused:
            for i, part in enumerate(parts):
                if replace_prefix(name, [(part, "")]) != name:
                    before = [replace_prefix(name, [(part, other)]) for other in parts[:i]]
        start = sum(shapes[other][0] for other in before)
        piece = Piece(family.to_checkpoint(name), start, shape[0], name)
        if family.head_bias is not None and name == EMBEDDINGS:  # tied to the head
            width = shape[1] - EXTRA
            listed += [replace(piece, columns=slice(width)), replace(piece, key=family.head_bias, columns=width)]
        else:
            listed += _expert_pieces(family, name, shape) or [piece]
    return listed


def pieces_of_each(
    kind: Literal["key", "name"], family: Family, shapes: Mapping[str, Sequence[int]]
) -> dict[str, list[Piece]]:
    """The pieces of each tensor of a checkpoint ("key"), or of each parameter ("name"). shapes: see `pieces`."""
    by_tensor: dict[str, list[Piece]] = {}
    for piece in pieces(family, shapes):
        by_tensor.setdefault(getattr(piece, kind), []).append(piece)
    return by_tensor


def _expert_pieces(family: Family, name: str, shape: Sequence[int]) -> list[Piece]:
    """One piece for each expert and tensor of a stacked parameter [E, rows, columns]; none for any other parameter."""
    for stack, parts in family.stacked:
        keys = [replace_prefix(name, [(stack, part)]) for part in parts]
        if keys[0] != name:
            rows = shape[1] // len(keys)  # the parameter has the rows of gate and up together, the checkpoint apart
            return [
                Piece(key.replace("E", str(expert)), 0, rows, name, expert, j * rows)
                for expert in range(shape[0])
                for j, key in enumerate(keys)
            ]
    return []


def checkpoint_shapes(family: Family, shapes: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
    """The shape of each tensor of the checkpoint, by its name there. shapes: see `pieces`."""
    result: dict[str, list[int]] = {}
    for piece in pieces(family, shapes):
        rest = shapes[piece.name][1 if piece.expert is None else 2 :]
        if piece.columns is not None:
            rest = [] if isinstance(piece.columns, int) else [piece.columns.stop]
        result[piece.key] = [max(piece.start + piece.rows, result.get(piece.key, [0])[0]), *rest]
    return result


def overlap(piece: Piece, held: slice, own: torch.Tensor) -> tuple[slice, torch.Tensor] | None:
    """What a rank that holds the rows `held` (of a stacked parameter: the experts) of a parameter reads of a piece: the
    rows of the checkpoint's tensor, and the view of `own`, these rows, that they are copied to. None if it holds none
    of them."""
    # Both a rank's rows and a piece are ranges of the parameter's rows; what is read is where they meet.
    first, last = held.start or 0, (held.start or 0) + len(own)
    if piece.expert is not None:
        if not first <= piece.expert < last:
            return None
        matrix = own[piece.expert - first]
        return slice(piece.start, piece.start + piece.rows), matrix[piece.offset : piece.offset + piece.rows]
    begin, end = max(first, piece.offset), min(last, piece.offset + piece.rows)
    if begin >= end:
        return None
    shift = piece.start - piece.offset
    return slice(begin + shift, end + shift), piece.of(own[begin - first : end - first])


def weight_files(source: Path) -> list[Path]:
    """The safetensors files of a checkpoint, chosen as transformers does: model.safetensors, else what the index names.
    Raises UserError where there is neither."""
    if (whole := source / "model.safetensors").exists():
        return [whole]
    index = source / "model.safetensors.index.json"
    if not index.exists():
        raise UserError(f"{source}: no model.safetensors and no {index.name}; pickled weights are not read")
    return [source / name for name in sorted(set(read_json(index)["weight_map"].values()))]


@contextlib.contextmanager
def reading(file: Path) -> Iterator[None]:
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
            with reading(file):
                if file not in opened:
                    opened[file] = stack.enter_context(safe_open(file, framework="pt"))
                return opened[file].get_slice(key)[rows]

        yield read


def tensor_files(backbone: Any, family: Family, source: Path) -> dict[str, Path]:
    """The file of each tensor of a checkpoint, by the tensor's name there; copies of tied tensors are left out.

    Raises UserError unless names and shapes are those that the backbone's parameters need.
    """
    files: dict[str, Path] = {}
    shapes: dict[str, list[int]] = {}
    for file in weight_files(source):
        with reading(file), safe_open(file, framework="pt") as opened:
            for key in opened.keys():  # noqa: SIM118
                if key.endswith(".rotary_emb.inv_freq"):
                    continue  # old checkpoints hold it; it follows from config.json
                if key.startswith(family.carried):
                    continue
                files[key], shapes[key] = file, opened.get_slice(key).get_shape()
    expected = checkpoint_shapes(family, state_shapes(backbone))
    copies = {key: replace_prefix(key, family.copies) for key in sorted(files.keys() - expected.keys())}
    copies = {key: original for key, original in copies.items() if original != key}
    if backbone.config.tie_word_embeddings:
        copies[family.to_checkpoint("lm_head.weight")] = family.to_checkpoint(EMBEDDINGS)
    for copy, original in copies.items():
        if copy not in files or original not in files:
            continue
        if shapes[copy] != shapes[original] or not _equal(files, copy, original, shapes[copy]):
            head = copy.endswith("lm_head.weight")
            other = ", or set tie_word_embeddings to false in config.json" if head and not family.copies else ""
            raise UserError(
                f"{source}: {copy} differs from {original}, which it is tied to; remove the tensor that is wrong{other}"
            )
        del files[copy], shapes[copy]
    if missing := sorted(expected.keys() - shapes.keys()):
        raise UserError(f"{source}: {len(missing)} tensors are missing, first {missing[0]!r}")
    if extra := sorted(shapes.keys() - expected.keys()):
        raise UserError(f"{source}: {len(extra)} tensors do not belong to this architecture, first {extra[0]!r}")
    for key, shape in expected.items():
        if shapes[key] != shape:
            raise UserError(f"{source}: {key} has shape {shapes[key]}, config.json says {shape}")
    return files


def _equal(files: dict[str, Path], one: str, other: str, shape: list[int]) -> bool:
    """Whether two tensors of a checkpoint, both of this shape, hold the same numbers; neither is read whole."""
    step = max(1, ROWS * 4096 // math.prod(shape[1:]))  # fewer rows of tensors that are wider than a table
    with _reader(files) as read:
        slices = [slice(first, min(first + step, shape[0])) for first in range(0, shape[0], step)]
        return all(torch.equal(read(one, part), read(other, part)) for part in slices)


def carried_tensors(family: Family, source: Path) -> dict[str, Callable[[], torch.Tensor]]:
    """Readers of the tensors of a checkpoint that are copied as they are (Family.carried), by name."""

    def read(file: Path, key: str) -> torch.Tensor:
        with reading(file), safe_open(file, framework="pt") as opened:
            return opened.get_tensor(key)

    found: dict[str, Callable[[], torch.Tensor]] = {}
    for file in weight_files(source) if family.carried else []:
        with reading(file), safe_open(file, framework="pt") as opened:
            names = [key for key in opened.keys() if key.startswith(family.carried)]  # noqa: SIM118
        found |= {key: functools.partial(read, file, key) for key in names}
    return found


def state_shapes(backbone: Any) -> dict[str, torch.Size]:
    """Shapes of the parameters and buffers that checkpoints hold, by their transformers names."""
    tied = backbone.config.tie_word_embeddings
    return {k: v.shape for k, v in backbone.state_dict().items() if not (tied and k == "lm_head.weight")}


def place_weights(
    model: MaskedDiffusionLM,
    files: dict[str, Path],
    dtype: torch.dtype,
    device: torch.device | str,
    four_bit: torch.dtype | None,
) -> None:
    """Replace a model's meta parameters and buffers by a checkpoint's values, one tensor at a time. files: as
    `tensor_files` returns them. The other arguments are those of `load_model`."""
    backbone = model.backbone
    quantized = [] if four_bit is None else linear_weights(backbone)
    old, state = backbone.state_dict(), dict[str, torch.Tensor]()
    own_dtype = dict.fromkeys((name for name, _ in saved_buffers(backbone)), torch.float32)
    with _reader(files) as read:
        for name, parts in pieces_of_each("name", model.family, state_shapes(model.backbone)).items():
            value = _value(old[name], parts, read, own_dtype.get(name, dtype), device)
            if name in quantized and four_bit is not None:
                quantize_one(backbone, name, value, device, four_bit)
            else:
                state[name] = value
    assign(backbone, state)
    for p in backbone.parameters():
        p.requires_grad_(p.is_floating_point())  # 4-bit weights are bytes


def read_weights(model: MaskedDiffusionLM, source: Path) -> None:
    """Copy a checkpoint's weights into a model's parameters and buffers, in place, one tensor at a time; of split
    parameters this rank's rows. They keep their dtypes. Raises UserError as `load_model` does."""
    own = model.backbone.state_dict()
    with _reader(tensor_files(model.backbone, model.family, source)) as read:
        for name, parts in pieces_of_each("name", model.family, state_shapes(model.backbone)).items():
            _fill(local(own[name]), own_rows(own[name]), parts, read)


def _value(
    like: torch.Tensor, parts: list[Piece], read: Read, dtype: torch.dtype, device: torch.device | str
) -> torch.Tensor:
    """What a checkpoint holds for a tensor that is shaped and split as `like`: mapped from its file where it is one
    piece in bfloat16 and stays so, else in new memory."""
    (first, *others), held = parts, own_rows(like)
    if not others and first.expert is None and held == slice(None) and torch.device(device).type == "cpu":
        mapped = read(first.key, slice(first.start, first.start + first.rows))
        if mapped.dtype == dtype == torch.bfloat16:
            return mapped
    make = torch.empty if first.columns is None else torch.zeros  # columns that no tensor holds are 0
    target = make(local(like).shape, dtype=dtype, device=device)
    _fill(target, held, parts, read)
    return target


def _fill(target: torch.Tensor, held: slice, parts: list[Piece], read: Read) -> None:
    """Copy to `target`, the rows `held` of a parameter, what a checkpoint holds for them."""
    for piece in parts:
        if (part := overlap(piece, held, target)) is not None:
            rows, place = part
            place.copy_(read(piece.key, rows))
