"""Files that are replaced as a whole.

Whoever reads one has the old contents or the new ones, whatever happened to
the process or the machine.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

__all__ = ["replace_file"]


def replace_file(path: Path, data: bytes, mode: int) -> None:
    """Write a file beside its place, flush it to the disk and rename it.

    :param path: its directory is there.
    :param mode: of the file, whatever the umask is.
    :raises OSError: when it cannot be written; the old one stays.
    """
    handle, name = tempfile.mkstemp(
        prefix=f".{path.stem[:40]}-", suffix=".tmp", dir=path.parent
    )
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    _flush_directory(path.parent)


def _flush_directory(path: Path) -> None:
    # Without it the rename may be lost in a power failure, and with it the
    # only good file where the old name is gone as well.
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
