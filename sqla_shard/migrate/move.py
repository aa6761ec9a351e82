"""A move as the application has it: reads and writes on the side of the stage.

::

    move = Move(
        Declaration(
            Owner("users.id"), Owned("posts", colocate_with="user_id")
        ),
        Base.metadata,
        engine,
        cluster,
        {"users": User, "posts": Moved(cls=Post, names={"at": "written_at"})},
        stage="topology.toml",
    )
    move.watch(Session)           # the sessionmaker of the application

    post_id = move.write(add_post, add_post_on_shards, user_id, "text")
    post = move.read("posts", load_post, load_post_on_shards, post_id)

The first function gets a session of the database, the second one a
:class:`~sqla_shard.ShardSession`; :meth:`Move.write` takes the one that the
stage has, waits while none has, and begins again if the stage has changed.  An
application that calls ``write()`` for its writes sees no error of the move.

The ids that functions get and return may be those of either side:
:meth:`Move.object_id` and :meth:`Move.key` convert them.
"""

from __future__ import annotations

import logging
import os
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from threading import Event, Lock
from time import monotonic
from typing import Any, TypeVar

from sqlalchemy import Engine, MetaData
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.orm import Session, sessionmaker

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.cluster.retries import repeat, Retries
from sqla_shard.dialects import backend_for
from sqla_shard.exc import (
    DeclarationError,
    MigrateSetupError,
    SideClosedError,
    StageUnavailableError,
    TopologyError,
)
from sqla_shard.migrate.copier import Copier
from sqla_shard.migrate.declaration import (
    Declaration,
    Item,
    Lookup,
    MappingTable,
    Owned,
    Owner,
)
from sqla_shard.migrate.future import Future
from sqla_shard.migrate.links import MovedLinks
from sqla_shard.migrate.session_marks import LegacyMarks, ShardMarks, WrittenRows
from sqla_shard.migrate.stages import Progress, stage_store
from sqla_shard.migrate.tables import Moved, MovedRows, MovedTable
from sqla_shard.migrate.waiting import grouped, WaitingRows
from sqla_shard.util.masking import masked
from sqla_shard.util.processes import in_children

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds after which the stage is read although the store notifies of its
#: changes, since a notification may be lost.
_REREAD = 60.0
#: Seconds between two looks at the stage while writes wait.
_PAUSE = 0.02
#: Seconds after which a failed copy is slow, and for which then all wait.
_SLOW = 1.0
_REST = 10.0


