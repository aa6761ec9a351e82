"""The processes of a run, without a database."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import closing
from itertools import groupby
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from sqla_shard import Cluster
from sqla_shard.schema import run
from sqla_shard.schema.ledger import Version
from sqla_shard.schema.reports import CommandProgress, Outcome, RunReport, State
from sqla_shard.schema.selection import RunOptions, shards_of
from sqla_shard.schema.waves import Workers
from sqla_shard.testing import sqlite_topology


class Planless:
    """Does what all appliers do that make no plans."""

    has_run_code = False

    def __init__(self):
        self.sent = {}

    def adopt(self, plans):
        assert not plans

    def made(self):
        return {}

    def stop(self, *details):
        pass

    def close(self):
        pass


class Interrupting(Planless):
    """Presses Ctrl-C as soon as its process has started."""

    def __init__(self):
        super().__init__()
        os.kill(os.getppid(), signal.SIGINT)

    def __call__(self, version):
        shard = version.shard
        return Outcome(
            shard_id=shard.shard_id,
            server=shard.server,
            database=shard.database,
            state=State.CHANGED,
        )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_interrupts_no_system_call(number):
    """The other thread receives it: the call that waits is not interrupted."""
    shown: list[bool] = []
    workers = Workers(
        versions=[],
        jobs=1,
        applier=Interrupting,
        on_stop=shown.append,
        on_wait=lambda: None,
    )

    def receive() -> None:
        # The main thread waits by then; if it does not, this tests less.
        threading.Event().wait(0.1)
        signal.pthread_kill(threading.get_ident(), number)

    receiver = threading.Thread(target=receive)
    with closing(workers), workers.stopped_by_signals():
        receiver.start()
        workers.pause(60)
        receiver.join()
    assert workers.is_interrupted
    # Otherwise the handler was called after the pause.
    assert shown == [False]


def ran(directory: Path, servers: int, shards: int, **arguments: Any) -> RunReport:
    """Run a command on the shards of SQLite files."""
    topology = sqlite_topology(directory, servers, shards)
    with Cluster.from_topology(topology) as cluster:
        keyspace = cluster.places.topology.keyspace("objects")
        return run(
            [Version(shard=one) for one in shards_of(cluster.places, keyspace)],
            command="upgrade",
            target="head",
            steps=lambda heads: ["one"],
            has_moved=lambda shard_ids: False,
            **arguments,
        )


class Gated(Planless):
    """Finishes a shard once a file for it exists."""

    def __init__(self, folder: Path):
        super().__init__()
        self._folder = folder

    def __call__(self, version):
        deadline = monotonic() + 120
        gate = self._folder / str(version.shard.shard_id)
        while not gate.exists() and monotonic() < deadline:
            sleep(0.01)
        state = State.CHANGED if gate.exists() else State.FAILED
        return Outcome.of(version.shard, state)


class Planning(Planless):
    """Makes a plan on its first shard, if it has none.

    Its outcomes have the pid, and what it has received, as steps.
    """

    def __init__(self) -> None:
        super().__init__()
        self._received: list[str] = []
        self._made: dict[tuple[str, ...], Any] = {}

    def adopt(self, plans):
        self._received += [f"{heads} {plan}" for heads, plan in plans.items()]

    def __call__(self, version):
        pid = str(os.getpid())
        if not self._received:
            self._received.append("own")
            self._made = {("a",): f"of {pid}"}
        steps = (pid, *self._received)
        return Outcome.of(version.shard, State.CHANGED, steps=steps)

    def made(self):
        made, self._made = self._made, {}
        return made


def test_processes_get_the_plan_of_the_first_one(tmp_path: Path):
    report = ran(
        tmp_path,
        2,
        12,
        applier=Planning,
        options=RunOptions(jobs=3),
        progress=CommandProgress(),
    )
    steps = [one.steps for one in report.outcomes]
    pid = steps[0][0]
    assert {found[1:] for found in steps if found[0] == pid} == {("own",)}
    others = {found[1:] for found in steps if found[0] != pid}
    # Once for each process.
    assert others == {(f"('a',) of {pid}",)}


class Opening(CommandProgress):
    """Lets each shard finish when the outcome before it is shown."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._counted: list[int] = []
        #: The shards that are counted whenever the runner waits.
        self.shown: list[list[int]] = []

    def advance(self, outcome):
        self._counted.append(outcome.shard_id)

    def waiting(self):
        self.shown.append(list(self._counted))
        (self._folder / str(len(self._counted))).touch()


def test_a_display_is_up_to_date_while_the_runner_waits(tmp_path: Path):
    progress = Opening(tmp_path)
    report = ran(
        tmp_path / "data",
        1,
        4,
        applier=lambda: Gated(tmp_path),
        options=RunOptions(jobs=1, pause=0.01),
        progress=progress,
    )
    assert report.ok
    # On a busy machine it waits more often than that.
    found = [one for one, _ in groupby(progress.shown)]
    assert found == [[], [0], [0, 1], [0, 1, 2]]


class Broken(CommandProgress):
    """Fails as a terminal that was closed."""

    is_ended = False

    def advance(self, outcome):
        raise OSError("closed")

    def end(self):
        self.is_ended = True


def test_a_display_ends_after_an_error(tmp_path: Path):
    (tmp_path / "0").touch()
    progress = Broken()
    with pytest.raises(OSError, match="closed"):
        ran(
            tmp_path / "data",
            1,
            4,
            applier=lambda: Gated(tmp_path),
            options=RunOptions(jobs=1),
            progress=progress,
        )
    assert progress.is_ended


def test_a_signal_while_processes_start(tmp_path: Path):
    report = ran(
        tmp_path,
        2,
        16,
        applier=Interrupting,
        options=RunOptions(jobs=8),
        progress=CommandProgress(),
    )
    assert report.interrupted
    assert report.of(State.SKIPPED)
    assert not report.ok
