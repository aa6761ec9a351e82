"""What a class of rows has to do to be looked through."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from typing import Protocol

from sqla_shard.cluster import Cluster
from sqla_shard.engines import Places
from sqla_shard.session import ShardSession
from sqla_shard.topology import Keyspace
from sqla_shard.verifying.findings import Finding
from sqla_shard.verifying.findings import Kind
from sqla_shard.verifying.findings import Outcome

__all__ = ["Check", "read"]


class Check(Protocol):
    """Looks through the rows of one table, on every shard.

    :ivar subject: what its findings are counted under: the name of a class.
    :ivar unit: what it looks at, such as ``rows``.
    :ivar kinds: what it can find, by name.
    """

    subject: str
    unit: str
    kinds: dict[str, Kind]

    def keyspace(self, places: Places) -> Keyspace:
        """Return the keyspace whose shards have the table."""
        ...

    def page(
        self, session: ShardSession, shard_id: int, after: Any, limit: int
    ) -> Sequence[Any]:
        """Return the next rows of a shard, by primary key.

        :param after: :meth:`position` of the last one; None to begin.
        """
        ...

    def position(self, row: Any) -> Any:
        """Return what names a row within its shard; JSON can hold it."""
        ...

    def again(
        self,
        session: ShardSession,
        shard_id: int,
        findings: Sequence[Finding],
    ) -> Sequence[Any]:
        """Return the rows of findings as they are now."""
        ...

    def judge(
        self, session: ShardSession, shard_id: int, rows: Sequence[Any]
    ) -> list[Finding]:
        """Return what does not fit, one finding for a row at most."""
        ...

    def mend(self, cluster: Cluster, finding: Finding) -> Outcome:
        """Put a row right, having looked again under a lock.

        Each repair can be interrupted anywhere and be made again.
        """
        ...


def read(
    check: Check, session: ShardSession, shard_id: int, statement: Any
) -> Sequence[Any]:
    """Return the rows of a statement on one shard of a check."""
    place = session.places.place(check.keyspace(session.places), shard_id)
    return session.execute(statement, bind_arguments={"place": place}).all()
