"""Files of backups: in a folder of this machine, or where fsspec opens them.

::

    files = files_at("/backups")
    files = files_at("s3://bucket/backups")  # needs the extra "fsspec"

Paths are relative to that place, with ``/`` between their parts.  A file that
is replaced has its old content or its new one at any time.  Limits:

* Credentials are those of the configuration of fsspec and of its
  implementations, never part of the URL: backups and plans name the URL.
* An object store has no folders; an empty one is not listed there.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from sqla_shard.exc import FleetSetupError, MissingExtraError
from sqla_shard.util.files import flush_to_disk

_PARTIAL = ".partial"


class Files(ABC):
    """A place with files; its text is the path or the URL."""

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """Return the sorted names in a folder; none if it is not one.

        :raises OSError: if it cannot be read.
        """

    @abstractmethod
    def open(self, path: str) -> BinaryIO:
        """Open a file to read it.

        :raises OSError: if it cannot be read.
        """

    @abstractmethod
    def create(self, path: str) -> BinaryIO:
        """Open a new file to write it, in a new folder if necessary.

        :raises OSError: if it cannot be written.
        """

    @abstractmethod
    def size(self, path: str) -> int:
        """Return the bytes of a file.

        :raises OSError: if it does not exist, or cannot be read.
        """

    @abstractmethod
    def changed(self, path: str) -> float | None:
        """Return when a file was written, in seconds since the epoch.

        :returns: None if that is unknown here.
        :raises OSError: if it does not exist, or cannot be read.
        """

    @abstractmethod
    def replace(self, path: str, data: bytes) -> None:
        """Write a file at once; it is on disk afterwards.

        :raises OSError: if it cannot be written.
        """

    @abstractmethod
    def sync(self, path: str) -> None:
        """Wait until a file that was created is on disk."""

    @abstractmethod
    def remove(self, path: str) -> None:
        """Remove a file, or a folder with all that is in it.

        :raises OSError: if it cannot be removed.
        """

    @abstractmethod
    def scratch(self, folder: str) -> Any:
        """Return a context manager of an empty folder of this machine.

        What is in it can be moved into ``folder`` by :meth:`take`.  It is
        removed at the end; after a crash, at the latest by the next call.
        """

    @abstractmethod
    def take(self, local: Path, path: str) -> None:
        """Move a file out of :meth:`scratch`; it is on disk afterwards.

        :raises OSError: if it cannot be written.
        """


@dataclass(frozen=True)
class File:
    """A file, which may not exist.

    :ivar files: where it is.
    :ivar path: its path there.
    """

    files: Files
    path: str

    def __str__(self) -> str:
        return f"{self.files}/{self.path}"

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rpartition("/")[2]

    @property
    def folder(self) -> str:
        """The path or URL of its folder."""
        return str(self).rpartition("/")[0]

    def open(self) -> BinaryIO:
        """Open it to read it.

        :raises OSError: if it cannot be read.
        """
        return self.files.open(self.path)

    def create(self) -> BinaryIO:
        """Open it to write it; it must not exist.

        :raises OSError: if it cannot be written.
        """
        return self.files.create(self.path)

    def damage(self, size: int, sha256: str) -> str:
        """Compare it with the written file; empty if it is the same."""
        try:
            found = self.files.size(self.path)
            if found != size:
                return f"it has {found} bytes, not {size}"
            if self.sha256() != sha256:
                return "its SHA-256 is not as it was written"
        except OSError as error:
            return f"it cannot be read ({error.strerror or error})"
        return ""

    def sha256(self) -> str:
        """Return the SHA-256 of its content.

        :raises OSError: if it cannot be read.
        """
        found = hashlib.sha256()
        with self.open() as file:
            while part := file.read(2**20):
                found.update(part)
        return found.hexdigest()


class HashingWriter:
    """Counts and hashes the bytes written into a file.

    :ivar size: bytes that were written.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.size: int = 0

    @property
    def sha256(self) -> str:
        """SHA-256 of the written bytes."""
        return self._hash.hexdigest()

    def write(self, data: bytes, /) -> int:
        """Write all of some bytes, and return their number."""
        view = memoryview(data)
        self._file.write(view)
        self._hash.update(view)
        self.size += len(view)
        return len(view)

    def flush(self) -> None:
        """Do nothing: the file is flushed when it is closed."""


def files_at(location: str | os.PathLike[str]) -> Files:
    """Return the files at a path, or at a URL of fsspec.

    :param location: such as ``/backups`` or ``s3://bucket/backups``.
    :raises MissingExtraError: if it is a URL, and fsspec is not installed.
    :raises FleetSetupError: if the URL is not one of fsspec, needs another
        package, or has a password.
    """
    text = os.fspath(location)
    return _FsspecFiles(text) if "://" in text else _LocalFiles(Path(text))


def _private(path: str, flags: int) -> int:
    """Open a file that no other user can read: it has the data of all."""
    return os.open(path, flags, mode=0o600)