class Move:
    """A move of tables from one database to the shards of a cluster.

    :param declaration: what the tables will be.
    :param metadata: the tables as they are.
    :param engine: engine of the database.
    :param cluster: the cluster of the shards.
    :param classes: the object class of each owner and owned table, the mapping
        classes of association tables that move, or a :class:`Moved` with one;
        and lookup classes, by names such as ``"users.email"``.
    :param stage: location of the stage: path of the topology, or its URL in
        ZooKeeper.
    :param copies: whether a session copies what it has written after COMMIT;
        otherwise the rows wait for ``sqla-shard migrate backfill``.
    :param refresh: seconds after which a process looks at the stage again;
        until then its reads may use the share, or the side, of before.
        ZooKeeper notifies it instead, within a round trip.
    :param compare: share of the reads that read both sides in the stage
        ``reading``, from 0 to 1.
    :param replicas: URLs of the replicas of the database, for passes that
        wait while one is behind; placeholders are those of a topology.
    :raises DeclarationError: if a class is missing, or does not fit.
    :raises MigrateSetupError: if a replica is not a MySQL or MariaDB server.

    :ivar replicas: the replicas of the database, with the accounts.
    :ivar counts: how many reads of this process were ``compared``, were
        ``different``, and have ``failed`` on the shards.
    """

    def __init__(
        self,
        declaration: Declaration,
        metadata: MetaData,
        engine: Engine,
        cluster: Cluster,
        classes: Mapping[str, type[Any] | Moved],
        *,
        stage: str | os.PathLike[str],
        copies: bool = True,
        refresh: float = 1.0,
        compare: float = 0.0,
        replicas: Sequence[str] = (),
    ) -> None:
        self.declaration = declaration
        self.metadata = metadata
        self.engine = engine
        self.cluster = cluster
        self.store = stage_store(stage)
        #: The tables by name, parents first.
        self.tables = _tables(declaration, metadata, classes)
        self._classes = classes.keys()
        self.copier = Copier(self.tables, engine, cluster)
        self.waiting = WaitingRows(self.tables, engine, cluster)
        self.counts: Counter[str] = Counter()
        self._copies = copies
        self._refresh = refresh
        self._compare = compare
        self.replicas = tuple(_replica(url, cluster) for url in replicas)
        self._random = random.Random()  # noqa: S311  # not a secret
        self._never = Event()
        self._lock = Lock()
        self._known: Progress | None = None
        self._expires = 0.0
        self._is_stale = False
        self.store.listen(self._on_stage)
        in_children(self)
        self._rests_until = 0.0
        self._sessions: Any = None
        self._legacy_marks = LegacyMarks(self.tables.values(), engine, self._copy_rows)
        self._shard_marks = ShardMarks(
            self.tables.values(), cluster, self._copy_objects
        )

    def watch(self, sessions: sessionmaker[Session]) -> None:
        """Mark and copy the writes of the application's sessions.

        :param sessions: their factory; :meth:`write` and :meth:`read` open
            sessions with it.
        """
        self._sessions = sessions
        self._legacy_marks.listen(sessions)

    def has_class(self, item: Item) -> bool:
        """Return whether a part of the declaration has a class."""
        return _name_of(item) in self._classes

    def close(self) -> None:
        """Remove all listeners, and end the session of the stage."""
        self._legacy_marks.close()
        self._shard_marks.close()
        self.store.close()

    # -- the stage

    def progress(self, *, now: bool = False) -> Progress:
        """Return the stage as this process knows it.

        If it cannot be read, the stage that is known remains: the fences
        refuse what is not correct any more.

        :param now: whether to read it, even if it was read lately.
        :raises StageUnavailableError: if it cannot be read, and ``now`` is
            given or none is known.
        """
        known = self._known
        if now or known is None:
            with self._lock:
                return self._read_stage(None)
        if monotonic() < self._expires and not self._is_stale:
            return known
        # Other threads do not wait for the one that reads.
        if not self._lock.acquire(blocking=False):
            return known
        try:
            return self._read_stage(known)
        finally:
            self._lock.release()

    def _read_stage(self, known: Progress | None) -> Progress:
        # Before the read: a later notification is of a later change.
        self._is_stale = False
        wait = self._refresh
        try:
            self._known = known = self.store.read()
            if self.store.notifies:
                wait = max(wait, _REREAD)
        except StageUnavailableError as error:
            if known is None:
                raise
            log.warning("the stage of the move remains known: %s", error)
        self._expires = monotonic() + wait
        return known

    def after_fork(self) -> None:
        """Read the stage again, in a child process."""
        self._lock = Lock()
        self._is_stale = True

    def _on_stage(self) -> None:
        self._is_stale = True

    # -- writes

    def write(
        self,
        legacy: Callable[..., T],
        shards: Callable[..., T],
        *args: Any,
        timeout: float = 60.0,
        **kwargs: Any,
    ) -> T:
        """Run a transaction on the side that is written.

        It is repeated like that of :meth:`sqla_shard.Cluster.run`: after a
        deadlock, or a connection that was lost before COMMIT.  The functions
        do not commit.

        :param legacy: function that gets a session of the database.
        :param shards: function that gets a session of the cluster.
        :param timeout: seconds to wait for a stage that accepts writes.
        :returns: what the function returns.
        :raises SideClosedError: if there is none in time.
        """
        deadline = monotonic() + timeout
        progress = self.progress()
        while True:
            try:
                if progress.rules.truth == "legacy":
                    return self._run(legacy, args, kwargs)
                if progress.rules.truth == "shards":
                    return self.cluster.run(shards, *args, **kwargs)
                raise SideClosedError(side="legacy", stage=progress.stage)
            except SideClosedError:
                if monotonic() > deadline:
                    raise
            # The fences may be behind the stored stage.
            self._never.wait(_PAUSE)
            self._expires = 0.0
            progress = self.progress()

    def _run(self, fn: Callable[..., T], args: Any, kwargs: Any) -> T:
        dialect = self.engine.dialect
        backend = backend_for(dialect.name, driver=dialect.driver)
        commits = False

        def attempt() -> T:
            nonlocal commits
            commits = False
            with self._sessions() as session:
                found: T = fn(session, *args, **kwargs)
                session.flush()
                commits = True
                session.commit()
            return found

        def is_last(error: Exception) -> bool:
            # The COMMIT may have arrived: a repetition could write twice.
            return (
                commits
                and isinstance(error, DBAPIError)
                and error.connection_invalidated
            )

        retries = Retries(lambda: {backend}, attempts=None, timeout=30.0)
        return repeat(attempt, retries, is_last=is_last)

    # -- reads

    def read(
        self,
        table: str,
        legacy: Callable[..., T],
        shards: Callable[..., T],
        *args: Any,
        **kwargs: Any,
    ) -> T:
        """Run a function that only reads, on a side that may be read.

        In the stage ``reading`` that is a percentage of the reads of the
        table; if the shards fail, the database is read.  A share of the reads
        is compared: then the result is that of the database, and what differs
        is logged and counted in ``counts``.

        :param table: name of the table whose share is used.
        :returns: what the function returns.
        """
        progress = self.progress()
        if "legacy" not in progress.rules.reads:
            return self._read_shards(shards, args, kwargs)
        share = progress.shares.get(table, 0)
        if "shards" in progress.rules.reads:
            if self._random.random() < self._compare:
                return self._compared(table, legacy, shards, args, kwargs)
            if self._random.random() * 100 < share:
                try:
                    return self._read_shards(shards, args, kwargs)
                except SQLAlchemyError as error:
                    self.counts["failed"] += 1
                    log.warning(
                        "a read of %s failed on the shards, and is made in "
                        "the database: %s",
                        table,
                        error,
                    )
        return self._read_legacy(legacy, args, kwargs)

    def _read_legacy(self, fn: Callable[..., T], args: Any, kwargs: Any) -> T:
        with self._sessions() as session:
            found: T = fn(session, *args, **kwargs)
        return found

    def _read_shards(self, fn: Callable[..., T], args: Any, kwargs: Any) -> T:
        with self.cluster.session() as session:
            return fn(session, *args, **kwargs)

    def _compared(
        self,
        table: str,
        legacy: Callable[..., T],
        shards: Callable[..., T],
        args: Any,
        kwargs: Any,
    ) -> T:
        """Read both sides; a row may be on its way, so repeat differences."""
        self.counts["compared"] += 1
        expected = self._read_legacy(legacy, args, kwargs)
        try:
            for _ in range(5):
                found = self._read_shards(shards, args, kwargs)
                if found == expected:
                    return expected
                self._never.wait(_PAUSE)
                expected = self._read_legacy(legacy, args, kwargs)
            self.counts["different"] += 1
            log.warning(
                "a read of %s differs: %r on the shards, %r in the database",
                table,
                found,
                expected,
            )
        except SQLAlchemyError as error:
            self.counts["failed"] += 1
            log.warning("a read of %s failed on the shards: %s", table, error)
        return expected

    # -- ids

    def object_id(self, table: str, key: int) -> int | None:
        """Return the object id of a row.

        :param table: name of the table.
        :param key: the primary key; an object id is returned as it is.
        :returns: None if there is no such row.
        """
        one = self._objects(table)
        if key > one.layout.max_local_id:
            return key
        return self.copier.ids.object_ids(one, [(key,)]).get((key,))

    def key(self, table: str, object_id: int) -> int | None:
        """Return the primary key of an object.

        :param table: name of the table.
        :param object_id: the id; a primary key is returned as it is.
        :returns: None if the object was not copied to the database yet.
        """
        one = self._objects(table)
        if object_id <= one.layout.max_local_id:
            return object_id
        found = self.copier.keys_of(one, [object_id])
        return found[object_id][0] if object_id in found else None

    def _objects(self, table: str) -> MovedTable:
        one = self.tables[table]
        if not isinstance(one, MovedTable):
            raise MigrateSetupError(f"the rows of {table} have no object ids")
        return one

    # -- copies after COMMIT

    def _copy_rows(self, written: WrittenRows[None]) -> None:
        for (place, one), keys in written.keys.items():
            self._copy(one, None, list(keys), written.progress[place])

    def _copy_objects(self, written: WrittenRows[Any]) -> None:
        for (place, one), keys in written.keys.items():
            for shard_id, some in grouped(one, keys).items():
                self._copy(one, shard_id, some, written.progress[place])

    def _copy(
        self, one: MovedRows, shard_id: int | None, keys: list[Any], progress: Progress
    ) -> None:
        start = monotonic()
        if (
            not self._copies
            or progress.rules.copies is None
            or start < self._rests_until
        ):
            return
        failed = self.copier.copy_or_log((one, shard_id, keys), number=progress.round)
        if failed and monotonic() - start > _SLOW:
            # A server hangs: the application would wait after each COMMIT.
            self._rests_until = monotonic() + _REST


