"""Processes that read or write through sessions that have a cache.

Run as a program, it reads lines: the settings of all processes of a run, as
JSON.  It says until when they work, and when they have ended, and how many
have failed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from os.path import exists
from time import monotonic
from typing import Any

# Once, and not in each life.
import asyncmy  # noqa: F401
import pymysql  # noqa: F401
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import configure_mappers

from sqla_shard import Cluster, unpack
from sqla_shard.exc import PartialCommitError, ShardError
from tests.servers.cache_events import Event, line_of
from tests.servers.cache_processes import at_once, Delays, lives
from tests.servers.cache_session_policies import Policy, policy_of
from tests.servers.cache_session_work import (
    Change,
    change,
    everything,
    frontier,
    look,
    Subject,
)

_COMMITS = 0.85
_PATIENCE = 60


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a process.

    :ivar policy: ``"ours"``; ``"plain"`` (get, set, delete) or ``"dogpile"``
        (its ``get_or_create``, and delete); or one that breaks ours, see
        :mod:`tests.servers.cache_session_policies`.
    :ivar seed: of all that is random.
    :ivar subjects: kind and number of each.
    :ivar topology: the file that is followed.
    :ivar lossy: the epoch with which another life of the data begins, in
        which pins are written no more: what is left of them stays to be seen.
    :ivar seconds: that it works, at most.
    :ivar stop: a file; its work ends when that is there.
    :ivar delay: seconds, on average, between two steps.
    :ivar life: seconds, on average, until it is killed; 0 for never.
    :ivar timeout: seconds to wait for a node.
    :ivar in_loop: work in an event loop.
    :ivar tombstone: seconds that one lasts.
    :ivar slow: seconds that some COMMITs take.
    :ivar idle: seconds, on average, between two transactions of a writer.
    """

    policy: str
    role: str
    seed: str
    servers: list[str]
    subjects: list[tuple[str, int]]
    topology: str
    lossy: int | None
    prefix: str
    seconds: float
    stop: str
    delay: float
    life: float
    timeout: float
    in_loop: bool
    log: str
    tombstone: int
    slow: float
    idle: float


class RolledBack(Exception):  # noqa: N818 - no error
    """Raised to roll back."""


class Log:
    """The notes of a process."""

    def __init__(self, path: str) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._file = os.open(path, flags, 0o600)

    def __call__(self, kind: Any, key: object, **more: Any) -> None:
        """Record an event, at this time unless another is given."""
        now = monotonic()
        times = {"start": now, "end": now}
        event = Event(kind=kind, key=str(key), **{**times, **more})
        os.write(self._file, line_of(event))


class Runner:
    """Runs what takes a session, in an event loop or without."""

    def __init__(self, cluster: Cluster, *, in_loop: bool) -> None:
        self._cluster = cluster
        self._loop = asyncio.new_event_loop() if in_loop else None

    def read(self, work: Callable[[Any], Any], **options: Any) -> Any:
        """Return what work returns for a new session."""
        if self._loop is None:
            with self._cluster.session(**options) as session:
                return work(session)

        async def read() -> Any:
            async with self._cluster.async_session(**options) as session:
                return await session.run_sync(work)

        return self._loop.run_until_complete(read())

    def write(self, work: Callable[[Any], Any], **options: Any) -> Any:
        """Do work in a transaction, and again where that is safe."""
        if self._loop is None:
            return self._cluster.run(work, timeout=_PATIENCE, **options)

        async def write(session: Any) -> Any:
            return await session.run_sync(work)

        return self._loop.run_until_complete(
            self._cluster.async_run(write, timeout=_PATIENCE, **options)
        )


