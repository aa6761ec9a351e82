"""The folder of backups and of copied binary logs.

::

    FOLDER/backups/20261123T191500Z-server1-3f2a/manifest.json
                                                 db00000.sql.gz ...
    FOLDER/binlogs/10.0.0.7-3306/manifest.json
                                 binlog.000041 ...

A backup is written under a name that ends with ``.partial`` and renamed when
all is on disk: one whose process was killed is never listed.  Backups are not
encrypted; who reads the folder reads the data.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import asdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqla_shard.exc import BackupDamagedError
from sqla_shard.exc import BackupNotFoundError
from sqla_shard.exc import Problem
from sqla_shard.fleet.dumps import TableContent
from sqla_shard.util.json_values import parsed_json

__all__ = [
    "Backup",
    "DatabaseFile",
    "Storage",
    "file_name",
    "sha256_of",
    "write_json",
]

_FORMAT = 1
_PARTIAL = ".partial"
_REMOVED = ".removed"
_MANIFEST = "manifest.json"
_DAY = 86_400.0


@dataclass(frozen=True, kw_only=True)
class DatabaseFile:
    """The dump of one database.

    :ivar keyspace: its keyspace.
    :ivar shard: id of the virtual shard.
    :ivar database: name of the database.
    :ivar charset: its default character set.
    :ivar collation: its default collation.
    :ivar file: name of the file.
    :ivar size: bytes of the file.
    :ivar sha256: of the file.
    :ivar tables: what it contains.
    """

    keyspace: str
    shard: int
    database: str
    charset: str
    collation: str
    file: str
    size: int
    sha256: str
    tables: tuple[TableContent, ...]


@dataclass(frozen=True, kw_only=True)
class Backup:
    """The manifest of a backup.

    :ivar name: its name, which begins with the time.
    :ivar created: time of the snapshot on the server, in seconds since the
        epoch.
    :ivar product: version of this package.
    :ivar topology: location of the topology.
    :ivar epoch: its epoch.
    :ivar server: name of the server in the topology.
    :ivar source: ``host:port`` that was read.
    :ivar role: ``"primary"`` or ``"standby"``.
    :ivar server_version: version of that server.
    :ivar is_mariadb: whether it is MariaDB.
    :ivar position: its position at the snapshot.
    :ivar databases: the databases.
    """

    name: str
    created: float
    product: str
    topology: str
    epoch: int
    server: str
    source: str
    role: str
    server_version: str
    is_mariadb: bool
    position: str
    databases: tuple[DatabaseFile, ...]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(one.size for one in self.databases)

    @property
    def shards(self) -> frozenset[tuple[str, int]]:
        """Keyspace and id of each virtual shard."""
        return frozenset((one.keyspace, one.shard) for one in self.databases)

    def database(self, keyspace: str, shard: int) -> DatabaseFile | None:
        """Return the file of a virtual shard; None if it has none."""
        for one in self.databases:
            if (one.keyspace, one.shard) == (keyspace, shard):
                return one
        return None

    def as_dict(self) -> dict[str, Any]:
        """Return the manifest in JSON values."""
        return {"format": _FORMAT, **asdict(self)}

    def __str__(self) -> str:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self.created))
        return (
            f"{self.name}: {len(self.databases)} databases of {self.server}, "
            f"{self.size / 2**20:.1f} MiB, {when} UTC, at {self.position}"
        )


class Storage:
    """A folder of backups.

    :param folder: its path; it is created with the first backup.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).absolute()
        self._backups = self.folder / "backups"

    def __str__(self) -> str:
        return str(self.folder)

    # -- writing ----------------------------------------------------------

    def begin(self, name: str) -> Path:
        """Create the folder of a backup that is not finished."""
        self._backups.mkdir(parents=True, exist_ok=True)
        path = self.partial(name)
        path.mkdir()
        return path

    def partial(self, name: str) -> Path:
        """Return the folder of a backup that is not finished."""
        return self._backups / f"{name}{_PARTIAL}"

    def finish(self, partial: Path, backup: Backup) -> None:
        """Write the manifest, and give the folder its name."""
        for path in partial.iterdir():
            _sync(path)
        write_json(partial / _MANIFEST, backup.as_dict())
        _sync(partial)
        partial.rename(self._backups / backup.name)
        _sync(self._backups)

    # -- reading ----------------------------------------------------------

    def backups(self) -> list[Backup]:
        """Return the finished backups, the oldest first.

        :raises BackupDamagedError: if a manifest cannot be read.
        """
        found = [
            self.get(path.name)
            for path in self._folders()
            if not path.name.endswith((_PARTIAL, _REMOVED))
        ]
        return sorted(found, key=lambda one: (one.created, one.name))

    def unfinished(self) -> list[str]:
        """Return the names of backups that are not finished."""
        return sorted(
            path.name
            for path in self._folders()
            if path.name.endswith(_PARTIAL)
        )

    def get(self, name: str) -> Backup:
        """Return a finished backup.

        :raises BackupNotFoundError: if there is none of that name.
        :raises BackupDamagedError: if its manifest cannot be read.
        """
        finished = sorted(
            path.name
            for path in self._folders()
            if not path.name.endswith((_PARTIAL, _REMOVED))
        )
        if name not in finished:
            raise BackupNotFoundError(
                backup=name, folder=str(self), known=tuple(finished)
            )
        path = self._backups / name / _MANIFEST
        try:
            return _parsed(parsed_json(path.read_bytes()))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BackupDamagedError(
                (Problem(str(path), f"{type(error).__name__}: {error}"),),
                backup=name,
            ) from error

    def path(self, backup: Backup, file: DatabaseFile) -> Path:
        """Return the path of the dump of a database."""
        return self._backups / backup.name / file.file

    def problems(
        self, backup: Backup, files: Sequence[DatabaseFile] | None = None
    ) -> list[Problem]:
        """Compare files with the manifest.

        :param files: by default all files of the backup.
        """
        found = []
        for one in backup.databases if files is None else files:
            path = self.path(backup, one)
            try:
                size = path.stat().st_size
                damage = (
                    f"it has {size} bytes, not {one.size}"
                    if size != one.size
                    else ""
                    if sha256_of(path) == one.sha256
                    else "its SHA-256 is not that of the manifest"
                )
            except OSError as error:
                damage = f"it cannot be read ({error.strerror})"
            if damage:
                found.append(
                    Problem(str(path), f"{damage}; use another backup")
                )
        return found

    # -- retention --------------------------------------------------------

    def prune(
        self,
        *,
        keep_last: int,
        keep_days: float,
        now: float,
        dry_run: bool = False,
    ) -> list[str]:
        """Remove backups that are neither among the last nor recent.

        They are counted for each set of virtual shards.  If no other backup
        of the set is intact, the latest intact one stays.  Unfinished ones
        are removed when nothing was written into them for a day.

        :param keep_last: number of backups that stay, at least 1.
        :param keep_days: days for which each one stays.
        :param now: seconds since the epoch.
        :param dry_run: remove nothing.
        :returns: names of what was removed, or would be.
        """
        groups: dict[frozenset[tuple[str, int]], list[Backup]] = {}
        for backup in self.backups():
            groups.setdefault(backup.shards, []).append(backup)
        removed = []
        for group in groups.values():
            old = [
                one
                for one in group[: -max(keep_last, 1)]
                if now - one.created > keep_days * _DAY
            ]
            if old and not self._any_intact(group, without=old):
                for one in reversed(old):
                    if not self.problems(one):
                        old.remove(one)
                        break
            removed += [one.name for one in old]
        for name in self.unfinished():
            if now - _last_change(self._backups / name) > _DAY:
                removed.append(name)
        if not dry_run:
            for name in removed:
                self._remove(name)
        return removed

    def _any_intact(
        self, group: Sequence[Backup], *, without: Sequence[Backup]
    ) -> bool:
        return any(
            not self.problems(one)
            for one in reversed(group)
            if one not in without
        )

    def _remove(self, name: str) -> None:
        # A half-removed backup must not be listed.
        path = self._backups / name
        gone = path.with_name(f"{name}{_REMOVED}")
        path.rename(gone)
        shutil.rmtree(gone)

    def _folders(self) -> Sequence[Path]:
        if not self._backups.is_dir():
            return []
        return [path for path in self._backups.iterdir() if path.is_dir()]

    # -- binary logs ------------------------------------------------------

    def log_folder(self, address: str) -> Path:
        """Return the folder of the binary logs of a server.

        :param address: ``host:port``.
        """
        return self.folder / "binlogs" / file_name(address.replace(":", "-"))

    def log_folders(self) -> list[Path]:
        """Return the folders of all servers with binary logs."""
        return sorted((self.folder / "binlogs").glob(f"*/{_MANIFEST}"))


def file_name(text: str) -> str:
    """Return a name for a file, with what paths reserve as ``%2F``."""
    return quote(text, safe="")


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(2**20):
            found.update(part)
    return found.hexdigest()


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Replace a JSON document, so that it is on disk."""
    partial = path.with_name(f"{path.name}{_PARTIAL}")
    partial.write_text(json.dumps(document, indent=1), encoding="utf-8")
    _sync(partial)
    partial.rename(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _last_change(folder: Path) -> float:
    return max(path.stat().st_mtime for path in (folder, *folder.iterdir()))


def _parsed(document: Mapping[str, Any]) -> Backup:
    if document["format"] != _FORMAT:
        raise ValueError(
            f"format {document['format']!r} is not of this version"
        )
    values = {key: document[key] for key in document if key != "format"}
    databases = tuple(
        DatabaseFile(
            **{
                **one,
                "tables": tuple(
                    TableContent(**table) for table in one["tables"]
                ),
            }
        )
        for one in values.pop("databases")
    )
    return Backup(**values, databases=databases)
