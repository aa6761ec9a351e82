"""The folder of backups and of copied binary logs.

It is a path, or a URL of fsspec; see :mod:`sqla_shard.fleet.files`.

::

    FOLDER/backups/20261123T191500Z-server1-3f2a/manifest.json
                                                 db00000.sql.gz ...
    FOLDER/binlogs/10.0.0.7-3306/manifest.json
                                 binlog.000041 ...

The manifest is written last, and removed first: a backup whose process was
killed has none, and is never listed.  It ends with its own SHA-256, so that a
changed one is named.  Nothing in a manifest is trusted that names another
file.  Backups are not encrypted; who reads the folder reads the data.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import quote

from sqla_shard.exc import BackupDamagedError, BackupNotFoundError, Problem
from sqla_shard.fleet.dumps import TableContent
from sqla_shard.fleet.files import File, Files, files_at
from sqla_shard.util.json_values import JsonObject, parsed_json

MANIFEST = "manifest.json"
"""Name of the file that describes the other files of a folder."""

_FORMAT = 1
_BACKUPS = "backups"
_BINLOGS = "binlogs"
_DAY = 86_400.0
#: The end of the year 9999 in seconds since the epoch, as for ``datetime``.
_LATEST = 253_402_300_800.0
#: Beginning of the names of backups: other folders are left alone.
_TIME = re.compile(r"\d{8}T\d{6}Z-")
_WORD = re.compile(r"\w+")


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
    :ivar tables: its tables.
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
class Backup(JsonObject):
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

    def __str__(self) -> str:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self.created))
        return (
            f"{self.name}: {len(self.databases)} databases of {self.server}, "
            f"{self.size / 2**20:.1f} MiB, {when} UTC, at {self.position}"
        )


class Listing(NamedTuple):
    """The content of a folder of backups.

    :ivar backups: the finished backups, the oldest first.
    :ivar problems: those that cannot be read.
    :ivar unfinished: names of those without a manifest.
    """

    backups: list[Backup]
    problems: list[Problem]
    unfinished: list[str]


class Storage:
    """A folder of backups.

    :param folder: its path, or a URL of fsspec; it is created with the first
        backup.
    :raises MissingExtraError: if it is a URL, and fsspec is not installed.
    :raises FleetSetupError: if the URL cannot be used.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.files: Files = files_at(folder)

    def __str__(self) -> str:
        return str(self.files)

    # -- writing ----------------------------------------------------------

    def finish(self, backup: Backup) -> None:
        """Write the manifest of a backup of which all files are written.

        :raises OSError: if a file is not as long as it was written.
        """
        for one in backup.databases:
            file = self.file(backup.name, one.file)
            self.files.sync(file.path)
            size = self.files.size(file.path)
            if size != one.size:
                raise OSError(f"{file} has {size} bytes, not {one.size}")
        write_manifest(self.file(backup.name, MANIFEST), backup.as_dict())

    def remove(self, name: str) -> None:
        """Remove a backup, its manifest first.

        :raises OSError: if it cannot be removed; it is not listed any more.
        """
        if MANIFEST in self.files.names(f"{_BACKUPS}/{name}"):
            self.files.remove(self.file(name, MANIFEST).path)
        self.files.remove(f"{_BACKUPS}/{name}")

    # -- reading ----------------------------------------------------------

    def listing(self) -> Listing:
        """Return the content of the folder; a damaged backup is a problem.

        :raises OSError: if the folder cannot be read.
        """
        found = Listing([], [], [])
        for name in self.files.names(_BACKUPS):
            if MANIFEST not in self.files.names(f"{_BACKUPS}/{name}"):
                if _TIME.match(name):
                    found.unfinished.append(name)
                continue
            try:
                found.backups.append(self._read(name))
            except BackupDamagedError as error:
                found.problems.extend(error.problems)
        found.backups.sort(key=lambda one: (one.created, one.name))
        return found

    def get(self, name: str) -> Backup:
        """Return a finished backup.

        :raises BackupNotFoundError: if there is none of that name.
        :raises BackupDamagedError: if its manifest cannot be read.
        :raises OSError: if the folder cannot be read.
        """
        names = self.files.names(_BACKUPS)
        # The name is compared, not opened: it could be a path.
        if name not in names or MANIFEST not in self.files.names(f"{_BACKUPS}/{name}"):
            known = {one.name for one in self.listing().backups}
            raise BackupNotFoundError(
                backup=name, folder=str(self), known=tuple(sorted(known))
            )
        return self._read(name)

    def file(self, name: str, file: str) -> File:
        """Return a file of a backup.

        :param name: name of the backup.
        :param file: name of the file.
        """
        return File(self.files, f"{_BACKUPS}/{name}/{file}")

    def problems(
        self, backup: Backup, files: Sequence[DatabaseFile] | None = None
    ) -> list[Problem]:
        """Compare files with the manifest.

        :param files: by default all files of the backup.
        """
        found = []
        for one in backup.databases if files is None else files:
            file = self.file(backup.name, one.file)
            damage = file.damage(one.size, one.sha256)
            if damage:
                found.append(Problem(str(file), f"{damage}; use another backup"))
        return found

    def _read(self, name: str) -> Backup:
        file = self.file(name, MANIFEST)
        try:
            return _backup(read_manifest(file), name)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BackupDamagedError(
                (
                    Problem(
                        str(file),
                        f"{type(error).__name__}: {error}; remove that "
                        "folder, or restore the file",
                    ),
                ),
                backup=name,
            ) from error

    # -- retention --------------------------------------------------------

    def prune(
        self, *, keep_last: int, keep_days: float, now: float, dry_run: bool = False
    ) -> list[str]:
        """Remove backups that are neither among the last nor recent.

        They are counted for each set of virtual shards.  If no other backup
        of the set is intact, the latest intact one stays.  Unfinished ones,
        and those that an interrupted call has left, are removed when their
        files are a day old.  Backups that cannot be read stay; see
        :meth:`listing`.

        :param keep_last: number of backups that stay, at least 1.
        :param keep_days: days for which each one stays.
        :param now: seconds since the epoch.
        :param dry_run: remove nothing.
        :returns: names of the backups that were removed, or would be.
        :raises OSError: if the folder cannot be read, or a file not removed.
        """
        listing = self.listing()
        groups: dict[frozenset[tuple[str, int]], list[Backup]] = {}
        for backup in listing.backups:
            groups.setdefault(backup.shards, []).append(backup)
        removed = []
        for group in groups.values():
            old = [
                one
                for one in group[: -max(keep_last, 1)]
                if now - one.created > keep_days * _DAY
            ]
            kept = [one for one in reversed(group) if one not in old]
            if old and all(self.problems(one) for one in kept):
                for one in reversed(old):
                    if not self.problems(one):
                        old.remove(one)
                        break
            removed += [one.name for one in old]
        for name in listing.unfinished:
            if now - self._last_change(name, now) > _DAY:
                removed.append(name)
        if not dry_run:
            for name in removed:
                self.remove(name)
        return removed

    def _last_change(self, name: str, now: float) -> float:
        """Return when something was written; now if that is unknown."""
        folder = f"{_BACKUPS}/{name}"
        names = self.files.names(folder)
        paths = [f"{folder}/{one}" for one in names] or [folder]
        times = [self.files.changed(path) for path in paths]
        return max(now if time is None else time for time in times)

    # -- binary logs ------------------------------------------------------

    def log_folder(self, address: str) -> str:
        """Return the path of the binary logs of a server in :attr:`files`.

        :param address: ``host:port``.
        """
        return f"{_BINLOGS}/{file_name(address.replace(':', '-'))}"

    def log_folders(self) -> list[str]:
        """Return the paths of all servers with binary logs.

        :raises OSError: if the folder cannot be read.
        """
        folders = [f"{_BINLOGS}/{one}" for one in self.files.names(_BINLOGS)]
        return [one for one in folders if MANIFEST in self.files.names(one)]


