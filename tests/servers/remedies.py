"""Runs the statements that a finding of the doctor recommends."""

from __future__ import annotations

import re
from collections.abc import Iterable

from sqla_shard.fleet.findings import FleetFinding
from sqla_shard.testing.database_server import DatabaseServer

_PLACE = re.compile(r"\bon ([0-9.]+:[0-9]+): (.*)")
_SQL = re.compile(r"(?:SET|STOP|START|RESET|CHANGE|KILL|REVOKE|DROP|ALTER)\b")
_END = re.compile(r", (?:and|or) |; (?![A-Z]{3})| \(MySQL")


def statements(finding: FleetFinding) -> tuple[str, list[str]]:
    """Return the address in a remedy, and the statements for it."""
    found = _PLACE.search(finding.remedy)
    assert found is not None, finding
    text = _END.split(found[2])[0]
    parts = [part.strip() for part in text.split(";")]
    assert all(map(_SQL.match, parts)), parts
    return found[1], parts


def follow(finding: FleetFinding, servers: Iterable[DatabaseServer]) -> None:
    """Run the statements of a remedy, as root, in one session."""
    address, parts = statements(finding)
    (server,) = (s for s in servers if f"{s.host}:{s.port}" == address)
    with server.root_connect() as connection:
        for part in parts:
            connection.cursor().execute(part)
