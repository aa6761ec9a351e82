"""The steps of two cutovers, for tests of the clients that live through them.

:func:`fail_over` makes the standby of a pair its primary; :func:`move_range`
moves some databases to a pair of their own.  ``publish`` is what tells the
clients; it is called once, while neither side is writable.  If it raises,
nothing was published: all is undone, and the error goes on.  After it there
is only forward.

They look for nothing that could be wrong with a server beforehand (rows of
its own, roles and global privileges, events, views, disk space), and a test
that dies in the middle leaves a server read-only.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pymysql
from pymysql.constants import ER

from sqla_shard.testing import MariaDBPair
from sqla_shard.testing import MariaDBServer
from sqla_shard.testing.local_server import wait_until

__all__ = [
    "CutoverError",
    "Timings",
    "fail_over",
    "kill_application",
    "move_range",
    "patiently",
]

# A standby whose disk is full does not answer at all.
_READ_TIMEOUT = 30


class CutoverError(Exception):
    """A cutover was given up before it was published; all is as before."""


@dataclass(frozen=True, kw_only=True)
class Timings:
    """When each step was done, in seconds from the fence.

    :ivar steps: in order; ``fenced`` is 0.
    """

    steps: dict[str, float]

    @property
    def pause(self) -> float:
        """For how long nobody could write."""
        return self.steps["opened"]

    def __str__(self) -> str:
        return ", ".join(
            f"{name} {1000 * seconds:.0f} ms"
            for name, seconds in self.steps.items()
        )


def patiently(
    cut_over: Callable[[Callable[[], object]], Timings],
    publish: Callable[[], object],
) -> Timings:
    """Do a cutover, and again if it is given up, as one would.

    On a machine that stands still for a second a statement takes that long,
    and is in the way.

    :param cut_over: is called with what publishes.
    :raises CutoverError: if it is given up five times.
    """
    published = threading.Event()

    def note() -> None:
        publish()
        published.set()

    for left in (4, 3, 2, 1, 0):
        try:
            return cut_over(note)
        except CutoverError:
            if published.is_set() or not left:
                raise
    raise AssertionError("never comes here")


class _Clock:
    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._steps: dict[str, float] = {}

    def done(self, step: str) -> None:
        self._steps[step] = time.monotonic() - self._begin

    def timings(self) -> Timings:
        return Timings(steps=dict(self._steps))


# -- a standby becomes the primary ----------------------------------------


def fail_over(
    pair: MariaDBPair,
    publish: Callable[[], object],
    *,
    fence: bool = True,
    catch_up: float = 10.0,
) -> Timings:
    """Make the standby the primary, and the primary its standby.

    :param pair: a pair whose roles are exchanged.
    :param publish: tells the clients where to write from now on.
    :param fence: False leaves out what keeps the old primary from taking
        writes, for a test that must see them lost.
    :param catch_up: seconds that the standby may need, once fenced.
    :raises CutoverError: if it is given up; all is as before.
    """
    old, new = pair.primary, pair.standby
    with _admin(old) as a, _admin(new) as b:
        _wait_for_lag(a, [b])
        clock = _Clock()
        with _undoing(lambda: _reopen(a, b)):
            if fence:
                _fence(a)
            clock.done("fenced")
            _drain(a, b, [b], catch_up, exact=fence)
            clock.done("drained")
            publish()
        clock.done("published")
        _run(b, "SET GLOBAL read_only = 0")
        clock.done("opened")
        _run(b, "RESET SLAVE ALL")
        pair.name_primary(new)
        if fence:
            pair.attach(old, demote=True)
            kill_application(old)
        for other in pair.standbys:
            if other is not old:
                pair.attach(other)
        clock.done("finished")
    return clock.timings()


def _reopen(a: Any, b: Any) -> None:
    _run(b, "START SLAVE")
    _run(a, "SET GLOBAL read_only = 0")


# -- databases move to another server -------------------------------------


def move_range(
    source: MariaDBPair,
    target: MariaDBPair,
    databases: Sequence[str],
    publish: Callable[[], object],
    *,
    kill: bool = True,
    catch_up: float = 10.0,
) -> Timings:
    """Move databases to the primary of another pair, which has none yet.

    The target becomes a standby of the source until it has everything, so
    the source must have its binary log from the beginning.  At the end it
    has a copy of all databases of the source, and the source still has those
    that have moved; the application can neither read nor write them there.

    :param source: has the databases.
    :param target: a new pair.
    :param databases: which move.
    :param publish: tells the clients where to write from now on.
    :param kill: False leaves the connections of the application, and with
        them transactions that it has begun, for a test that must see them
        commit on the old side.
    :param catch_up: seconds that the target may need, once fenced.
    :raises CutoverError: if it is given up; all is as before, but for the
        target, which goes on replicating.
    """
    s, t = source.primary, target.primary
    t.root_execute("SET GLOBAL read_only = 1")
    source.attach(t)
    with ExitStack() as stack:
        a, b = (stack.enter_context(_admin(server)) for server in (s, t))
        standbys = [stack.enter_context(_admin(x)) for x in target.standbys]
        followers = [b, *standbys]
        _wait_for_lag(a, followers)
        others = [stack.enter_context(_admin(x)) for x in source.standbys]
        homes = [a, *others]
        user = s.user, s.host
        with _undoing(lambda: _give_back(homes, a, b, user, databases)):
            for home in homes:
                _shadow(home, user, databases)
            # It takes effect on the primary when that is fenced.
            for other in others:
                _run(other, "FLUSH LOCAL PRIVILEGES")
            clock = _Clock()
            _fence(a)
            clock.done("fenced")
            _run(a, "FLUSH LOCAL PRIVILEGES")
            if kill:
                kill_application(s)
            clock.done("killed")
            _drain(a, b, followers, catch_up)
            clock.done("drained")
            publish()
        clock.done("published")
        _run(b, "SET GLOBAL gtid_domain_id = %s", t.gtid_domain_id)
        _open_both(a, b, clock)
        for home in homes:
            _shut(home, user, databases)
        clock.done("finished")
    return clock.timings()


def _open_both(a: Any, b: Any, clock: _Clock) -> None:
    _run(b, "SET GLOBAL read_only = 0")
    clock.done("opened")
    _run(a, "SET GLOBAL read_only = 0")
    clock.done("reopened")
    _run(b, "RESET SLAVE ALL")


def _give_back(
    homes: Sequence[Any],
    a: Any,
    b: Any,
    user: tuple[str, str],
    databases: Sequence[str],
) -> None:
    for home in homes:
        with _unlogged(home):
            for name in databases:
                _run(
                    home,
                    "DELETE FROM mysql.db"
                    " WHERE User = %s AND Host = %s AND Db = %s",
                    *user,
                    _pattern(name),
                )
        _run(home, "FLUSH LOCAL PRIVILEGES")
    _run(b, "START SLAVE")
    _run(a, "SET GLOBAL read_only = 0")


def _shadow(
    admin: Any, user: tuple[str, str], databases: Sequence[str]
) -> None:
    """Let the application only read some databases, once flushed.

    Of the rows that match a database the most specific one counts, alone.
    """
    with _unlogged(admin):
        admin.cursor().executemany(
            "INSERT INTO mysql.db (User, Host, Db, Select_priv)"
            " VALUES (%s, %s, %s, 'Y')",
            [(*user, _pattern(name)) for name in databases],
        )


def _shut(admin: Any, user: tuple[str, str], databases: Sequence[str]) -> None:
    with _unlogged(admin):
        admin.cursor().executemany(
            "UPDATE mysql.db SET Select_priv = 'N'"
            " WHERE User = %s AND Host = %s AND Db = %s",
            [(*user, _pattern(name)) for name in databases],
        )
    _run(admin, "FLUSH LOCAL PRIVILEGES")


def _pattern(database: str) -> str:
    return database.replace("_", r"\_").replace("%", r"\%")


@contextlib.contextmanager
def _unlogged(admin: Any) -> Iterator[None]:
    # In the binary log it would come to the target as well.
    _run(admin, "SET SESSION sql_log_bin = 0")
    try:
        yield
    finally:
        _run(admin, "SET SESSION sql_log_bin = 1")


# -- what both do ---------------------------------------------------------


def kill_application(server: MariaDBServer, timeout: float = 30.0) -> None:
    """End the connections that the application has now; wait until they are.

    :raises CutoverError: if one is still there when time is up.
    """
    with _admin(server) as admin:
        listed = (
            "SELECT id FROM information_schema.processlist WHERE user = %s"
        )
        before = {row[0] for row in _run(admin, listed, server.user)}
        for number in before:
            try:
                _run(admin, f"KILL {number}")
            except pymysql.err.MySQLError as error:
                if error.args[0] != ER.NO_SUCH_THREAD:
                    raise

        def gone() -> bool:
            now = {row[0] for row in _run(admin, listed, server.user)}
            return not now & before

        if not wait_until(gone, seconds=timeout, every=0.002):
            raise CutoverError(f"{server!r} keeps connections that are killed")


def _admin(server: MariaDBServer) -> Any:
    return server.root_connect(read_timeout=_READ_TIMEOUT)


def _run(admin: Any, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
    with admin.cursor() as cursor:
        cursor.execute(sql, parameters or None)
        return list(cursor.fetchall())


@contextlib.contextmanager
def _undoing(undo: Callable[[], None]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        undo()
        raise


def _wait_for_lag(a: Any, followers: Sequence[Any]) -> None:
    """Wait until nobody is more than a moment behind.

    :raises CutoverError: if that takes longer than 30 s.
    """

    def close() -> bool:
        ((position,),) = _run(a, "SELECT @@gtid_binlog_pos")
        return all(_reaches(b, position, 1.0) for b in followers)

    if not wait_until(close, seconds=30):
        raise CutoverError("a standby stays behind; nothing was done")


def _reaches(b: Any, position: str, seconds: float) -> bool:
    ((answer,),) = _run(
        b, "SELECT MASTER_GTID_WAIT(%s, %s)", position, seconds
    )
    return bool(answer == 0)


def _fence(a: Any) -> None:
    """Make a server read-only; no transaction commits any more.

    :raises CutoverError: if a statement of a second is in the way.
    """
    # Without it all new writes would queue behind a long one.
    _run(a, "SET SESSION lock_wait_timeout = 1")
    try:
        _run(a, "SET GLOBAL read_only = 1")
    except pymysql.err.OperationalError as error:
        if error.args[0] != ER.LOCK_WAIT_TIMEOUT:
            raise
        raise CutoverError("a statement runs for more than 1 s") from error


def _drain(
    a: Any,
    b: Any,
    followers: Sequence[Any],
    seconds: float,
    *,
    exact: bool = True,
) -> None:
    """Have ``b`` and the others apply all of ``a``, and ``b`` stop.

    :param exact: whether ``a`` is fenced, and must not have gone on.
    :raises CutoverError: if one does not, or ``a`` was written meanwhile.
    """
    ((position,),) = _run(a, "SELECT @@gtid_binlog_pos")
    for follower in followers:
        if not _reaches(follower, position, seconds):
            raise CutoverError(f"{position} is not reached in {seconds:g} s")
    _run(b, "STOP SLAVE")
    if not exact:
        return
    ((applied,),) = _run(b, "SELECT @@gtid_slave_pos")
    ((last,),) = _run(a, "SELECT @@gtid_binlog_pos")
    # The order of the domains is not always the same.
    seen = {frozenset(p.split(",")) for p in (position, applied, last)}
    if len(seen) > 1:
        raise CutoverError(f"fenced at {position}, now {last}, got {applied}")
