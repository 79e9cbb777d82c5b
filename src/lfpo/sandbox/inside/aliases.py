"""Results that the program still holds, such as a cache, and may change after it returned them.

The program's process keeps them and sends those that changed with its next answer. The judge changes its copies in
place, so that a suite sees what a plain script would see.
"""

from __future__ import annotations

import gc
import sys

from .objects import PROGRAM
from .values import NotAValue

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MAX_HELD = 64
_CHANGED_BY_METHODS = {"list", "dict", "set", "bytearray", "deque", "defaultdict", "Counter", "OrderedDict", "ndarray"}
_CHANGED_BY_METHODS |= {"Series", "DataFrame"}
_PARTS = {"tuple", *_CHANGED_BY_METHODS} - {"bytearray"}


def _may_change(kind: type) -> bool:
    """Whether it is a kind of container, or a dataclass of the program."""
    return kind.__name__ in _CHANGED_BY_METHODS or (
        kind.__module__ == PROGRAM and hasattr(kind, "__dataclass_fields__")
    )


class Held:
    """Results of the program that something in its process refers to, at most MAX_HELD of them, the latest.

    encode: gives the bytes of a value. A number stands for a result in both processes.
    """

    def __init__(self, encode: Callable[[object], bytes]) -> None:
        self._encode = encode
        # By number: a list of the result, and what was sent, None until `settle`.
        self._results: dict[int, tuple[list[object], bytes | None]] = {}
        self._next = 0
        self._usual = 0
        self._usual = _surplus([[]])

    def settle(self) -> None:
        """To be called before the program runs on: forgets results that nothing refers to, and encodes new ones."""
        for number, (box, data) in list(self._results.items()):
            if _surplus(box) <= self._usual:
                del self._results[number]
            elif data is None:
                self._encode_again(number, box)

    def changed(self) -> list[tuple[int, object]]:
        """Numbers and new content of those that changed since `settle`."""
        changes = []
        for number, (box, data) in list(self._results.items()):
            if data is not None and self._encode_again(number, box) not in (data, b""):
                changes.append((number, box[0]))
        return changes

    def _encode_again(self, number: int, box: list[object]) -> bytes:
        """The bytes of a result, which are kept; b"" if it cannot be sent any more."""
        try:
            data = self._encode(box[0])
        except NotAValue:
            del self._results[number]
            return b""
        self._results[number] = box, data
        return data

    def number(self, result: object) -> int:
        """The number of a result that may change later, else -1."""
        if not (_may_change(type(result)) or type(result).__name__ in _PARTS):
            return -1
        number = next((n for n, (box, _) in self._results.items() if box[0] is result), -1)
        if number < 0:
            number, self._next = self._next, self._next + 1
            self._results[number] = [result], None
            if len(self._results) > MAX_HELD:
                del self._results[min(self._results)]
        return number


def _surplus(box: list[object]) -> int:
    """The most references from outside the box to a part that can change or holds one that can, and a constant."""
    inside: dict[int, int] = {}
    parts, ids = [box[0]], {id(box[0])}
    inside[id(box[0])] = 1
    kinds: dict[type, tuple[bool, bool]] = {}  # whether it is a part, and can change
    changing = {id(box[0])} if _may_change(type(box[0])) else set()
    for part in parts:  # grows
        for inner in gc.get_referents(part):
            kind = type(inner)
            if kind not in kinds:
                kinds[kind] = kind.__name__ in _PARTS or _may_change(kind), _may_change(kind)
            is_part, changes = kinds[kind]
            if changes:
                changing |= {id(part), id(inner)}
            if is_part:
                inside[id(inner)] = inside.get(id(inner), 0) + 1
                if id(inner) not in ids:
                    ids.add(id(inner))
                    parts.append(inner)
    part = inner = None  # these are references too
    most = 0
    for place in range(len(parts)):
        if id(parts[place]) in changing:
            most = max(most, sys.getrefcount(parts[place]) - inside[id(parts[place])])
    return most


def update(old: Any, new: Any) -> Any:
    """The old value with the content of the new one, changed in place as far as the types are the same; the new one
    where that cannot be done."""
    if type(old) is not type(new):
        return new
    name = type(old).__name__
    if name == "Instance":
        update(old._fields, new._fields)
        return old
    if name in ("Series", "DataFrame") and hasattr(old, "_update_inplace"):
        old._update_inplace(new)
        return old
    if name in ("list", "deque"):
        items = [update(a, b) for a, b in zip(old, new, strict=False)] + list(new)[len(old) :]
        old.clear()
        old.extend(items)
    elif name in ("dict", "defaultdict", "Counter", "OrderedDict"):
        pairs = [(key, update(old[key], value) if key in old else value) for key, value in new.items()]
        old.clear()
        for key, value in pairs:
            old[key] = value
    elif name == "tuple" and len(old) == len(new):
        items = [update(a, b) for a, b in zip(old, new, strict=True)]
        return old if all(a is b for a, b in zip(old, items, strict=True)) else tuple(items)
    elif name in ("set", "bytearray"):
        old.clear()
        old.update(new) if name == "set" else old.extend(new)
    elif name == "ndarray" and old.shape == new.shape and old.dtype == new.dtype:
        old[...] = new
    else:
        return new
    return old
