"""Differences that a comparison of the data of two servers found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

DifferenceKind = Literal[
    "missing_database",
    "extra_database",
    "missing_table",
    "extra_table",
    "definition",
    "auto_increment",
    "missing_row",
    "extra_row",
    "row",
]
"""Missing is what the second server does not have, extra what only it has."""

_TEXTS: Mapping[DifferenceKind, str] = {
    "missing_database": "the database is missing on {second}",
    "extra_database": "the database exists on {second} only",
    "missing_table": "missing on {second}",
    "extra_table": "exists on {second} only",
    "definition": "the definitions differ",
    "auto_increment": "AUTO_INCREMENT differs",
    "missing_row": "missing on {second}",
    "extra_row": "exists on {second} only",
    "row": "differs",
}


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A difference between two servers.

    :ivar database: name of the database.
    :ivar table: name of the table, view or trigger; empty for a database.
    :ivar kind: kind of the difference.
    :ivar key: values of the key of a row; of a table without a key, the
        checksum of the row.  Empty if it is not a row.
    :ivar columns: names of the columns that differ, if a row differs.
    :ivar detail: additional information.
    :ivar values: of each column that differs, the value on the first server
        and on the second, as text; empty unless they were requested.
    :ivar lasts: whether a row differed at another point of time, too; None if
        it was not compared again.
    """

    database: str
    kind: DifferenceKind
    table: str = ""
    key: tuple[Any, ...] = ()
    columns: tuple[str, ...] = ()
    detail: str = ""
    values: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    lasts: bool | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the difference in JSON values."""
        return asdict(self)

    def described(self, second: str) -> str:
        """Return a line for people.

        :param second: name of the second server.
        """
        place = ".".join(filter(None, (self.database, self.table)))
        if self.key:
            place += f" {self.key[0] if len(self.key) == 1 else self.key!r}"
        text = _TEXTS[self.kind].format(second=second)
        if self.columns:
            text += f" in {', '.join(self.columns)}"
        if self.detail:
            text += f" ({self.detail})"
        for name, (first, other) in self.values.items():
            text += f"; {name}: {first} -> {other}"
        if self.lasts is False:
            text += "; equal when compared again"
        return f"{place}: {text}"

    def __str__(self) -> str:
        return self.described("the second server")


@dataclass(frozen=True, kw_only=True)
class Unread:
    """A table or a database that was not compared, or not to its end.

    :ivar database: name of the database.
    :ivar table: name of the table; empty for the whole database.
    :ivar reason: the reason, and the remedy.
    """

    database: str
    reason: str
    table: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it in JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        place = ".".join(filter(None, (self.database, self.table)))
        return f"{place}: not compared: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class DataReport:
    """The result of a comparison of two servers.

    :ivar first: name and address of the first server, the primary.
    :ivar second: name and address of the second one.
    :ivar replicates: whether rows were compared at common points; otherwise
        each server had a point of its own.
    :ivar points: GTID positions at which rows were compared.
    :ivar databases: number of databases compared.
    :ivar tables: number of tables whose rows were compared.
    :ivar rows: number of rows read on the first server.
    :ivar seconds: time that it took.
    :ivar locked: longest time for which commits waited on the first server,
        in seconds.
    :ivar stopped: longest time for which the second one applied nothing, in
        seconds.
    :ivar found: number of differences.
    :ivar differences: the differences, at most as many as were requested.
    :ivar settled: number of rows of servers without replication between them
        that differed once, and were equal when compared again.
    :ivar unread: tables and databases that were not compared.
    """

    first: str
    second: str
    replicates: bool
    points: tuple[str, ...]
    databases: int
    tables: int
    rows: int
    seconds: float
    locked: float
    stopped: float
    found: int
    differences: tuple[Difference, ...]
    settled: int = 0
    unread: tuple[Unread, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether everything was compared, and is equal."""
        return not self.found and not self.unread

    def as_dict(self) -> dict[str, Any]:
        """Return the report in JSON values."""
        return {**asdict(self), "ok": self.ok}

    def summary(self) -> str:
        """Return the last lines of ``str()``, without the differences."""
        lines = [str(one) for one in self.unread]
        speed = self.rows / self.seconds if self.seconds else 0
        lines.append(
            f"{self.rows:,} rows in {self.tables:,} tables of "
            f"{self.databases:,} databases compared in {self.seconds:.1f} s "
            f"({speed:,.0f} rows/s); commits waited {1000 * self.locked:.0f} "
            f"ms, the applier {1000 * self.stopped:.0f} ms"
        )
        if self.settled:
            lines.append(
                f"{self.settled:,} rows differed at first and were equal "
                "when compared again"
            )
        wrong = []
        if self.found:
            wrong.append(f"{self.found:,} differences")
        tables = sum(bool(one.table) for one in self.unread)
        for count, what in (
            (tables, "tables"),
            (len(self.unread) - tables, "databases"),
        ):
            if count:
                wrong.append(f"{count:,} {what} not compared")
        verdict = ", ".join(wrong) or "equal"
        lines.append(f"{self.first} and {self.second}: {verdict}")
        return "\n".join(lines)

    def __str__(self) -> str:
        lines = [one.described(self.second) for one in self.differences]
        left = self.found - len(self.differences)
        if left:
            lines.append(f"{left:,} more differences are not listed")
        return "\n".join([*lines, self.summary()])
