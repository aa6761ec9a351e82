"""Files that are replaced as a whole.

Readers find the old contents or the new ones, even after a crash of the
process or the machine.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from pathlib import Path


def replace_file(path: Path, data: bytes, mode: int, *, durable: bool = True) -> None:
    """Write a temporary file, flush it to the disk and rename it.

    :param path: path of the file, in an existing directory.
    :param mode: permissions of the file, regardless of the umask.
    :param durable: whether to flush it; otherwise a crash of the machine
        may leave an empty file.
    :raises OSError: if the file cannot be written, or the path is that of a
        device or a pipe; the old one remains.
    """
    if path.exists() and not path.is_file():
        # For the superuser, the rename would replace /dev/null.
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    handle, name = tempfile.mkstemp(
        prefix=f".{path.stem[:40]}-", suffix=".tmp", dir=path.parent
    )
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    if durable:
        # Without it a power failure may undo the rename, or lose the file.
        flush_to_disk(path.parent)


def flush_to_disk(path: Path) -> None:
    """Wait until a file, or the list of files of a directory, is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
