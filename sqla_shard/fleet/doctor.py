"""One report about everything that can go wrong in a fleet.

It only reads, from all servers at once, and ends after a time limit: a server
that has not responded by then is ``unknown``, never fine.  It does not
compare rows; see :mod:`sqla_shard.upkeep` and ``sqla-shard fleet verify``.

::

    report = examine(fleet, environ=os.environ)
    if not report.ok:
        print(report)

What it looks for is in the modules whose names end in ``_checks``; a new
check is one function there, see :mod:`sqla_shard.fleet.findings`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from sqla_shard.fleet import (
    access_checks,
    content_checks,
    findings,
    replication_checks,
    setting_checks,
)
from sqla_shard.fleet.fact_reader import read_facts
from sqla_shard.fleet.facts import FleetFacts
from sqla_shard.fleet.findings import findings_of, FleetFinding, SEVERITIES, Severity
from sqla_shard.fleet.fleet import Fleet
from sqla_shard.fleet.write_access import writable_formers
from sqla_shard.util.json_values import JsonObject

CHECKS = (replication_checks, content_checks, access_checks, setting_checks)
"""The modules of the checks; the worst findings come from the first."""

#: Operations of the journal in which former primaries are looked for, and
#: seconds to wait for each of them.
_HISTORY_RECORDS = 100
_FORMER_SECONDS = 3.0

_MODULES = [module.__name__ for module in CHECKS]


@dataclass(frozen=True, kw_only=True)
class DoctorReport(JsonObject):
    """Report of the doctor.

    :ivar epoch: epoch of the topology.
    :ivar servers: number of servers that were looked at.
    :ivar findings: the findings, the worst first.
    """

    derived: ClassVar[tuple[str, ...]] = ("ok",)

    epoch: int
    servers: int
    findings: tuple[FleetFinding, ...]

    @property
    def ok(self) -> bool:
        """Whether everything is known, and nothing needs attention."""
        return not self.at_least("warning")

    @property
    def complete(self) -> bool:
        """Whether everything that was asked for is known."""
        return not any(one.severity == "unknown" for one in self.findings)

    def at_least(self, severity: Severity) -> list[FleetFinding]:
        """Return the findings of a severity or a worse one."""
        most = SEVERITIES.index(severity)
        return [one for one in self.findings if SEVERITIES.index(one.severity) <= most]

    def __str__(self) -> str:
        lines = [str(finding) for finding in self.findings]
        counts = [
            f"{count} {severity}"
            for severity in SEVERITIES
            if (count := sum(f.severity == severity for f in self.findings))
        ]
        lines.append(
            f"{self.servers} servers, epoch {self.epoch}: "
            + (", ".join(counts) or "nothing found")
        )
        return "\n".join(lines)


def examine(
    fleet: Fleet,
    *,
    others: Iterable[str] = (),
    environ: Mapping[str, str] = MappingProxyType({}),
    timeout: float = 15.0,
    ignored: Collection[str] = (),
) -> DoctorReport:
    """Read all servers of a fleet, and return the findings.

    :param others: URLs or ``host:port`` of servers outside of the topology
        that are looked at, too.  Former primaries that can be written are.
    :param environ: values of placeholders in the topology, such as
        ``os.environ``; they say which users are those of the application.
    :param timeout: seconds after which a server that has not responded is
        unknown.
    :param ignored: names of checks that are not done; see
        :func:`check_names`.
    :raises TopologyError: if the topology is not valid.
    :raises TopologyUnavailableError: if it cannot be read.
    """
    formers = writable_formers(
        fleet, fleet.journal.history(_HISTORY_RECORDS), timeout=_FORMER_SECONDS
    )
    return diagnose(
        read_facts(
            fleet,
            others=dict.fromkeys([*others, *formers]),
            environ=environ,
            timeout=timeout,
        ),
        ignored=ignored,
    )


def diagnose(facts: FleetFacts, *, ignored: Collection[str] = ()) -> DoctorReport:
    """Return the findings of some facts; connects to no server."""
    return DoctorReport(
        epoch=facts.topology.epoch,
        servers=len(facts.servers),
        findings=tuple(findings_of(facts, _MODULES, ignored=ignored)),
    )


def check_names() -> list[str]:
    """Return the names of all checks, in their order."""
    return findings.check_names(_MODULES)
