"""The tables of both keyspaces, by the revisions in ``migrations/``.

:func:`bring_up_to_date` is for the demo, which creates its databases itself
and is one process.  Elsewhere ``sqla-shard schema`` does it before the new
program is started.
"""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import func, select
from sqlalchemy.exc import OperationalError, ProgrammingError

from examples.pinboard.models import (
    Board,
    BoardHasPins,
    BoardHasRemovedPins,
    graph,
    Pin,
    User,
    UserFollowsBoards,
    UserHasBoards,
)
from sqla_shard import Cluster, scatter, schema, ShardSession
from sqla_shard.exc import ProvisionError

_INI = Path(__file__).with_name("alembic.ini")
#: Sections of it, one for each keyspace.
_SECTIONS = ("alembic", "lookup")
#: Tables of a version without revisions, which are in the first of them.
_OLD = (*(User, Board, Pin), *(UserHasBoards, BoardHasPins, BoardHasRemovedPins))
_FIRST = "0001"
_MISSING = "no such database"
#: Forked processes per server.
_JOBS = 1


def configs(cluster: Cluster) -> dict[str, Config]:
    """Return the configurations of alembic, by section.

    :param cluster: the cluster that its commands upgrade.
    """
    found = {}
    for section in _SECTIONS:
        found[section] = Config(str(_INI), ini_section=section)
        found[section].attributes["cluster"] = cluster
    return found


def bring_up_to_date(cluster: Cluster) -> None:
    """Create missing databases, and upgrade the tables of all databases.

    Call it in one process, before any request: it forks others.

    :raises sqla_shard.exc.SchemaError: when it could not be done everywhere,
        or databases may belong to another application.
    """
    options = schema.RunOptions(jobs=_JOBS)
    for section, config in configs(cluster).items():
        status = schema.status(config)
        if status.ok:
            continue
        print(f"preparing the tables of {status.keyspace}", flush=True)
        missing = any(one.condition == _MISSING for one in status.shards)
        at = set(status.histogram())
        if missing or () in at:
            try:
                schema.provision(config, initial=True, options=options)
            except ProvisionError:
                if missing or not at <= {(), (_FIRST,)}:
                    pass  # The upgrade reports them, and does nothing.
                elif section == "alembic" and _are_old(cluster):
                    command.stamp(config, _FIRST)
                else:
                    raise
        schema.upgrade(config, options=options)
    move_follows(cluster)


def move_follows(cluster: Cluster) -> None:
    """Move the boards that users followed earlier to the follow graph."""
    rows = select(UserFollowsBoards).options(scatter())
    with cluster.session() as session:
        pairs = [(row.user_id, row.board_id) for row in session.scalars(rows)]
    for user_id, board_id in pairs:
        cluster.run(_move_follow, user_id, board_id, cross_shard="logged")


def _move_follow(session: ShardSession, user_id: int, board_id: int) -> None:
    UserFollowsBoards.remove(session, user_id, board_id)
    board = session.get(Board, board_id)
    if board is not None and board.user_id != user_id:
        graph.follow_board(session, user_id, board_id)


def _are_old(cluster: Cluster) -> bool:
    """Return whether ``create_all`` has created the tables, on all shards."""
    with cluster.session() as session:
        for cls in _OLD:
            rows = select(func.count()).select_from(cls).options(scatter())
            try:
                session.scalar(rows)
            except (OperationalError, ProgrammingError):
                return False  # The names of SQLite and of MariaDB.
    return True
