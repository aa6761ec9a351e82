"""The statements of one mapping class, built once.

A list is changed under a lock of its source's row, taken first of all by
every operation, so that those of one list wait for one another instead of
deadlocking.  The rows that an operation looks at are locked as well: on MySQL
only a locking read sees what others have committed since the transaction's
snapshot was taken; and where the source has no row, those locks keep two
writers apart, though one of them may then have to be repeated.

The lock and everything that is to be known come from one statement: a SELECT
of scalar subqueries.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import and_
from sqlalchemy import bindparam
from sqlalchemy import func
from sqlalchemy import inspect
from sqlalchemy import Integer
from sqlalchemy import or_
from sqlalchemy import select
from sqlalchemy.sql.elements import ColumnElement

from sqla_shard.mappings.definition import link

__all__ = ["Statements", "statements_of"]

_BUILT = "__sqla_shard_statements__"


class Statements:
    """The statements of a mapping class.

    Their parameters: ``source`` and ``row`` (ids), ``owner`` (the source
    again, where its own row is locked), ``before`` and ``after`` (ids of
    neighbours), ``at`` (a sequence), ``low`` and ``high`` (bounds of
    sequences), ``ids`` and ``number`` (of rows).

    :ivar source: the attribute with the source's id.
    :ivar target: the attribute with the target's id.
    :ivar table: the table.
    """

    def __init__(self, cls: Any) -> None:
        definition = link(cls)
        self.entity = cls
        self.definition = definition
        self.source = getattr(cls, definition.source.column)
        self.target = getattr(cls, definition.target.column)
        self.table: Any = inspect(cls).local_table
        self._build_reads()
        self._build_locks()

    def _build_reads(self) -> None:
        cls, source, target = self.entity, self.source, self.target
        here = source == bindparam("source")
        keys = target, cls.sequence
        self.count = select(func.count()).select_from(cls).where(here)
        self.position = select(cls.sequence).where(
            here, target == bindparam("row")
        )
        self.present = select(*keys).where(
            here, target.in_(bindparam("ids", expanding=True))
        )
        self.present_locked = self.present.with_for_update()
        self.first_page = {
            newest: self._page(newest).where(here) for newest in (True, False)
        }
        self.later_page = {
            newest: self._page(newest)
            .where(
                here,
                _beyond(
                    cls.sequence,
                    target,
                    bindparam("at"),
                    bindparam("cut"),
                    newest,
                ),
            )
            .add_columns(self._sequence("row", lock=False).label("the_now"))
            for newest in (True, False)
        }
        self.window = (
            select(*keys)
            .where(
                here,
                cls.sequence >= bindparam("low"),
                cls.sequence <= bindparam("high"),
                target != bindparam("row"),
            )
            .order_by(cls.sequence, target)
            .limit(bindparam("number", type_=Integer()))
            .with_for_update()
        )
        self.whole = (
            select(*keys)
            .where(here)
            .order_by(cls.sequence, target)
            .with_for_update()
        )

    def _page(self, newest: bool) -> Any:
        cls, target = self.entity, self.target
        # The keys beside the rows: an object that the session holds keeps
        # its values, and bookmarks must be of what the server has.
        return (
            select(
                cls, target.label("the_id"), cls.sequence.label("the_sequence")
            )
            .order_by(_directed(cls.sequence, newest))
            .order_by(_directed(target, newest))
            .limit(bindparam("number", type_=Integer()))
        )

    def _build_locks(self) -> None:
        moved = self._sequence("row")
        self.lock_row = self._locking(row=moved)
        self.lock_top = self._locking(row=moved, top=self._top())
        self.lock_many = self._locking(top=self._top())
        before = self._sequence("before")
        after = self._sequence("after")
        behind = self._neighbour("before", below=True)
        ahead = self._neighbour("after", below=False)
        self.lock_before = self._locking(row=moved, before=before, **behind)
        self.lock_after = self._locking(row=moved, after=after, **ahead)
        self.lock_both = self._locking(
            row=moved, before=before, after=after, **behind
        )

    # -- parts

    def _locking(self, **parts: Any) -> Any:
        """Return a SELECT of subqueries: a lock, the parts, the lock again.

        Servers evaluate subqueries in the order of the statement or, as
        MariaDB does, in the reverse; either way the lock comes first.
        """
        entity: Any = self.definition.source.entity
        owner: Any = inspect(entity).local_table
        own = owner.primary_key.columns[0]

        def lock() -> Any:
            return (
                select(own)
                # Not ``source``: of one parameter SQLAlchemy knows one
                # type, and this column holds local ids.
                .where(own == bindparam("owner", type_=own.type))
                .with_for_update()
                .scalar_subquery()
            )

        return select(
            lock().label("the_lock"),
            *(part.label(f"the_{name}") for name, part in parts.items()),
            lock().label("the_lock_again"),
        ).with_for_update()

    def _columns(self) -> tuple[Any, Any, Any]:
        # An alias each: a subquery over the table of the statement around
        # it would be correlated with that.
        table = self.table.alias()
        definition = self.definition
        return (
            table.c[definition.source.column],
            table.c[definition.target.column],
            table.c.sequence,
        )

    def _sequence(self, name: str, *, lock: bool = True) -> Any:
        """Return the sequence of the row whose id is a parameter."""
        source, target, sequence = self._columns()
        found = select(sequence).where(
            source == bindparam("source", type_=source.type),
            target == bindparam(name, type_=target.type),
        )
        if lock:
            found = found.with_for_update()
        return found.scalar_subquery()

    def _top(self) -> Any:
        source, target, sequence = self._columns()
        return (
            select(sequence)
            .where(source == bindparam("source", type_=source.type))
            .order_by(sequence.desc(), target.desc())
            .limit(1)
            .with_for_update()
            .scalar_subquery()
        )

    def _neighbour(self, anchor: str, *, below: bool) -> dict[str, Any]:
        """Return id and sequence of the row next to an anchor.

        The row that is moved, ``row``, is no neighbour.
        """
        return {
            "next": self._next_to(anchor, 1, below),
            "next_at": self._next_to(anchor, 2, below),
        }

    def _next_to(self, anchor: str, shown: int, below: bool) -> Any:
        columns = self._columns()
        source, target, sequence = columns
        at = self._sequence(anchor)
        name = bindparam(anchor, type_=target.type)
        return (
            select(columns[shown])
            .where(
                source == bindparam("source", type_=source.type),
                _beyond(sequence, target, at, name, below),
                target != bindparam("row", type_=target.type),
            )
            .order_by(_directed(sequence, below), _directed(target, below))
            .limit(1)
            .with_for_update()
            .scalar_subquery()
        )


def _directed(column: Any, newest: bool) -> Any:
    return column.desc() if newest else column.asc()


def _beyond(
    sequence: Any, target: Any, at: Any, row: Any, newest: bool
) -> ColumnElement[bool]:
    """Return the condition of the rows that follow a key.

    Not a comparison of tuples, for which MySQL does not use the index.

    :param at: the sequence of the key.
    :param row: its target.
    """
    if newest:
        return and_(sequence <= at, or_(sequence < at, target < row))
    return and_(sequence >= at, or_(sequence > at, target > row))


def statements_of(cls: Any) -> Statements:
    """Return the statements of a mapping class.

    :raises ClassDefinitionError: when a class that it was given by name is
        not there.
    """
    found: Statements | None = cls.__dict__.get(_BUILT)
    if found is None:
        found = Statements(cls)
        setattr(cls, _BUILT, found)
    return found
