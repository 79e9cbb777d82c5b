"""A folder for one process on the rung `limits`, deleted with whatever the program left in it."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import stat
import tempfile
from collections.abc import Iterator

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def scratch_folder() -> Iterator[str]:
    """A new folder. A folder that cannot be deleted afterwards is named in a warning; no job fails because of it."""
    path = tempfile.mkdtemp(prefix="lfpo-sandbox-")
    try:
        yield path
    finally:
        try:
            delete(path)
        except OSError as error:
            logger.warning("sandbox: %s could not be deleted: %s", path, error)


def delete(path: str) -> None:
    """Delete a folder, however deeply nested and whatever its permissions, without recursion. Follows no links.

    Folders below the top are moved to the top one by one, so that paths stay short. Raises OSError.
    """
    top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        numbers = itertools.count()
        while names := os.listdir(top):
            for name in names:
                if _is_folder(name, top):
                    _dissolve(name, top, numbers)
                else:
                    os.unlink(name, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(path)


def _is_folder(name: str, parent: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)


def _dissolve(name: str, top: int, numbers: Iterator[int]) -> None:
    """Delete the files of a folder of the top, move its folders to the top, and delete it."""
    os.chmod(name, 0o700, dir_fd=top)
    folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
    try:
        for inner in os.listdir(folder):
            if _is_folder(inner, folder):
                os.chmod(inner, 0o700, dir_fd=folder)  # moving a folder changes its entry `..`
                os.rename(inner, _new_name(numbers, top), src_dir_fd=folder, dst_dir_fd=top)
            else:
                os.unlink(inner, dir_fd=folder)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=top)


def _new_name(numbers: Iterator[int], top: int) -> str:
    """A name that the top does not have."""
    while True:
        name = f"moved-{next(numbers)}"
        try:
            os.stat(name, dir_fd=top, follow_symlinks=False)
        except FileNotFoundError:
            return name
