"""Interface of a check of the rows of one table on every shard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.engine import Places
from sqla_shard.session import ShardSession
from sqla_shard.topology import Keyspace
from sqla_shard.upkeep.findings import Finding, FindingKind, Outcome


class Check:
    """A check of the rows of one table on every shard.

    :param cls: the class to verify.
    :ivar subject: name of the class, under which findings are counted.
    :ivar unit: unit of its counts: rows, objects or claims.
    :ivar kinds: the kinds of its findings, by name.
    """

    unit = "rows"
    kinds: dict[str, FindingKind]

    def __init__(self, cls: Any) -> None:
        self.subject: str = cls.__name__
        self._cls = cls

    def keyspace(self, places: Places) -> Keyspace:
        """Return the keyspace whose shards have the table."""
        raise NotImplementedError

    def page(
        self, session: ShardSession, shard_id: int, after: Any, limit: int
    ) -> Sequence[Any]:
        """Return the next rows of a shard, by primary key.

        :param after: :meth:`position` of the last row, or None.
        """
        raise NotImplementedError

    def position(self, row: Any) -> Any:
        """Return the position of a row in its shard, as JSON values."""
        raise NotImplementedError

    def again(
        self, session: ShardSession, shard_id: int, findings: Sequence[Finding]
    ) -> Sequence[Any]:
        """Read the rows of findings again."""
        raise NotImplementedError

    def judge(
        self, session: ShardSession, shard_id: int, rows: Sequence[Any]
    ) -> list[Finding]:
        """Return the findings, at most one for each row."""
        raise NotImplementedError

    def repair(self, cluster: Cluster, finding: Finding) -> Outcome:
        """Lock a row, check it again and repair it.

        A repair is idempotent, even after an interruption.
        """
        raise NotImplementedError

    def _read(
        self, session: ShardSession, shard_id: int, statement: Any
    ) -> Sequence[Any]:
        """Return the rows of a statement on one shard."""
        place = session.places.place(self.keyspace(session.places), shard_id)
        return session.execute(statement, bind_arguments={"place": place}).all()

    def _finding(
        self,
        session: ShardSession,
        kind: FindingKind,
        shard_id: int,
        row: dict[str, Any],
        detail: str = "",
    ) -> Finding:
        return Finding(
            kind=kind.name,
            subject=self.subject,
            keyspace=self.keyspace(session.places).name,
            shard_id=shard_id,
            row=row,
            detail=detail,
        )
