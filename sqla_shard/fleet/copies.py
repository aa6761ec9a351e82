"""Copies the content of a server to another one, while the source serves.

All databases of the source are copied, but not its accounts: those of the
application must exist on the target.  The result is the position of the
content; a standby that is attached there continues with the next write.

======== ==================================================================
way
======== ==================================================================
rows     Reads all tables in several sessions with one consistent snapshot,
         and inserts the rows.  Needs no program; some 10 MiB/s.  Tables of
         InnoDB only; no views, triggers, routines or events.
command  Runs a command of the operator, such as ``mariabackup`` over ssh,
         which replaces the data directory of the target.
clone    The CLONE plugin of MySQL.
======== ==================================================================

A command gets ``SQLA_SHARD_SOURCE_HOST``, ``SQLA_SHARD_SOURCE_PORT``,
``SQLA_SHARD_TARGET_HOST`` and ``SQLA_SHARD_TARGET_PORT`` in its environment,
and writes the position that it has copied as the last line of its output; one
of several lines has commas at their ends.

Changes of tables while a copy runs are not possible: they are noticed, and
the copy fails.

The target has a database ``sqla_shard_copy`` until :func:`finish_copy`.  While
the copy is not complete, it says so: a copy that was interrupted is started
over, and nothing else may use the server.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import get_args, Literal

from sqla_shard.exc import CopyFailedError, FleetServerError, Problem
from sqla_shard.fleet.accounts import Account
from sqla_shard.fleet.admin import Admin, marked
from sqla_shard.fleet.replication import replication_of
from sqla_shard.fleet.row_copy import (
    COPY_DATABASE,
    CopyEvent,
    databases_of,
    differences,
    not_tables,
    RowCopy,
    tables_of,
)
from sqla_shard.util.json_values import JsonObject

Way = Literal["rows", "command", "clone"]
"""A way to copy content."""

WAYS: tuple[str, ...] = get_args(Way)

_POSITION = re.compile(r"[0-9A-Fa-f:,-]*")
# Restarting with a large data directory takes minutes.
_RESTART_SECONDS = 600.0
_TABLE = f"{COPY_DATABASE}.copy"


@dataclass(frozen=True, kw_only=True)
class Copied(JsonObject):
    """A complete copy.

    :ivar position: position of the content, in the words of the server.
    :ivar source: name and address of the server it was taken from.
    :ivar databases: number of databases.
    :ivar tables: number of tables.
    :ivar rows: rows that were sent; 0 if not as rows.
    :ivar bytes: bytes that were sent; 0 if not as rows.
    :ivar seconds: how long it took.
    """

    position: str
    source: str
    databases: int
    tables: int
    rows: int
    bytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class CopyState:
    """The state of a copy, as the mark on its target says.

    :ivar owner: name of the operation that copies.
    :ivar source: name and address of the source.
    :ivar position: position of the content; None if it is not complete.
    """

    owner: str
    source: str
    position: str | None


def copy_state(target: Admin) -> CopyState | None:
    """Return the state of the copy to a server; None if there is none."""
    found = target.rows(
        "SELECT table_name FROM information_schema.tables WHERE table_schema = %s",
        COPY_DATABASE,
    )
    if not found:
        return None
    rows = target.rows(
        f"SELECT owner, source, position FROM {_TABLE}"  # noqa: S608
    )
    if not rows:
        return CopyState(owner="", source="", position=None)
    owner, source, position = rows[0]
    return CopyState(owner=owner, source=source, position=position)


def finish_copy(target: Admin) -> None:
    """Remove the mark from a server, which is attached now."""
    with target.unlogged():
        target.run(f"DROP DATABASE IF EXISTS {COPY_DATABASE}")


def abandon_copy(target: Admin) -> None:
    """Mark the content of a server as not complete, if it is a copy.

    Another copy then starts over.
    """
    if copy_state(target) is not None:
        with target.unlogged():
            target.run(f"UPDATE {_TABLE} SET position = NULL")  # noqa: S608


class Copy:
    """A copy of all content of a server to another one.

    :param source: session on the server to copy, a standby if possible.
    :param target: session on the server that gets the content.
    :param owner: name of the operation, which may be repeated: a copy that
        is complete is not started over for the same owner.
    :param way: how to copy.
    :param command: the command, for the way of that name; it is passed to a
        shell.
    :param clear: whether to drop all databases that the target has.
    :param account: account of the operator, for the way ``"clone"``.
    :param workers: number of sessions on each server.
    :param progress: is called about once a second, in any thread.
    :param check: is called before the position is set, and raises an error
        if another process has taken over.
    """

    def __init__(
        self,
        source: Admin,
        target: Admin,
        *,
        owner: str,
        way: str = "rows",
        command: str | None = None,
        clear: bool = False,
        account: Account | None = None,
        workers: int = 4,
        progress: Callable[[CopyEvent], object] | None = None,
        check: Callable[[], object] = str,
    ) -> None:
        self._source = source
        self._target = target
        self._owner = owner
        self._way = way
        self._command = command
        self._clear = clear
        self._account = account
        self._workers = workers
        self._progress = progress
        self._check = check

    def check(self) -> list[Problem]:
        """Return everything that speaks against it; changes nothing."""
        problems = [*self._wrong_way(), *self._other_content()]
        if self._way == "rows":
            databases = databases_of(self._source)
            problems += not_tables(self._source, databases)
        if self._source.version[:2] > self._target.version[:2] or (
            self._source.is_mariadb != self._target.is_mariadb
        ):
            problems.append(
                Problem(
                    str(self._target),
                    f"its version {_version(self._target)} is older than "
                    f"{_version(self._source)} of {self._source}; upgrade it first",
                )
            )
        return problems

    def run(self) -> Copied:
        """Copy; a copy that was interrupted is started over.

        The target has the position of the source and no primary afterwards.

        :raises CopyFailedError: if it fails; the target is marked.
        :raises FleetServerError: if a server refuses a statement, or does not
            respond in time.
        """
        begin = time.monotonic()
        for admin in (self._source, self._target):
            # These sessions are idle while the others copy.
            admin.run("SET SESSION wait_timeout = 86400")
        databases = databases_of(self._source)
        state = copy_state(self._target)
        rows = RowCopy(
            self._source,
            self._target,
            databases,
            workers=self._workers,
            progress=self._progress,
        )
        position = None if state is None else state.position
        if state is None or position is None or state.owner != self._owner:
            self._empty()
            position = rows.run() if self._way == "rows" else self._replace()
            # A command restarts the server, which ends the claim on it.
            self._check()
            with self._target.another() as target:
                replication_of(target).adopt(position, rows.history)
            # Not before: a copy that is complete has its history.
            self._mark(position)
        else:
            with self._target.another() as target:
                server = replication_of(target)
                server.adopt(position, server.history())
        return Copied(
            position=position,
            source=str(self._source),
            databases=len(databases),
            tables=rows.event.all_tables,
            rows=rows.event.rows,
            bytes=rows.event.bytes,
            seconds=round(time.monotonic() - begin, 3),
        )

    # -- checks -----------------------------------------------------------

    def _wrong_way(self) -> list[Problem]:
        if self._way not in WAYS:
            return [Problem("way", f"{self._way!r} is not one of {', '.join(WAYS)}")]
        if (self._way == "command") != bool(self._command):
            return [
                Problem(
                    "command", "the way 'command' needs a command, and no other has one"
                )
            ]
        if self._way == "clone" and self._target.is_mariadb:
            return [
                Problem(
                    str(self._target),
                    "MariaDB has no CLONE; copy it as rows, or with a command",
                )
            ]
        return []

    def _other_content(self) -> list[Problem]:
        state = copy_state(self._target)
        if self._clear or (state is not None and state.position is None):
            return []
        if state is not None and state.owner == self._owner:
            return []
        found = databases_of(self._target)
        if not found:
            return []
        return [
            Problem(
                str(self._target),
                f"it has {len(found)} databases ({', '.join(found[:5])}"
                f"{', ...' if len(found) > 5 else ''}); a copy needs an empty "
                "server. The standby of the topology is emptied by: "
                "sqla-shard fleet replica rebuild",
            )
        ]

    # -- steps ------------------------------------------------------------

    def _empty(self) -> None:
        """Mark the target, and drop its content."""
        problems = self._other_content()
        if problems:
            raise self._failed(problems[0].message)
        self._mark(None)
        replication_of(self._target).detach()
        with self._target.unlogged():
            self._target.run("SET SESSION foreign_key_checks = 0")
            for name in databases_of(self._target):
                self._target.run(f"DROP DATABASE {marked(name)}")
            self._target.run("SET SESSION foreign_key_checks = 1")

    def _mark(self, position: str | None) -> None:
        # After a command this is another data directory.
        with self._target.another() as target, target.unlogged():
            target.run(f"CREATE DATABASE IF NOT EXISTS {COPY_DATABASE}")
            target.run(
                f"CREATE TABLE IF NOT EXISTS {_TABLE}"
                # Servers may require a primary key.
                " (owner VARCHAR(255) PRIMARY KEY, source VARCHAR(255),"
                " position TEXT)"
                " CHARACTER SET utf8mb4"
            )
            target.run(f"DELETE FROM {_TABLE}")  # noqa: S608
            target.run(
                f"INSERT INTO {_TABLE} VALUES (%s, %s, %s)",  # noqa: S608
                self._owner,
                str(self._source),
                position,
            )

    def _replace(self) -> str:
        """Replace the whole server; return the position of the content."""
        before = tables_of(self._source, databases_of(self._source))
        if self._way == "clone":
            self._clone()
            position = None
        else:
            position = self._run_command()
        target = self._reconnected()
        with target:
            if position is None:
                position = replication_of(target).committed()
            after = tables_of(target, databases_of(target))
            changed = differences(before, after)
        if changed:
            raise self._failed(
                f"its tables are not those of {self._source}: {', '.join(changed[:5])}"
            )
        return position

    def _clone(self) -> None:
        if self._account is None:
            raise self._failed("CLONE needs the account of the operator")
        try:
            replication_of(self._target).clone_from(
                self._source.host, self._source.port, self._account
            )
        except FleetServerError as error:
            # The server restarts before it can respond.  Without a supervisor
            # that it knows, such as in a container, it only ends, with error
            # 3707: it has the copy, and something else starts it again.
            if error.number not in (2006, 2013, 3707):
                raise

    def _run_command(self) -> str:
        done = subprocess.run(  # noqa: S602  # the operator's own command line
            str(self._command),
            shell=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={**os.environ, **self._environ()},
            check=False,
        )
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip()
            raise self._failed(
                f"the command ended with status {done.returncode}: {said[-500:]}"
            )
        found = done.stdout.decode(errors="replace").split("\n")
        lines = [line for text in found if (line := text.strip())]
        last = lines.pop() if lines else ""
        # Sets of GTIDs of several servers have a line for each: with the last
        # one alone, the others would be replicated again.
        while lines and lines[-1].endswith(","):
            last = lines.pop() + last
        if not last or not _POSITION.fullmatch(last):
            raise self._failed(
                "the last line of the output of the command is not a "
                f"position: {last[:100]!r}"
            )
        return last

    def _environ(self) -> Mapping[str, str]:
        return {
            "SQLA_SHARD_SOURCE_HOST": self._source.host,
            "SQLA_SHARD_SOURCE_PORT": str(self._source.port),
            "SQLA_SHARD_TARGET_HOST": self._target.host,
            "SQLA_SHARD_TARGET_PORT": str(self._target.port),
        }

    def _reconnected(self) -> Admin:
        end = time.monotonic() + _RESTART_SECONDS
        while True:
            try:
                return self._target.another()
            except FleetServerError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.5)

    def _failed(self, reason: str) -> CopyFailedError:
        return CopyFailedError(target=str(self._target), reason=reason)


def _version(admin: Admin) -> str:
    kind = "MariaDB" if admin.is_mariadb else "MySQL"
    return f"{kind} {'.'.join(map(str, admin.version))}"