class _LocalFiles(Files):
    """Files in a folder of this machine, new ones for its owner alone."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()

    def __str__(self) -> str:
        return str(self._root)

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(self._root / folder))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def open(self, path: str) -> BinaryIO:
        return (self._root / path).open("rb")

    def create(self, path: str) -> BinaryIO:
        return open(self._new(path), "xb", opener=_private)

    def size(self, path: str) -> int:
        return (self._root / path).stat().st_size

    def changed(self, path: str) -> float | None:
        return (self._root / path).stat().st_mtime

    def replace(self, path: str, data: bytes) -> None:
        target = self._new(path)
        partial = target.with_name(f"{target.name}{_PARTIAL}")
        with open(partial, "wb", opener=_private) as file:
            file.write(data)
        self._rename(partial, target)

    def sync(self, path: str) -> None:
        flush_to_disk(self._root / path)

    def remove(self, path: str) -> None:
        target = self._root / path
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        else:
            target.unlink()

    @contextmanager
    def scratch(self, folder: str) -> Iterator[Path]:
        # On the file system of the folder, where a rename is atomic.
        path = self._new(f"{folder}/{_PARTIAL}")
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(mode=0o700)
        try:
            yield path
        finally:
            shutil.rmtree(path)

    def take(self, local: Path, path: str) -> None:
        self._rename(local, self._root / path)

    def _new(self, path: str) -> Path:
        """Return where a new file is written, and make its folder."""
        target = self._root / path
        missing = [one for one in target.parents if not one.exists()]
        for folder in reversed(missing):
            # The mode of mkdir(parents=True) is not that of the parents.
            folder.mkdir(mode=0o700, exist_ok=True)
        return target

    def _rename(self, partial: Path, target: Path) -> None:
        # A program has written it with the permissions that it chose.
        partial.chmod(0o600)
        flush_to_disk(partial)
        partial.rename(target)
        flush_to_disk(target.parent)


class _FsspecFiles(Files):
    """Files at a URL that fsspec opens."""

    def __init__(self, url: str) -> None:
        try:
            import fsspec
        except ImportError as error:
            raise MissingExtraError(
                package="fsspec", extra="fsspec", reason=str(error)
            ) from None
        if any(urlsplit(part).password for part in url.split("::")):
            raise FleetSetupError(
                "the URL of the backups has a password, which plans and "
                "messages would show; write it into the configuration of "
                "fsspec, and the URL without it"
            )
        self._url = url.rstrip("/")
        try:
            self._fs, self._root = fsspec.core.url_to_fs(self._url)
        except (ImportError, ValueError) as error:
            # An ImportError names the package that the scheme needs.
            raise FleetSetupError(
                f"{self._url}: {error}; or use a path, or another URL of fsspec"
            ) from error

    def __str__(self) -> str:
        return self._url

    def names(self, folder: str) -> list[str]:
        # Another process may have written since the last listing.
        self._fs.invalidate_cache()
        place = self._path(folder)
        try:
            found = self._fs.ls(place, detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        # A file, or an object that stands for the folder, lists itself.
        own = place.strip("/")
        return sorted(
            path.rstrip("/").rpartition("/")[2]
            for path in found
            if path.strip("/") != own
        )

    def open(self, path: str) -> BinaryIO:
        return self._fs.open(self._path(path), "rb")  # type: ignore[no-any-return]

    def create(self, path: str) -> BinaryIO:
        return self._fs.open(self._in_folder(path), "wb")  # type: ignore[no-any-return]

    def size(self, path: str) -> int:
        self._fs.invalidate_cache()
        return int(self._fs.size(self._path(path)))

    def changed(self, path: str) -> float | None:
        try:
            return float(self._fs.modified(self._path(path)).timestamp())
        except NotImplementedError:
            return None

    def replace(self, path: str, data: bytes) -> None:
        with self._whole(path) as partial:
            self._fs.pipe_file(partial, data)

    def sync(self, path: str) -> None:
        """Do nothing: the file was complete when it was closed."""

    def remove(self, path: str) -> None:
        self._fs.rm(self._path(path), recursive=True)

    @contextmanager
    def scratch(self, folder: str) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="sqla-shard-") as path:
            yield Path(path)

    def take(self, local: Path, path: str) -> None:
        with self._whole(path) as partial:
            self._fs.put_file(str(local), partial)
        local.unlink()

    @contextmanager
    def _whole(self, path: str) -> Iterator[str]:
        """Yield the path to write to; the file then has its name."""
        # An object is written at once, a file of file:// or sftp:// is not.
        target = self._in_folder(path)
        partial = f"{target}{_PARTIAL}"
        yield partial
        self._fs.mv(partial, target)

    def _in_folder(self, path: str) -> str:
        """Return the path of a new file, and make its folder."""
        target = self._path(path)
        self._fs.makedirs(self._fs._parent(target), exist_ok=True)
        return target

    def _path(self, path: str) -> str:
        return f"{self._root.rstrip('/')}/{path}"
