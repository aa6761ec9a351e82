"""Operations on other shards, while servers and processes are killed.

Writers are processes, killed with SIGKILL at any moment; so are the workers
that repair meanwhile, and the servers (:mod:`tests.servers.sums`).  In the end
each transaction is there on all four shards once, or nowhere.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sqla_shard import Cluster
from sqla_shard.testing.server_fleet import ServerFleet
from tests.models.operation_models import make_due
from tests.servers.kinds import own_fleet
from tests.servers.sums import (
    ACROSS,
    Base,
    found_on,
    kill_and_start,
    new_sums,
    SERVERS,
    SETS,
    SHARDS,
    SOAK,
)
from tests.workers.forks import Forks

pytestmark = pytest.mark.live

KILLS = 60 if SOAK else 5
WRITERS = 4
WORKERS = 2
#: Passes until all pending operations must be applied.
PASSES = 200

fleet = own_fleet(SERVERS, SHARDS)


class Processes:
    """Writers and workers, of which some are killed now and then."""

    def __init__(
        self,
        forks: Forks,
        fleet: ServerFleet[Any],
        sums: dict[tuple[int, int], int],
        log: Path,
        rng: random.Random,
    ) -> None:
        self._forks = forks
        self._topology = fleet.topology_mapping()
        self._sums = [[*key, sum_id] for key, sum_id in sums.items()]
        self._log = log
        self._rng = rng
        self.killed: Counter[str] = Counter()
        self.running = [
            *(("write", self._start("write")) for _ in range(WRITERS)),
            *(("repair", self._start("repair")) for _ in range(WORKERS)),
        ]

    def _start(self, what: str) -> int:
        more = {}
        if what == "write":
            seed = str(self._rng.randrange(10**9))
            more = {"sums": self._sums, "log": str(self._log), "seed": seed}
        return self._forks.start(what, topology=self._topology, **more)

    def kill_some(self) -> None:
        """Kill some of them, and start others in their place."""
        for index in self._rng.sample(range(len(self.running)), 2):
            what, process = self.running[index]
            self._forks.kill(process)
            self.killed[what] += 1
            self.running[index] = what, self._start(what)


def outcomes(log: Path) -> dict[str, tuple[str, int]]:
    """Return what became of each token, and its set."""
    found = {}
    for line in log.read_text("ascii").splitlines():
        outcome, of, token = line.split()
        found[token] = outcome, int(of)
    return found


def written(log: Path) -> int:
    """Return the number of writes that were acknowledged."""
    return log.read_text("ascii").count("done ") if log.exists() else 0


def repair_all(fleet: ServerFleet[Any]) -> tuple[int, int]:
    """Return how many operations were left, and applied in the end."""
    with Cluster.from_topology(fleet.topology_mapping()) as cluster:
        left = len(cluster.pending())
        repaired = 0
        for _ in range(PASSES):
            if not cluster.pending():
                break
            make_due(cluster)
            repaired += cluster.repair().applied
        assert cluster.pending() == []
    return left, repaired


def test_all_or_nothing_once(
    fleet: ServerFleet[Any],
    tmp_path: Path,
    rng: random.Random,
    say: Callable[[str], None],
) -> None:
    log = tmp_path / "writers.log"
    with Cluster.from_topology(fleet.topology_mapping()) as cluster:
        cluster.create_all(Base.metadata)
        sums = new_sums(cluster)
    with Forks("tests.workers.logged_writers") as forks:
        processes = Processes(forks, fleet, sums, log, rng)
        kill_and_start(fleet, rng, KILLS, partial(written, log), processes.kill_some)
    for server in fleet.servers:
        # Statements sent by killed processes are executed by now, or never.
        server.kill()
        server.start()
    left, repaired = repair_all(fleet)

    logged = outcomes(log)
    there: dict[str, set[int]] = {}
    counted = []
    for shard_id in ACROSS:
        counts, tokens, by_set = found_on(fleet, shard_id)
        # No element is there twice.
        assert {*tokens.values()} <= {1}, tokens.most_common(3)
        assert counts == [by_set[of] for of in range(SETS)]
        counted.append(counts)
        for token in tokens:
            there.setdefault(token, set()).add(shard_id)
    # All of it is on all shards.
    assert {frozenset(shards) for shards in there.values()} == {frozenset(ACROSS)}
    assert all(counts == counted[0] for counts in counted)

    effect: Counter[tuple[str, bool]] = Counter()
    for token, (outcome, _) in logged.items():
        effect[outcome, token in there] += 1
    # No row is there that was never written, or that was reported as
    # failed; all is there that was reported as done.
    assert {*there} <= {*logged}
    assert effect["failed", True] == effect["done", False] == 0
    done = effect["done", True]
    unknown = effect["begun", True] + effect["unknown", True]
    assert sum(counted[0]) == done + unknown
    assert done > KILLS
    killed = ", ".join(
        f"{n} of {what!r}" for what, n in sorted(processes.killed.items())
    )
    say(
        f"logged transactions, {KILLS} servers killed and processes: "
        f"{killed}; {done} done, {unknown} unknown that took effect, "
        f"{effect['begun', False] + effect['unknown', False]} that did not, "
        f"{effect['failed', False]} failed, {left} operations left, "
        f"{repaired} of them applied in the end"
    )