def new_name(server: str) -> str:
    """Return a name for a new backup of a server."""
    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    return f"{now}-{file_name(server)}-{secrets.token_hex(2)}"


def file_name(text: str) -> str:
    """Return a name for a file, with reserved characters as ``%2F``."""
    return quote(text, safe="")


def write_manifest(file: File, values: Mapping[str, Any]) -> None:
    """Write a manifest.

    :param values: its JSON values, but for the format.
    :raises OSError: if it cannot be written.
    """
    file.files.replace(file.path, _sealed({"format": _FORMAT, **values}))


def read_manifest(file: File) -> dict[str, Any]:
    """Return the values of a manifest, which is as it was written.

    :raises OSError: if it cannot be read.
    :raises ValueError: if it was changed, or is of another version.
    """
    with file.open() as opened:
        data = opened.read()
    values = parsed_json(data)
    if not isinstance(values, dict):
        raise ValueError("it is not a JSON object")
    values.pop("sha256", None)
    if _sealed(values) != data:
        raise ValueError("it was changed after it was written")
    if values.pop("format") != _FORMAT:
        raise ValueError(f"it is not of format {_FORMAT}")
    return values


def _sealed(document: Mapping[str, Any]) -> bytes:
    """Return a document as it is written, with the SHA-256 of the rest."""
    seal = hashlib.sha256(json.dumps(document).encode()).hexdigest()
    return json.dumps({**document, "sha256": seal}, indent=1).encode()


def _backup(values: Mapping[str, Any], folder: str) -> Backup:
    backup = Backup.from_dict(values)
    if backup.name != folder:
        raise ValueError(f"it is the manifest of {backup.name!r}")
    if not 0 <= backup.created < _LATEST:
        raise ValueError(f"created is {backup.created!r}")
    databases = backup.databases
    if len({one.file for one in databases}) < len(databases):
        raise ValueError("it names a file more than once")
    for one in databases:
        # A manifest that was tampered with must not name a file elsewhere, nor
        # be a part of the statement that creates the database.
        if one.file != dump_name(one.database):
            raise ValueError(f"{one.file!r} is not the dump of a database")
        for name in (one.charset, one.collation):
            if not _WORD.fullmatch(name):
                raise ValueError(f"{name!r} is not a character set or collation")
    return backup


def dump_name(database: str) -> str:
    """Return the name of the file of a database."""
    return f"{file_name(database)}.sql.gz"
