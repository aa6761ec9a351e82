"""Events that processes log of their work with a cache, for the checker."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

Kind = Literal[
    "read",
    "write",
    "trying",
    "add",
    "adding",
    "remove",
    "removing",
    "exempt",
    "over",
    "drained",
    "failed",
]


@dataclass(frozen=True, kw_only=True)
class Event:
    """An action of a process, with the times before and after it.

    :ivar kind: see below.
    :ivar version: that was written or read; 0 for the other kinds.
    :ivar cached: whether a read did without the database.
    :ivar ids: of a set, instead of a version: those that came or went, or
        that a read has found.
    :ivar asked: those that a read has asked for; None for all.
    :ivar count: how many a read has found that did not ask which.
    :ivar txn: the transaction.
    :ivar life: of the data: another one after a failover that has lost some.

    ==========  =============================================================
    read        of a version, a set, or the length of a set
    write       of a version, acknowledged
    trying      the same, before its COMMIT
    add         to a count, or to a set, acknowledged
    adding      to a set, before COMMIT
    remove      from a set, acknowledged
    removing    the same, before COMMIT
    exempt      of a key whose tombstone could not be set: nothing is promised
    over        the end of a transaction, committed or not
    drained     of no key: a pass that has left nothing in the outboxes.  Ends
                what was exempt, where the transaction was over before it.
                So does a transaction that has written the key since, and
                has reached the node; but not where "exempt" has ids, since
                each member of that set is cached by itself
    failed      of no key
    ==========  =============================================================
    """

    kind: Kind
    key: str
    start: float
    end: float
    version: int = 0
    cached: bool = False
    ids: Collection[int] | None = None
    asked: Collection[int] | None = None
    count: int | None = None
    txn: str = ""
    life: int = 1


@dataclass(frozen=True, kw_only=True)
class Stale:
    """A read that is older than earlier reads, or has unwritten values.

    :ivar than: the newer event; None for a set, or if the value that was read
        had not been written yet.
    :ivar known: the version that it should have known.
    :ivar ids: of a set: those that it should have found, or should not have.
    """

    read: Event
    than: Event | None = None
    known: int = 0
    ids: frozenset[int] = frozenset()


Moment = tuple[float, bool, Event]
"""A time, and whether the event begins then, or ends."""


def line_of(event: Event) -> bytes:
    """Return the line that :func:`events_of` reads."""
    given = {k: v for k, v in vars(event).items() if v != _DEFAULTS.get(k)}
    return json.dumps(given).encode() + b"\n"


_DEFAULTS = {f.name: f.default for f in fields(Event)}


def events_of(paths: Iterable[Path]) -> list[Event]:
    """Return the events of log files; a truncated line is ignored."""
    return [
        Event(**json.loads(line))
        for path in paths
        for line in path.read_bytes().splitlines(keepends=True)
        if line.endswith(b"\n")
    ]
