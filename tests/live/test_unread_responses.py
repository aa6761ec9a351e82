"""Exceptions that end a call of a driver before its response is read.

As those of signal handlers: time limits of workers, decorators with a
time-out.  The connection must not be used again, since its next statement
would get the response that was left.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import literal, select, String, update
from sqlalchemy.exc import StatementError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_shard import Cluster, ObjectMixin
from sqla_shard.exc import CommitUnknownError
from sqla_shard.testing.server_fleet import ServerFleet

pytestmark = pytest.mark.live


class Base(DeclarativeBase):
    pass


class Mark(ObjectMixin, Base, type_id=51):
    __tablename__ = "marks"

    note: Mapped[str | None] = mapped_column(String(40))


class LimitError(Exception):
    """Raised by the handler of a signal."""


@pytest.fixture(scope="module", params=["pymysql", "mysqldb"])
def cluster(
    request: pytest.FixtureRequest, fleet: ServerFleet[Any]
) -> Iterator[Cluster]:
    if request.param == "mysqldb":
        pytest.importorskip("MySQLdb")
    document = fleet.topology_mapping(
        shards=4, database="db_unread{shard:05d}", main=False
    )
    with Cluster.from_topology(
        document,
        environ=fleet.environ,
        driver=request.param,
        engine_options={"pool_size": 1, "max_overflow": 0},
    ) as cluster:
        cluster.create_all(Base.metadata)
        with cluster.begin() as session:
            session.add(Mark(note="one", shard_id=0))
        yield cluster
    fleet.drop_databases(document)


#: Modules of the calls, and functions that end a connection, in which an
#: exception is only logged, or open one.
_CALLS = (
    "pymysql.connections",
    "pymysql.cursors",
    "MySQLdb.",
    "sqla_shard.dialects.mysql.mysqlclient_connections",
    "sqla_shard.dialects.mysql.pymysql_",
    "sqla_shard.dialects.polling",
)
_OUTSIDE = frozenset({"close", "_force_close", "connect", "__del__"})


class Interrupting:
    """Raises an exception at one of the lines that drivers execute.

    A line is counted when it is first executed and once again.

    :param at: the number of the line.
    """

    def __init__(self, at: int) -> None:
        self._left = at
        self._seen: Counter[tuple[Any, int]] = Counter()
        self.raised = False

    def __enter__(self) -> Interrupting:
        self._before = sys.gettrace()
        sys.settrace(self._on_call)
        return self

    def __exit__(self, *raised: object) -> None:
        sys.settrace(self._before)

    def _on_call(self, frame: Any, event: str, value: Any) -> Any:
        name = frame.f_globals.get("__name__", "")
        if frame.f_code.co_name in _OUTSIDE or not name.startswith(_CALLS):
            return None
        return self._on_line

    def _on_line(self, frame: Any, event: str, value: Any) -> Any:
        if event == "line" and not self.raised:
            line = frame.f_code, frame.f_lineno
            self._seen[line] += 1
            self._left -= self._seen[line] <= 2
            if self._left < 0:
                self.raised = True
                raise LimitError
        return self._on_line


def _select(cluster: Cluster, token: str) -> Any:
    with cluster.session() as session:
        return session.scalar(
            select(literal(token)).select_from(Mark), bind_arguments={"shard_id": 0}
        )


def _write(cluster: Cluster, token: str) -> Any:
    with cluster.begin() as session:
        session.execute(update(Mark).values(note=token), bind_arguments={"shard_id": 0})


@pytest.mark.parametrize("work", [_select, _write])
def test_no_later_statement_gets_the_response(
    cluster: Cluster, work: Callable[[Cluster, str], Any]
) -> None:
    """Whichever line the exception interrupts, up to the ROLLBACK."""
    number = interrupted = 0
    raised = True
    while raised:
        # Whose connection the next one has, and whose ROLLBACK is read.
        assert _select(cluster, f"first {number}") == f"first {number}"
        with Interrupting(number) as interrupting:
            try:
                work(cluster, f"interrupted {number}")
            except (LimitError, CommitUnknownError):
                interrupted += 1
            except StatementError as error:
                # The statement was being prepared.
                if not isinstance(error.orig, LimitError):
                    raise
        assert _select(cluster, f"later {number}") == f"later {number}"
        raised = interrupting.raised
        number += 1
    assert interrupted
