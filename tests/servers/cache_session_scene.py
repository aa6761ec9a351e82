"""Runs of processes that read and write through sessions with a cache."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from sqla_shard import Cluster, unpack
from sqla_shard.outbox.invalidations import drain
from sqla_shard.testing import MemcachedServer, Proxy
from sqla_shard.testing.database_server import DatabaseServer
from tests.models.cache_session_models import cached_classes, prepare, REGION, SHARDS
from tests.servers.cache_checking import check, Report
from tests.servers.cache_events import Event, events_of
from tests.servers.cache_session_policies import region_of, TOMBSTONE
from tests.servers.cache_session_work import (
    everything,
    frontier,
    look,
    Subject,
    subjects,
    sum_of,
)
from tests.servers.memcached import grow_old
from tests.servers.published import publish_to
from tests.servers.roles import kill_application
from tests.workers.cache_session_worker import Settings

_ROOT = Path(__file__).parents[2]
_PROGRAM = [sys.executable, "-m", "tests.workers.cache_session_worker"]
_numbers = count(1)
#: A node that was started or flushed is of no use for a while.
_FAULTS = [*("pause",) * 6, "kill", "flush"]


class Program:
    """The worker's program, which takes a while to import all."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            _PROGRAM, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    @contextmanager
    def running(self, everybody: Sequence[Settings]) -> Iterator[None]:
        """Have processes work in the block, and wait for their end."""
        lines = self._process.stdin, self._process.stdout
        sent, said = lines
        assert sent is not None
        assert said is not None
        events = json.dumps([asdict(one) for one in everybody])
        sent.write(events.encode() + b"\n")
        sent.flush()
        said.readline()
        yield
        # The test has a timeout of its own.
        assert int(said.readline()) == 0, "a worker has failed"

    def close(self) -> None:
        """End it; its children have ended, or do so soon."""
        self._process.kill()
        self._process.communicate()


