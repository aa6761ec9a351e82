"""The stages of moving an application from one database to shards, as data.

Both sides have the rows of the tables that move, and one of them is the
*truth*: the side that the application writes first, in its own transaction.
What was written there is copied to the other side.  A stage determines which
side is the truth, whether writes are marked and which way rows are copied:

.. code-block:: text

    legacy -> marking -> copying -> reading -> closing -> switched -> detached
                                       ^                     |
                                       +---- returning <-----+

From each stage but the last there is a way back.  In ``closing`` and
``returning`` neither side is the truth: writes wait, while the last rows are
copied.  So the truth is never on both sides.

:class:`Progress` is the stage in which a move is, as stored with the topology;
:func:`advanced` and :func:`check_step` are the rules of changing it.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any, Literal, Protocol, TYPE_CHECKING, TypeAlias

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Integer,
    MetaData,
    select,
    Table,
    Text,
    update,
)
from sqlalchemy.exc import DBAPIError

from sqla_shard.dialects import backend_for
from sqla_shard.dialects.base import Failure
from sqla_shard.dialects.sql import InsertMissing
from sqla_shard.exc import (
    StageChangedError,
    StageConflictError,
    StageRefusedError,
    StageUnavailableError,
    TopologyUnavailableError,
)
from sqla_shard.topology.follow.locations import is_zookeeper, zookeeper_options
from sqla_shard.util.files import flush_to_disk
from sqla_shard.util.json_values import JsonObject, parsed_json
from sqla_shard.util.processes import in_children

if TYPE_CHECKING:
    from sqla_shard.topology.zookeeper.store import ZooKeeperStore


#: The database as it was, and the virtual shards.
Side: TypeAlias = Literal["legacy", "shards"]

#: What must be true before a stage is left for the next one.
#:
#: ``claimed``: every row of the source has a mark of this round.
#: ``equal``: the last pass over all rows has found no difference.
#: ``drained``: no row is waiting to be copied.
Condition: TypeAlias = Literal["claimed", "equal", "drained"]

_REMEDIES: Mapping[Condition, str] = {
    "claimed": "not all rows were copied; run: sqla-shard migrate backfill",
    "drained": "rows wait to be copied; run: sqla-shard migrate backfill, "
    "whose log names those that fail",
    "equal": "no pass since has found all rows equal; run: sqla-shard "
    "migrate reconcile",
}


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of a move.

    :ivar name: name of the stage.
    :ivar truth: the side whose transactions the application commits; None if
        writes wait.
    :ivar marks: whether each transaction raises the versions of the rows that
        it writes.
    :ivar copies: the side that rows are copied to; None if none are.
    :ivar reads: the sides that may be read.
    :ivar forward: the next stage; None for the last one.
    :ivar back: the stage to go back to; None if there is no way back.
    :ivar needs: what must be true before the stage is left for the next one.
    """

    name: str
    truth: Side | None
    marks: bool
    copies: Side | None
    reads: tuple[Side, ...]
    forward: str | None
    back: str | None
    needs: frozenset[Condition] = frozenset()

    @property
    def source(self) -> Side | None:
        """The side that rows are copied from; None if none are."""
        return None if self.copies is None else other_side(self.copies)


def other_side(side: Side) -> Side:
    """Return the opposite side."""
    return "shards" if side == "legacy" else "legacy"


def _stages(*stages: Stage) -> dict[str, Stage]:
    return {stage.name: stage for stage in stages}