class Worker:
    """Works through one life."""

    def __init__(
        self, cluster: Cluster, settings: Settings, seed: str, until: float
    ) -> None:
        self._settings = settings
        self._until = until
        self._rng = random.Random(seed)
        self._delays = Delays(self._rng, settings.delay)
        idle = settings.idle if settings.role == "writer" else 0.0
        self._idle = Delays(self._rng, idle or settings.delay)
        self._note = Log(settings.log)
        self._subjects = [
            Subject(kind=kind, number=number) for kind, number in settings.subjects
        ]
        #: Ids that are worth being asked for, the newest of each subject.
        self._known: dict[Subject, list[int]] = {}
        self._policy: Policy = policy_of(settings, cluster, self._rng, self._note)
        self._runner = Runner(cluster, in_loop=settings.in_loop)
        self._txn = ""
        self._tried = Change()

    def run(self) -> int:
        """Read, or write, until the end."""
        step = self._read if self._settings.role == "reader" else self._write
        while monotonic() < self._until and not exists(self._settings.stop):
            try:
                step()
            except RolledBack:
                pass
            except (SQLAlchemyError, ShardError) as error:
                cause = getattr(error, "orig", None) or error
                self._note("failed", f"{type(error).__name__}: {cause}"[:200])
            finally:
                if self._txn:
                    self._note("over", "", txn=self._txn)
                    self._txn = ""
            self._idle()
        return 0

    def _life(self, session: Any) -> int:
        """Return the life of the data that a session sees."""
        lossy = self._settings.lossy
        epoch = session.places.topology.epoch
        return 2 if lossy is not None and epoch >= lossy else 1

    # -- reading

    def _read(self) -> None:
        subject = self._rng.choice(self._subjects)
        ids = self._worth_asking(subject)
        policy = self._policy
        # Some have a snapshot of an earlier read.
        begun = policy.has_cache and self._rng.random() < 0.3
        past = self._rng.random() < 0.15
        start = monotonic()

        def work(session: Any) -> tuple[int, dict[str, Any]]:
            if begun:
                everything(session, subject)
                self._delays()
            return self._life(session), policy.look(session, subject, ids)

        hits = policy.hits
        options = {"cache": False} if past or not policy.has_cache else {}
        life, seen = self._runner.read(work, **options)
        self._note(
            *("read", subject),
            start=start,
            end=monotonic(),
            cached=policy.hits > hits and not past,
            life=life,
            **seen,
        )
        self._learn(subject, seen)

    def _worth_asking(self, subject: Subject) -> list[int]:
        if subject.kind == "pin":
            # On another server, of which the session has seen nothing yet.
            pins = [one.number for one in self._subjects if one.kind == "pin"]
            return self._rng.sample(pins, self._rng.randint(0, len(pins)))
        if subject.kind in ("marks", "sum"):
            return []
        known = self._known.get(subject)
        if not known or self._rng.random() < 0.1:
            known = self._runner.read(
                lambda session: everything(session, subject), cache=False
            )[-20:]
            self._known[subject] = known
        if subject.kind == "bag":
            return self._rng.sample(known, min(len(known), 4))
        last = max((unpack(one).local_id for one in known), default=0)
        return frontier(subject.number, last)

    def _learn(self, subject: Subject, seen: dict[str, Any]) -> None:
        if seen.get("ids"):
            known = [*self._known.get(subject, []), *seen["ids"]]
            self._known[subject] = list(dict.fromkeys(known))[-20:]

    # -- writing

    def _write(self) -> None:
        subject = self._rng.choice(self._subjects)
        start = monotonic()
        life = 1
        options: dict[str, Any] = {}
        if subject.kind == "sum":
            options["cross_shard"] = "ordered"
        elif self._rng.random() < 0.3:
            # With it an outcome that is unknown is looked up.
            options["key"] = str(uuid.uuid4())

        def work(session: Any) -> Change:
            nonlocal life
            life = self._life(session)
            return self._work(session, subject, life)

        self._txn = self._policy.txn = uuid.uuid4().hex
        try:
            done = self._runner.write(work, **options)
        except PartialCommitError as error:
            if error.committed:
                # The first of two has answered.
                half = {"start": start, "life": life, "txn": self._txn}
                version = self._tried.version - 1
                self._note("write", subject, version=version, **half)
            raise
        self._policy.after(subject, done)
        whole: dict[str, Any] = {"start": start, "end": monotonic()}
        whole.update(life=life, txn=self._txn)
        if done.version:
            self._note("write", subject, version=done.version, **whole)
        if done.came:
            self._note("add", subject, ids=done.came, **whole)
        if done.went:
            self._note("remove", subject, ids=done.went, **whole)

    def _work(self, session: Any, subject: Subject, life: int) -> Change:
        """Write; log each attempt before its COMMIT."""
        if life > 1 and subject.kind == "pin":
            raise RolledBack
        if self._rng.random() < 0.1:
            savepoint = session.begin_nested()
            change(session, subject, self._rng)
            savepoint.rollback()
            self._delays()
        done = change(session, subject, self._rng)
        self._tried = done
        if done.version:
            self._note("trying", subject, version=done.version, life=life)
        if done.came:
            self._note("adding", subject, ids=done.came, life=life)
        if done.went:
            self._note("removing", subject, ids=done.went, life=life)
        self._delays()
        if self._rng.random() > _COMMITS:
            raise RolledBack
        return done


def _warm(cluster: Cluster, one: Settings) -> None:
    """Do all once, so that not each life has to compile its statements."""
    rng = random.Random(one.seed)
    for _ in range(3):
        for kind, number in one.subjects:
            subject = Subject(kind=kind, number=number)
            with cluster.session(cache=False, cross_shard="ordered") as session:
                ids = everything(session, subject)[-4:]
                look(session, subject, ids, rng)
                change(session, subject, rng)
                session.rollback()


def main(everybody: list[Settings]) -> int:
    """Have all do their work; return how many failed."""
    first = everybody[0]
    # It looks into the file each second, and after an error at once.
    with Cluster.from_file(first.topology) as cluster:
        _warm(cluster, first)
        until = monotonic() + first.seconds
        _say(until)

        def live(one: Settings) -> int:
            def work(seed: str) -> int:
                return Worker(cluster, one, seed, until).run()

            return lives(
                *(work, one.seed, one.life, until), stopped=lambda: exists(one.stop)
            )

        return at_once([lambda one=one: live(one) for one in everybody])


def _say(what: object) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    # Refusals that are retried are not reported.
    logging.disable(logging.ERROR)
    configure_mappers()
    for line in sys.stdin:
        _say(main([Settings(**one) for one in json.loads(line)]))
