"""Copies of the binary logs of a server, for restores to a point in time.

``mariadb-binlog``, or ``mysqlbinlog`` of MySQL, copies each closed log as it
is; the logs of a server are in one folder with a manifest.  Before, the server
begins a new log, so that all that was committed until then is in a closed one.
The program connects with the replication account, as a standby would.
Limits:

* The logs of the servers of a pair are different files with the same
  transactions.  A restore reads the logs of one server, so those of a standby
  should be copied, too: after a failover they are the ones that go on.
* A log that the server has purged before it was copied is a gap; a restore
  finds it and is refused.  Copy more often than the server purges
  (``binlog_expire_logs_seconds``).
* One process at a time copies the logs of a server: it has a lock there.
* Encrypted or compressed logs are copied, but not restored from.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sqlalchemy import make_url

from sqla_shard.exc import (
    BackupDamagedError,
    BackupFailedError,
    FleetSetupError,
    Problem,
)
from sqla_shard.fleet.admin import Admin
from sqla_shard.fleet.backup import BinlogPlan, Source
from sqla_shard.fleet.binlog_events import first_gtids, first_state, GtidSet
from sqla_shard.fleet.client_options import (
    address_arguments,
    client_of,
    client_options,
    pipe_with,
)
from sqla_shard.fleet.files import File, Files, files_at
from sqla_shard.fleet.fleet import Fleet, pair_named
from sqla_shard.fleet.storage import (
    file_name,
    MANIFEST,
    read_manifest,
    Storage,
    write_manifest,
)
from sqla_shard.util.json_values import record_of

#: User-level lock on the server of which the logs are copied.
_LOCK = "sqla_shard.binlogs"
#: Seconds to wait for it: a server notices the end of a session, and with it
#: the release of the lock of the copy before, a moment later.  Less than the
#: timeout of the session, which would be lost instead of naming the holder.
_LOCK_SECONDS = 5
#: Seconds in which a program must write something.
_STALLED_SECONDS = 60.0
#: Seconds for which the session that has the lock may wait for it.
_SESSION_SECONDS = 86_400


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

    :ivar files: where they are.
    :ivar folder: their folder there.
    :ivar address: ``host:port`` of the server.
    :ivar server_id: its ``server_id``.
    :ivar logs: the logs, in order.
    """

    files: Files
    folder: str
    address: str
    server_id: int
    logs: tuple[LogFile, ...] = ()

    @classmethod
    def read(cls, files: Files, folder: str) -> BinlogArchive:
        """Return the logs of a manifest.

        :raises BackupDamagedError: if it cannot be read.
        """
        manifest = File(files, f"{folder}/{MANIFEST}")
        try:
            document, here = read_manifest(manifest), {"files": files, "folder": folder}
            logs = tuple(record_of(LogFile, one) for one in document["logs"])
            for one in logs:
                # It must not name a file elsewhere.
                if file_name(one.name) != one.name or one.name.startswith("."):
                    raise ValueError(f"{one.name!r} is not a binary log")
            return record_of(cls, {**document, **here, "logs": logs})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BackupDamagedError(
                (Problem(str(manifest), f"{type(error).__name__}: {error}"),),
                backup=manifest.folder,
            ) from error

    @property
    def place(self) -> str:
        """The path or URL of the logs."""
        return f"{self.files}/{self.folder}"

    def file(self, log: LogFile) -> File:
        """Return the file of a log."""
        return File(self.files, f"{self.folder}/{log.name}")

    def write(self) -> None:
        """Write the manifest.

        :raises OSError: if it cannot be written.
        """
        manifest = File(self.files, f"{self.folder}/{MANIFEST}")
        write_manifest(manifest, self.as_dict())

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
            file = self.file(one)
            damage = file.damage(one.size, one.sha256)
            if damage:
                found.append(
                    Problem(
                        str(file), f"{damage}; restore from the logs of another server"
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

    :param storage: where they are written.
    :param server: name of the server in the topology, or ``keyspace/name``.
    :param source: which server of the pair.
    :returns: all logs of the server, and the names of the new ones.
    :raises FleetSetupError: if the program of this kind of server is not
        installed, there is no replication account, or the pair has no standby.
    :raises BackupFailedError: if another process copies them, if a log cannot
        be copied, or if the logs of the server are not those that were copied
        before; what was copied until then stays.
    :raises BackupDamagedError: if the manifest cannot be read.
    :raises UnknownServerError: if there is no such server.
    """
    url = _url(fleet, server, source)
    name = f"{server} {source}"
    with fleet.admin(url, name=name) as admin, _locked(admin):
        copying = _Copying(fleet, storage, admin, url)
        try:
            return copying.run()
        except OSError as error:
            raise BackupFailedError(
                server=name,
                reason=f"{copying.archive.place} cannot be written: {error}",
            ) from error


def plan_binlogs(
    fleet: Fleet, storage: Storage, server: str, *, source: Source = "primary"
) -> BinlogPlan:
    """Return the plan of :func:`copy_binlogs`; change nothing.

    :param storage: see :func:`copy_binlogs`.
    :param server: see :func:`copy_binlogs`.
    :param source: see :func:`copy_binlogs`.
    :raises BackupFailedError: if the logs of the server are not those that
        were copied before.
    """
    url = _url(fleet, server, source)
    with fleet.admin(url, name=f"{server} {source}") as admin:
        return _Copying(fleet, storage, admin, url).plan()


def _url(fleet: Fleet, server: str, source: Source) -> str:
    """Return the URL of the server that is read."""
    pair = pair_named(fleet.topology(), server)
    url = pair.primary if source == "primary" else pair.standby
    if url is None:
        raise FleetSetupError(f"{server} has no standby; copy from its primary")
    return url


@contextmanager
def _locked(admin: Admin) -> Iterator[None]:
    """Hold the lock of the copies on a server; it ends with the session."""
    if admin.value("SELECT GET_LOCK(%s, %s)", _LOCK, _LOCK_SECONDS) != 1:
        holder = admin.value("SELECT IS_USED_LOCK(%s)", _LOCK)
        raise BackupFailedError(
            server=str(admin),
            reason="another process copies its logs, in session "
            f"{holder} of the server; repeat it when that is done",
        )
    admin.run(f"SET SESSION wait_timeout = {_SESSION_SECONDS}")
    yield


class _Copying:
    """One copy of the logs of a server."""

    def __init__(self, fleet: Fleet, storage: Storage, admin: Admin, url: str) -> None:
        self._fleet = fleet
        self._admin = admin
        self._url = url
        self._program = _program(admin)
        number = int(admin.value("SELECT @@server_id"))
        folder = storage.log_folder(admin.address)
        if MANIFEST in storage.files.names(folder):
            self.archive = BinlogArchive.read(storage.files, folder)
        else:
            self.archive = BinlogArchive(
                files=storage.files,
                folder=folder,
                address=admin.address,
                server_id=number,
            )
        if self.archive.server_id != number:
            raise self._other(
                f"of server_id {self.archive.server_id}, and the server has {number}"
            )

    def run(self) -> tuple[BinlogArchive, list[str]]:
        """Copy, and return all logs and the names of the new ones."""
        admin = self._admin
        now = float(admin.value("SELECT UNIX_TIMESTAMP(NOW(6))"))
        admin.run("FLUSH NO_WRITE_TO_BINLOG BINARY LOGS")
        closed = self._logs()
        # The server writes to the last one.
        closed.popitem()
        self._compare(closed)
        new = self._new(closed)
        # Files that were copied before were closed before, too.
        for log in new:
            with self.archive.files.scratch(self.archive.folder) as scratch:
                self._copy(log, closed[log], scratch, now)
        return self.archive, new

    def plan(self) -> BinlogPlan:
        """Return the plan of :meth:`run`."""
        logs = self._logs()
        self._compare(dict(list(logs.items())[:-1]))
        return BinlogPlan(
            address=self.archive.address,
            place=self.archive.place,
            copied=len(self.archive.logs),
            new={name: logs[name] for name in self._new(logs)},
        )

    def _logs(self) -> dict[str, int]:
        """Return the bytes of the logs of the server, the latest last."""
        rows = self._admin.rows("SHOW BINARY LOGS")
        return {str(row[0]): int(row[1]) for row in rows}

    def _new(self, logs: Mapping[str, int]) -> list[str]:
        """Return the logs that were not copied before."""
        known = {one.name for one in self.archive.logs}
        return [log for log in logs if log not in known]

    def _compare(self, closed: Mapping[str, int]) -> None:
        """Refuse the logs of a server that began anew."""
        if not self.archive.logs:
            return
        last = self.archive.logs[-1]
        others = [
            one.name
            for one in self.archive.logs
            if closed.get(one.name, one.size) != one.size
        ]
        if others or (closed and last.name > max(closed)):
            raise self._other(f"of another history ({(others or [last.name])[0]})")

    def _copy(self, log: str, size: int, scratch: Path, now: float) -> None:
        self._download(log, size, scratch)
        copied = LogFile(
            name=log,
            size=size,
            sha256=File(files_at(scratch), log).sha256(),
            closed=now,
        )
        if self.archive.logs:
            last = self.archive.file(self.archive.logs[-1])
            if not self._follows(last, File(files_at(scratch), log)):
                raise self._other(f"of another history than {log}")
        if self._admin.value("SELECT IS_USED_LOCK(%s)", _LOCK) != self._admin.value(
            "SELECT CONNECTION_ID()"
        ):
            raise self._failed("the lock of the copies was lost; repeat it")
        self.archive.files.take(scratch / log, self.archive.file(copied).path)
        self.archive = replace(self.archive, logs=(*self.archive.logs, copied))
        self.archive.write()

    def _follows(self, last: File, new: File) -> bool:
        """Return whether a log may be of the history of an earlier one."""
        if not self._admin.is_mariadb:
            return not _gtids(last) - _gtids(new)
        before, after = _state(last), _state(new)
        return all(after.get(key, -1) >= before[key] for key in before)

    def _download(self, log: str, size: int, scratch: Path) -> None:
        account = self._fleet.accounts.for_replication()
        parsed = make_url(self._url).set(
            username=account.user, password=account.password
        )
        try:
            options = client_options(parsed, {}, self._program, has_texts=False)
        except ValueError as error:
            raise FleetSetupError(str(error)) from error
        pipe = pipe_with(options)
        command = [
            self._program,
            f"--defaults-file=/dev/fd/{pipe}",
            *address_arguments(parsed),
            "--read-from-remote-server",
            # Without it and TLS the password of MySQL could not be sent.
            *([] if self._admin.is_mariadb else ["--get-server-public-key"]),
            "--raw",
            # The name of the log is appended.
            f"--result-file={scratch}/",
            log,
        ]
        path = scratch / log
        try:
            with subprocess.Popen(
                command,
                pass_fds=(pipe,),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
            ) as process:
                try:
                    errors = self._watched(process, log, path)
                except BaseException:
                    process.kill()
                    raise
        finally:
            os.close(pipe)
        found = _size(path)
        if process.returncode or found != size:
            reason = errors.strip() or f"it has {found} bytes, not {size}"
            raise self._failed(f"{log}: {reason}")

    def _watched(self, process: subprocess.Popen[str], log: str, path: Path) -> str:
        """Wait for a program while it writes; return its messages."""
        size = 0
        while True:
            try:
                return process.communicate(timeout=_STALLED_SECONDS)[1]
            except subprocess.TimeoutExpired:
                before, size = size, _size(path)
                if size == before:
                    raise self._failed(
                        f"{log}: {self._program} has written nothing for "
                        f"{_STALLED_SECONDS:g} s"
                    ) from None

    def _failed(self, reason: str) -> BackupFailedError:
        return BackupFailedError(server=str(self._admin), reason=reason)

    def _other(self, what: str) -> BackupFailedError:
        return self._failed(
            f"{self.archive.place} has logs {what}: another server has this "
            "address now, it was rebuilt, or its logs were reset. Rename that "
            "folder; restores still read it"
        )


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _state(file: File) -> Mapping[tuple[int, int], int]:
    try:
        return first_state(file) or {}
    except BackupDamagedError:
        # An encrypted log, or a damaged copy: a restore refuses it.
        return {}


def _gtids(file: File) -> GtidSet:
    try:
        return first_gtids(file) or GtidSet()
    except BackupDamagedError:
        return GtidSet()


def _program(admin: Admin) -> str:
    """Return the program of the kind of the server: logs differ."""
    kind = "MariaDB" if admin.is_mariadb else "MySQL"
    names = ["mysqlbinlog"]
    if admin.is_mariadb:
        names.insert(0, "mariadb-binlog")
    path = client_of(*names, is_mariadb=admin.is_mariadb)
    if path is None:
        package = f"{kind.lower()}-client"
        raise FleetSetupError(
            f"{' or '.join(names)} of {kind} is not installed, or not in "
            f"PATH; {admin} is {kind}, whose logs no other program copies; "
            f"on Debian and Ubuntu: apt-get install {package}"
        )
    return path


def archives_of(storage: Storage) -> tuple[list[BinlogArchive], list[Problem]]:
    """Return the copied logs of all servers, and manifests that are damaged.

    :raises OSError: if the folder cannot be read.
    """
    found: list[BinlogArchive] = []
    problems: list[Problem] = []
    for folder in storage.log_folders():
        try:
            found.append(BinlogArchive.read(storage.files, folder))
        except BackupDamagedError as error:
            problems += error.problems
    return found, problems
