"""COMMITs that are cut: the reported state of each shard is the actual one.

A proxy before each server cuts the connection on which COMMIT comes, before
the server receives it or after its execution.  The rows of the servers are
read without the proxies.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pickle
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, Literal

import pymysql
import pytest
from sqlalchemy import select
from sqlalchemy.exc import InvalidRequestError

from sqla_shard import Cluster, unpack
from sqla_shard.exc import (
    CommitUnknownError,
    PartialCommitError,
    ServerFencedError,
    WrittenShard,
)
from sqla_shard.testing import Proxy
from sqla_shard.testing.server_fleet import ServerFleet
from tests.servers.faults import busy, own_ids, Pin, SERVERS, SHARDS
from tests.servers.kinds import own_fleet, own_lines

pytestmark = pytest.mark.live

EACH = SHARDS // SERVERS
When = Literal["before", "after"]
WHENS: list[When] = ["before", "after"]
#: The servers, by number, in the order in which they are written.
ORDERS = [(0, 1, 2), (2, 0, 1)]
Truth = Callable[[], list[str]]
NEW = map("new {}".format, count())

fleet = own_fleet(SERVERS, SHARDS)
ids = own_ids()


lines = own_lines()


@pytest.fixture(scope="module")
def proxied(
    fleet: ServerFleet[Any], lines: list[Proxy], ids: list[int]
) -> Iterator[Cluster]:
    document = fleet.topology_mapping(proxies=lines)
    with Cluster.from_topology(document, environ=fleet.environ) as cluster:
        yield cluster


@pytest.fixture
def cluster(proxied: Cluster, lines: list[Proxy]) -> Iterator[Cluster]:
    yield proxied
    for line in lines:
        line.restore()
    assert busy(proxied) == 0


def shards_of(numbers: Sequence[int]) -> list[int]:
    """Return two shards of each server, in order."""
    return [n * EACH + i for n in numbers for i in (2, 1)]


def on_server(shard_id: int) -> WrittenShard:
    return WrittenShard(
        keyspace="objects", shard_id=shard_id, server=f"server{shard_id // EACH + 1}"
    )


@pytest.fixture(scope="module")
def there(fleet: ServerFleet[Any], ids: list[int]) -> Iterator[Truth]:
    """Return a function that reads each shard, without the proxies."""
    with contextlib.ExitStack() as stack:
        cursors = [
            stack.enter_context(server.root_connect()).cursor()
            for server in fleet.servers
        ]

        def read() -> list[str]:
            found: list[str] = []
            for number, cursor in enumerate(cursors):
                first = number * EACH
                cursor.execute(
                    " UNION ALL ".join(
                        f"SELECT {n}, body FROM db{n:05d}.pins "
                        f"WHERE local_id = {unpack(ids[n]).local_id}"
                        for n in range(first, first + EACH)
                    )
                )
                found += [str(body) for _, body in sorted(cursor.fetchall())]
            return found

        yield read


def check(
    error: Exception | None,
    written: Sequence[int],
    before: Sequence[str],
    after: Sequence[str],
    new: str,
) -> None:
    """Compare the reported state of each shard with its rows."""
    error = pickle.loads(pickle.dumps(error))
    reported: dict[str, list[WrittenShard]] = {}
    if error is None:
        reported["committed"] = [on_server(n) for n in written]
    elif isinstance(error, CommitUnknownError):
        reported["unknown"] = [*error.shards_unknown]
    elif isinstance(error, PartialCommitError):
        reported["committed"] = [*error.shards_committed]
        reported["failed"] = [*error.shards_failed]
        reported["unknown"] = [*error.shards_unknown]
        reported["rolled back"] = [*error.shards_rolled_back]
        assert {s.server for s in reported["committed"]} == {*error.committed}
        assert {s.server for s in reported["rolled back"]} == {*error.rolled_back}
        assert error.unknown == bool(reported["unknown"])
    else:
        reported["rolled back"] = [on_server(n) for n in written]
    shards = [s for group in reported.values() for s in group]
    assert sorted(s.shard_id for s in shards) == sorted(written)
    assert {*shards} == {on_server(n) for n in written}
    expected = list(before)
    for shard in reported.get("committed", ()):
        expected[shard.shard_id] = new
    for shard in reported.get("unknown", ()):
        # Shards of one server are committed together, or not at all.
        assert after[shard.shard_id] in (before[shard.shard_id], new)
        expected[shard.shard_id] = after[shard.shard_id]
    assert list(after) == expected


@pytest.mark.parametrize("way", ["ordered", "unordered"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("n", range(SERVERS))
@pytest.mark.parametrize("when", WHENS)
def test_the_nth_commit(
    cluster: Cluster,
    fleet: ServerFleet[Any],
    lines: list[Proxy],
    ids: list[int],
    there: Truth,
    way: Any,
    order: tuple[int, ...],
    n: int,
    when: When,
) -> None:
    written = shards_of(order)
    before, new = there(), next(NEW)
    cut = order[n]
    lines[cut].cut_at_commit(when=when)
    session = cluster.session(cross_shard=way)
    for shard_id in written:
        session.get(Pin, ids[shard_id]).body = new
        session.flush()
    error = None
    try:
        session.commit()
    except PartialCommitError as caught:
        error = caught
    session.close()
    after = there()
    check(error, written, before, after, new)
    assert error is not None
    # The actual state, which the client does not know.
    unknown = [on_server(i) for i in sorted(shards_of([cut]))]
    assert list(error.shards_unknown) == unknown
    is_there = {after[s.shard_id] == new for s in unknown}
    assert is_there == {when == "after"}
    if way == "ordered":
        done = [on_server(i) for i in sorted(shards_of(order[:n]))]
        rest = [on_server(i) for i in sorted(shards_of(order[n + 1 :]))]
        assert list(error.shards_committed) == done
        assert list(error.shards_rolled_back) == rest


@pytest.mark.parametrize("way", ["ordered", "unordered"])
@pytest.mark.parametrize("when", WHENS)
def test_all_of_it_on_one_server(
    cluster: Cluster,
    lines: list[Proxy],
    ids: list[int],
    there: Truth,
    way: Any,
    when: When,
) -> None:
    """All of it or nothing is there, as far as servers go."""
    written = shards_of([1])
    before, new = there(), next(NEW)
    lines[1].cut_at_commit(when=when)
    with cluster.session(cross_shard=way) as session:
        for shard_id in written:
            session.get(Pin, ids[shard_id]).body = new
        with pytest.raises(CommitUnknownError) as caught:
            session.commit()
    after = there()
    check(caught.value, written, before, after, new)
    assert {after[n] == new for n in written} == {when == "after"}


@pytest.mark.parametrize("when", WHENS)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_one_shard(
    cluster: Cluster,
    fleet: ServerFleet[Any],
    lines: list[Proxy],
    ids: list[int],
    there: Truth,
    n: int,
    when: When,
) -> None:
    """Of several transactions the n-th is cut."""
    commits = lines[1].counts.commits
    lines[1].cut_at_commit(n, when=when)
    for number in range(1, 5):
        before, new = there(), next(NEW)
        error = None
        try:
            with cluster.begin() as session:
                session.get(Pin, ids[EACH]).body = new
        except CommitUnknownError as caught:
            error = caught
        assert (error is not None) == (number == n)
        after = there()
        check(error, [EACH], before, after, new)
        is_there = number != n or when == "after"
        assert (after[EACH] == new) == is_there
    assert lines[1].counts.commits == commits + 4


@pytest.mark.parametrize("way", [None, "ordered", "unordered"])
@pytest.mark.parametrize("read", range(SERVERS))
@pytest.mark.parametrize("when", WHENS)
def test_a_server_that_was_only_read(
    cluster: Cluster,
    fleet: ServerFleet[Any],
    lines: list[Proxy],
    ids: list[int],
    there: Truth,
    caplog: pytest.LogCaptureFixture,
    way: Any,
    read: int,
    when: When,
) -> None:
    """It decides nothing: all that was written is there."""
    others = [n for n in range(SERVERS) if n != read]
    written = shards_of(others) if way else [others[1] * EACH]
    before, new = there(), next(NEW)
    lines[read].cut_at_commit(when=when)
    with caplog.at_level(logging.WARNING), cluster.begin(cross_shard=way) as session:
        assert session.get(Pin, ids[read * EACH])
        for shard_id in written:
            session.get(Pin, ids[shard_id]).body = new
            session.flush()
        assert session.get(Pin, ids[read * EACH + 1])
    assert f"server{read + 1} was lost at COMMIT" in caplog.text
    check(None, written, before, there(), new)


def test_nothing_written_and_lost(
    cluster: Cluster, lines: list[Proxy], ids: list[int]
) -> None:
    """It is repeated: nothing has been reported yet."""
    attempts = []

    def read(session: Any) -> int:
        attempts.append(1)
        return len(session.get_many(Pin, ids))

    lines[2].cut_at_commit(when="before")
    assert cluster.run(read) == SHARDS
    assert len(attempts) == 2


@pytest.mark.parametrize("when", WHENS)
def test_a_key_resolves_an_unknown_outcome(
    cluster: Cluster,
    fleet: ServerFleet[Any],
    lines: list[Proxy],
    ids: list[int],
    there: Truth,
    when: When,
) -> None:
    new = next(NEW)
    attempts = []

    def write(session: Any) -> None:
        attempts.append(1)
        # Read before, and ended after.
        session.get(Pin, ids[0])
        session.get(Pin, ids[EACH]).body = new

    lines[1].cut_at_commit(when=when)
    cluster.run(write, key=new)
    assert there()[EACH] == new
    assert len(attempts) == (1 if when == "after" else 2)


@pytest.mark.parametrize("way", [None, "ordered", "unordered"])
@pytest.mark.parametrize("n", range(SERVERS))
@pytest.mark.parametrize("when", WHENS)
def test_awaited(
    fleet: ServerFleet[Any],
    lines: list[Proxy],
    ids: list[int],
    there: Truth,
    way: Any,
    n: int,
    when: When,
) -> None:
    order = (1, 2, 0)
    written = shards_of(order) if way else [order[n] * EACH]
    before, new = there(), next(NEW)

    async def write() -> Exception | None:
        document = fleet.topology_mapping(proxies=lines)
        cluster = Cluster.from_topology(document, environ=fleet.environ)
        try:
            async with cluster.async_begin(cross_shard=way) as session:
                for shard_id in written:
                    (await session.get_one(Pin, ids[shard_id])).body = new
                    await session.flush()
                # Not before: asyncmy commits on each new connection.
                lines[order[n]].cut_at_commit(when=when)
        except (CommitUnknownError, PartialCommitError) as error:
            return error
        finally:
            assert busy(cluster) == 0
            await cluster.aclose()
        return None

    error = asyncio.run(write())
    after = there()
    check(error, written, before, after, new)
    assert type(error) is (PartialCommitError if way else CommitUnknownError)
    unknown = error.shards_unknown  # type: ignore[union-attr]  # just seen
    assert {s.server for s in unknown} == {f"server{order[n] + 1}"}
    assert {after[s.shard_id] == new for s in unknown} == {when == "after"}


@pytest.mark.parametrize("n", range(SERVERS))
def test_a_server_that_refuses_to_commit(
    cluster: Cluster, fleet: ServerFleet[Any], ids: list[int], there: Truth, n: int
) -> None:
    """It is read-only by then, and refuses: the outcome is known."""
    order = (1, 2, 0)
    written = shards_of(order)
    before, new = there(), next(NEW)
    session = cluster.session(cross_shard="ordered")
    for shard_id in written:
        session.get(Pin, ids[shard_id]).body = new
        session.flush()
    server = fleet.servers[order[n]]
    # It would wait for the transaction to end, if it were to do more.
    server.root_execute("SET GLOBAL read_only = 1")
    try:
        with pytest.raises((ServerFencedError, PartialCommitError)) as caught:
            session.commit()
        # A second attempt does not commit the rest.
        with pytest.raises(InvalidRequestError):
            session.commit()
        session.close()
    finally:
        server.root_execute("SET GLOBAL read_only = 0")
    check(caught.value, written, before, there(), new)
    if n:
        assert isinstance(caught.value, PartialCommitError)
        failed = [on_server(i) for i in sorted(shards_of([order[n]]))]
        assert list(caught.value.shards_failed) == failed
    else:
        assert isinstance(caught.value, ServerFencedError)


def test_one_that_refuses_after_reading_was_written_behind_our_back(
    cluster: Cluster, fleet: ServerFleet[Any], ids: list[int]
) -> None:
    """With a cursor of the driver; the message names it."""
    session = cluster.session()
    session.get(Pin, ids[0]).body = "seen"
    session.flush()
    connection = session.connection({"shard_id": EACH})
    cursor = connection.connection.cursor()
    cursor.execute(f"UPDATE db{EACH:05d}.pins SET body = 'unseen'")
    cursor.close()
    server = fleet.servers[1]
    server.root_execute("SET GLOBAL read_only = 1")
    try:
        with pytest.raises(PartialCommitError) as caught:
            session.commit()
        session.close()
    finally:
        server.root_execute("SET GLOBAL read_only = 0")
    assert caught.value.failed == "server2"
    assert caught.value.committed == ("server1",)
    assert not caught.value.unknown


def test_locks_hold_until_what_they_protect_is_written(
    cluster: Cluster, fleet: ServerFleet[Any], lines: list[Proxy], ids: list[int]
) -> None:
    """The row that was locked is free when the other is written, not before.

    The proxy keeps the answer of the COMMIT that writes.
    """
    new = next(NEW)
    session = cluster.session()
    locking = select(Pin).where(Pin.id == ids[0]).with_for_update()
    session.scalars(locking).one()
    session.get(Pin, ids[EACH]).body = new
    session.flush()
    lines[1].cut_at_commit(when="after")
    with pytest.raises(CommitUnknownError):
        session.commit()
    try:
        with pytest.raises(pymysql.err.OperationalError, match=r"1205|3572"):
            fleet.servers[0].root_execute(
                "SELECT body FROM db00000.pins FOR UPDATE NOWAIT"
            )
    finally:
        session.close()
    fleet.servers[0].root_execute("SELECT body FROM db00000.pins FOR UPDATE NOWAIT")


@pytest.mark.parametrize("wrong", [0, -1, 1.0, True, "1", None])
def test_an_invalid_number(lines: list[Proxy], wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"n=.* must be an integer from 1"):
        lines[0].cut_at_commit(wrong, when="before")


def test_an_invalid_time(lines: list[Proxy]) -> None:
    with pytest.raises(ValueError, match=r"'during.* must be "):
        lines[0].cut_at_commit(when="during")  # type: ignore[arg-type]  # wrong on purpose


def test_restored_before_it_came(
    cluster: Cluster, lines: list[Proxy], ids: list[int]
) -> None:
    lines[0].cut_at_commit(when="before")
    lines[0].restore()
    with cluster.begin() as session:
        session.get_one(Pin, ids[0]).body = next(NEW)


def test_other_packets_are_no_commit(
    fleet: ServerFleet[Any], lines: list[Proxy]
) -> None:
    server, line = fleet.servers[0], lines[0]
    before = line.counts.commits
    line.cut_at_commit(when="before")
    with pymysql.connect(
        host=line.host, port=line.port, user=server.user, password=server.password
    ) as connection:
        cursor = connection.cursor()
        for text in ("SELECT 'COMMIT'", "DO 1 -- COMMIT", "ROLLBACK"):
            cursor.execute(text)
        # Longer than what comes in one piece.
        cursor.execute("SELECT %s", ["COMMIT" * 100_000])
        assert line.counts.commits == before
        with pytest.raises(pymysql.err.OperationalError):
            cursor.execute(" Commit; ")
    assert line.counts.commits == before + 1