#: The stages by name, in the order of a move without a way back.
STAGES: Mapping[str, Stage] = _stages(
    Stage(
        name="legacy",
        truth="legacy",
        marks=False,
        copies=None,
        reads=("legacy",),
        forward="marking",
        back=None,
    ),
    Stage(
        name="marking",
        truth="legacy",
        marks=True,
        copies=None,
        reads=("legacy",),
        forward="copying",
        back="legacy",
    ),
    Stage(
        name="copying",
        truth="legacy",
        marks=True,
        copies="shards",
        reads=("legacy",),
        forward="reading",
        back="marking",
        needs=frozenset({"claimed", "equal"}),
    ),
    Stage(
        name="reading",
        truth="legacy",
        marks=True,
        copies="shards",
        reads=("legacy", "shards"),
        forward="closing",
        back="copying",
        needs=frozenset({"equal"}),
    ),
    Stage(
        name="closing",
        truth=None,
        marks=True,
        copies="shards",
        reads=("legacy", "shards"),
        forward="switched",
        back="reading",
        needs=frozenset({"claimed", "drained"}),
    ),
    Stage(
        name="switched",
        truth="shards",
        marks=True,
        copies="legacy",
        reads=("shards",),
        forward="detached",
        back="returning",
    ),
    Stage(
        name="returning",
        truth=None,
        marks=True,
        copies="legacy",
        reads=("shards",),
        forward="reading",
        back="switched",
        needs=frozenset({"drained"}),
    ),
    Stage(
        name="detached",
        truth="shards",
        marks=False,
        copies=None,
        reads=("shards",),
        forward=None,
        back=None,
    ),
)

#: The stage in which a move begins.
FIRST = "legacy"


@dataclass(frozen=True, kw_only=True)
class Progress(JsonObject):
    """The stage of a move, and the share of reads.

    :ivar number: number of changes so far; each change raises it by one, so
        it orders them, and distinguishes two visits of a stage.
    :ivar stage: name of the stage.
    :ivar former: name of the stage before the last change.
    :ivar round: number of times that marking was started; marks of an earlier
        round say nothing, since writes in between were not marked.
    :ivar shares: percentage of reads from the shards by table; tables that
        are missing have 0.
    """

    number: int = 0
    stage: str = FIRST
    former: str = FIRST
    round: int = 0
    shares: Mapping[str, int] = field(default_factory=dict)

    @property
    def rules(self) -> Stage:
        """The stage itself."""
        return STAGES[self.stage]

    def with_shares(self, shares: Mapping[str, int]) -> Progress:
        """Return the next change, with other shares of reads."""
        return replace(self, number=self.number + 1, former=self.stage, shares=shares)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Progress:
        """Return the progress of a document of :meth:`as_dict`.

        :raises ValueError: if it is not valid.
        :raises TypeError: if it has missing or unknown names.
        """
        progress = super().from_dict(document)
        for name in (progress.stage, progress.former):
            if name not in STAGES:
                raise ValueError(f"{name!r} is not a stage")
        for number in (progress.number, progress.round, *progress.shares.values()):
            if number < 0:
                raise ValueError(f"{number!r} is not a number from 0")
        return progress


def advanced(
    old: Progress,
    name: str,
    *,
    fences: Collection[int],
    met: Collection[Condition] = (),
) -> Progress:
    """Return the progress after a change of the stage.

    :param name: the stage to change to: the next one, or the one to go back
        to.
    :param fences: the numbers in the fences of all databases.
    :param met: the conditions that are met now.
    :raises StageRefusedError: if the stages are not neighbours, a condition is
        not met, or a fence is behind: then a second change would leave some
        database two stages behind.
    """
    check_step(old, name, met=met)
    behind = sorted({number for number in fences if number != old.number})
    if behind or not fences:
        raise StageRefusedError(
            stage=old.stage,
            wanted=name,
            reason=f"not every database has change {old.number} "
            f"(others: {behind}); repeat the command that made it",
        )
    begins = old.stage == "legacy" and name == "marking"
    return replace(
        old,
        number=old.number + 1,
        stage=name,
        former=old.stage,
        round=old.round + begins,
        shares=old.shares if "shards" in STAGES[name].reads else {},
    )


