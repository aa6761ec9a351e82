"""One statement for the shards of a server: UNION ALL of their branches.

The branches are joined as strings, after SQLAlchemy has compiled the statement
once.  So its cache has one entry for any number of branches, and the columns
of the result are those of the statement.

A statement is compiled for all shards with a placeholder for the schema, and
:class:`~sqla_shard.types.shard_bound.ShardBound` parameters for the values
that differ by shard.  :func:`render` replaces both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import Engine

from sqla_shard.dialects import Backend
from sqla_shard.dialects.sorting import Hidden
from sqla_shard.engine.merge import Merge
from sqla_shard.types.shard_bound import ShardBound, Slot

#: The placeholder for the database of the shard in compiled SQL and text()
SCHEMA = "__sqla_shard__"

#: The schema_translate_map of every statement: constant, so that it does not
#: multiply the entries of the compiled cache; a plain dict, since SQLAlchemy
#: adds a key to it.
TRANSLATE: dict[str | None, str | None] = {None: SCHEMA}


@dataclass(frozen=True, eq=False, slots=True)
class Place:
    """The current location of a virtual shard.

    :ivar keyspace: name of the keyspace.
    :ivar shard_id: number of the shard; 0 in a global keyspace.
    :ivar server: name of the physical server.
    :ivar schema: quoted name of the database, as in statements.
    :ivar engine: engine of the server.
    """

    keyspace: str
    shard_id: int
    server: str
    schema: str
    engine: Engine
    backend: Backend

    @property
    def address(self) -> tuple[str, int]:
        """The keyspace and the shard; unchanged when a server is split."""
        return self.keyspace, self.shard_id

    def __str__(self) -> str:
        return f"shard {self.shard_id} of {self.keyspace} on {self.server}"


_FORMAT_TOKEN = re.compile(r"%%|(%s)")
# A question mark inside a literal or a quoted name is not a placeholder.
_QMARK_TOKEN = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|(\?)""")


@lru_cache(maxsize=1024)
def pieces(text: str, placeholder: str) -> tuple[str, ...]:
    """Split a statement at its placeholders."""
    token = _FORMAT_TOKEN if placeholder == "%s" else _QMARK_TOKEN
    pieces = []
    start = 0
    for match in token.finditer(text):
        if match.group(1):
            pieces.append(text[start : match.start()])
            start = match.end()
    pieces.append(text[start:])
    return tuple(pieces)


def render(
    text: str, parameters: Sequence[Any], place: Place, placeholder: str
) -> tuple[str, tuple[Any, ...]]:
    """Return the statement and parameters of one shard.

    :param text: compiled SQL with :data:`SCHEMA` as schema.
    :param parameters: one value per placeholder, in order.
    :param placeholder: ``%s`` or ``?``.
    """
    values = []
    slots = None
    for index, value in enumerate(parameters):
        if isinstance(value, Slot):
            slots = slots or {}
            slots[index] = value.text_at(place.shard_id)
        elif isinstance(value, ShardBound):
            values.append(value.at(place.shard_id))
        else:
            values.append(value)
    if slots:
        parts = pieces(text, placeholder)
        out = [parts[0]]
        for index, piece in enumerate(parts[1:]):
            out.append(slots.get(index, placeholder))
            out.append(piece)
        text = "".join(out)
    return text.replace(SCHEMA, place.schema), tuple(values)


Sent = tuple[str, tuple[Any, ...]]

#: Maximum number of branches.  Each branch costs the server about 50 us and
#: opens its tables, and several times as much if the server's table cache is
#: too small.
MOST_BRANCHES = 256

#: Maximum length of a statement, far below the smallest max_allowed_packet in
#: use, 16 MB.
MOST_CHARACTERS = 1_000_000

