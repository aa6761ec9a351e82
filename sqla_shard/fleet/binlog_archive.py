"""Copies of the binary logs of a server, for restores to a point in time.

``mariadb-binlog --read-from-remote-server --raw`` copies each closed log as
it is; the logs of a server are in one folder with a manifest.  Before, the
server begins a new log, so that all that was committed until then is in a
closed one.  It connects with the replication account, as a standby would.
Limits:

* The logs of the servers of a pair are different files with the same
  transactions.  A restore reads the logs of one server, so those of a standby
  should be copied, too: after a failover they are the ones that go on.
* A log that the server has purged before it was copied is a gap; a restore
  finds it and is refused.  Copy more often than the server purges
  (``binlog_expire_logs_seconds``).
* Encrypted or compressed logs are copied, but not restored from.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import make_url

from sqla_shard.dialects.client_options import address_arguments
from sqla_shard.dialects.client_options import client_options
from sqla_shard.dialects.client_options import pipe_with
from sqla_shard.exc import BackupDamagedError
from sqla_shard.exc import BackupFailedError
from sqla_shard.exc import FleetSetupError
from sqla_shard.exc import Problem
from sqla_shard.fleet.backup import Source
from sqla_shard.fleet.fleet import Fleet
from sqla_shard.fleet.fleet import pair_named
from sqla_shard.fleet.storage import sha256_of
from sqla_shard.fleet.storage import Storage
from sqla_shard.fleet.storage import write_json
from sqla_shard.util.json_values import parsed_json

__all__ = ["BinlogArchive", "LogFile", "archives_of", "copy_binlogs"]

_FORMAT = 1
_MANIFEST = "manifest.json"
_PROGRAMS = ("mariadb-binlog", "mysqlbinlog")


@dataclass(frozen=True, kw_only=True)
class LogFile:
    """A closed binary log that was copied.

    :ivar name: its name on the server.
    :ivar size: its bytes.
    :ivar sha256: of the file.
    :ivar closed: seconds since the epoch on the server when it was seen to be
        complete: what was committed before is in it, or in one before it.
    """

    name: str
    size: int
    sha256: str
    closed: float


@dataclass(frozen=True, kw_only=True)
class BinlogArchive:
    """The copied logs of one server.

    :ivar folder: where they are.
    :ivar address: ``host:port`` of the server.
    :ivar server_id: its ``server_id``.
    :ivar logs: the logs, in order.
    """

    folder: Path
    address: str
    server_id: int
    logs: tuple[LogFile, ...] = ()

    @classmethod
    def read(cls, manifest: Path) -> BinlogArchive:
        """Return the logs of a manifest.

        :raises BackupDamagedError: if it cannot be read.
        """
        try:
            document = parsed_json(manifest.read_bytes())
            if document["format"] != _FORMAT:
                raise ValueError(
                    f"format {document['format']!r} is not of this version"
                )
            return cls(
                folder=manifest.parent,
                address=document["address"],
                server_id=document["server_id"],
                logs=tuple(LogFile(**one) for one in document["logs"]),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BackupDamagedError(
                (Problem(str(manifest), f"{type(error).__name__}: {error}"),),
                backup=str(manifest.parent),
            ) from error

    def write(self) -> None:
        """Write the manifest."""
        write_json(
            self.folder / _MANIFEST, {"format": _FORMAT, **self.as_dict()}
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the manifest in JSON values."""
        return {
            "address": self.address,
            "server_id": self.server_id,
            "logs": [asdict(one) for one in self.logs],
        }

    def problems(self, logs: Sequence[LogFile] | None = None) -> list[Problem]:
        """Compare files with the manifest.

        :param logs: by default all logs.
        """
        found = []
        for one in self.logs if logs is None else logs:
            path = self.folder / one.name
            try:
                is_good = sha256_of(path) == one.sha256
                damage = (
                    "" if is_good else "its SHA-256 is not as it was copied"
                )
            except OSError as error:
                damage = f"it cannot be read ({error.strerror})"
            if damage:
                found.append(
                    Problem(
                        str(path),
                        f"{damage}; restore from the logs of another server",
                    )
                )
        return found

    def __str__(self) -> str:
        last = self.logs[-1].name if self.logs else "none"
        return f"{self.address}: {len(self.logs)} logs, the last: {last}"


