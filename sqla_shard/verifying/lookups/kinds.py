"""What can be wrong with a key, or with an object that has one."""

from __future__ import annotations

from collections.abc import Iterable

from sqla_shard.verifying.findings import Kind

__all__ = [
    "ABANDONED",
    "CONFLICTING",
    "DANGLING",
    "FOREIGN",
    "MISPLACED",
    "MISSING",
    "OUTDATED",
    "REPAIRABLE",
    "STALE",
    "UNFIT",
    "UNKNOWN_POLICY",
    "by_name",
]

DANGLING = Kind(name="dangling", meaning="the object is not there")
STALE = Kind(name="stale", meaning="the object has another key now")
MISPLACED = Kind(
    name="misplaced",
    meaning="the key belongs on another shard, where it is looked for",
)
MISSING = Kind(name="missing", meaning="the object cannot be found by its key")
CONFLICTING = Kind(
    name="conflicting", meaning="the key belongs to another object"
)
FOREIGN = Kind(
    name="foreign", meaning="the id is none of the class", settled=True
)
UNKNOWN_POLICY = Kind(
    name="unknown-policy",
    meaning="the class does not know the policy of the row",
    settled=True,
)
UNFIT = Kind(name="unfit", meaning="what the object has cannot be a key")
ABANDONED = Kind(
    name="abandoned",
    meaning="a claim that ended long ago; anybody can take the key",
    harmless=True,
    settled=True,
)
OUTDATED = Kind(
    name="outdated",
    meaning="written under a policy of previous=, and found all the same",
    harmless=True,
    settled=True,
)

#: What ``repair=True`` puts right.
REPAIRABLE = frozenset(
    one.name for one in (DANGLING, STALE, MISPLACED, MISSING, ABANDONED)
)


def by_name(kinds: Iterable[Kind]) -> dict[str, Kind]:
    """Return kinds by their names."""
    return {kind.name: kind for kind in kinds}
