"""Ids of new rows that are not given by the server's AUTO_INCREMENT.

Rows of a table that stores whole ids, or whose ids are issued, get them before
the INSERT: for all new objects of a flush, and for all rows of an INSERT, with
one request for each shard.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TYPE_CHECKING

from sqlalchemy.orm import InstanceState, Mapper
from sqlalchemy.orm.attributes import instance_state, set_attribute

from sqla_shard.engine.rendering import Place
from sqla_shard.exc import MissingIdError
from sqla_shard.planning import has_objects, new_ids_of, routing_column, spec_of

if TYPE_CHECKING:
    from sqla_shard import ShardSession


class IdService(Protocol):
    """Issues local ids for new rows, such as ticket servers."""

    def issue(self, table: str, count: int) -> Sequence[int]:
        """Return numbers for new rows.

        It is called in any thread, in several at the same time.

        :param table: name of the table.
        :param count: how many are needed.
        :returns: ``count`` different numbers from 1 to ``max_local_id`` of
            the layout, none of which was returned for the table before.
        """
        ...


def lacks_issued_id(table: Any) -> bool:
    """Return whether a row of a table without id must be given one."""
    layout = spec_of(table).layout
    is_whole = layout is not None and layout.is_whole
    if not is_whole and new_ids_of(table) is None:
        return False
    # The id of a row that shares its key with a parent is the parent's.
    return has_objects(table) and not routing_column(table).foreign_keys


def issue(session: ShardSession, table: Any, place: Place, count: int) -> Iterator[int]:
    """Return ids for new rows of a table on a shard.

    :raises MissingIdError: if nothing issues ids for the table.
    """
    new_ids = new_ids_of(table)
    if new_ids is None:
        layout = spec_of(table).layout
        raise MissingIdError(
            table=str(table.name),
            reason=(
                f"the table stores {layout}. Set the id, or map the table to "
                "a class, whose ids are issued"
            ),
        )
    return iter(new_ids(session, place, count))


def issue_for_objects(session: ShardSession) -> None:
    """Give ids to the new objects of a flush, which have been placed."""
    wanted: dict[tuple[Place, Any], list[InstanceState[Any]]] = {}
    for instance in session.new:
        state = instance_state(instance)
        if _lacks_id(session, state):
            place = session._placed.get(state)
            if place is not None:
                key = place, state.mapper.local_table
                wanted.setdefault(key, []).append(state)
    for (place, table), states in wanted.items():
        # Issue them in the order in which the flush inserts the rows.
        states.sort(key=lambda state: state.insert_order or 0)
        ids = issue(session, table, place, len(states))
        for state, new_id in zip(states, ids, strict=True):
            _set_id(session, state, new_id)


def issue_for_object(session: ShardSession, instance: Any, place: Place) -> None:
    """Give an id to an object that was added during the flush."""
    state = instance_state(instance)
    if state.key is None and _lacks_id(session, state):
        (new_id,) = issue(session, state.mapper.local_table, place, 1)
        _set_id(session, state, new_id)


def _lacks_id(session: ShardSession, state: InstanceState[Any]) -> bool:
    attribute = _issued_attribute(session, state.mapper)
    return attribute is not None and state.dict.get(attribute) is None


def _set_id(session: ShardSession, state: InstanceState[Any], new_id: int) -> None:
    attribute = _issued_attribute(session, state.mapper)
    assert attribute is not None  # noqa: S101 - of _lacks_id()
    set_attribute(state.obj(), attribute, new_id)


def _issued_attribute(session: ShardSession, mapper: Mapper[Any]) -> str | None:
    """Return the attribute of the id; None if it is not issued.

    A flush asks for each of its objects.
    """
    known = session.issued_attributes
    try:
        return known[mapper]
    except KeyError:
        found = None
    if lacks_issued_id(mapper.local_table):
        found = mapper.get_property_by_column(mapper.primary_key[0]).key
    known[mapper] = found
    return found
