"""Findings of the doctor, how a check is written, and what refuses a plan.

A check is a generator over facts, registered for each server, for each pair
or for the fleet::

    @server_check
    def binary_log(server: ServerFacts, fleet: FleetFacts) -> Findings:
        if not server.is_on("log_bin"):
            yield critical(
                server, "has no binary log", "set log_bin, and restart it"
            )

Plans ask :func:`refusals` of their servers, with :class:`.LiveServer` as facts:
one text and one remedy for each condition.

The checks of a module are done in their order in it, which is also the order
of findings of the same severity.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeAlias

from sqla_shard.engine.unreachable import Cause, UnreachableServer
from sqla_shard.exc import Problem
from sqla_shard.fleet.facts import FleetFacts, NotReadError, PairFacts, ServerFacts
from sqla_shard.fleet.fleet import all_pairs, Pair
from sqla_shard.fleet.server_states import outage
from sqla_shard.util.json_values import JsonObject

UNREAD = "unread"
"""The check of findings about facts that were not read."""

Severity = Literal["critical", "unknown", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("critical", "unknown", "warning", "info")
"""The worst first.

critical
    data can be lost, or writes fail;
unknown
    could not be found out;
warning
    an operation will be refused, or something becomes critical;
info
    good to know.
"""


@dataclass(frozen=True, kw_only=True)
class FleetFinding(JsonObject):
    """One line of the report.

    :ivar severity: see :data:`SEVERITIES`.
    :ivar check: name of the check.
    :ivar server: the server, or ``"fleet"``.
    :ivar what: the problem; a sentence without its subject.
    :ivar remedy: the remedy; empty if there is none.
    """

    severity: Severity
    check: str = ""
    server: str
    what: str
    remedy: str = ""

    def __str__(self) -> str:
        # What was not read has the name of the server in its line.
        where = "" if self.check == UNREAD else f"{self.server}: "
        line = f"{self.severity}: {where}{self.what}"
        return f"{line}\n    {self.remedy}" if self.remedy else line


Findings: TypeAlias = Iterator[FleetFinding]
_Place: TypeAlias = "ServerFacts | Literal['fleet']"


def _finding(
    severity: Severity, server: _Place, what: str, remedy: str = ""
) -> FleetFinding:
    return FleetFinding(severity=severity, server=str(server), what=what, remedy=remedy)


critical: partial[FleetFinding] = partial(_finding, "critical")
unknown: partial[FleetFinding] = partial(_finding, "unknown")
warning: partial[FleetFinding] = partial(_finding, "warning")
info: partial[FleetFinding] = partial(_finding, "info")

_ServerCheck: TypeAlias = Callable[[ServerFacts, FleetFacts], Findings]
_PairCheck: TypeAlias = Callable[[PairFacts, FleetFacts], Findings]
_StandbyCheck: TypeAlias = Callable[[ServerFacts, PairFacts, FleetFacts], Findings]
_FleetCheck: TypeAlias = Callable[[FleetFacts], Findings]
#: A call of a check with its facts.
_Call: TypeAlias = Callable[[], Findings]
#: The names of the checks of each module, and the calls of each for a fleet.
_names: dict[str, list[tuple[str, Callable[..., Findings]]]] = {}
_calls: dict[Callable[..., Findings], Callable[[FleetFacts], list[_Call]]] = {}


def server_check(check: _ServerCheck) -> _ServerCheck:
    """Register a check of each server."""
    _register(
        check, lambda fleet: [partial(check, server, fleet) for server in fleet.servers]
    )
    return check


def pair_check(check: _PairCheck) -> _PairCheck:
    """Register a check of each pair."""
    _register(
        check, lambda fleet: [partial(check, pair, fleet) for pair in fleet.pairs]
    )
    return check


def standby_check(check: _StandbyCheck) -> _StandbyCheck:
    """Register a check of each pair that has a standby."""
    _register(
        check,
        lambda fleet: [
            partial(check, pair.standby, pair, fleet)
            for pair in fleet.pairs
            if pair.standby is not None
        ],
    )
    return check


def fleet_check(check: _FleetCheck) -> _FleetCheck:
    """Register a check of the whole fleet."""
    _register(check, lambda fleet: [partial(check, fleet)])
    return check


def check_names(modules: Iterable[str]) -> list[str]:
    """Return the names of the registered checks of some modules."""
    return [name for module in modules for name, _ in _names[module]]


def findings_of(
    fleet: FleetFacts, modules: Iterable[str], *, ignored: Collection[str] = ()
) -> list[FleetFinding]:
    """Return the findings of all registered checks, the worst first.

    :param fleet: the facts.
    :param modules: names of the modules of the checks; findings of the same
        severity are in their order.
    :param ignored: names of checks that are not done.
    """
    found: list[FleetFinding] = []
    undone: dict[tuple[str, str], tuple[NotReadError, list[str]]] = {}
    checks = [
        check
        for module in modules
        for check in _names[module]
        if check[0] not in ignored
    ]
    for name, function in checks:
        for call in _calls[function](fleet):
            try:
                for finding in call():
                    found.append(replace(finding, check=name))
            except NotReadError as error:
                key = (str(error.server), error.reason)
                _, names = undone.setdefault(key, (error, []))
                if name not in names:
                    names.append(name)
    pairs = {pair.name: pair for pair in all_pairs(fleet.topology)}
    found += [
        FleetFinding(
            severity="unknown",
            check=UNREAD,
            server=str(error.server),
            what=f"{_outage(error, pairs)}; not checked: {', '.join(names)}",
            remedy=(
                "it answers other statements: remove that cause, or look at SHOW "
                "PROCESSLIST there; run fleet doctor again"
                if error.server.parts
                else "make sure that it runs and that the account of the "
                "operator can connect; run fleet doctor again"
            ),
        )
        for error, names in undone.values()
    ]
    return sorted(found, key=lambda one: SEVERITIES.index(one.severity))


def refusals(fleet: FleetFacts, *checks: Callable[..., Findings]) -> list[Problem]:
    """Return the findings of some registered checks, as problems of a plan."""
    return [
        Problem(finding.server, f"it {finding.what}; {finding.remedy}")
        for check in checks
        for call in _calls[check](fleet)
        for finding in call()
    ]


def _outage(error: NotReadError, pairs: Mapping[str, Pair]) -> str:
    """Return the line of a server that was not read."""
    server = error.server
    is_up = bool(server.parts)
    if server.role != "other":
        found = outage(
            pairs[server.name],
            server.role,
            why=error.reason,
            number=error.number,
            is_up=is_up,
        )
        return str(found)
    cause = Cause(error.reason, error.number, responds=is_up)
    return str(UnreachableServer(server=str(server), cause=cause, addresses=()))


def _register(
    check: Callable[..., Any], calls: Callable[[FleetFacts], list[_Call]]
) -> None:
    name = check.__name__.replace("_", "-")
    _names.setdefault(check.__module__, []).append((name, check))
    _calls[check] = calls
