"""Which rows of a checkpoint's tensors are which rows of a model's parameters. One list serves loading, saving and
export: a tensor may hold the rows of several parameters, and a parameter the matrices of many tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from lfpo.models.family import Family, replace_prefix


@dataclass(frozen=True)
class Piece:
    """Rows that a checkpoint tensor and a parameter share.

    key: the tensor in the checkpoint. start: its first row. rows: their number. name: the parameter.
    expert: which matrix of a parameter that stacks the experts' matrices (None: the parameter is one matrix or vector).
    offset: the first row in the parameter, or in that matrix of it.
    """

    key: str
    start: int
    rows: int
    name: str
    expert: int | None = None
    offset: int = 0


def pieces(family: Family, shapes: Mapping[str, Sequence[int]]) -> list[Piece]:
    """The pieces of all parameters, in their order; those of a checkpoint tensor are in the order of its rows.

    shapes: of the parameters and buffers, by their transformers names.
    """
    found: list[Piece] = []
    for name, shape in shapes.items():
        found += _expert_pieces(family, name, shape) or [_piece(family, name, shapes)]
    return found


def _piece(family: Family, name: str, shapes: Mapping[str, Sequence[int]]) -> Piece:
    before: list[str] = []
    for _, parts in family.fused:
        for i, part in enumerate(parts):
            if replace_prefix(name, [(part, "")]) != name:
                before = [replace_prefix(name, [(part, other)]) for other in parts[:i]]
    start = sum(shapes[other][0] for other in before)
    return Piece(family.to_checkpoint(name), start, shapes[name][0], name)


def _expert_pieces(family: Family, name: str, shape: Sequence[int]) -> list[Piece]:
    """One piece for each expert and tensor of a stacked parameter [E, rows, columns]; none for any other parameter."""
    for stack, parts in family.stacked:
        keys = [replace_prefix(name, [(stack, part)]) for part in parts]
        if keys[0] != name:
            rows = shape[1] // len(keys)
            return [
                Piece(key.replace("E", str(expert)), 0, rows, name, expert, j * rows)
                for expert in range(shape[0])
                for j, key in enumerate(keys)
            ]
    return []


def checkpoint_shapes(found: Sequence[Piece], shapes: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
    """The shape of each tensor of the checkpoint, by its name there."""
    result: dict[str, list[int]] = {}
    for piece in found:
        rest = shapes[piece.name][1 if piece.expert is None else 2 :]
        result[piece.key] = [max(piece.start + piece.rows, result.get(piece.key, [0])[0]), *rest]
    return result


def part_of(parameter: torch.Tensor, piece: Piece) -> torch.Tensor:
    """A piece's rows of a whole parameter, as a view."""
    matrix = parameter if piece.expert is None else parameter[piece.expert]
    return matrix[piece.offset : piece.offset + piece.rows]


def overlap(piece: Piece, held: slice, own: torch.Tensor) -> tuple[slice, torch.Tensor] | None:
    """What a rank that holds some rows of a parameter reads of a piece: the rows of the checkpoint's tensor, and the
    view of `own` that they are copied to. None if it holds none of them.

    held: the rows (of a stacked parameter: the experts) that the rank holds. own: these rows.
    """
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
    return slice(begin + shift, end + shift), own[begin - first : end - first]
