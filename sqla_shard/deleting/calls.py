"""What follows the COMMIT of a deletion: calls that intents hold.

Each mapping class has an operation that removes entries from lists of one
shard, each lookup class one that takes a key from an object.  Both may be
applied late and twice: no object gets the id of one that was deleted.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import Mapper

from sqla_shard.ids import unpack
from sqla_shard.intents.registry import name_of
from sqla_shard.intents.registry import named
from sqla_shard.intents.registry import register_for
from sqla_shard.intents.writing import leave
from sqla_shard.lookup import LookupMixin
from sqla_shard.lookup.keys import Table
from sqla_shard.lookup.statements import statements_of
from sqla_shard.mappings import MappingMixin
from sqla_shard.rendering import Place
from sqla_shard.session import ShardSession

__all__ = ["Call", "call", "released", "removed"]

#: An operation by name, where it writes, and its arguments.
Call = tuple[str, Place, dict[str, Any]]

#: How many entries one intent removes at most.
_PAIRS = 500


def removed(
    session: ShardSession, mapping: Any, pairs: Iterable[tuple[int, int]]
) -> Iterator[Call]:
    """Yield the calls that remove entries from lists.

    :param pairs: source and target of each.
    """
    by_place: dict[Place, list[tuple[int, int]]] = {}
    for source_id, target_id in pairs:
        place = session.place_for(
            mapper=mapping, shard_id=unpack(source_id).shard_id
        )
        by_place.setdefault(place, []).append((source_id, target_id))
    for place, some in by_place.items():
        for start in range(0, len(some), _PAIRS):
            part = some[start : start + _PAIRS]
            yield name_of("remove", mapping), place, {"pairs": part}


def released(
    session: ShardSession, lookup: Any, key: str, target_id: int
) -> Iterator[Call]:
    """Yield the calls that take a key from an object, in all its forms."""
    table = Table(lookup, session)
    for text in dict.fromkeys(form.text for form in table.forms(key)):
        arguments = {"text": text, "target_id": target_id}
        yield name_of("take", lookup), table.place(text), arguments


def call(session: ShardSession, home: Place, one: Call) -> None:
    """Make a call now if it is for the shard that is written, or later."""
    name, place, arguments = one
    if place.address == home.address:
        named(name)(session, **arguments)
    else:
        leave(session, home, name, [(place, arguments)])


def _remove(cls: Any, session: ShardSession, pairs: list[list[int]]) -> None:
    for source_id, target_id in pairs:
        cls.remove(session, source_id, target_id)


def _take(cls: Any, session: ShardSession, text: str, target_id: int) -> None:
    Table(cls, session).execute(
        text, statements_of(cls).delete, the_key=text, the_id=target_id
    )


def _defining(verb: str, function: Callable[..., None]) -> Any:
    """Return a handler that names the operation of a new class."""

    def define(mapper: Mapper[Any], cls: Any) -> None:
        register_for(verb, cls, function)

    return define


for _mixin, _verb, _function in (
    (MappingMixin, "remove", _remove),
    (LookupMixin, "take", _take),
):
    event.listen(
        _mixin,
        "after_mapper_constructed",
        _defining(_verb, _function),
        propagate=True,
    )