def _replica(text: str, cluster: Cluster) -> URL:
    """Return the URL of a replica.

    :raises MigrateSetupError: if it is not that of a server with replication.
    """
    try:
        url = cluster.places.engines.filled(text)
    except (ArgumentError, TopologyError) as error:
        raise MigrateSetupError(f"replicas: {masked(str(error))}") from error
    if url.get_backend_name() not in ("mysql", "mariadb") or not url.host:
        raise MigrateSetupError(
            f"replicas: {masked(text)} must be the URL of a MySQL or MariaDB "
            "server, such as mysql://monitor@10.0.0.7/"
        )
    return url


def _tables(
    declaration: Declaration,
    metadata: MetaData,
    classes: Mapping[str, type[Any] | Moved],
) -> dict[str, MovedRows]:
    """Return the tables of a move, parents first.

    :raises DeclarationError: if classes and declaration differ.
    """
    future = Future(declaration, metadata)
    items = {
        _name_of(item): item
        for item in declaration.items
        if isinstance(item, (Owner, Owned, MappingTable, Lookup))
    }
    needed = {name for name, item in items.items() if isinstance(item, (Owner, Owned))}
    problems = [f"{name}: give its object class" for name in needed - classes.keys()]
    problems += [
        f"{name} has a class, and is not declared as Owner, Owned, "
        "MappingTable or Lookup"
        for name in classes.keys() - items
    ]
    if problems:
        raise DeclarationError(sorted(problems))
    objects: dict[str, MovedTable] = {}
    links: dict[str, MovedLinks] = {}
    for name, given in classes.items():
        item = items[name]
        moved = _moved(given)
        if isinstance(item, MappingTable):
            links[name] = MovedLinks(item, future, moved)
        elif not isinstance(item, Lookup):
            lookups = {
                one.column: _moved(classes[_name_of(one)]).cls
                for one in declaration.of(Lookup)
                if one.table == name and _name_of(one) in classes
            }
            objects[name] = MovedTable(item, future, moved, lookups)
    ordered: dict[str, MovedRows] = {}

    def add(name: str) -> None:
        parent = objects[name].parent
        if parent is not None and parent not in ordered:
            add(parent)
        ordered.setdefault(name, objects[name])

    for name in objects:
        add(name)
    return {**ordered, **links}


def _moved(given: type[Any] | Moved) -> Moved:
    return given if isinstance(given, Moved) else Moved(cls=given)


def _name_of(item: Item) -> str:
    if isinstance(item, Lookup):
        return f"{item.table}.{item.column}"
    return item.table
