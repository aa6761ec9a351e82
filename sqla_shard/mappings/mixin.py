"""Mapping tables: ordered lists of objects, on the shard of their source.

::

    class BoardHasPins(MappingMixin, Base, source=Board, target=Pin):
        pass

    with cluster.begin() as session:
        BoardHasPins.append(session, board_id, pin_id)

The table, ``board_has_pins``, has three columns, ``board_id``, ``pin_id`` and
``sequence``; a list is what has one ``board_id``, in descending order of
``sequence``.  It leads in one direction only: who wants to know the boards of
a pin has a second mapping, which this one keeps where it is its ``inverse``::

    class BoardHasPins(
        MappingMixin, Base, source=Board, target=Pin, inverse="PinInBoards"
    ):
        pass

    class PinInBoards(MappingMixin, Base, source=Pin, target=Board):
        pass

The reverse row is there when a pin that is on the shard of the board is
appended, and some moments later where it is on another.

Nothing checks that source and target exist, and a target may be on any shard;
``row.target`` is None where it is gone.

Every change of a list locks the row of its source first, so that changes of
one list wait for one another; one move, append or remove is a locking read
and one statement that writes.  Locks are held until the transaction ends.
Use :meth:`Cluster.run <sqla_shard.Cluster.run>`, which repeats what the
server has chosen as the victim of a deadlock.

It is an ordinary mapped class as well: ``select(BoardHasPins).where(
BoardHasPins.board_id == x)`` is sent to the board's shard.  Rows that are
added with ``session.add`` take the present time as their sequence, without
the lock that keeps two of one millisecond apart.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any
from typing import TYPE_CHECKING
from typing import TypeVar

from sqlalchemy import event
from sqlalchemy.orm import Mapped
from sqlalchemy.orm import Mapper

from sqla_shard.mappings import changes
from sqla_shard.mappings import moving
from sqla_shard.mappings import pages as reading
from sqla_shard.mappings.definition import check_ids
from sqla_shard.mappings.definition import define
from sqla_shard.mappings.definition import Definition
from sqla_shard.mappings.definition import definition_of
from sqla_shard.mappings.definition import finish
from sqla_shard.mappings.inverse import changing
from sqla_shard.mappings.inverse import refuse_changes
from sqla_shard.mappings.inverse import refuse_rows
from sqla_shard.mappings.inverse import tie
from sqla_shard.mappings.lists import List
from sqla_shard.mappings.many import first_pages
from sqla_shard.mappings.moving import NarrowGap
from sqla_shard.orm.creation import whole_or_not_at_all
from sqla_shard.paging import check_limit
from sqla_shard.paging import Page
from sqla_shard.session import ShardSession

__all__ = ["MappingMixin"]

M = TypeVar("M", bound="MappingMixin")
Callback = TypeVar("Callback", bound=Callable[[ShardSession, NarrowGap], Any])


class MappingMixin:
    """Makes a declarative class a mapping; it stands before the base.

    Class keywords:

    :param source: the class whose objects have lists, or its name.
    :param target: the class whose objects are in them, or its name.
    :param source_column: name of the column with the source's id; by
        default that of the class with ``_id``.
    :param target_column: the same for the target.
    :param keyspace: the source's keyspace; needed only where the source is
        given by name, is defined later, and there are several keyspaces.
    :param narrow_below: a move that leaves a gap with room for fewer moves
        calls what :meth:`on_narrow_gap` was given; at most ``respace_to``,
        and by default 20 or that.
    :param respace_to: how many moves each gap has room for after a
        re-spacing, 1 to 50.
    :param inverse: the mapping class that has the reverse rows, or its name;
        it is defined with source and target exchanged, and written by
        changes of this one alone.  Columns that either has beside the three
        have a default, or may be NULL.
    :raises ClassDefinitionError: when the class could not work.

    All methods take ids of sources and targets as 64-bit ints and raise
    :exc:`~sqla_shard.exc.InvalidIdError` for what is no id,
    :exc:`~sqla_shard.exc.WrongTypeError` for an id of another class, and
    :exc:`~sqla_shard.exc.UnknownShardError` for a shard that is not open.
    """

    if TYPE_CHECKING:
        sequence: Mapped[int]
        """The position in the list, 0 to ``10**38 - 1``."""
        source: Mapped[Any]
        """The source, read when it is used first."""
        target: Mapped[Any]
        """The target, read when it is used first; None where it is gone."""
        __sqla_shard_mapping__: Definition

    def __init_subclass__(
        cls,
        *,
        source: Any = None,
        target: Any = None,
        source_column: str | None = None,
        target_column: str | None = None,
        keyspace: str | None = None,
        narrow_below: int | None = None,
        respace_to: int = 40,
        inverse: Any = None,
        **kwargs: Any,
    ) -> None:
        define(
            cls,
            MappingMixin,
            source=source,
            target=target,
            source_column=source_column,
            target_column=target_column,
            keyspace=keyspace,
            narrow_below=narrow_below,
            respace_to=respace_to,
            inverse=inverse,
        )
        super().__init_subclass__(**kwargs)

    # -- changing a list

    @classmethod
    def append(
        cls, session: ShardSession, source_id: int, target_id: int
    ) -> bool:
        """Put a target on top of the list.

        :returns: False when it is in the list already; it then stays where
            it is.
        """
        rows = changing(cls, session, source_id, appends=True)
        return changes.append(rows, target_id)

    @classmethod
    def append_many(
        cls, session: ShardSession, source_id: int, target_ids: Iterable[int]
    ) -> list[int]:
        """Put targets on top of the list, the last one topmost.

        :returns: those that were not in the list already, in order.
        """
        rows = changing(cls, session, source_id, appends=True)
        return changes.append_many(rows, target_ids)

    @classmethod
    def remove(
        cls, session: ShardSession, source_id: int, target_id: int
    ) -> bool:
        """Take a target out of the list.

        :returns: False when it is not in the list.
        """
        return changes.remove(changing(cls, session, source_id), target_id)

    @classmethod
    def clear(cls, session: ShardSession, source_id: int) -> int:
        """Take everything out of the list, as when its source is deleted.

        :returns: how many rows there were.
        """
        return changes.clear(changing(cls, session, source_id))

    @classmethod
    def move(
        cls,
        session: ShardSession,
        source_id: int,
        target_id: int,
        *,
        before: int | None = None,
        after: int | None = None,
    ) -> int:
        """Move a target between two others.

        Where the two are no longer next to each other it is put next to
        ``before``.  A target that is there already stays as it is.

        :param before: the target directly ahead of the new place, newest
            first, that is with the higher sequence.
        :param after: the target directly behind; one of the two is enough.
        :returns: the target's sequence.
        :raises InvalidMoveError: when the neighbours make no sense.
        :raises MissingTargetError: when the target is not in the list.
        :raises StaleNeighbourError: when a neighbour is not in the list, or
            ``before`` is behind ``after``.
        :raises SequenceExhaustedError: when there is no room, and thousands
            of rows around the place have none either.
        """
        rows = changing(cls, session, source_id)
        return moving.move(rows, target_id, before, after)

    @classmethod
    def respace(
        cls,
        session: ShardSession,
        source_id: int,
        *,
        around: int | None = None,
    ) -> int:
        """Give the gaps of a list room for moves; their order stays.

        A move does so by itself where it finds no room.

        :param around: only the rows around this target; by default all
            rows, however many, are locked and looked at.
        :returns: how many rows have changed.
        :raises MissingTargetError: when ``around`` is not in the list.
        :raises SequenceExhaustedError: when too many rows are too close.
        """
        rows = changing(cls, session, source_id)
        if around is None:
            return moving.respace_all(rows)
        return moving.respace(rows, around)

    @classmethod
    def on_narrow_gap(cls, callback: Callback) -> Callback:
        """Register a function to be called when a move leaves little room.

        It is called as ``callback(session, gap)`` with a
        :class:`~sqla_shard.mappings.NarrowGap`, in the transaction of the
        move; what it raises lets the move fail.  A move that had to
        re-space the rows itself does not call it.

        :returns: the function, so that this works as a decorator.
        """
        definition_of(cls).callbacks.append(callback)
        return callback

    # -- reading a list

    @classmethod
    def contains(
        cls, session: ShardSession, source_id: int, target_ids: Iterable[int]
    ) -> set[int]:
        """Return those of the targets that are in the list."""
        return reading.contains(List(cls, session, source_id), target_ids)

    @classmethod
    def count(cls, session: ShardSession, source_id: int) -> int:
        """Return the length of the list; takes longer for a longer one."""
        return reading.count(List(cls, session, source_id))

    @classmethod
    def position(
        cls, session: ShardSession, source_id: int, target_id: int
    ) -> int | None:
        """Return the sequence of a target; None when it is not there."""
        return reading.position(List(cls, session, source_id), target_id)

    @classmethod
    def page(
        cls: type[M],
        session: ShardSession,
        source_id: int,
        limit: int = 50,
        after: str | None = None,
        *,
        newest_first: bool = True,
        targets: bool = False,
    ) -> Page[M]:
        """Return a page of the list.

        A row that stays in its place is neither skipped nor shown twice,
        whatever happens to others between one page and the next; unless the
        rows at the end of the page were both moved and re-spaced meanwhile,
        or both its last row and the row after it were moved.

        :param limit: how many rows at most.
        :param after: a bookmark: the ``next`` or ``previous`` of a page.
        :param newest_first: in descending order of ``sequence``; a bookmark
            holds for the order that it was made in.
        :param targets: load ``row.target`` of all rows, with as many
            statements as the targets have servers.
        :raises InvalidBookmarkError: when ``after`` is not a bookmark of
            this list and order.
        """
        rows = List(cls, session, source_id)
        page = reading.page(rows, limit, after, newest_first)
        if targets:
            reading.load_targets(page, cls, session)
        return page

    @classmethod
    def pages(
        cls: type[M],
        session: ShardSession,
        source_ids: Iterable[int],
        limit: int = 50,
        *,
        targets: bool = False,
    ) -> dict[int, Page[M]]:
        """Return the first page of many lists, newest first.

        That takes one statement for every 64 lists of a shard, and with
        ``targets`` one for each server of the targets.

        :returns: pages by source, whose bookmarks :meth:`page` takes.
        """
        pages = first_pages(cls, session, source_ids, limit)
        if targets:
            rows = [row for page in pages.values() for row in page]
            reading.load_targets(rows, cls, session)
        return pages

    @classmethod
    def iterate(
        cls: type[M],
        session: ShardSession,
        source_id: int,
        *,
        newest_first: bool = True,
        batch: int = 1000,
    ) -> Iterator[M]:
        """Yield every row of the list, read in batches."""
        check_limit(batch, "batch")
        rows = List(cls, session, source_id)
        return reading.iterate(rows, newest_first, batch)

    def __repr__(self) -> str:
        definition = self.__sqla_shard_mapping__
        source = self.__dict__.get(definition.source.column)
        target = self.__dict__.get(definition.target.column)
        return f"<{type(self).__name__} {source} -> {target}>"


@whole_or_not_at_all
def _finish(mapper: Mapper[Any], cls: Any) -> None:
    finish(mapper, cls)
    tie(cls)


event.listen(MappingMixin, "after_mapper_constructed", _finish, propagate=True)
event.listen(MappingMixin, "before_insert", check_ids, propagate=True)
event.listen(MappingMixin, "before_insert", refuse_rows, propagate=True)
event.listen(MappingMixin, "before_update", refuse_changes, propagate=True)
event.listen(MappingMixin, "before_delete", refuse_rows, propagate=True)
