"""Findings of a verification, and its report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqla_shard.engine.unreachable import unreachable_values, UnreachableServer


@dataclass(frozen=True, kw_only=True)
class FindingKind:
    """A kind of finding.

    :ivar name: name of the kind, such as ``dangling``.
    :ivar meaning: a description in a few words.
    :ivar harmless: whether the application works despite such findings.
    :ivar settled: whether the first check is enough, because no transaction
        in progress causes such a finding.
    """

    name: str
    meaning: str
    harmless: bool = False
    settled: bool = False


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One inconsistent row or object.

    :ivar kind: the kind, such as ``dangling``.
    :ivar subject: name of the class.
    :ivar keyspace: keyspace of the row.
    :ivar shard_id: shard of the row.
    :ivar row: values that identify the row, by column.
    :ivar detail: details, or the empty string.
    :ivar repaired: whether it was repaired.
    """

    kind: str
    subject: str
    keyspace: str
    shard_id: int
    row: Mapping[str, Any]
    detail: str = ""
    repaired: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values, with ids as strings, since they exceed 2^53."""
        row = {
            name: str(value) if type(value) is int else value
            for name, value in self.row.items()
        }
        return {**vars(self), "row": row}

    def __str__(self) -> str:
        row = ", ".join(f"{name} {value!r}" for name, value in self.row.items())
        detail = f": {self.detail}" if self.detail else ""
        done = " (repaired)" if self.repaired else ""
        return f"{row} on shard {self.shard_id} of {self.keyspace}{detail}{done}"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a repair.

    :ivar repaired: whether a row was repaired.
    :ivar left: the finding that remains, or None.
    """

    repaired: bool = False
    left: Finding | None = field(default=None)

    @classmethod
    def succeeded(cls) -> Outcome:
        """Return the outcome of a successful repair."""
        return cls(repaired=True)

    @classmethod
    def not_needed(cls) -> Outcome:
        """Return the outcome if no repair was needed."""
        return cls()

    @classmethod
    def needs_decision(cls, finding: Finding) -> Outcome:
        """Return the outcome if a person has to decide."""
        return cls(left=finding)


#: Number of findings of one class and kind that a report lists.
SHOWN = 20


@dataclass(kw_only=True)
class Tally:
    """The findings of one class.

    :ivar looked: number of rows or objects checked, by unit.
    :ivar found: number of findings by kind, including repaired ones.
    :ivar repaired: number of repaired findings by kind.
    :ivar findings: the first findings of each kind.
    """

    looked: Counter[str] = field(default_factory=Counter)
    found: Counter[str] = field(default_factory=Counter)
    repaired: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    def count(self, finding: Finding) -> None:
        """Add a finding."""
        self.found[finding.kind] += 1
        self.repaired[finding.kind] += finding.repaired
        if self.found[finding.kind] <= SHOWN:
            self.findings.append(finding)

    def left(self, kind: str) -> int:
        """Return the number of remaining findings of a kind."""
        return self.found[kind] - self.repaired[kind]

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as JSON values."""
        return {
            "looked": dict(self.looked),
            "found": dict(self.found),
            "repaired": dict(+self.repaired),
            "findings": [one.as_dict() for one in self.findings],
        }


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """The findings and repairs of a run.

    :ivar tallies: findings by name of the class.
    :ivar kinds: all kinds of findings, by name.
    :ivar repair: the kinds to repair; empty for a dry run.
    :ivar skipped: the kinds that could not be checked and the reason, by
        class.
    :ivar seconds: duration in seconds, without interruptions.
    :ivar unreachable: the servers of shards that could not be read completely:
        they did not respond, or lack the shard, or an object of its rows.
    """

    tallies: Mapping[str, Tally]
    kinds: Mapping[str, FindingKind]
    repair: Collection[str]
    skipped: Mapping[str, str]
    seconds: float
    unreachable: tuple[UnreachableServer, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether all shards were read, and no harmful finding remains."""
        return not self.unreachable and not any(
            tally.left(kind.name)
            for tally in self.tallies.values()
            for kind in self.kinds.values()
            if not kind.harmless
        )

    @property
    def findings(self) -> list[Finding]:
        """The listed findings of all classes and kinds."""
        return [one for tally in self.tallies.values() for one in tally.findings]

    def found(self, kind: str) -> int:
        """Return the number of findings of a kind, in all classes."""
        return sum(tally.found[kind] for tally in self.tallies.values())

    def repaired(self, kind: str) -> int:
        """Return the number of repaired findings of a kind."""
        return sum(tally.repaired[kind] for tally in self.tallies.values())

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as JSON values."""
        return {
            "ok": self.ok,
            "repair": sorted(self.repair),
            "seconds": round(self.seconds, 3),
            "classes": {name: tally.as_dict() for name, tally in self.tallies.items()},
            "skipped": dict(self.skipped),
            "unreachable": unreachable_values(self.unreachable),
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> list[str]:
        lines = []
        for name, tally in self.tallies.items():
            looked = " and ".join(
                f"{count} {unit}" for unit, count in tally.looked.items()
            )
            lines.append(f"{name}: {looked or 'nothing'} checked")
            for kind in self.kinds.values():
                if tally.found[kind.name]:
                    lines += self._kind_lines(tally, kind)
            if tally.looked and not +tally.found:
                lines.append("  no findings")
            if name in self.skipped:
                lines.append(f"  {self.skipped[name]}")
        lines += map(str, self.unreachable)
        done = "" if self.repair else "; nothing was changed"
        lines.append(f"{self.seconds:.1f} s{done}")
        return lines

    def _kind_lines(self, tally: Tally, kind: FindingKind) -> list[str]:
        found, repaired = tally.found[kind.name], tally.repaired[kind.name]
        done = f", {repaired} repaired" if kind.name in self.repair else ""
        lines = [f"  {found} {kind.name}{done}: {kind.meaning}"]
        shown = [one for one in tally.findings if one.kind == kind.name]
        lines += [f"    {one}" for one in shown]
        if found > len(shown):
            lines.append(f"    and {found - len(shown)} more")
        return lines
