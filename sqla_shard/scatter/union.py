"""One statement for many shards of a server: UNION ALL, one branch for each.

The branches are put together as text, after SQLAlchemy has compiled the
statement once.  So its cache needs no entry for each number of branches, and
the columns of the result are those of the statement.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from sqla_shard.rendering import pieces
from sqla_shard.rendering import Place
from sqla_shard.rendering import render
from sqla_shard.rendering import SCHEMA
from sqla_shard.types.binds import IdSlot
from sqla_shard.types.binds import ShardBound

__all__ = ["statements_for"]

Sent = tuple[str, tuple[Any, ...]]

#: Each branch costs the server some 50 us and opens its tables: with more
#: of them than its table cache holds they begin to cost several times that.
MOST_BRANCHES = 256

#: Far below the smallest max_allowed_packet in use, 16 MB.
MOST_CHARACTERS = 1_000_000

# Clauses that would mean something else in a branch, or that MySQL and
# MariaDB do not take there.  In a literal they only cost speed.
_UNFIT = re.compile(
    r"\b(?:ORDER BY|LIMIT|FOR UPDATE|FOR SHARE|LOCK IN|WITH|INTO|PROCEDURE)\b"
)


@lru_cache(maxsize=1024)
def _fits(text: str) -> bool:
    return text.startswith("SELECT") and _UNFIT.search(text) is None


def statements_for(
    text: str,
    parameters: Sequence[Any],
    places: Sequence[Place],
    placeholder: str,
) -> list[Sent]:
    """Return the statements that read some shards of one server.

    :param text: compiled SQL with :data:`SCHEMA` as schema.
    :param parameters: one value per placeholder, in order.
    :param placeholder: ``%s`` or ``?``.
    """
    if len(places) == 1 or not _fits(text):
        return [render(text, parameters, p, placeholder) for p in places]
    return list(_unions(text, parameters, places, placeholder))


def _unions(
    text: str,
    parameters: Sequence[Any],
    places: Sequence[Place],
    placeholder: str,
) -> Iterator[Sent]:
    before, *after = pieces(text, placeholder)
    # What differs by shard is a number or a list of numbers and stands in
    # the text; the driver would have to escape it for every branch.
    bound = [isinstance(value, ShardBound) for value in parameters]
    plain = tuple(v for v in parameters if not isinstance(v, ShardBound))
    values_length = sum(map(_length, plain))
    branches: list[str] = []
    length = 0
    for place in places:
        out = [before]
        for value, differs, piece in zip(
            parameters, bound, after, strict=True
        ):
            out.append(_at(value, place) if differs else placeholder)
            out.append(piece)
        branch = "".join(out).replace(SCHEMA, place.schema)
        if branches and (
            len(branches) == MOST_BRANCHES
            or length + len(branch) + values_length > MOST_CHARACTERS
        ):
            yield _joined(branches, plain)
            branches, length = [], 0
        branches.append(branch)
        length += len(branch) + values_length
    yield _joined(branches, plain)


def _at(value: Any, place: Place) -> str:
    if isinstance(value, IdSlot):
        return value.text_at(place.shard_id)
    return str(value.at(place.shard_id))


def _length(value: Any) -> int:
    """Return about how long a parameter is in the text that is sent."""
    return len(value) if isinstance(value, (str, bytes)) else 20


def _joined(branches: Sequence[str], plain: tuple[Any, ...]) -> Sent:
    # On a line of its own: a listener may have added a comment at the end.
    return "\nUNION ALL\n".join(branches), plain * len(branches)
