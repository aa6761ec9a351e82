"""Mapping tables: ordered lists of objects, on the shard of the source.

::

    class BoardHasPins(MappingMixin, Base, source=Board, target=Pin):
        pass

    with cluster.begin() as session:
        BoardHasPins.append(session, board_id, pin_id)

The table, ``board_has_pins``, has three columns, ``board_id``, ``pin_id`` and
``sequence``.  A list consists of the rows with one ``board_id``, in descending
order of ``sequence``.  To list the boards of a pin as well, define a second
mapping as its ``inverse``, whose rows follow the rows of the first::

    class BoardHasPins(
        MappingMixin, Base, source=Board, target=Pin, inverse="PinInBoards"
    ):
        pass

    class PinInBoards(MappingMixin, Base, source=Pin, target=Board):
        pass

The reverse row is written in the same transaction if the pin is on the shard
of the board, otherwise shortly after the COMMIT.

A target may be on any shard.  It is not checked that source and target exist;
``row.target`` is None if the target was deleted.

Every change of a list first locks the row of its source, so that concurrent
changes of one list wait for each other.  A move, append or remove takes one
locking read and one writing statement.  Locks are held until the transaction
ends.  Use :meth:`Cluster.run <sqla_shard.Cluster.run>`, which retries after a
deadlock.

A mapping is an ordinary mapped class as well: ``select(BoardHasPins).where(
BoardHasPins.board_id == x)`` is sent to the board's shard.  Rows added with
``session.add`` take the current time as their sequence, without the lock that
separates two rows of the same millisecond.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Generic, TYPE_CHECKING, TypeVar

from sqlalchemy import event
from sqlalchemy.orm import Mapped, Mapper

from sqla_shard.models import list_changes, list_pages as reading
from sqla_shard.models.class_checks import whole_or_not_at_all
from sqla_shard.models.inverse_mapping import (
    link_inverse,
    refuse_changes,
    refuse_rows,
    writable_list,
)
from sqla_shard.models.list_changes import NarrowGap
from sqla_shard.models.list_pages import first_pages
from sqla_shard.models.mapping_definition import (
    check_change,
    check_ids,
    create_counts,
    define,
    definition_of,
    ends_of,
    finish,
    MappingDefinition,
)
from sqla_shard.models.mapping_list import recount_all
from sqla_shard.models.spread_list import list_of
from sqla_shard.session import ShardSession
from sqla_shard.session.paging import check_limit, Page

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    from sqla_shard import Cluster

    S = TypeVarWithDefault("S", default=Any)
    T = TypeVarWithDefault("T", default=Any)
else:
    S = TypeVar("S")
    T = TypeVar("T")


M = TypeVar("M", bound="MappingMixin[Any, Any]")
Callback = TypeVar("Callback", bound=Callable[[ShardSession, NarrowGap], Any])


class MappingMixin(Generic[S, T]):
    """Makes a declarative class a mapping; precedes the base.

    ``MappingMixin[Board, Pin]`` is a mapping with this source and target, whose
    types a type checker knows then.  ``source_id`` and ``target_id``, unless the
    class has attributes with these names, are other names of the columns.

    Class keywords:

    :param source: the class whose objects have lists, or its name.
    :param target: the class of the objects in the lists, or its name.
    :param source_column: name of the column with the source's id; by
        default the class name in snake case with ``_id``.
    :param target_column: name of the column with the target's id; see
        ``source_column``.
    :param keyspace: the source's keyspace; required only if the source is
        given by name, is defined later, and there are several keyspaces.
    :param narrow_below: a move that leaves a gap with room for fewer moves
        calls the functions registered with :meth:`on_narrow_gap`; at most
        ``respace_to``, by default the lower of ``respace_to`` and 20.
    :param respace_to: number of moves for which each gap has room after a
        re-spacing, 1 to 50.
    :param inverse: the mapping class with the reverse rows, or its name.  Its
        source and target are exchanged, and only changes of this class write
        its rows.  Further columns of both classes must be nullable or have a
        default.
    :param counted: whether the length of each list is stored in a second
        table, ``<table>_count``, so that :meth:`count` reads one row of any
        list.  Each change takes one more statement, and only the methods of
        the class insert and delete rows.
    :param spread: number of pieces of each list, a power of two up to 256, on
        as many virtual shards, for lists with too many rows or writes for one
        shard; such a list is ``counted``.  Pages, counts and ``contains`` take
        one statement per server.  Changes lock a piece instead of the source.
        Rows are in the order of their append and cannot be moved; they
        are not read from a cache.
    :param spread_over: number of shards over which pieces are spread; it must
        not change afterwards.
    :param spread_to: number of pieces to which ``spread`` will be increased:
        rows are read from all of those, and appended as before.  Without
        ``spread``, lists are not spread yet.
    :param spread_from: number of pieces before they were increased to
        ``spread``, 1 if lists were not spread: rows that are still there are
        found.  :func:`~sqla_shard.upkeep.spread_rows` moves them.
    :raises ClassDefinitionError: if the class is not valid.

    All methods take ids of sources and targets as 64-bit ints and raise
    :exc:`~sqla_shard.exc.InvalidIdError` for an invalid id,
    :exc:`~sqla_shard.exc.WrongTypeError` for an id of another class, and
    :exc:`~sqla_shard.exc.UnknownShardError` for a shard that is not open.
    """

    if TYPE_CHECKING:
        sequence: Mapped[int]
        """The position in the list, 0 to ``10**38 - 1``."""
        source_id: Mapped[int]
        """The id of the source: another name of its column, if no column has it."""
        target_id: Mapped[int]
        """The id of the target: another name of its column, if no column has it."""
        source: Mapped[S | None]
        """The source, loaded on first access; None if not found."""
        target: Mapped[T | None]
        """The target, loaded on first access; None if not found."""
        __sqla_shard_mapping__: MappingDefinition

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
        counted: bool = False,
        spread: int | None = None,
        spread_over: int | None = None,
        spread_from: int | None = None,
        spread_to: int | None = None,
        **kwargs: Any,
    ) -> None:
        source, target = ends_of(cls, MappingMixin, source, target)
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
            counted=counted,
            spread=spread,
            spread_over=spread_over,
            spread_from=spread_from,
            spread_to=spread_to,
        )
        super().__init_subclass__(**kwargs)

    # -- changing a list

    @classmethod
    def append(cls, session: ShardSession, source_id: int, target_id: int) -> bool:
        """Add a target to the top of the list.

        :returns: False if it is in the list already; its position does not
            change.
        """
        rows = writable_list(cls, session, source_id, appends=True)
        return list_changes.append(rows, target_id)

    @classmethod
    def append_many(
        cls, session: ShardSession, source_id: int, target_ids: Iterable[int]
    ) -> list[int]:
        """Add targets to the top of the list, the last one topmost.

        :returns: the added targets, in order.
        """
        rows = writable_list(cls, session, source_id, appends=True)
        return list_changes.append_many(rows, target_ids)

    @classmethod
    def put(
        cls, session: ShardSession, source_id: int, target_id: int, sequence: int
    ) -> bool:
        """Put a target at a position of the list.

        For copies of lists that are ordered elsewhere.

        :param sequence: the position: the higher one is displayed first.
        :returns: False if it is there already.
        :raises SequenceExhaustedError: if it is too high.
        """
        return list_changes.put(
            writable_list(cls, session, source_id), target_id, sequence
        )

    @classmethod
    def put_many(
        cls, session: ShardSession, source_id: int, sequences: Mapping[int, int]
    ) -> list[int]:
        """Put targets at positions of the list, as :meth:`put` does.

        :param sequences: the positions by target.
        :returns: the targets that were not at their positions.
        :raises SequenceExhaustedError: if one is too high.
        """
        return list_changes.put_many(writable_list(cls, session, source_id), sequences)

    @classmethod
    def remove(cls, session: ShardSession, source_id: int, target_id: int) -> bool:
        """Remove a target from the list.

        :returns: False if it is not in the list.
        """
        return list_changes.remove(writable_list(cls, session, source_id), target_id)

    @classmethod
    def clear(cls, session: ShardSession, source_id: int) -> int:
        """Remove all targets from the list.

        :returns: the number of rows.
        """
        return list_changes.clear(writable_list(cls, session, source_id))

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

        If other rows are now between the two, the target is moved next to
        ``before``.  A target that is already in that position is not changed.

        :param before: the target directly ahead of the new position, newest
            first: the one with the higher sequence.
        :param after: the target directly after the new position; one of the
            two is enough.
        :returns: the target's sequence.
        :raises InvalidMoveError: if the neighbours are not valid.
        :raises MissingTargetError: if the target is not in the list.
        :raises StaleNeighbourError: if a neighbour is not in the list, or
            ``before`` is not ahead of ``after``.
        :raises SequenceExhaustedError: if there is no room, not even
            between thousands of rows around the position.
        """
        rows = writable_list(cls, session, source_id)
        return list_changes.move(rows, target_id, before, after)

    @classmethod
    def respace(
        cls, session: ShardSession, source_id: int, *, around: int | None = None
    ) -> int:
        """Widen the gaps of a list; its order does not change.

        A move does this automatically when there is no room.

        :param around: only the rows around this target; by default all rows,
            which are locked and read.
        :returns: the number of changed rows.
        :raises MissingTargetError: if ``around`` is not in the list.
        :raises SequenceExhaustedError: if too many rows are too close.
        """
        rows = writable_list(cls, session, source_id)
        if around is None:
            return list_changes.respace_all(rows)
        return list_changes.respace(rows, around)

    @classmethod
    def on_narrow_gap(cls, callback: Callback) -> Callback:
        """Register a function to call when a move leaves a narrow gap.

        It is called as ``callback(session, gap)`` with a
        :class:`~sqla_shard.models.NarrowGap`, in the transaction of the
        move; if it raises an error, the move fails.  It is not called for a
        move that has re-spaced the rows.

        :returns: the function, so that this works as a decorator.
        """
        definition_of(cls).callbacks.append(callback)
        return callback

    # -- reading a list

    @classmethod
    def contains(
        cls, session: ShardSession, source_id: int, target_ids: Iterable[int]
    ) -> set[int]:
        """Return the targets that are in the list."""
        return reading.contains(list_of(cls, session, source_id), target_ids)

    @classmethod
    def count(cls, session: ShardSession, source_id: int) -> int:
        """Return the length of the list.

        The server reads the stored number of a ``counted`` class, and counts
        the rows of another one: index entries of the whole list.
        """
        return reading.count(list_of(cls, session, source_id))

    @classmethod
    def recount(cls, session: ShardSession, source_id: int) -> int:
        """Count the rows of a list, and correct its stored number, if any.

        ``verify relations --repair`` does this for all lists.  The lengths of
        a spread list are on several shards: use ``cross_shard="ordered"``.

        :returns: the number of rows.
        """
        return recount_all(list_of(cls, session, source_id))

    @classmethod
    def position(
        cls, session: ShardSession, source_id: int, target_id: int
    ) -> int | None:
        """Return the sequence of a target; None if it is not in the list."""
        return reading.position(list_of(cls, session, source_id), target_id)

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
        until: int | datetime | None = None,
    ) -> Page[M]:
        """Return a page of the list.

        A row that is not moved is neither skipped nor repeated when other
        rows change between one page and the next, unless the rows at the end
        of the page were both moved and re-spaced, or both its last row and
        the row after it were moved.

        :param limit: maximum number of rows.
        :param after: a bookmark: the ``next`` or ``previous`` of a page.
        :param newest_first: whether to return the rows in descending order of
            ``sequence``; a bookmark is valid for one order only.
        :param targets: whether to load ``row.target`` of all rows, with one
            statement per server of the targets.
        :param until: leaves out rows with a higher sequence.  :meth:`top`
            returns the bound of the rows that exist at a time; a time, with
            time zone, is the bound of the rows that were appended up to then,
            except for those whose sequence is ahead of the clock, such as
            some of hundreds in a millisecond.  Use the same bound for all
            pages.  They are not read from a cache.
        :raises InvalidBookmarkError: if ``after`` is not a bookmark of
            this list and order.
        :raises InvalidSequenceError: if ``until`` is not a sequence.
        """
        rows = list_of(cls, session, source_id)
        upper = reading.bound(until)
        page = reading.page(rows, limit, after, newest_first, upper)
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

        This takes one statement per 64 lists of a shard, and with
        ``targets`` one per server of the targets.

        :returns: pages by source, whose bookmarks are for :meth:`page`.
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
        until: int | datetime | None = None,
    ) -> Iterator[M]:
        """Yield all rows of the list, read in batches.

        :param until: as for :meth:`page`.
        """
        check_limit(batch, "batch")
        rows = list_of(cls, session, source_id)
        upper = reading.bound(until)
        return reading.iterate(rows, newest_first, batch, upper)

    @classmethod
    def top(cls, session: ShardSession, source_id: int) -> int | None:
        """Return the highest sequence of the list; None if it is empty.

        Each appended row has a higher sequence than the rows before it, so
        that ``until=`` this one excludes all that are appended later.
        """
        return reading.top(list_of(cls, session, source_id))

    @classmethod
    def intersect(
        cls,
        session: ShardSession,
        source_id: int,
        other_id: int,
        *,
        other: type[MappingMixin[Any, T]] | None = None,
        descending: bool = False,
        batch: int = 1000,
    ) -> Iterator[int]:
        """Yield the ids of the targets that are in two lists, in order.

        The lists are read alternately, up to ``batch`` ids of each at a time,
        and ids between two matches are skipped if possible.

        ::

            # those whom I follow and who follow you, three of them
            ids = Follows.intersect(session, me, you, other=Followers)
            print(list(itertools.islice(ids, 3)))

        :param other_id: source of the second list.
        :param other: mapping class of the second list, with the same targets;
            by default this class.
        :param descending: whether to begin with the highest id.
        :param batch: maximum number of ids of one statement.
        :raises ValueError: if its targets are of another class.
        """
        check_limit(batch, "batch")
        lists = (
            list_of(cls, session, source_id),
            list_of(cls if other is None else other, session, other_id),
        )
        return list_changes.intersect(*lists, descending, batch)

    @classmethod
    def clear_target(
        cls,
        cluster: Cluster,
        target_id: int,
        *,
        scatter: bool = False,
        batch: int = 500,
    ) -> int:
        """Remove a target from all lists that contain it.

        The lists are found in the inverse.  Each transaction changes lists of
        one shard; after an error, call the method again.  Lists to which the
        target is appended meanwhile may not be found.

        :param scatter: read the tables of all shards if there is no inverse;
            no index is used.
        :param batch: maximum number of lists in a transaction.
        :returns: the number of lists that contained it.
        :raises ValueError: if there is no inverse, and ``scatter`` is false.
        :raises KeptMappingError: if the class is the inverse of another.
        """
        check_limit(batch, "batch")
        check_change(cls)
        return list_changes.clear_target(cls, cluster, target_id, scatter, batch)

    def __repr__(self) -> str:
        definition = self.__sqla_shard_mapping__
        source = self.__dict__.get(definition.source.column)
        target = self.__dict__.get(definition.target.column)
        return f"<{type(self).__name__} {source} -> {target}>"


@whole_or_not_at_all
def _finish(mapper: Mapper[Any], cls: Any) -> None:
    finish(mapper, cls)
    link_inverse(cls)
    definition = definition_of(cls)
    if definition.counted:
        # After all checks, since the table remains in the metadata.
        create_counts(cls, mapper.local_table, definition)


event.listen(MappingMixin, "after_mapper_constructed", _finish, propagate=True)
event.listen(MappingMixin, "before_insert", check_ids, propagate=True)
event.listen(MappingMixin, "before_insert", refuse_rows, propagate=True)
event.listen(MappingMixin, "before_update", refuse_changes, propagate=True)
event.listen(MappingMixin, "before_delete", refuse_rows, propagate=True)
