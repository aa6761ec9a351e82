"""An operation that changes files, and processes that run it and are killed.

The folder of its plan has ``log``, with a line for each step that was started
or done and its process, and ``state``, the files that stand for servers.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sqla_shard.exc import FleetServerError, Problem, ShardError
from sqla_shard.fleet import (
    Account,
    Accounts,
    apply,
    Fleet,
    FleetPlan,
    resume,
    runner,
    undo,
)
from sqla_shard.fleet.fleet import all_pairs
from sqla_shard.fleet.operation import FleetOperation, PUBLISH, Step
from sqla_shard.topology import Topology
from sqla_shard.util.files import replace_file

STEPS = ("copy", "fence", "publish", "open", "tidy")
_STANDBY = "mysql+pymysql://127.0.0.1:9"
_CRITICAL = {"fence", "publish", "open"}

#: Called in the middle of each step, with its name.
middle: Callable[[str], object] = str


class Toy(FleetOperation):
    """Copies, stops writes, publishes the next epoch, starts them, tidies."""

    kind = "toy"
    STEPS = tuple(Step(name, f"{name} it", name in _CRITICAL) for name in STEPS)

    @classmethod
    def plan(cls, fleet: Fleet, folder: Path, **arguments: Any) -> FleetPlan:
        """Return a plan.

        :param arguments: ``problems`` of the check; ``fails``,
            ``interrupts`` and ``leaves`` (a problem), each with the name of
            a step.
        """
        (folder / "state").mkdir(exist_ok=True)
        return FleetPlan(
            kind=cls.kind,
            title=arguments.pop("title", "toy"),
            epoch=fleet.topology().epoch,
            arguments={"folder": str(folder), **arguments},
            steps=tuple((name, f"{name} it") for name in STEPS),
        )

    @property
    def folder(self) -> Path:
        return Path(self.plan.arguments["folder"])

    def check(self) -> list[Problem]:
        return [
            Problem("toy", text) for text in self.plan.arguments.get("problems", ())
        ]

    def undo(self) -> None:
        self._log("undo", "begin")
        middle("undo")
        if (self.folder / "undo_fails").exists():
            raise FleetServerError(server="toy", number=1, reason="no undo")
        for name in ("fence", "copy"):
            self._state(name).unlink(missing_ok=True)
        self._log("undo", "done")

    def changed(self, topology: Topology) -> Topology:
        (pair, *_) = all_pairs(topology)
        return pair.changed(topology, standby=_STANDBY)

    def is_published(self, topology: Topology) -> bool:
        return all_pairs(topology)[0].standby == _STANDBY

    def run(self, name: str) -> Mapping[str, Any] | None:
        self._log(name, "begin")
        note: Mapping[str, Any] = {"by": os.getpid()}
        if name == PUBLISH:
            assert self._state("fence").exists(), "published without a fence"
            note = self._do_publish()
        elif name == "open":
            self._state("fence").unlink(missing_ok=True)
        middle(name)
        if self.plan.arguments.get("fails") == name:
            raise FleetServerError(server="toy", number=1, reason="no")
        if self.plan.arguments.get("interrupts") == name:
            raise KeyboardInterrupt
        if name not in (PUBLISH, "open"):
            self._state(name).touch()
        if self.plan.arguments.get("leaves") == name:
            note = {**note, "problem": f"{name} has left something"}
        self._log(name, "done")
        return note

    def _state(self, name: str) -> Path:
        return self.folder / "state" / name

    def _log(self, step: str, state: str) -> None:
        with (self.folder / "log").open("a") as file:
            file.write(json.dumps([os.getpid(), step, state]) + "\n")


runner.kinds()[Toy.kind] = Toy


def toy_fleet(location: str, **options: Any) -> Fleet:
    """Return a fleet whose operations connect to no server."""
    accounts = Accounts(operator=Account(user="nobody", password=""))
    return Fleet(location, accounts=accounts, **options)


def run_toy(
    *,
    server: int,
    location: str,
    folder: str,
    action: str,
    result: str,
    at: Sequence[str] = (),
    arguments: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
) -> None:
    """Apply, resume or undo, for :class:`.forks.Forks`.

    :param result: where the end is written.
    :param at: a signal that the process sends itself, a step, and ``begin``,
        ``middle`` or ``done``.
    """
    global middle
    signals = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}

    def reach(step: str, state: str) -> None:
        if [step, state] == list(at[1:]):
            os.kill(os.getpid(), signals[at[0]])

    middle = lambda step: reach(step, "middle")  # noqa: E731
    fleet = toy_fleet(location, **(options or {}))
    found: dict[str, Any]
    try:
        if action == "apply":
            plan = Toy.plan(fleet, Path(folder), **(arguments or {}))
            done = apply(fleet, plan, progress=lambda e: reach(e.step, e.state))
        else:
            function = {"resume": resume, "undo": undo}[action]
            done = function(fleet, progress=lambda e: reach(e.step, e.state))
        found = done.as_dict()
    except ShardError as error:
        found = {"error": type(error).__name__, "message": str(error)}
    replace_file(Path(result), json.dumps(found).encode(), 0o600)