# Clauses that MySQL and MariaDB do not allow in a branch.  A match in a
# literal only costs speed.
_UNFIT = re.compile(r"\b(?:FOR UPDATE|FOR SHARE|LOCK IN|WITH|INTO|PROCEDURE)\b")
# Where LIMIT is added to a statement that is not a branch.
_SELECT = re.compile(r"\s*(?:SELECT|WITH)\b", re.IGNORECASE)
_LOCKS = re.compile(
    r"\s(?:FOR UPDATE|FOR SHARE|LOCK IN SHARE MODE)\b[^()\'\"]*\Z|\Z", re.IGNORECASE
)
_CLOSED = re.compile(r"\b(?:LIMIT|OFFSET|FETCH|INTO|PROCEDURE)\b|;", re.IGNORECASE)
# Clauses of a branch that require parentheses; the rows of sorted branches
# must be sorted again.
_OWN = re.compile(r"\b(ORDER BY)|\b(?:LIMIT)\b")
_PARENTHESES = re.compile(r"\([^()]*\)")


@lru_cache(maxsize=1024)
def _reads(text: str) -> bool:
    return text.startswith("SELECT") and _UNFIT.search(text) is None


@lru_cache(maxsize=1024)
def _own_clauses(text: str) -> tuple[bool, bool]:
    """Return whether SQL has an ORDER BY, and whether it has that or LIMIT.

    The clauses of a subquery do not count.
    """
    words = [match.group(1) for match in _OWN.finditer(_outer(text))]
    return any(words), bool(words)


def _outer(text: str) -> str:
    """Return SQL without what is in parentheses."""
    inner = None
    # Parentheses in a literal could hide a clause.
    while "'" not in text and '"' not in text and text != inner:
        inner, text = text, _PARENTHESES.sub("", text)
    return text


@lru_cache(maxsize=1024)
def _place_of_limit(text: str) -> int | None:
    """Return where a LIMIT may be added to a SELECT that has none."""
    outer = _outer(text)
    match = _LOCKS.search(text)
    if not _SELECT.match(outer) or _CLOSED.search(outer) or not match:
        return None
    return match.start()


def _fits(text: str, merge: Merge | None, *, sorts_more: bool, changes: bool) -> bool:
    """Return whether the rows of the branches can be combined."""
    if changes or not _reads(text):
        return False
    ordered, limited = _own_clauses(text)
    if not limited:
        return True
    # The server sorts all rows by the hidden columns: a further order, such
    # as that of a joined collection, would be lost.
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
    """Return the statements that read the given shards of one server.

    :param text: compiled SQL with :data:`SCHEMA` as schema.
    :param parameters: one value per placeholder, in order.
    :param placeholder: ``%s`` or ``?``.
    :param merge: the merge of the rows of all shards.
    :param sorts_more: whether the statement sorts by more keys than the
        merge.
    :param changes: whether UNION would change values; see
        :func:`~sqla_shard.dialects.numbers.is_storable`.
    :param most_rows: maximum number of rows; one more is read, to detect
        further rows.
    :param united: whether one statement may be for several shards.
    """
    fits = _fits(text, merge, sorts_more=sorts_more, changes=changes)
    merge = merge or Merge()
    if not united or len(places) == 1 or not fits:
        most = None if most_rows is None else merge.most_read(most_rows)
        at = None if most is None else _place_of_limit(text)
        if at is not None:
            text = f"{text[:at]}\nLIMIT {most}{text[at:]}"
        return [render(text, parameters, p, placeholder) for p in places]
    template = _BranchTemplate.of(text, merge, most_rows)
    return list(_unions(text, parameters, places, placeholder, template))


@dataclass(frozen=True)
class _BranchTemplate:
    """A template of the branches: ``opening + text + closing`` each."""

    opening: str
    between: str
    closing: str

    @classmethod
    def of(cls, text: str, merge: Merge, most_rows: int | None) -> _BranchTemplate:
        # Start a new line: a listener may have added a comment at the end of
        # the statement.
        union = "UNION ALL"
        limit = merge.most_read(most_rows)
        if not merge.on_server:
            if limit is None:
                return cls("", f"\n{union}\n", "")
            # Of each shard: several of them may have the same groups.
            closing = f"\nLIMIT {limit}\n)"
            return cls("(", f"{closing}\n{union}\n(", closing)
        if merge.combine is not None:
            union = "UNION"
        tail = _order(merge)
        if limit is not None:
            tail += f"\nLIMIT {limit}"
        if tail or _own_clauses(text)[1]:
            return cls("(", f"\n)\n{union}\n(", f"\n){tail}")
        return cls("", f"\n{union}\n", "")