def check_step(old: Progress, name: str, *, met: Collection[Condition] = ()) -> None:
    """Check that a stage may follow.

    :param met: the conditions that are met now; going back has none.
    :raises StageRefusedError: if it may not.
    """
    rules = old.rules
    if name not in (rules.forward, rules.back):
        near = [one for one in (rules.forward, rules.back) if one is not None]
        ways = " and ".join(near) or "no other stage"
        raise StageRefusedError(
            stage=old.stage,
            wanted=name,
            reason=f"from {old.stage} the ways are to {ways}",
        )
    missing = rules.needs.difference(met) if name == rules.forward else ()
    if missing:
        raise StageRefusedError(
            stage=old.stage,
            wanted=name,
            reason="; ".join(map(_REMEDIES.__getitem__, sorted(missing))),
        )


# -- Stores of the stage of a move: with the topology.
#
# Next to a topology file is the directory ``topology.toml.moving``, and below a
# path in ZooKeeper the node ``/moving``.  It has one entry for each change of
# the stage, named by the number of the change; the highest one is the stage now.
# Entries are created and never changed, and a name can be created once: of two
# processes that change the same stage, one gets
# :exc:`~sqla_shard.exc.StageConflictError`.


#: Parent node of the changes in ZooKeeper.
_CHANGES = "/moving"


class StageStore(Protocol):
    """The stored stage of a move.

    :ivar notifies: whether it notifies of changes.
    """

    notifies: bool

    @property
    def name(self) -> str:
        """Location of the stage, without credentials."""
        ...

    def read(self) -> Progress:
        """Return the stage now; that of number 0 if none is stored.

        :raises StageUnavailableError: if it cannot be read.
        """
        ...

    def write(self, new: Progress) -> None:
        """Store the change that follows the one with the number before.

        If the same change is stored already, nothing is done, so that a
        command that was interrupted can be repeated.

        :raises StageConflictError: if another process was faster; nothing was
            changed.
        :raises StageUnavailableError: if it cannot be written, or it is
            unknown whether it was.
        """
        ...

    def listen(self, notify: Callable[[], None]) -> None:
        """Call ``notify()`` when the stage may have changed since it was read.

        It may be called from any thread, and returns immediately.
        """
        ...

    def close(self) -> None:
        """Close the connection; it is opened again when it is needed."""
        ...


def stage_store(location: str | os.PathLike[str]) -> StageStore:
    """Return the store of the stage of a topology.

    :param location: path of the topology, or ``zookeeper://host:port/path``.
    """
    if is_zookeeper(location):
        return ZooKeeperStageStore(str(location))
    return FileStageStore(location)


