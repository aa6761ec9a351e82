"""The results of passes over all rows of a move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    func,
    insert,
    Integer,
    MetaData,
    select,
    Table,
)

from sqla_shard.migrate.copying import snapshot
from sqla_shard.migrate.mark_tables import Key
from sqla_shard.migrate.move import Move
from sqla_shard.migrate.stages import Progress

#: The results of complete passes, in the database.
PASSES = Table(
    "sqla_shard_passes",
    MetaData(),
    Column("id", BigInteger().with_variant(Integer(), "sqlite"), primary_key=True),
    Column("round", Integer, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("differences", BigInteger, nullable=False),
    Column("made_at", DateTime, server_default=func.current_timestamp()),
    mysql_engine="InnoDB",
)

#: Maximum number of differences that a pass names.
_MOST = 1000


@dataclass(frozen=True, kw_only=True)
class DifferentRow:
    """One row that differs.

    :ivar table: name of the table.
    :ivar key: the primary key in the database; None if it has none.
    :ivar ids: the object id on the shards, or those of source and target of a
        mapping row; empty if there are none.
    :ivar reason: what differs.
    """

    table: str
    key: Key | None
    ids: Key
    reason: str

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as JSON values."""
        ids = [str(object_id) for object_id in self.ids]
        return {**asdict(self), "ids": ids}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DifferentRow:
        """Return one from the result of :meth:`as_dict`.

        :raises TypeError: for other data.
        :raises LookupError: for other data.
        :raises ValueError: for other data.
        """
        key = data["key"]
        return cls(
            table=data["table"],
            key=None if key is None else tuple(key),
            ids=tuple(map(int, data["ids"])),
            reason=data["reason"],
        )

    def __str__(self) -> str:
        key = "-" if self.key is None else ", ".join(map(str, self.key))
        ids = ", ".join(map(str, self.ids)) or "none"
        return f"{self.table} {key} (object {ids}): {self.reason}"


@dataclass(kw_only=True)
class Pass:
    """The result of one pass.

    :ivar rows: number of rows that were compared.
    :ivar waiting: number of rows that were on their way.
    :ivar differences: number of rows that differ.
    :ivar found: rows that differ, at most 1,000.
    """

    rows: int = 0
    waiting: int = 0
    differences: int = 0
    found: list[DifferentRow] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        """Whether no row differs."""
        return not self.differences

    def add(self, found: DifferentRow) -> None:
        """Add a row that differs."""
        self.differences += 1
        if len(self.found) < _MOST:
            self.found.append(found)

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as JSON values."""
        return {**vars(self), "found": [one.as_dict() for one in self.found]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Pass:
        """Return one from the result of :meth:`as_dict`.

        :raises TypeError: for other data.
        :raises LookupError: for other data.
        :raises ValueError: for other data.
        """
        return cls(
            rows=_integer(data["rows"]),
            waiting=_integer(data["waiting"]),
            differences=_integer(data["differences"]),
            found=[DifferentRow.from_dict(one) for one in data["found"]],
        )

    def __str__(self) -> str:
        first = (
            f"{self.rows:,} rows, {self.differences:,} different, "
            f"{self.waiting:,} on their way"
        )
        return "\n".join([first, *map(str, self.found)])


@dataclass(kw_only=True)
class PassPosition:
    """Progress of a pass.

    :ivar step: index of the step.
    :ivar after: key of the last row of the last page of the step, as the step
        needs it; None at its start.
    :ivar result: what was compared and found so far.
    """

    step: int = 0
    after: Key | None = None
    result: Pass = field(default_factory=Pass)

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as JSON values."""
        return {**vars(self), "result": self.result.as_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PassPosition:
        """Return one from the result of :meth:`as_dict`.

        :raises TypeError: for other data.
        :raises LookupError: for other data.
        :raises ValueError: for other data.
        """
        after = data["after"]
        return cls(
            step=_integer(data["step"]),
            after=None if after is None else tuple(map(_integer, after)),
            result=Pass.from_dict(data["result"]),
        )


def _integer(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} must be an integer")
    return value


def last_pass(move: Move, now: Progress) -> Pass | None:
    """Return the last complete pass of a round, without its rows."""
    statement = (
        select(PASSES.c.rows, PASSES.c.differences)
        .where(PASSES.c.round == now.round)
        .order_by(PASSES.c.id.desc())
        .limit(1)
    )
    with snapshot(move.engine) as connection:
        row = connection.execute(statement).first()
    return None if row is None else Pass(rows=row[0], differences=row[1])


def record_pass(move: Move, now: Progress, result: Pass) -> None:
    """Record a complete pass."""
    values = {
        "round": now.round,
        "number": now.number,
        "rows": result.rows,
        "differences": result.differences,
    }
    with snapshot(move.engine) as connection:
        connection.execute(insert(PASSES), values)