@dataclass
class Scene:
    """Rows, nodes, and processes at work.

    :ivar databases: the servers that the application is on.
    :ivar nodes: all memcached servers; a run has some of them.
    :ivar document: the topology.
    :ivar events: of the last run.
    """

    program: Program
    databases: Sequence[DatabaseServer]
    nodes: Sequence[MemcachedServer]
    document: Any
    folder: Path
    rng: random.Random
    #: Seconds of a run.
    least: float
    most: float
    lossy: int | None = None
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.path = self.folder / "topology.json"
        self.stop = self.folder / "stop"
        self.publish(self.document)
        with self.cluster() as cluster:
            pins, boards, pairs = prepare(cluster)
        self.subjects = subjects(pins, boards, SHARDS)
        #: On both servers.
        self.sums = [sum_of(*pair) for pair in pairs]

    def narrow(
        self, shards: Sequence[int], kinds: Collection[str] | None = None
    ) -> None:
        """Read and write rows of some shards, and of some kinds, only."""
        self.subjects = [
            one
            for one in self.subjects
            if _shard_of(one) in shards and (kinds is None or one.kind in kinds)
        ]

    def cluster(self) -> Any:
        """Return a cluster of the topology as it is now, with no cache."""
        return Cluster.from_topology(self.document)

    def publish(self, document: Any) -> None:
        """Have another topology."""
        self.document = document
        publish_to(self.path, document)

    def run(
        self,
        policy: str = "ours",
        *,
        enough: Callable[[Report], bool],
        nodes: int = 2,
        during: Callable[[threading.Event], None] | None = None,
        **settings: Any,
    ) -> Report:
        """Return what the checker finds.

        :param enough: whether that is enough; it is asked again and again.
        :param during: does things, until an event says that all is over.
        """
        for log in self.folder.glob("*.log"):
            log.unlink()
        self.stop.unlink(missing_ok=True)
        self.used = self.nodes[:nodes]
        for node in self.used:
            node.flush()
            grow_old(node)
        self.prefix = f"run{next(_numbers)}"
        self.events = list(self.present())
        # One that is longer than its tombstone may be seen by some and not by
        # others, until it is acknowledged.
        self._check = partial(check, reads_tell=not settings.get("slow"))
        everybody = [
            self._settings(policy, role, number, **settings)
            for role in ("reader", "writer")
            for number in range(3)
        ]
        over = threading.Event()
        with ThreadPoolExecutor(1) as pool, self.program.running(everybody):
            try:
                doing = pool.submit(during or _nothing, over)
                self._wait(doing, enough)
            finally:
                over.set()
                # The action has to end before the last steps.
                wait([doing])
                self.stop.touch()
        doing.result()
        self.events += self.logged_events()
        if policy == "ours":
            self.finish()
        return self._check(self.events)

    def _wait(self, doing: Future[None], enough: Callable[[Report], bool]) -> None:
        pause = threading.Event()
        begun = time.monotonic()
        while time.monotonic() < begun + self.most:
            pause.wait(0.3)
            if doing.done() and doing.exception():
                return
            if time.monotonic() < begun + self.least:
                continue
            if enough(self._check([*self.events, *self.logged_events()])):
                return

    def logged_events(self) -> list[Event]:
        """Return the events that the processes have logged so far."""
        return events_of(self.folder.glob("*.log"))

    def _settings(
        self, policy: str, role: str, number: int, **settings: Any
    ) -> Settings:
        # Patient, unless nodes are to fail: the machine may be busy.
        some = {
            "delay": 0.002,
            "life": 0.0,
            "timeout": 2.0,
            "in_loop": number == 0,
            "tombstone": TOMBSTONE,
            "slow": 0.0,
            "idle": 0.0,
        }
        return Settings(
            policy=policy,
            role=role,
            seed=f"{self.rng.getrandbits(32)} {role} {number}",
            servers=[node.address for node in self.used],
            subjects=[(one.kind, one.number) for one in self.subjects],
            topology=str(self.path),
            lossy=self.lossy,
            prefix=self.prefix,
            seconds=self.most + 30,
            stop=str(self.stop),
            log=str(self.folder / f"{role}{number}.log"),
            **{**some, **settings},
        )

    def faults(self, over: threading.Event, kinds: Sequence[str] = _FAULTS) -> None:
        """Stop and start nodes, one after the other, and drain the outboxes.

        :param kinds: of what is done, as often as it stands there.
        """
        pause = threading.Event()
        with self.cached(timeout=0.05) as cluster:
            while not over.is_set():
                node = self.rng.choice(self.used)
                what = self.rng.choice(kinds)
                getattr(node, what)()
                if what in ("kill", "pause"):
                    pause.wait(self.rng.uniform(0.05, 0.4))
                if what == "kill":
                    node.start()
                elif what == "pause":
                    node.resume()
                pause.wait(self.rng.uniform(0.05, 0.4))
                self.drained(cluster)

    def halve(self, line: Proxy, over: threading.Event) -> None:
        """Cut COMMITs of a server while nodes hang; drain the outboxes."""
        with self.cached(timeout=0.05) as cluster:
            while not over.is_set():
                node = self.rng.choice(self.used)
                node.pause()
                line.cut_at_commit(when=self.rng.choice(["before", "after"]))
                over.wait(self.rng.uniform(0.1, 0.3))
                node.resume()
                self.drained(cluster)
                over.wait(self.rng.uniform(0.1, 0.3))

    # -- the content of the databases -------------------------------------

    def present(self, life: int = 1) -> Iterable[Event]:
        """Log the content of the databases as if it were just written."""
        now = time.monotonic()
        with self.cluster() as cluster, cluster.session(cache=False) as asked:
            for subject in self.subjects:
                more: dict[str, Any] = {"life": life, "start": now, "end": now}
                more["key"] = str(subject)
                if subject.kind in ("items", "bag"):
                    ids = everything(asked, subject)
                    yield Event(kind="adding", ids=ids, **more)
                    yield Event(kind="add", ids=ids, **more)
                else:
                    version = look(asked, subject, [], self.rng)["version"]
                    yield Event(kind="trying", version=version, **more)
                    yield Event(kind="write", version=version, **more)

    # -- the end ----------------------------------------------------------

    def finish(self) -> None:
        """Drain the outboxes, and read everything through the cache."""
        for database in self.databases:
            # Ends connections of killed processes, after their statements.
            kill_application(database)
        over = {event.txn for event in self.events if event.kind == "over"}
        lost = {e.txn for e in self.events if e.kind == "exempt"} - over
        now = time.monotonic()
        self.events += [
            Event(kind="over", key="", start=now, end=now, txn=txn) for txn in lost
        ]
        life = 1 if self.lossy is None else 2
        with self.cached() as cluster:
            end = time.monotonic() + 60
            while not self.drained(cluster):
                assert time.monotonic() < end, "the outboxes are never empty"
                threading.Event().wait(0.05)
            for subject in self.subjects:
                for _ in range(4):
                    self._read(cluster, subject, life)

    @contextmanager
    def cached(self, timeout: float = 2.0) -> Iterator[Cluster]:
        """Open a cluster with the cache of this run."""
        servers = [node.address for node in self.used]
        with self.cluster() as cluster:
            caching = cluster.configure_cache(
                {REGION: region_of(servers, timeout)},
                classes=cached_classes(),
                prefix=self.prefix,
            )
            store: Any = caching.region(REGION).store
            with closing(store):
                yield cluster

    def drained(self, cluster: Cluster) -> bool:
        """Drain the outboxes once; tell whether nothing is left."""
        caching: Any = cluster.cache
        start = time.monotonic()
        report = drain(cluster, {REGION: caching.region(REGION).store})
        if report.ok:
            end = time.monotonic()
            self.events.append(Event(kind="drained", key="", start=start, end=end))
        return report.ok

    def _read(self, cluster: Cluster, subject: Subject, life: int) -> None:
        with cluster.session(cache=False) as session:
            ids = []
            if subject.kind in ("items", "bag"):
                ids = everything(session, subject)
            if subject.kind == "items":
                last = max((unpack(i).local_id for i in ids), default=0)
                ids = list({*ids[-50:], *frontier(subject.number, last)})
        start = time.monotonic()
        with cluster.session() as session:
            seen = look(session, subject, ids, self.rng)
        self.events.append(
            Event(
                kind="read",
                key=str(subject),
                start=start,
                end=time.monotonic(),
                life=life,
                **seen,
            )
        )


def _nothing(over: threading.Event) -> None:
    """Do nothing."""


def _shard_of(subject: Subject) -> int:
    if subject.kind == "items":
        return subject.number
    return unpack(subject.number).shard_id