class FileStageStore:
    """The stage next to a topology file.

    :param path: path of the topology.
    """

    notifies = False

    def __init__(self, path: str | os.PathLike[str]) -> None:
        path = Path(path)
        self._folder = path.with_name(f"{path.name}.moving")

    @property
    def name(self) -> str:
        """Path of the directory with the changes."""
        return str(self._folder)

    def read(self) -> Progress:
        """Return the stage now."""
        try:
            number = _highest(os.listdir(self._folder))
            if number is None:
                return Progress()
            data = self._path(number).read_bytes()
        except FileNotFoundError:
            return Progress()
        except OSError as error:
            raise self._unavailable(error) from error
        return _parsed(data, number, self.name)

    def write(self, new: Progress) -> None:
        """Store the next change."""
        now = self.read()
        if now == new:
            return
        _check_follows(now, new, self.name)
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            is_new = self._create(self._path(new.number), _data_of(new))
        except OSError as error:
            raise self._unavailable(error) from error
        if not is_new:
            now = self.read()
            if now != new:
                raise _conflict(now, new, self.name)

    def listen(self, notify: Callable[[], None]) -> None:
        """Do nothing: a file does not notify."""

    def close(self) -> None:
        """Do nothing."""

    def _create(self, path: Path, data: bytes) -> bool:
        """Create a file with its content; return False if it exists."""
        handle, name = tempfile.mkstemp(prefix=".", dir=self._folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            # Unlike a rename, a link fails if the name exists; readers never
            # see a file without its content.
            os.link(name, path)
        except FileExistsError:
            return False
        finally:
            with suppress(FileNotFoundError):
                os.unlink(name)
        flush_to_disk(self._folder)
        return True

    def _path(self, number: int) -> Path:
        return self._folder / f"{_name_of(number)}.json"

    def _unavailable(self, error: OSError) -> StageUnavailableError:
        return StageUnavailableError(
            store=self.name, reason=error.strerror or str(error)
        )


class ZooKeeperStageStore:
    """The stage at a path in ZooKeeper, read and watched in one session.

    A watch only notifies; the next read sets it again.

    :param location: ``zookeeper://host:port,host:port/path``.
    :param timeout: seconds to wait for a response.
    """

    notifies = True

    def __init__(self, location: str, *, timeout: float = 5.0) -> None:
        self._hosts, self._options = zookeeper_options(location)
        self._timeout = timeout
        self._notify: Callable[[], None] = _ignore
        self._store: ZooKeeperStore | None = None
        self._lock = Lock()
        in_children(self)

    @property
    def name(self) -> str:
        """URL of the node with the changes, without credentials."""
        return f"zookeeper://{self._hosts}{_CHANGES}"

    def read(self) -> Progress:
        """Return the stage now, and watch it."""
        with self._opened() as store:
            return self._read(store)

    def write(self, new: Progress) -> None:
        """Store the next change."""
        # kazoo is imported by users of ZooKeeper only.
        from sqla_shard.topology.zookeeper.publications import TOPOLOGY
        from sqla_shard.topology.zookeeper.store import Create

        with self._opened() as store:
            now = self._read(store)
            if now == new:
                return
            _check_follows(now, new, self.name)
            store.prepare(_CHANGES, like=TOPOLOGY)
            node = f"{_CHANGES}/{_name_of(new.number)}"
            if store.commit(Create(node, _data_of(new))) is None:
                now = self._read(store)
                if now != new:
                    raise _conflict(now, new, self.name)

    def listen(self, notify: Callable[[], None]) -> None:
        """Call ``notify()`` when the stage may have changed."""
        self._notify = notify

    def close(self) -> None:
        """End the session."""
        with self._lock:
            store, self._store = self._store, None
        if store is not None:
            store.close()

    def after_fork(self) -> None:
        """Replace the lock, which a thread of the parent may hold.

        The connection closes its copies of sockets.
        """
        self._lock = Lock()

    def _read(self, store: ZooKeeperStore) -> Progress:
        # A server of the ensemble may be behind the one that was written.
        store.sync()
        number = _highest(store.watched_names(_CHANGES, self._on_change))
        if number is None:
            return Progress()
        node = store.read(f"{_CHANGES}/{_name_of(number)}")
        if node is None:
            raise StageUnavailableError(
                store=self.name, reason=f"change {number} was deleted"
            )
        return _parsed(node.data, number, self.name)

    def _on_change(self, event: object = None) -> None:
        """Called by kazoo, in its thread; without event, watches are lost."""
        self._notify()

    @contextmanager
    def _opened(self) -> Iterator[ZooKeeperStore]:
        from sqla_shard.topology.zookeeper.store import ZooKeeperStore

        # A connection is opened, and replaced, by one thread.
        with self._lock:
            if self._store is None:
                self._store = ZooKeeperStore(
                    self._hosts, timeout=self._timeout, options=self._options
                )
                self._store.listen(self._on_change)
            try:
                yield self._store
            except TopologyUnavailableError as error:
                raise StageUnavailableError(
                    store=self.name, reason=error.reason
                ) from error


def _ignore() -> None:
    """Do nothing."""


def _name_of(number: int) -> str:
    return f"{number:010d}"


def _highest(names: list[str]) -> int | None:
    """Return the highest number of the names of changes."""
    stems = (name.removesuffix(".json") for name in names)
    return max((int(stem) for stem in stems if stem.isdecimal()), default=None)


def _data_of(progress: Progress) -> bytes:
    return json.dumps(progress.as_dict(), sort_keys=True).encode()


def _parsed(data: bytes, number: int, name: str) -> Progress:
    try:
        progress = Progress.from_dict(parsed_json(data))
        if progress.number != number:
            raise ValueError(f"it has the number {progress.number}")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StageUnavailableError(
            store=name,
            reason=f"change {number} is damaged ({error}); restore it: "
            "without it no process knows which side is written",
        ) from error
    return progress


def _check_follows(now: Progress, new: Progress, name: str) -> None:
    if new.number != now.number + 1:
        raise _conflict(now, new, name)


def _conflict(now: Progress, new: Progress, name: str) -> StageConflictError:
    return StageConflictError(store=name, expected=new.number - 1, found=now.number)


_ROW = 1


class DatabaseFence:
    """The fence of one database.

    A fence is a table of one row with the stage and the number of its last change.
    A transaction reads it before its first write, and has a shared lock on it
    until it ends; the tool changes it, which waits for these transactions.  So a
    transaction is in one stage as a whole, whatever its process knows of the
    stage.

    :param schema: the database; None for the one that a connection uses.
    """

    def __init__(self, schema: str | None = None) -> None:
        self.table: Table = Table(
            "sqla_shard_stage",
            MetaData(),
            Column("id", Integer, primary_key=True, autoincrement=False),
            Column("number", BigInteger, nullable=False),
            Column("progress", Text, nullable=False),
            schema=schema,
            mysql_engine="InnoDB",
        )
        self._select = select(self.table.c.progress).where(self.table.c.id == _ROW)
        self._locking = self._select.with_for_update(read=True)

    def create(self, connection: Connection) -> None:
        """Create the table and the row, with the first stage, if missing."""
        self.table.create(connection, checkfirst=True)
        self.fill(connection)

    def fill(self, connection: Connection) -> None:
        """Insert the row, with the first stage, if it is missing."""
        connection.execute(
            InsertMissing(self.table).values(id=_ROW, **_values(Progress()))
        )

    def enter(self, connection: Connection) -> Progress:
        """Return the stage; it does not change before the transaction ends.

        The transaction must have been started: in autocommit mode the lock
        ends with the statement.

        :raises StageUnavailableError: if the database has no fence.
        """
        dialect = connection.dialect
        backend = backend_for(dialect.name, driver=dialect.driver)
        # On SQLite the lock is that of the file.
        backend.lock(connection)
        try:
            data = connection.execute(self._locking).scalar_one()
        except DBAPIError as error:
            original = error.orig
            if original is None or backend.classify(original) is not Failure.MISPLACED:
                raise
            raise StageUnavailableError(
                store=f"the table {self.table.name}",
                reason=f"{original}; `sqla-shard migrate plan --create` "
                "creates the tables of a move",
            ) from error
        return _parsed_fence(data)

    def enter_as(self, connection: Connection, progress: Progress) -> None:
        """Enter if the stage has not changed.

        :param progress: the stage in which the caller was started.
        :raises StageChangedError: if it has.
        """
        now = self.enter(connection)
        if now.number != progress.number:
            raise StageChangedError(
                expected=progress.number, found=now.number, stage=now.stage
            )

    def read(self, connection: Connection) -> Progress:
        """Return the stage without a lock."""
        return _parsed_fence(connection.execute(self._select).scalar_one())

    def write(self, connection: Connection, progress: Progress) -> None:
        """Set the stage, unless its number is not higher.

        Waits for transactions that have entered.  An older process of the
        tool, which was stopped meanwhile, changes nothing.

        :raises OperationalError: if they have not ended within
            ``innodb_lock_wait_timeout``.
        """
        connection.execute(
            update(self.table)
            .where(self.table.c.id == _ROW, self.table.c.number < progress.number)
            .values(**_values(progress))
        )


def _values(progress: Progress) -> dict[str, Any]:
    text = json.dumps(progress.as_dict(), sort_keys=True)
    return {"number": progress.number, "progress": text}


def _parsed_fence(text: str) -> Progress:
    return Progress.from_dict(parsed_json(text.encode()))