def copy_binlogs(
    fleet: Fleet, storage: Storage, server: str, *, source: Source = "primary"
) -> tuple[BinlogArchive, list[str]]:
    """Copy the binary logs of a server that were not copied before.

    :param fleet: the fleet.
    :param storage: where they are written.
    :param server: name of the server in the topology, or ``keyspace/name``.
    :param source: which server of the pair.
    :returns: all logs of the server, and the names of the new ones.
    :raises FleetSetupError: if ``mariadb-binlog`` is not installed, there is
        no replication account, or the pair has no standby.
    :raises BackupFailedError: if a log cannot be copied, or the logs of the
        server are not those that were copied before.
    :raises UnknownServerError: if there is no such server.
    """
    program = _program()
    pair = pair_named(fleet.topology(), server)
    url = pair.primary if source == "primary" else pair.standby
    if url is None:
        raise FleetSetupError(
            f"{server} has no standby; copy from its primary"
        )
    name = f"{server} {source}"
    with fleet.admin(url, name=name) as admin:
        archive = _archive(
            storage, admin.address, int(admin.value("SELECT @@server_id"))
        )
        now = float(admin.value("SELECT UNIX_TIMESTAMP(NOW(6))"))
        admin.run("FLUSH NO_WRITE_TO_BINLOG BINARY LOGS")
        rows = admin.rows("SHOW BINARY LOGS")
    closed = {str(row[0]): int(row[1]) for row in rows[:-1]}
    _check(archive, closed, name)
    known = {one.name for one in archive.logs}
    new = [log for log in closed if log not in known]
    # What was copied before was closed before, too.
    for log in new:
        copied = _copy(fleet, url, program, archive, log, closed[log], name)
        archive = replace(
            archive,
            logs=(
                *archive.logs,
                LogFile(
                    name=log,
                    size=closed[log],
                    sha256=sha256_of(copied),
                    closed=now,
                ),
            ),
        )
        archive.write()
    return archive, new


def _archive(storage: Storage, address: str, server_id: int) -> BinlogArchive:
    folder = storage.log_folder(address)
    manifest = folder / _MANIFEST
    if manifest.is_file():
        return BinlogArchive.read(manifest)
    folder.mkdir(parents=True, exist_ok=True)
    return BinlogArchive(folder=folder, address=address, server_id=server_id)


def _check(archive: BinlogArchive, closed: dict[str, int], name: str) -> None:
    """Refuse the logs of a server that began anew."""
    if not archive.logs:
        return
    last = archive.logs[-1]
    others = [
        one.name
        for one in archive.logs
        if closed.get(one.name, one.size) != one.size
    ]
    if others or (closed and last.name > max(closed)):
        raise BackupFailedError(
            server=name,
            reason=f"{archive.folder} has logs of another history of this "
            f"address ({(others or [last.name])[0]}); the server was rebuilt "
            "or its logs were reset. Rename that folder; restores still read "
            "it",
        )


def _copy(
    fleet: Fleet,
    url: str,
    program: str,
    archive: BinlogArchive,
    log: str,
    size: int,
    name: str,
) -> Path:
    account = fleet.accounts.for_replication()
    parsed = make_url(url).set(
        username=account.user, password=account.password
    )
    # Its name in the end is that of the log, with the prefix in front.
    prefix = archive.folder / "partial-"
    partial = archive.folder / f"partial-{log}"
    try:
        options = client_options(parsed, {}, program, has_texts=False)
    except ValueError as error:
        raise FleetSetupError(str(error)) from error
    pipe = pipe_with(options)
    try:
        done = subprocess.run(
            [
                program,
                f"--defaults-file=/dev/fd/{pipe}",
                *address_arguments(parsed),
                "--read-from-remote-server",
                "--raw",
                f"--result-file={prefix}",
                log,
            ],
            pass_fds=(pipe,),
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    finally:
        os.close(pipe)
    found = partial.stat().st_size if partial.exists() else 0
    if done.returncode or found != size:
        partial.unlink(missing_ok=True)
        reason = done.stderr.strip() or f"it has {found} bytes, not {size}"
        raise BackupFailedError(server=name, reason=f"{log}: {reason}")
    return partial.rename(archive.folder / log)


def _program() -> str:
    for name in _PROGRAMS:
        path = shutil.which(name)
        if path is not None:
            return path
    raise FleetSetupError(
        f"{' or '.join(_PROGRAMS)} is not installed, or not in PATH; on "
        "Debian and Ubuntu: apt-get install mariadb-client"
    )


def archives_of(storage: Storage) -> Sequence[BinlogArchive]:
    """Return the copied logs of all servers.

    :raises BackupDamagedError: if a manifest cannot be read.
    """
    return [BinlogArchive.read(path) for path in storage.log_folders()]
