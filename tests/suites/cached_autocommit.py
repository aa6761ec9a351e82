"""Engines that commit each statement by itself: cached rows are not written.

The cache could not be invalidated before the COMMIT.
"""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import delete, insert, text, update

from sqla_shard.exc import CachedWriteError
from tests.models.cached_models import (
    BOARD,
    BoardHasPins,
    BoardHasRatedPins,
    CACHED,
    PIN,
    seen,
    sent,
    Suite,
    USER,
    User,
)
from tests.models.layouts import pack

PINS = [pack(5, PIN, number) for number in (1, 2)]


def _flushed(session: Any, user: int, board: int) -> None:
    session.get(User, user).city = "Oslo"
    session.flush()


def _added(session: Any, user: int, board: int) -> None:
    session.add(User(name="new"))
    session.flush()


def _deleted(session: Any, user: int, board: int) -> None:
    session.delete(session.get(User, user))
    session.flush()


def _row(session: Any, user: int, board: int) -> None:
    session.add(BoardHasRatedPins(board_id=board, pin_id=PINS[0]))
    session.flush()


WRITES: dict[str, Any] = {
    "flushed": _flushed,
    "added": _added,
    "deleted": _deleted,
    "a row": _row,
    "update": lambda s, user, board: s.execute(
        update(User).where(User.id == user).values(city="Oslo")
    ),
    "update by keys": lambda s, user, board: s.execute(
        update(User), [{"id": user, "city": "Oslo"}]
    ),
    "delete": lambda s, user, board: s.execute(delete(User).where(User.id == user)),
    "insert": lambda s, user, board: s.execute(insert(User), [{"name": "new"}]),
    "core": lambda s, user, board: s.execute(
        insert(User.__table__).values(city="new"), bind_arguments={"shard_id": 5}
    ),
    "append": lambda s, user, board: BoardHasPins.append(s, board, PINS[0]),
    "append_many": lambda s, user, board: BoardHasPins.append_many(s, board, PINS),
    "move": lambda s, user, board: BoardHasPins.move(s, board, PINS[0], before=PINS[1]),
    "remove": lambda s, user, board: BoardHasPins.remove(s, board, PINS[0]),
    "clear": lambda s, user, board: BoardHasPins.clear(s, board),
}


class Autocommit(Suite):
    @pytest.fixture
    def user(self, cluster, rng):
        number = rng.randrange(10**6, 10**9)
        with cluster.session() as session:
            session.execute(
                text(
                    "INSERT INTO users (local_id, city, data) "
                    "VALUES (:id, 'Rome', '{}')"
                ),
                {"id": number},
                bind_arguments={"shard_id": 5},
            )
            session.commit()
        return pack(5, USER, number)

    def everything(self, cluster):
        with cluster.session() as session:
            return [
                session.execute(
                    text(f"SELECT count(*) FROM {table}"),  # of a test
                    bind_arguments={"shard_id": 5},
                ).scalar()
                for table in ("users", "board_has_pins")
            ]

    @pytest.mark.parametrize("name", WRITES)
    def test_refused(self, cluster, user, name):
        board = pack(5, BOARD, 1)
        before = self.everything(cluster)
        with (
            sent() as statements,
            cluster.session(shard_id=5) as session,
            pytest.raises(CachedWriteError, match="AUTOCOMMIT"),
        ):
            WRITES[name](session, user, board)
        assert not [s for s in statements if not s.startswith("SELECT")]
        assert self.everything(cluster) == before
        assert seen(cluster, User, user).city == "Rome"

    def test_an_option_of_a_connection(self, cluster, user):
        """With the level of one transaction alone it is the same."""
        with cluster.session() as session:
            level = {"isolation_level": self.other}
            there = {"shard_id": 5, "mapper": User}
            session.connection(there, execution_options=level)
            _flushed(session, user, 0)
            session.commit()
        assert seen(cluster, User, user).city == "Oslo"

    #: A level with which it can be written.
    other = "SERIALIZABLE"


cluster = CACHED.on_backend(engine_options={"isolation_level": "AUTOCOMMIT"})
