"""Ordered COMMITs while servers are killed and started again.

What each transaction reported of each shard is compared with what the servers
have in the end (:mod:`tests.servers.sums`).  Some write one shard alone.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy.exc import SQLAlchemyError

from sqla_shard import Cluster
from sqla_shard.exc import CommitUnknownError, PartialCommitError, WrittenShard
from sqla_shard.testing.server_fleet import ServerFleet
from tests.servers.kinds import own_fleet
from tests.servers.sums import (
    ACROSS,
    add,
    Base,
    found_on,
    kill_and_start,
    new_sums,
    SERVERS,
    SETS,
    SHARDS,
    SOAK,
)

pytestmark = pytest.mark.live

KILLS = 60 if SOAK else 5
THREADS = 6
PATIENCE = 60

fleet = own_fleet(SERVERS, SHARDS)


@pytest.fixture
def cluster(fleet: ServerFleet[Any]) -> Iterator[Cluster]:
    with Cluster.from_topology(
        fleet.topology_mapping(),
        environ=fleet.environ,
        engine_options={"connect_args": {"read_timeout": 20}},
    ) as cluster:
        cluster.create_all(Base.metadata)
        yield cluster


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a transaction, as its session reported it.

    :ivar token: its elements'.
    :ivar written: the shards that it has written.
    :ivar error: of which class; None for none.
    :ivar there: the shards that have it.
    :ivar unknown: those that may have it.
    """

    token: str
    written: tuple[int, ...]
    error: type[BaseException] | None = None
    there: frozenset[int] = frozenset()
    unknown: frozenset[int] = frozenset()


def numbers(shards: tuple[WrittenShard, ...]) -> frozenset[int]:
    return frozenset(shard.shard_id for shard in shards)


def outcome_of(error: SQLAlchemyError, token: str, written: tuple[int, ...]) -> Outcome:
    """Return what an error says of each shard."""
    there: frozenset[int] = frozenset()
    unknown: frozenset[int] = frozenset()
    not_there = frozenset(written)
    if isinstance(error, PartialCommitError):
        there = numbers(error.shards_committed)
        unknown = numbers(error.shards_unknown)
        not_there = numbers(error.shards_failed)
        not_there |= numbers(error.shards_rolled_back)
    elif isinstance(error, CommitUnknownError):
        unknown = numbers(error.shards_unknown)
        not_there = frozenset()
    # Each shard, once.
    assert sorted([*there, *unknown, *not_there]) == sorted(written), error
    return Outcome(
        token=token, written=written, error=type(error), there=there, unknown=unknown
    )


@dataclass
class Writers:
    """Threads that write all the time."""

    cluster: Cluster
    #: By set and shard.
    sums: dict[tuple[int, int], int]
    outcomes: list[Outcome] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    wrong: list[BaseException] = field(default_factory=list)

    def work(self, number: int, rng: random.Random) -> None:
        count = 0
        try:
            while not self.stop.is_set():
                count += 1
                outcome = self._write(f"{number}-{count}", rng)
                self.outcomes.append(outcome)
                if outcome.error is not None:
                    # A server that is down refuses at once.
                    self.stop.wait(0.02)
        except BaseException as error:
            self.wrong.append(error)

    def written(self) -> int:
        """Return the number of writes that have succeeded."""
        return sum(outcome.error is None for outcome in list(self.outcomes))

    def _write(self, token: str, rng: random.Random) -> Outcome:
        of = rng.randrange(SETS)
        shards: tuple[int, ...] = tuple(ACROSS)
        if rng.random() < 0.2:
            shards = (rng.choice(shards),)
        try:
            with self.cluster.begin(cross_shard="ordered") as session:
                for shard_id in shards:
                    add(session, self.sums[of, shard_id], of, token)
        except SQLAlchemyError as error:
            return outcome_of(error, token, shards)
        return Outcome(token=token, written=shards, there=frozenset(shards))


def test_every_divergence_was_reported(
    fleet: ServerFleet[Any],
    cluster: Cluster,
    rng: random.Random,
    say: Callable[[str], None],
) -> None:
    writers = Writers(cluster, new_sums(cluster))
    threads = [
        threading.Thread(target=writers.work, args=(n, random.Random(rng.random())))
        for n in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    try:
        kill_and_start(fleet, rng, KILLS, writers.written)
    finally:
        writers.stop.set()
        for thread in threads:
            thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
    assert writers.wrong == []

    has: dict[str, set[int]] = {}
    for shard_id in ACROSS:
        sums, tokens, by_set = found_on(fleet, shard_id)
        # One shard is atomic, whatever happens.
        assert {*tokens.values()} <= {1}
        assert sorted(sums) == sorted(by_set[n] for n in range(SETS))
        for token in tokens:
            has.setdefault(token, set()).add(shard_id)

    kinds: Counter[str] = Counter()
    for outcome in writers.outcomes:
        there = has.pop(outcome.token, set())
        assert outcome.there <= there <= outcome.there | outcome.unknown, (
            outcome,
            there,
        )
        if there not in (set(), {*outcome.written}):
            assert outcome.error is PartialCommitError, (outcome, there)
        kinds["none" if outcome.error is None else outcome.error.__name__] += 1
    # The servers have no rows that were never written.
    assert has == {}
    assert kinds["none"] > KILLS
    said = ", ".join(f"{n} {name}" for name, n in kinds.most_common())
    say(f"ordered COMMITs, {KILLS} kills: {said}")
