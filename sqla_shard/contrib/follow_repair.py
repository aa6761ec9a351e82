"""Repair of a follow graph: both rows of each edge are compared.

The row on the shard of the follower is authoritative.  The rows differ while
an operation is pending, or after one was discarded, a server was restored from
a backup, or a transaction was lost with a server.  The repair may run while
edges change, and several times at once: a row is only replaced by a newer
version, or while it is the row that was compared.

At the end, stored numbers of edges are compared with the edges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import delete, inspect, select, update

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.contrib.edges import BoardChoice, Edge, EdgeTable, now, Pair
from sqla_shard.contrib.follows import Follows
from sqla_shard.engine.rendering import Place
from sqla_shard.ids import unpack
from sqla_shard.planning import spec_of
from sqla_shard.session import ShardSession

#: A shard of a table, and the pair after which its rows are compared: the
#: number of the step, the number of the shard, and two ids.
Position = tuple[int, int, int, int]

_START: Position = (0, 0, 0, 0)
#: Rows that are deleted by one statement.
_PURGED = 1000


@dataclass
class RepairedFollows:
    """Report of a repair: the rows that it compared and changed.

    :ivar compared: number of rows that were compared.
    :ivar written: rows of the other shard that were missing or older.
    :ivar reverted: rows of the other shard without an edge of the follower.
    :ivar forgotten: relations to or of users, and choices for boards, that do
        not exist any more.
    :ivar recounted: objects whose stored numbers of edges were wrong.
    :ivar position: continues the repair; None at its end.
    """

    compared: int = 0
    written: int = 0
    reverted: int = 0
    forgotten: int = 0
    recounted: int = 0
    position: Position | None = None

    @property
    def changed(self) -> int:
        """The number of changes."""
        rows = self.written + self.reverted
        return rows + self.forgotten + self.recounted


def repair_follows(
    cluster: Cluster,
    follows: Follows,
    *,
    position: Sequence[int] | None = None,
    rows: int | None = None,
    batch: int = 500,
) -> RepairedFollows:
    """Compare the edges of all shards in both directions, and repair them.

    ::

        found = repair_follows(cluster, follows, rows=100_000)
        while found.position is not None:
            store(found.position)
            found = repair_follows(
                cluster, follows, position=found.position, rows=100_000
            )

    :param position: the ``position`` of an earlier call, as a sequence.
    :param rows: number of rows after which it returns; None for all.
    :param batch: number of rows that are compared together, with one
        statement for each server that has their other sides.
    """
    steps: tuple[Callable[..., list[Pair]], ...] = (
        _users(follows),
        _boards(follows),
        _backward(follows.users_reversed, follows.users),
        _backward(follows.boards_reversed, follows.boards),
        *(
            _recount(table)
            for table in (
                *(follows.users, follows.users_reversed),
                *(follows.boards_reversed,),
            )
            if table.counts
        ),
    )
    at: Any = _START if position is None else tuple(position)
    report = RepairedFollows()
    for place, here in _places(cluster, follows, at, len(steps)):
        step, shard, *pair = here
        while True:
            pairs = steps[step](cluster, place, tuple(pair), batch, report)
            report.compared += len(pairs)
            if len(pairs) < batch:
                break
            pair = list(pairs[-1])
            if rows is not None and report.compared >= rows:
                report.position = (step, shard, pair[0], pair[1])
                return report
        following = (step, shard + 1, 0, 0)
        if rows is not None and report.compared >= rows:
            report.position = following
            return report
    return report


def _places(
    cluster: Cluster, follows: Follows, at: Any, steps: int
) -> Iterable[tuple[Place, Position]]:
    """Yield each shard of each step, from a position."""
    spec = spec_of(follows.users.table)
    for step in range(at[0], steps):
        places = cluster.places
        keyspace = places.keyspace(spec.keyspace, spec.kind)
        for place in places.all_places(keyspace):
            here = (step, place.shard_id)
            if here >= at[:2]:
                pair = at[2:] if here == at[:2] else (0, 0)
                yield place, (*here, *pair)


def _turned(pair: Pair) -> Pair:
    return pair[1], pair[0]


def _forward(follows: Follows, table: EdgeTable, reversed_table: EdgeTable) -> Any:
    """Return the step that writes missing and older rows of the other side."""

    def step(
        cluster: Cluster, place: Place, pair: Pair, batch: int, report: RepairedFollows
    ) -> list[Pair]:
        with cluster.session() as session:
            edges = table.after(session, place, pair, batch)
        with cluster.session() as session:
            others = reversed_table.pairs(session, [_turned(one) for one, _ in edges])
        by_shard: dict[int, list[tuple[Pair, Edge]]] = {}
        for one, edge in edges:
            other = others.get(_turned(one))
            # An ended edge needs no row; one of a newer version was read
            # before the edge has changed.
            is_older = other is not None and other.version < edge.version
            is_missing = other is None and edge.kind
            is_other = other is not None and (
                other.version == edge.version and other != edge
            )
            if is_older or is_missing or is_other:
                shard = unpack(one[1]).shard_id
                by_shard.setdefault(shard, []).append((_turned(one), edge))
        for rows in by_shard.values():
            lists = [[*one, *edge] for one, edge in rows]
            is_of_users = table is follows.users
            cluster.run(
                follows.apply,
                lists[0][0],
                lists if is_of_users else [],
                [] if is_of_users else lists,
            )
            report.written += len(rows)
        return [one for one, _ in edges]

    return step


def _users(follows: Follows) -> Any:
    """Return the forward step of users, which also looks for deleted ones."""
    compare = _forward(follows, follows.users, follows.users_reversed)

    def step(
        cluster: Cluster, place: Place, pair: Pair, batch: int, report: RepairedFollows
    ) -> list[Pair]:
        with cluster.session() as session:
            edges = follows.users.after(session, place, pair, batch)
            pairs = [one for one, edge in edges if edge.kind]
            ids = {one for both in pairs for one in both}
            exist = _existing(session, follows.user, ids)
        for both in pairs:
            if not exist.issuperset(both):
                report.forgotten += cluster.run(
                    follows.forget_user, *both, cross_shard="logged"
                )
        found: list[Pair] = compare(cluster, place, pair, batch, report)
        return found

    return step


def _boards(follows: Follows) -> Any:
    """Return the forward step of boards, which also looks for deleted ones."""
    compare = _forward(follows, follows.boards, follows.boards_reversed)

    def step(
        cluster: Cluster, place: Place, pair: Pair, batch: int, report: RepairedFollows
    ) -> list[Pair]:
        with cluster.session() as session:
            chosen = [
                (one, edge.number)
                for one, edge in follows.boards.after(session, place, pair, batch)
                if edge.kind != BoardChoice.NONE
            ]
            boards = {one[1] for one, _ in chosen}
            exist = _existing(session, follows.board, boards)
        for (follower_id, board_id), owner_id in chosen:
            if board_id not in exist:
                report.forgotten += cluster.run(
                    follows.forget_board,
                    follower_id,
                    owner_id,
                    board_id,
                    cross_shard="logged",
                )
        pairs: list[Pair] = compare(cluster, place, pair, batch, report)
        return pairs

    return step


def _existing(session: ShardSession, cls: Any, ids: set[int]) -> set[int]:
    """Return the ids of existing objects; inactive ones exist."""
    if not ids:
        return set()
    mapper = inspect(cls)
    key = mapper.get_property_by_column(mapper.primary_key[0]).key
    column = getattr(cls, key)
    return set(
        session.scalars(
            select(column).where(column.in_(ids)),
            execution_options={"include_inactive": True},
        )
    )


def _backward(table: EdgeTable, forward: EdgeTable) -> Any:
    """Return the step that ends rows without an edge of the follower."""

    def step(
        cluster: Cluster, place: Place, pair: Pair, batch: int, report: RepairedFollows
    ) -> list[Pair]:
        with cluster.session() as session:
            rows = table.after(session, place, pair, batch)
        # In a later transaction: an edge is committed before its other row.
        with cluster.session() as session:
            edges = forward.pairs(
                session, [_turned(one) for one, row in rows if row.kind]
            )
        for one, row in rows:
            edge = edges.get(_turned(one), Edge(version=row.version))
            is_orphan = _turned(one) not in edges
            if row.kind and (is_orphan or edge.version < row.version):
                report.reverted += cluster.run(_revert, table, place, one, row, edge)
        return [one for one, _ in rows]

    return step


def _revert(
    session: ShardSession,
    table: EdgeTable,
    place: Place,
    pair: Pair,
    row: Edge,
    edge: Edge,
) -> int:
    """Replace a row, if it has not changed since it was read."""
    result: Any = session.execute(
        update(table.table)
        .where(
            table.source_id == pair[0],
            table.target_id == pair[1],
            table.version == row.version,
        )
        .values(
            {
                "kind": edge.kind,
                table.number.name: edge.number,
                "sequence": edge.sequence,
                "version": edge.version,
            }
        ),
        bind_arguments={"place": place},
    )
    count: int = result.rowcount
    if count:
        if table.counts:
            table.counts.move(session, place, [(*pair, row.kind, edge.kind)])
        # Listeners refuse an older version than the one that is replaced.
        table.announce(session, [(pair, edge._replace(version=row.version))])
    return count


def _recount(table: EdgeTable) -> Any:
    """Return the step that corrects stored numbers of edges."""
    counts: Any = table.counts

    def step(
        cluster: Cluster, place: Place, pair: Pair, batch: int, report: RepairedFollows
    ) -> list[Pair]:
        with cluster.session() as session:
            sources = counts.sources(session, place, pair[0], batch)
            different = counts.differing(session, place, sources)
        for source_id in different:
            report.recounted += cluster.run(counts.recount, place, source_id)
        return [(source_id, 0) for source_id in sources]

    return step


def purge_follows(
    cluster: Cluster, follows: Follows, keep: timedelta = timedelta(days=30)
) -> int:
    """Delete rows of edges that ended some time ago, and their stored numbers.

    :param keep: longer than operations may be pending, and than the clocks of
        processes differ.  A row that is written by a still older operation is
        found by :func:`repair_follows`.
    :returns: the number of rows.
    :raises ValueError: if ``keep`` is negative.
    """
    if keep < timedelta(0):
        raise ValueError(f"keep={keep!r} must be a timedelta, 0 or more")
    until = now() - int(keep.total_seconds() * 1_000_000)
    tables = follows.tables
    deleted = 0
    for place, (step, *_) in _places(cluster, follows, _START, len(tables)):
        while True:
            count = cluster.run(_purge, tables[step], place, until)
            deleted += count
            if count < _PURGED:
                break
    return deleted


def _purge(session: ShardSession, table: EdgeTable, place: Place, until: int) -> int:
    ended = [table.kind == 0, table.version < until]
    rows = session.execute(
        select(table.source_id, table.target_id).where(*ended).limit(_PURGED),
        bind_arguments={"place": place},
    ).all()
    for source_id, target_id in rows:
        session.execute(
            delete(table.table).where(
                table.source_id == source_id, table.target_id == target_id, *ended
            ),
            bind_arguments={"place": place},
        )
    if table.counts and rows:
        sources = {source_id for source_id, _ in rows}
        table.counts.forget_empty(session, place, sources)
    return len(rows)


def forget_deleted_board(
    cluster: Cluster, follows: Follows, board_id: int, *, batch: int = 500
) -> int:
    """Remove the choices of all users for a board that was deleted.

    Call it from a job.  Followers whose rows are still to be written on the
    shard of the board are left to :func:`repair_follows`.

    :returns: the number of users.
    """
    table = follows.boards_reversed
    last = changed = 0
    while True:
        with cluster.session() as session:
            place = table.place(session, board_id)
            rows = table.after(
                session, place, (board_id, last), batch, table.source_id == board_id
            )
        for (_, follower_id), row in rows:
            if row.kind != BoardChoice.NONE:
                changed += cluster.run(
                    follows.forget_board,
                    follower_id,
                    row.number,
                    board_id,
                    cross_shard="logged",
                )
        if len(rows) < batch:
            return changed
        last = rows[-1][0][1]
