"""Values about the replication of a server, as it reports them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ReplicationStatus:
    """State of a standby, as it reports it.

    :ivar source: ``host:port`` of the primary that it replicates from.
    :ivar source_id: ``server_id`` of that primary; 0 if it was never reached.
    :ivar receiver: ``"Yes"``, ``"No"`` or ``"Connecting"``: whether it
        receives the binary log of the primary.
    :ivar applier: ``"Yes"`` or ``"No"``: whether it applies what it received.
    :ivar received: position up to which it has received.
    :ivar lag: seconds behind the primary; None if unknown.
    :ivar error: last error of the receiver or the applier; empty if none.
    :ivar applier_error: last error of the applier.
    :ivar filters: options that leave out databases or tables.
    :ivar uses_gtid: whether it finds its position by GTID.
    :ivar delay: seconds for which it waits before it applies anything.
    """

    source: str
    source_id: int
    receiver: str
    applier: str
    received: str
    lag: int | None
    error: str
    applier_error: str
    filters: tuple[str, ...]
    uses_gtid: bool
    delay: int = 0

    @property
    def runs(self) -> bool:
        """Whether it receives and applies."""
        return self.receiver == self.applier == "Yes"


@dataclass(frozen=True, kw_only=True)
class SemiSync:
    """State of semi-synchronous replication on a server.

    :ivar source_on: whether COMMIT waits for a standby at this moment.
    :ivar source_enabled: whether it is configured to wait.
    :ivar replica_on: whether the server is configured to acknowledge as a
        standby.
    :ivar acknowledges: whether it does so at this moment.
    :ivar after_sync: whether it waits before other sessions see the rows.
    :ivar waits_alone: whether it waits while no standby is connected.
    :ivar timeout: seconds after which it stops waiting.
    :ivar standbys: number of standbys that acknowledge.
    """

    source_on: bool
    source_enabled: bool
    replica_on: bool
    acknowledges: bool
    after_sync: bool
    waits_alone: bool
    timeout: float
    standbys: int


@dataclass(frozen=True, kw_only=True)
class TableSize:
    """The size of a table, as the server estimates it.

    :ivar bytes: of rows and indexes.
    :ivar rows: number of rows, an estimate that may be wrong by half.
    :ivar next_id: next value of AUTO_INCREMENT; None without such a column.
    :ivar id_type: type of that column, such as ``"bigint(20) unsigned"``.
    """

    database: str
    table: str
    bytes: int
    rows: int
    next_id: int | None = None
    id_type: str = ""


def gtids(text: str) -> list[tuple[int, int, int]]:
    """Return the GTIDs of MariaDB in a position: domain, server, number.

    :param text: such as ``"0-1-42,7-3-12"``; may be empty.
    """
    found = []
    for part in text.replace("\n", "").split(","):
        if part.strip():
            domain, server, number = part.strip().split("-")
            found.append((int(domain), int(server), int(number)))
    return found
