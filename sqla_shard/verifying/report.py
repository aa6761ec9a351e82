"""What a run has come to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from collections.abc import Mapping
from dataclasses import asdict
from dataclasses import dataclass
from dataclasses import field
from typing import Any

from sqla_shard.engines.troubles import lines as unread_lines
from sqla_shard.verifying.findings import Finding
from sqla_shard.verifying.findings import Kind

__all__ = ["SHOWN", "Tally", "UnreadShard", "VerifyReport"]

#: Findings of one class and kind that are kept with all their data.
SHOWN = 20


@dataclass(kw_only=True)
class Tally:
    """What was found in one class.

    :ivar looked: how many were looked at, by unit: rows, or objects.
    :ivar found: how many do not fit, by kind; those repaired, too.
    :ivar repaired: how many of them were repaired, by kind.
    :ivar findings: the first of each kind.
    """

    looked: Counter[str] = field(default_factory=Counter)
    found: Counter[str] = field(default_factory=Counter)
    repaired: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    def count(self, finding: Finding) -> None:
        """Take note of a finding."""
        self.found[finding.kind] += 1
        self.repaired[finding.kind] += finding.repaired
        if self.found[finding.kind] <= SHOWN:
            self.findings.append(finding)

    def left(self, kind: str) -> int:
        """Return how many of a kind are wrong still."""
        return self.found[kind] - self.repaired[kind]

    def as_dict(self) -> dict[str, Any]:
        """Return what JSON can hold."""
        return {
            "looked": dict(self.looked),
            "found": dict(self.found),
            "repaired": dict(+self.repaired),
            "findings": [one.as_dict() for one in self.findings],
        }


@dataclass(frozen=True, kw_only=True)
class UnreadShard:
    """A shard that could not be read, or not all of it.

    :ivar subject: the class.
    :ivar keyspace: of the shard.
    :ivar shard_id: its number.
    :ivar server: the server that did not answer, on which objects of its
        rows may be; or lacks the shard.
    :ivar reason: what is wrong.
    """

    subject: str
    keyspace: str
    shard_id: int
    server: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """What a run has found, and what it has repaired.

    :ivar tallies: by the name of the class.
    :ivar kinds: all that could be found, by name.
    :ivar repair: the kinds that were to be repaired; empty for a dry run.
    :ivar skipped: kinds that could not be looked for, by class, with the
        reason.
    :ivar seconds: how long it took, without what came between
        interruptions.
    :ivar unread: the shards that could not be read.
    """

    tallies: Mapping[str, Tally]
    kinds: Mapping[str, Kind]
    repair: Collection[str]
    skipped: Mapping[str, str]
    seconds: float
    unread: tuple[UnreadShard, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether all was read, and nothing is wrong, or not any more."""
        return not self.unread and not any(
            tally.left(kind.name)
            for tally in self.tallies.values()
            for kind in self.kinds.values()
            if not kind.harmless
        )

    @property
    def findings(self) -> list[Finding]:
        """The first findings of each class and kind, with all their data."""
        return [
            one for tally in self.tallies.values() for one in tally.findings
        ]

    def found(self, kind: str) -> int:
        """Return how many of a kind were found, in all classes."""
        return sum(tally.found[kind] for tally in self.tallies.values())

    def repaired(self, kind: str) -> int:
        """Return how many of a kind were repaired."""
        return sum(tally.repaired[kind] for tally in self.tallies.values())

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON can hold it."""
        return {
            "ok": self.ok,
            "repair": sorted(self.repair),
            "seconds": round(self.seconds, 3),
            "classes": {
                name: tally.as_dict() for name, tally in self.tallies.items()
            },
            "skipped": dict(self.skipped),
            "unread": [asdict(one) for one in self.unread],
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> list[str]:
        lines = []
        for name, tally in self.tallies.items():
            looked = " and ".join(
                f"{count} {unit}" for unit, count in tally.looked.items()
            )
            lines.append(f"{name}: {looked or 'nothing'} looked at")
            for kind in self.kinds.values():
                if tally.found[kind.name]:
                    lines += self._of_kind(tally, kind)
            if tally.looked and not +tally.found:
                lines.append("  all fit")
            if name in self.skipped:
                lines.append(f"  {self.skipped[name]}")
        lines += unread_lines(
            (one.server, one.reason, 1) for one in self._once()
        )
        done = "" if self.repair else "; nothing was changed"
        lines.append(f"{self.seconds:.1f} s{done}")
        return lines

    def _once(self) -> list[UnreadShard]:
        """Return each shard once, which several classes may have."""
        shards = {(one.keyspace, one.shard_id): one for one in self.unread}
        return list(shards.values())

    def _of_kind(self, tally: Tally, kind: Kind) -> list[str]:
        found, repaired = tally.found[kind.name], tally.repaired[kind.name]
        done = f", {repaired} repaired" if kind.name in self.repair else ""
        lines = [f"  {found} {kind.name}{done}: {kind.meaning}"]
        shown = [one for one in tally.findings if one.kind == kind.name]
        lines += [f"    {one}" for one in shown]
        if found > len(shown):
            lines.append(f"    and {found - len(shown)} more")
        return lines
