"""A follow graph whose processes are killed."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import pytest

from sqla_shard import Cluster
from sqla_shard.contrib import FollowKind, repair_follows
from sqla_shard.outbox import discard
from tests.models.graph_models import Base, boards, follows, users
from tests.suites.follow_graph import _rows as rows_of, Histories as Simulated, Model
from tests.workers.forks import Forks

pytestmark = pytest.mark.live

KILLS = 80 if os.environ.get("SQLA_SHARD_SOAK") == "1" else 6
WRITERS = 2
SHARDS = 8
PATIENCE = 120.0

#: A user, and another one whom the first may follow.
Pair = tuple[int, int]


@pytest.fixture
def topology(fleet: Any) -> Iterator[Any]:
    document = fleet.topology_mapping(
        shards=SHARDS, database="db_followskilled_{shard:05d}"
    )
    fleet.drop_databases(document)
    yield document
    fleet.drop_databases(document)


class Writer:
    """A process with pairs of its own, and their possible states."""

    def __init__(
        self,
        forks: Forks,
        topology: Any,
        pairs: list[Pair],
        owners: dict[int, int],
        log: Path,
    ) -> None:
        self._forks, self._topology = forks, topology
        self._pairs, self._log = pairs, log
        self._owners = owners
        self._boards: dict[int, list[int]] = {}
        for board, owner in owners.items():
            self._boards.setdefault(owner, []).append(board)
        log.touch()

    @property
    def lines(self) -> list[list[str]]:
        found = self._log.read_text("ascii").splitlines()
        return [line.split() for line in found]

    def start(self, seed: str) -> None:
        self._process = self._forks.start(
            "write",
            topology=self._topology,
            pairs=self._pairs,
            boards=self._boards,
            seed=seed,
            log=str(self._log),
        )

    def kill_after(self, lines: int, moment: float) -> None:
        """Kill the process when it has logged some more lines.

        :param moment: seconds after that.
        """
        wanted = len(self.lines) + lines
        deadline = monotonic() + PATIENCE
        pause = threading.Event()
        while len(self.lines) < wanted:
            assert monotonic() < deadline
            pause.wait(0.002)
        pause.wait(moment)
        self._forks.kill(self._process)

    def candidates(self) -> dict[Pair, list[Model]]:
        """Return the states that each pair may have.

        A change without an outcome has happened or has not; it holds its
        locks until one of the two is certain, so that the next change of the
        pair comes after it.
        """
        found = {pair: [Model(dict(self._owners))] for pair in self._pairs}
        lines = self.lines
        for index, (outcome, name, *ids) in enumerate(lines):
            if outcome != "begun":
                continue
            user, target = map(int, ids)
            other = self._owners.get(target, target)
            pair = (user, other)
            if name in ("block", "unblock"):
                pair = (other, user)
            follow = lines[index + 1 : index + 2]
            ended = follow[0][0] if follow else "begun"
            new = []
            for model in found[pair]:
                is_refused = (
                    name.startswith("follow_")
                    and model.kind(*pair) is FollowKind.BLOCKED
                )
                if ended != "begun" and is_refused != (ended == "refused"):
                    continue
                if ended == "begun" or is_refused:
                    new.append(model)
                if not is_refused:
                    changed = copy.deepcopy(model)
                    getattr(changed, name)(user, target)
                    new.append(changed)
            assert new, f"{name} of {pair} was {ended}"
            found[pair] = new
        return found


def _is_stored(
    rows: dict[Any, int], pair: Pair, owners: dict[int, int], model: Model
) -> bool:
    """Return whether the follower's shard has the rows of a model."""
    user, other = pair
    kind = rows.get((follows.users.name, user, other), FollowKind.NONE)
    return kind == model.kind(user, other) and all(
        rows.get((follows.boards.name, user, board), 0)
        == model.choices.get((user, board), 0)
        for board, owner in owners.items()
        if owner == other
    )


def test_repaired_graph_equals_a_model(
    topology: Any, tmp_path: Path, rng: Random, say: Callable[[str], None]
) -> None:
    with (
        Cluster.from_topology(topology) as cluster,
        Forks("tests.workers.follow_writers") as forks,
    ):
        cluster.create_all(Base.metadata)
        people = users(cluster, 5)
        owners = {board: user for user in people for board in boards(cluster, user, 2)}
        pairs = [(a, b) for a in people for b in people if a != b]
        writers = [
            Writer(
                forks,
                topology,
                pairs[number::WRITERS],
                owners,
                tmp_path / f"{number}.log",
            )
            for number in range(WRITERS)
        ]
        for writer in writers:
            writer.start(str(rng.random()))
        repairer = forks.start("repair", topology=topology)
        for number in range(KILLS):
            writer = writers[number % WRITERS]
            writer.kill_after(rng.randrange(5, 40), rng.random() * 0.02)
            if rng.random() < 0.5:
                forks.kill(repairer)
                repairer = forks.start("repair", topology=topology)
            writer.start(str(rng.random()))
        forks.kill(repairer)
        for writer in writers:
            writer.kill_after(10, rng.random() * 0.02)
        left = [one.token for one in cluster.pending()]
        # As by a server that is restored from a backup.
        lost = [token for token in left if rng.random() < 0.5]
        discard(cluster, lost)
        cluster.repair(now=True)
        found = repair_follows(cluster, follows)
        again = repair_follows(cluster, follows)
        assert again.changed == 0

        rows = rows_of(cluster)
        whole = Model(owners)
        doubtful = 0
        for writer in writers:
            for pair, models in writer.candidates().items():
                doubtful += len(models) > 1
                stored = [
                    model for model in models if _is_stored(rows, pair, owners, model)
                ]
                assert stored, f"{pair} is none of {len(models)} states"
                whole.kinds |= stored[0].kinds
                whole.choices |= stored[0].choices
        Simulated().compare(cluster, people, whole)
        assert cluster.pending() == []
    changes = sum(len(writer.lines) for writer in writers) // 2
    say(
        f"{changes} changes of a follow graph, {KILLS + WRITERS} writers "
        f"killed, {len(left)} operations left, {len(lost)} of them lost, "
        f"{found.changed} rows repaired, "
        f"{doubtful} pairs in doubt"
    )
