"""Topologies that change: a scripted source, and documents."""

from __future__ import annotations

import copy
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_shard import ObjectMixin, Topology

SHARDS = 8
TIMEOUT = 60.0


class Base(DeclarativeBase):
    pass


class Pin(ObjectMixin, Base, type_id=1):
    __tablename__ = "pins"

    title: Mapped[str] = mapped_column(String(50))


class Feed:
    """A source with scripted answers.

    :param answer: a topology, or what is raised.
    """

    interval: float | None = None

    def __init__(self, answer: Topology | BaseException) -> None:
        self._changed = threading.Condition()
        self._answer = answer
        self._notify: Callable[[], None] | None = None
        self.asked = 0
        self.started = 0
        self.stopped = 0
        self.forks = 0
        self.looking: BaseException | None = None
        #: Until when it does not answer.
        self.answers = threading.Event()
        self.answers.set()

    @property
    def name(self) -> str:
        return "feed"

    def start(self, notify: Callable[[], None]) -> None:
        self.started += 1
        self._notify = notify

    def load(self) -> Topology:
        with self._changed:
            self.asked += 1
            self._changed.notify_all()
            answer = self._answer
        assert self.answers.wait(TIMEOUT)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def look(self) -> bool:
        if self.looking is not None:
            raise self.looking
        return False

    def stop(self) -> None:
        self.stopped += 1

    def forked(self) -> None:
        self.forks += 1
        self._changed = threading.Condition()

    # -- methods for tests

    def say(self, answer: Topology | BaseException) -> None:
        """Have another answer, without a word."""
        self._answer = answer

    def tell(self, answer: Topology | BaseException) -> int:
        """Have another answer, and tell of it; return how often asked."""
        self.say(answer)
        asked = self.asked
        assert self._notify is not None
        self._notify()
        return asked

    def answer(self, answer: Topology | BaseException) -> None:
        """Have another answer, and wait until it was given twice.

        The second question begins when the first answer was judged.
        """
        for _ in range(2):
            asked = self.tell(answer)
            self.wait(asked + 1)

    def wait(self, asked: int) -> None:
        """Wait until it was asked so many times."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.asked >= asked, TIMEOUT), (
                f"asked {self.asked} times, not {asked}"
            )


def document(
    epoch: int,
    servers: Mapping[str, tuple[str, Any]],
    *,
    shards: int = SHARDS,
    **more: Any,
) -> dict[str, Any]:
    """Return a document with one keyspace of objects.

    :param servers: by name the URL and the shards.
    """
    return {
        "epoch": epoch,
        "keyspaces": {
            "objects": {
                "kind": "objects",
                "shards": shards,
                "database": "db{shard:05d}",
                "servers": [
                    {"name": name, "primary": url, "shards": held}
                    for name, (url, held) in servers.items()
                ],
                **more,
            }
        },
    }


def topology(
    epoch: int, *, first: int = 4, port: int = 1, shards: int = SHARDS
) -> Topology:
    """Return a topology of two servers that need not run.

    :param first: how many shards are on the first server.
    :param port: of the first server.
    """
    return Topology.from_mapping(
        document(
            epoch,
            {
                "server1": (f"mysql://127.0.0.1:{port}", [0, first - 1]),
                "server2": ("mysql://127.0.0.1:7", [first, shards - 1]),
            },
            shards=shards,
        )
    )


def edited(given: Mapping[str, Any], epoch: int) -> dict[str, Any]:
    """Return a copy of a document, with another epoch."""
    return {**copy.deepcopy(dict(given)), "epoch": epoch}


def until(condition: Callable[[], Any], seconds: float = TIMEOUT) -> bool:
    """Look again and again whether something is so."""
    pause = threading.Event()
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        pause.wait(0.01)
    return True


def in_child(work: Callable[[], None], directory: Path) -> None:
    """Do something in a child process; raise what it has written of errors.

    :param directory: for a file with what the child has to say.
    """
    said = directory / "child.txt"
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with said.open("w") as file:
                sys.stderr = file
                try:
                    work()
                    code = 0
                except BaseException:
                    sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, said.read_text()
