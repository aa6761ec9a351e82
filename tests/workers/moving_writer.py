"""A process of the application that moves; it is killed at random.

Usage: ``moving_writer.py writer NUMBER SEED`` or ``moving_writer.py tool``.
A writer appends a line to its journal before each write and after it was
acknowledged.  It ends when the file ``stop`` exists.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from threading import Event
from time import perf_counter
from typing import Any

from sqla_shard.migrate import Move
from sqla_shard.migrate.passes import backfill, reconcile, verify
from sqla_shard.migrate.stage_changes import Switch
from sqla_shard.migrate.stages import STAGES
from tests.models.moving_app import open_move, Posts

#: Primary keys of the users and posts that all processes use.
SHARED = range(1, 7)

KINDS = ["add", "change", "change", "delete", "read", "send", "receive"]
KINDS += ["follow", "unfollow"]


class Writer:
    """Writes, and records acknowledged writes.

    :param seed: distinguishes it from the killed one before it.
    """

    def __init__(self, folder: Path, number: str, seed: int) -> None:
        self._move = open_move(
            os.environ["MOVING_URL"],
            os.environ["MOVING_TOPOLOGY"],
            refresh=0.1,
            compare=0.2,
        )
        self._app = Posts(self._move)
        self._random = Random(seed)
        self._rest = float(os.environ["MOVING_REST"])
        self._never = Event()
        self._name = f"{number}-{seed}"
        self._count = 0
        self._posts: dict[int, str] = {}
        self._messages: dict[int, str] = {}
        self._seen: dict[int, int] = {}
        self._slowest = 0.0
        self._journal = os.open(
            folder / f"journal-{number}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600
        )
        self._user_id = self._app.add_user(f"writer {self._name}")

    def close(self) -> None:
        counts = dict(self._move.counts)
        self._log("counts:", "of", counts)
        self._log("slowest:", "of", f"{self._slowest:.2f}")
        self._move.close()

    def step(self) -> None:
        what = self._random.choice(KINDS)
        self._count += 1
        getattr(self, what)(f"{self._name}-{self._count}")
        if self._rest:
            self._never.wait(self._random.expovariate(1 / self._rest))

    def _log(self, *words: object) -> None:
        line = " ".join(map(str, words)) + "\n"
        os.write(self._journal, line.encode())

    def _write(self, what: str, key: object, write: Callable[[], Any]) -> Any:
        self._log("begin", what, key)
        start = perf_counter()
        found = write()
        self._slowest = max(self._slowest, perf_counter() - start)
        self._log("done", what, key)
        return found

    def add(self, title: str) -> None:
        post_id = self._write("add", title, lambda: self._app.add(self._user_id, title))
        self._posts[post_id] = title

    def send(self, content: str) -> None:
        other = self._random.choice(SHARED)
        message_id = self._write(
            "send", content, lambda: self._app.send(self._user_id, other, content)
        )
        self._messages[message_id] = content

    def change(self, _: str) -> None:
        post_id = self._random.choice(SHARED)
        number = self._write("change", post_id, lambda: self._app.change(post_id))
        # Others count as well, and no change may be taken back.
        assert number > self._seen.get(post_id, 0), post_id
        self._seen[post_id] = number

    def follow(self, _: str, what: str = "follow") -> None:
        # Each process follows with its own user, so the last one counts.
        other = self._random.choice(SHARED)
        change = getattr(self._app, what)
        self._write(what, f"{self._name}/{other}", lambda: change(self._user_id, other))

    def unfollow(self, name: str) -> None:
        self.follow(name, "unfollow")

    def delete(self, _: str) -> None:
        if len(self._posts) > 3:
            post_id, gone = self._posts.popitem()
            self._write("delete", gone, lambda: self._app.delete(post_id))

    def read(self, _: str) -> None:
        if self._posts:
            post_id = self._random.choice(list(self._posts))
            assert self._app.title(post_id) == self._posts[post_id]

    def receive(self, _: str) -> None:
        if self._messages:
            message_id = self._random.choice(list(self._messages))
            found = self._app.content(message_id)
            assert found == self._messages[message_id]


def steps_done(folder: Path) -> int:
    """Return the number of steps that the tool has finished."""
    done = folder / "steps"
    return int(done.read_text()) if done.exists() else 0


def go_through(folder: Path) -> None:
    """Go through all steps; those that were finished are in a file."""
    move = open_move(os.environ["MOVING_URL"], os.environ["MOVING_TOPOLOGY"])
    switch = Switch(move, partial(print, flush=True))
    first = steps_done(folder)
    steps = os.environ["MOVING_STEPS"].split(" ")
    for number, step in enumerate(steps[first:], first + 1):
        print(f"step {number}: {step}", flush=True)  # noqa: T201  # into a log
        if step == "verify":
            assert timed(
                "verify", lambda: verify(move, position=folder / "position.json")
            ).is_equal
        else:
            go(switch, move, step, folder)
        await_writes(folder)
        (folder / "steps.new").write_text(str(number))
        (folder / "steps.new").rename(folder / "steps")
    move.close()


def go(switch: Switch, move: Move, stage: str, folder: Path) -> None:
    """Go to a stage, forward or back."""
    order = list(STAGES)
    now = switch.begin()
    while now.stage != stage:
        if order.index(now.stage) > order.index(stage):
            now = switch.back()
        elif now.stage == "copying":
            # A return to copying within a round preserves the findings.
            if switch.met(now) < now.rules.needs:
                copy(move, folder)
            now = switch.go("reading")
        elif now.stage == "reading" and not now.shares:
            now = switch.share({"posts": 50, "messages": 50})
        else:
            now = switch.go(stage)


def copy(move: Move, folder: Path) -> None:
    assert timed("backfill", backfill, move) == 0
    # All processes mark their writes, so no pass has to repair.
    position = folder / "position.json"
    found = timed("reconcile", lambda: reconcile(move, passes=1, position=position))
    assert found.is_equal, found


def await_writes(folder: Path) -> None:
    """Wait until each stage has writes."""

    def size() -> int:
        return sum(path.stat().st_size for path in folder.glob("journal-*"))

    wanted, never = size() + 500, Event()
    while size() < wanted:
        never.wait(0.05)


def timed(name: str, work: Callable[..., Any], *args: Any) -> Any:
    start = perf_counter()
    found = work(*args)
    seconds = perf_counter() - start
    print(f"{name}: {seconds:.1f} s", flush=True)  # noqa: T201  # into a log
    return found


if __name__ == "__main__":
    here = Path(os.environ["MOVING_TOPOLOGY"]).parent
    if sys.argv[1] == "tool":
        go_through(here)
    else:
        writer = Writer(here, sys.argv[2], int(sys.argv[3]))
        while not (here / "stop").exists():
            writer.step()
        writer.close()