def _order(merge: Merge) -> str:
    if not merge.keys:
        return ""
    keys = []
    for key in merge.keys:
        name = Hidden.name(key.position)
        keys.append(f"{name} DESC" if key.descending else name)
    return f"\nORDER BY {', '.join(keys)}"


def _unions(
    text: str,
    parameters: Sequence[Any],
    places: Sequence[Place],
    placeholder: str,
    template: _BranchTemplate,
) -> Iterator[Sent]:
    constant, differing, plain = _split(text, parameters, placeholder)
    values_length = sum(map(_length, plain))
    every = _branches(constant, differing, places)
    length = sum(map(len, every)) + values_length * len(every)
    if len(every) <= MOST_BRANCHES and length <= MOST_CHARACTERS:
        yield _joined(every, plain, template)
        return
    branches: list[str] = []
    length = 0
    for branch in every:
        if branches and (
            len(branches) == MOST_BRANCHES
            or length + len(branch) + values_length > MOST_CHARACTERS
        ):
            yield _joined(branches, plain, template)
            branches, length = [], 0
        branches.append(branch)
        length += len(branch) + values_length
    yield _joined(branches, plain, template)


def _branches(
    constant: Sequence[str], differing: Sequence[ShardBound], places: Sequence[Place]
) -> list[str]:
    """Return the SQL of each shard.

    :param constant: the pieces of SQL.
    :param differing: the values between them.
    """
    schemas = [place.schema for place in places]
    shards = [place.shard_id for place in places]
    parts = []
    columns: list[list[Any]] = []
    for index, piece in enumerate(constant):
        if index:
            parts.append("%s")
            columns.append(differing[index - 1].shown_at(shards))
        fixed = piece.replace("%", "%%").split(SCHEMA)
        parts.append("%s".join(fixed))
        columns += [schemas] * (len(fixed) - 1)
    branch = "".join(parts)
    if not columns:
        return [branch % ()] * len(shards)
    # One operation per shard, since there may be hundreds of them.
    return [branch % values for values in zip(*columns, strict=True)]


def _split(
    text: str, parameters: Sequence[Any], placeholder: str
) -> tuple[list[str], list[ShardBound], tuple[Any, ...]]:
    """Split a statement at the values that differ by shard.

    The values are numbers or lists of numbers.  They become part of the SQL,
    like other integers and times: otherwise the driver would have to escape
    each value for each branch.

    :returns: the pieces of SQL; the values between them; and the values that
        remain parameters.
    """
    before, *after = pieces(text, placeholder)
    constant = [before]
    differing: list[ShardBound] = []
    plain = []
    for value, piece in zip(parameters, after, strict=True):
        if isinstance(value, ShardBound):
            differing.append(value)
            constant.append(piece)
        elif type(value) is int:
            # Add parentheses, since two minus signs could start a comment.
            shown = f"{value}" if value >= 0 else f"({value})"
            constant[-1] += shown + piece
        elif type(value) is datetime and placeholder == "%s":
            constant[-1] += f"'{value.replace(tzinfo=None)}'{piece}"
        else:
            plain.append(value)
            constant[-1] += placeholder + piece
    return constant, differing, tuple(plain)


def _length(value: Any) -> int:
    """Return the approximate length of a parameter in the SQL."""
    return len(value) if isinstance(value, (str, bytes)) else 20


def _joined(
    branches: Sequence[str], plain: tuple[Any, ...], template: _BranchTemplate
) -> Sent:
    text = template.opening + template.between.join(branches) + template.closing
    return text, plain * len(branches)
