"""Reading the facts of a fleet: all servers at once, within one deadline.

Nothing is changed.  A server has several sessions at a time, so that one
statement without an end (``SHOW SLAVE STATUS`` of a standby whose disk is
full) does not hide the other facts.  What has not come at the deadline is
unread; the threads that wait for it end by themselves, with the time limit of
their connection.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Lock, Thread
from typing import Any

from sqlalchemy import make_url

from sqla_shard.exc import FleetServerError, TopologyError
from sqla_shard.fleet.admin import Admin
from sqla_shard.fleet.app_access import attempt
from sqla_shard.fleet.facts import (
    CONTENT,
    DEFINITIONS,
    FleetFacts,
    PairFacts,
    Read,
    REPLICATION,
    Role,
    ServerFacts,
    SIZES,
    STANDBY,
    STATE,
)
from sqla_shard.fleet.fleet import all_pairs, Fleet, Pair
from sqla_shard.fleet.replication import Replication, replication_of
from sqla_shard.fleet.runner import status
from sqla_shard.topology import Topology
from sqla_shard.topology.urls import address_of, fill

GRACE = 2.0
"""Seconds in which a standby must apply what its primary had at a moment."""

#: Errors after which a session has ended.
_LOST = frozenset([0, 2006, 2013, 4031])
#: Part of the time that may pass before pairs are compared.
_FIRST = 0.7


def read_facts(
    fleet: Fleet,
    *,
    others: Iterable[str] = (),
    environ: Mapping[str, str],
    timeout: float = 15.0,
    compare: bool = True,
) -> FleetFacts:
    """Return the facts of all servers of a fleet.

    :param fleet: the fleet; its operator account reads them.
    :param others: URLs or ``host:port`` of servers outside of the topology.
    :param environ: values of the placeholders of users in the topology.
    :param timeout: seconds after which missing facts are unread.
    :param compare: whether to read standbys, too, and to compare them;
        otherwise the sizes of tables are read.
    :raises TopologyError: if the topology is not valid.
    :raises TopologyUnavailableError: if it cannot be read.
    """
    topology = fleet.topology()
    pairs = all_pairs(topology)
    deadline = time.monotonic() + timeout
    first = time.monotonic() + _FIRST * timeout
    jobs: dict[str, _ServerReading] = {}
    for pair in pairs:
        names = pair.databases() if compare else []
        content = CONTENT if compare else SIZES
        jobs[pair.primary] = _ServerReading(
            fleet, pair.primary, pair.name, "primary", names, environ, content
        )
        if pair.standby is not None and compare:
            jobs[pair.standby] = _ServerReading(
                fleet, pair.standby, pair.name, "standby", names, environ
            )
    elsewhere = {}
    for text in others:
        url = text if "://" in text else f"mysql://{text}"
        elsewhere[url] = _ServerReading(fleet, url, text, "other", [])
    everything = [*jobs.values(), *elsewhere.values()]
    for job in everything:
        job.start(first)
    facts = {id(job): job.facts_at(first, limit=_FIRST * timeout) for job in everything}
    comparisons = [
        _PairComparison(
            fleet,
            pair,
            facts[id(jobs[pair.primary])],
            facts[id(jobs[pair.standby])]
            if pair.standby is not None and compare
            else None,
        )
        for pair in pairs
    ]
    for comparison in comparisons:
        comparison.start(deadline)
    users, unknown = _application_users(topology, environ)
    return FleetFacts(
        topology=topology,
        pairs=tuple(
            comparison.facts_at(deadline, limit=timeout) for comparison in comparisons
        ),
        others=tuple(facts[id(job)] for job in elsewhere.values()),
        application=frozenset(users),
        unknown_users=tuple(sorted(unknown)),
        operators=fleet.accounts.users,
        operation=status(fleet),
    )


class _Parts:
    """Parts that threads read; closed at the deadline."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._parts: dict[str, Any] = {}
        self._unread: dict[str, str] = {}
        #: Numbers of the errors, if servers or drivers have given any.
        self.numbers: dict[str, int] = {}
        self._threads: list[Thread] = []

    def run(self, work: Callable[[], None]) -> None:
        """Run a function in a thread that does not keep the process alive."""
        thread = Thread(target=work, daemon=True, name="sqla-shard-facts")
        self._threads.append(thread)
        thread.start()

    def add(self, parts: Mapping[str, Any]) -> None:
        """Add facts that were read."""
        with self._lock:
            self._parts.update(parts)

    def fail(
        self, parts: Collection[str], reason: str, number: int | None = None
    ) -> None:
        """Add why parts were not read."""
        with self._lock:
            self._unread.update(dict.fromkeys(parts, reason))
            if number is not None:
                self.numbers.update(dict.fromkeys(parts, number))

    def at(
        self, deadline: float, wanted: Iterable[str], limit: float
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Wait, and return the facts, and the parts that were not read."""
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        with self._lock:
            late = f"the server has not responded within {limit:g} s"
            unread = {
                part: self._unread.get(part, late)
                for part in wanted
                if part not in self._parts
            }
            return dict(self._parts), unread


@dataclass
class _ServerReading:
    """Reads one server in several threads, one session each."""

    fleet: Fleet
    url: str
    name: str
    role: Role
    databases: Sequence[str]
    #: Values of the placeholders of a URL of the topology.
    environ: Mapping[str, str] | None = None
    content: Mapping[tuple[str, ...], Read] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._parts = _Parts()
        self._lanes: list[Mapping[tuple[str, ...], Read]] = [
            # Last: not a session of the application for the part of sessions.
            STATE if self.environ is None else {**STATE, ("attempt",): self._attempt},
            STANDBY if self.role == "standby" else REPLICATION,
            self.content,
            DEFINITIONS if self.databases else {},
        ]

    def start(self, deadline: float) -> None:
        """Start to read, until a time of the monotonic clock."""
        for lane in self._lanes:
            if lane:
                self._parts.run(partial(self._read, lane, deadline))

    def facts_at(self, deadline: float, *, limit: float) -> ServerFacts:
        """Wait for the facts, and return them."""
        wanted = [part for lane in self._lanes for parts in lane for part in parts]
        parts, unread = self._parts.at(deadline, wanted, limit)
        return ServerFacts(
            name=self.name,
            role=self.role,
            address=str(address_of(self.url)),
            parts=parts,
            unread=unread,
            numbers={
                part: number
                for part, number in self._parts.numbers.items()
                if part in unread
            },
        )

    def _attempt(self, server: Replication, _: Sequence[str]) -> Mapping[str, Any]:
        return {
            "attempt": attempt(
                self.url,
                self.environ or {},
                name=server.admin.name,
                timeout=self.fleet.timeout,
            )
        }

    def _read(self, lane: Mapping[tuple[str, ...], Read], deadline: float) -> None:
        admin: Admin | None = None
        try:
            for parts, read in lane.items():
                try:
                    if admin is None:
                        admin = _connect(self.fleet, self.url, self.name, deadline)
                    self._parts.add(read(replication_of(admin), self.databases))
                except FleetServerError as error:
                    self._parts.fail(parts, error.reason, error.number)
                    if admin is not None and error.number in _LOST:
                        admin.close()
                        admin = None
        finally:
            if admin is not None:
                admin.close()


@dataclass
class _PairComparison:
    """Compares the servers of one pair, in a thread."""

    _PARTS = ("late", "errant", "differing")

    fleet: Fleet
    pair: Pair
    primary: ServerFacts
    standby: ServerFacts | None

    def __post_init__(self) -> None:
        self._parts = _Parts()
        self._silent: dict[str, tuple[ServerFacts, str]] = {}

    def start(self, deadline: float) -> None:
        """Start to compare, if both servers have responded."""
        standby = self.standby
        if standby is None:
            return
        for server in (self.primary, standby):
            if not server.has("position"):
                needed = server, "position"
                self._silent.update(dict.fromkeys(self._PARTS, needed))
                return
        self._parts.run(partial(self._compare, standby, deadline))

    def facts_at(self, deadline: float, *, limit: float) -> PairFacts:
        """Wait for the results, and return them."""
        wanted = self._PARTS if self.standby is not None else ()
        parts, unread = self._parts.at(deadline, wanted, limit)
        return PairFacts(
            name=self.pair.name,
            primary=self.primary,
            standby=self.standby,
            databases=frozenset(self.pair.databases()),
            parts=parts,
            unread=unread,
            silent=dict(self._silent),
        )

    def _compare(self, standby: ServerFacts, deadline: float) -> None:
        try:
            with (
                _connect(
                    self.fleet, self.pair.primary, str(self.primary), deadline
                ) as one,
                _connect(
                    self.fleet, str(self.pair.standby), str(standby), deadline
                ) as other,
            ):
                first, second = replication_of(one), replication_of(other)
                # The history of the standby was read before, so the primary
                # has all of it now, but for errant transactions.
                self._parts.add({"errant": first.errant(standby.part("history"))})
                came = second.reaches(self.primary.part("position"), GRACE)
                self._parts.add({"late": 0.0 if came else GRACE})
                self._compare_definitions(standby, first, second)
        except FleetServerError as error:
            is_primary = error.server == str(self.primary)
            server = self.primary if is_primary else standby
            for part in self._PARTS:
                failed = replace(
                    server,
                    unread={part: error.reason},
                    numbers={part: error.number} if error.number else {},
                )
                self._silent[part] = failed, part

    def _compare_definitions(
        self, standby: ServerFacts, first: Replication, second: Replication
    ) -> None:
        for server in (self.primary, standby):
            if not server.has("digests"):
                self._silent["differing"] = server, "digests"
                return
        databases = {
            database
            for database, _ in _differences(self.primary.digests, standby.digests)
        }
        found: set[tuple[str, str]] = set()
        if databases:
            # A revision may be on its way: compare again at one position.
            second.reaches(first.position(), GRACE)
            found = _differences(
                first.admin.digests(databases), second.admin.digests(databases)
            )
        self._parts.add({"differing": tuple(sorted(found))})


def _differences(
    one: Mapping[str, Mapping[str, str]], other: Mapping[str, Mapping[str, str]]
) -> set[tuple[str, str]]:
    # A database that is missing is another finding.
    return {
        (database, table)
        for database in one.keys() & other.keys()
        for table in one[database].keys() | other[database].keys()
        if one[database].get(table) != other[database].get(table)
    }


def _connect(fleet: Fleet, url: str, name: str, deadline: float) -> Admin:
    left = deadline - time.monotonic()
    if left <= 0:
        raise FleetServerError(
            server=name, number=0, reason="no time was left to read it"
        )
    # PyMySQL takes whole seconds and more for a response.
    return fleet.admin(url, name=name, timeout=max(1.0, left))


def _application_users(
    topology: Topology, environ: Mapping[str, str]
) -> tuple[set[str], set[str]]:
    users, unknown = set(), set()
    for pair in all_pairs(topology):
        for url in pair.urls.values():
            user = make_url(url).username
            if user:
                try:
                    users.add(fill(user, environ))
                except TopologyError:
                    unknown.add(user)
    return users, unknown
