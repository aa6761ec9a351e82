"""One statement for many shards of a server: UNION ALL, one branch for each.

The branches are put together as text, after SQLAlchemy has compiled the
statement once.  So its cache needs no entry for each number of branches, and
the columns of the result are those of the statement.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqla_shard.dialects.sorting import Hidden
from sqla_shard.rendering import pieces
from sqla_shard.rendering import Place
from sqla_shard.rendering import render
from sqla_shard.rendering import SCHEMA
from sqla_shard.scattering.merge import First
from sqla_shard.scattering.merge import Merge
from sqla_shard.types.binds import ShardBound
from sqla_shard.types.binds import Slot

__all__ = ["statements_for"]

Sent = tuple[str, tuple[Any, ...]]

#: Each branch costs the server some 50 us and opens its tables: with more
#: of them than its table cache holds they begin to cost several times that.
MOST_BRANCHES = 256

#: Far below the smallest max_allowed_packet in use, 16 MB.
MOST_CHARACTERS = 1_000_000

# Clauses that MySQL and MariaDB do not take in a branch.  In a literal they
# only cost speed.
_UNFIT = re.compile(
    r"\b(?:FOR UPDATE|FOR SHARE|LOCK IN|WITH|INTO|PROCEDURE)\b"
)
# Clauses that are the branch's own where it stands in parentheses; what they
# have sorted has to be sorted again.
_OWN = re.compile(r"\b(ORDER BY)|\b(?:LIMIT)\b")


@lru_cache(maxsize=1024)
def _reads(text: str) -> bool:
    return text.startswith("SELECT") and _UNFIT.search(text) is None


@lru_cache(maxsize=1024)
def _own_clauses(text: str) -> tuple[bool, bool]:
    """Tell whether a text has an ORDER BY, and whether that or a LIMIT."""
    found = [match.group(1) for match in _OWN.finditer(text)]
    return any(found), bool(found)


@lru_cache(maxsize=1024)
def _is_open(text: str) -> bool:
    """Tell whether a LIMIT may be put at the end of a text."""
    return _reads(text) and re.search(r"\bLIMIT\b", text) is None


def _fits(
    text: str, merge: Merge | None, *, sorts_more: bool, changes: bool
) -> bool:
    """Tell whether the answers of the branches can be put together."""
    if changes or not _reads(text):
        return False
    ordered, limited = _own_clauses(text)
    if not limited:
        return True
    # The server sorts all rows by the hidden columns: an order beyond those,
    # as of a joined collection, would be lost.
    if merge is None or not merge.on_server or sorts_more:
        return False
    return bool(merge.keys) or not ordered


def statements_for(
    text: str,
    parameters: Sequence[Any],
    places: Sequence[Place],
    placeholder: str,
    merge: Merge | None = None,
    *,
    sorts_more: bool = False,
    changes: bool = False,
    most_rows: int | None = None,
    united: bool = True,
) -> list[Sent]:
    """Return the statements that read some shards of one server.

    :param text: compiled SQL with :data:`SCHEMA` as schema.
    :param parameters: one value per placeholder, in order.
    :param placeholder: ``%s`` or ``?``.
    :param merge: what is made of the rows of all shards.
    :param sorts_more: whether the text sorts by more than the merge does.
    :param changes: whether UNION would change values; see
        :func:`~sqla_shard.dialects.numbers.is_storable`.
    :param most_rows: of more rows than this, one more is read.
    :param united: whether one statement may be for several shards.
    """
    fits = _fits(text, merge, sorts_more=sorts_more, changes=changes)
    if not united or len(places) == 1 or not fits:
        sent = [render(text, parameters, p, placeholder) for p in places]
        whole = merge is not None and not merge.on_server
        if most_rows is None or whole or not _is_open(text):
            return sent
        skipped = 0 if merge is None else merge.offset
        end = f"\nLIMIT {most_rows + 1 + skipped}"
        return [(one + end, values) for one, values in sent]
    form = _Form.of(text, merge, most_rows)
    return list(_unions(text, parameters, places, placeholder, form))


@dataclass(frozen=True)
class _Form:
    """How branches are written: each as ``opening + text + closing``."""

    opening: str
    between: str
    closing: str

    @classmethod
    def of(
        cls, text: str, merge: Merge | None, most_rows: int | None
    ) -> _Form:
        # On a line of its own: a listener may have added a comment at the
        # end of the text.
        union = "UNION ALL"
        tail = ""
        limit = None if most_rows is None else most_rows + 1
        if merge is not None:
            most = merge.most
            if not merge.on_server:
                limit = None
            elif limit is not None:
                limit += merge.offset
                limit = limit if most is None else min(limit, most)
            else:
                limit = most
            if merge.combine is not None and merge.on_server:
                union = "UNION"
            tail = _order(merge)
        if limit is not None:
            tail += f"\nLIMIT {limit}"
        if tail or _own_clauses(text)[1]:
            return cls("(", f"\n)\n{union}\n(", f"\n){tail}")
        return cls("", f"\n{union}\n", "")


def _order(merge: Merge) -> str:
    if not merge.on_server or not merge.keys:
        return ""
    keys = []
    for key in merge.keys:
        assert isinstance(key.recipe, First)  # noqa: S101  # rows are as read
        at = key.recipe.at if key.sorted_by is None else key.sorted_by
        name = Hidden.name(at)
        keys.append(f"{name} DESC" if key.descending else name)
    return f"\nORDER BY {', '.join(keys)}"


def _unions(
    text: str,
    parameters: Sequence[Any],
    places: Sequence[Place],
    placeholder: str,
    form: _Form,
) -> Iterator[Sent]:
    constant, differing, plain = _split(text, parameters, placeholder)
    values_length = sum(map(_length, plain))
    branches: list[str] = []
    length = 0
    for place in places:
        out = [constant[0]]
        for value, piece in zip(differing, constant[1:], strict=True):
            out.append(_at(value, place))
            out.append(piece)
        branch = "".join(out).replace(SCHEMA, place.schema)
        if branches and (
            len(branches) == MOST_BRANCHES
            or length + len(branch) + values_length > MOST_CHARACTERS
        ):
            yield _joined(branches, plain, form)
            branches, length = [], 0
        branches.append(branch)
        length += len(branch) + values_length
    yield _joined(branches, plain, form)


def _split(
    text: str, parameters: Sequence[Any], placeholder: str
) -> tuple[list[str], list[Any], tuple[Any, ...]]:
    """Split a statement at what differs by shard.

    What does is a number or a list of numbers, and stands in the text, like
    other whole numbers; the driver would have to escape each of them for
    each branch.

    :returns: the pieces of text; the values between them; and the values
        that remain parameters.
    """
    before, *after = pieces(text, placeholder)
    constant = [before]
    differing = []
    plain = []
    for value, piece in zip(parameters, after, strict=True):
        if isinstance(value, ShardBound):
            differing.append(value)
            constant.append(piece)
        elif type(value) is int:
            # In parentheses, for two minus signs could begin a comment.
            shown = f"{value}" if value >= 0 else f"({value})"
            constant[-1] += shown + piece
        else:
            plain.append(value)
            constant[-1] += placeholder + piece
    return constant, differing, tuple(plain)


def _at(value: Any, place: Place) -> str:
    if isinstance(value, Slot):
        return value.text_at(place.shard_id)
    return str(value.at(place.shard_id))


def _length(value: Any) -> int:
    """Return about how long a parameter is in the text that is sent."""
    return len(value) if isinstance(value, (str, bytes)) else 20


def _joined(
    branches: Sequence[str], plain: tuple[Any, ...], form: _Form
) -> Sent:
    text = form.opening + form.between.join(branches) + form.closing
    return text, plain * len(branches)
