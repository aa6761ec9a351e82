"""What Python compares in place of texts, whose order only servers know.

``WEIGHT_STRING()`` of a text are bytes, its *weights*, that compare as its
collation compares the text, but for three things:

* a collation may pad: spaces at the end make no difference, and a text that
  ends is compared as if spaces came after it.  How many weights a text has
  does not follow from its length, so servers are asked for them without
  padding, and for what they pad with; :mod:`sqla_shard.scattering.texts` does
  the rest;
* a collation may compare all letters first, then all accents, then the case.
  Such *levels* are asked for one by one;
* MariaDB gives its result the length that a text of one weight for each
  character has, and cuts it off there when it sorts or groups.  With four
  arguments the length is the second one.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.elements import CollationClause
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.visitors import InternalTraversal
from sqlalchemy.sql.visitors import iterate
from sqlalchemy.types import NullType

from sqla_shard.exc import ScatterUnsupportedError

__all__ = ["LONGEST_COMPARED", "MOST_SORTED", "TOO_LONG", "UNSORTED", "OfText"]

#: Characters of a text that servers look at when they sort; MariaDB takes
#: the bytes of ``max_sort_length`` for characters of four bytes.
MOST_SORTED = 256

#: Characters of a text of which all weights are compared in min() and max().
LONGEST_COMPARED = 4096

# Bytes of the weights by which servers sort, ``max_sort_length``.
_SORTED = 1024
# No character has more than 8 weights of 2 bytes.
_EXTREME = 16 * LONGEST_COMPARED
# For GROUP BY and DISTINCT: of any TEXT.
_WHOLE = 1 << 20
_LONGEST_GROUPED = 65_535

#: In place of the identity of a text.
TOO_LONG_TO_GROUP = b"long"
NO_TEXT = b"no text"

# Accents, or upper and lower case, after all letters.
_LEVELS = "_(as_ci|as_cs|ai_cs|w2)$"
# Their weights do not compare as servers compare the texts.
_INEXACT = "^big5_chinese|^(cp1250|latin2)_czech_cs$|^tis620_thai_nopad_ci$"


class OfText(ColumnElement[Any]):
    """Something of a text that is compared in its place.

    On servers without collations that is the text itself.

    :param element: the text.
    :param part: ``sorted``, the weights by which servers sort; ``same``,
        those, alike for texts that are equal; ``extreme``, more of them.
        ``sorted_padding`` and ``extreme_padding``, what comes after them; or
        the name of a collation whose weights are not exact.  ``identity``:
        32 bytes that are the same for equal texts; others where there are
        none.  ``unsorted``: why a server may not sort exactly by the text,
        a number of :data:`UNSORTED`, or NULL.
    """

    __visit_name__ = "sqla_shard_of_text"
    inherit_cache = True
    _traverse_internals = [  # noqa: RUF012  # SQLAlchemy's own protocol
        ("element", InternalTraversal.dp_clauseelement),
        ("part", InternalTraversal.dp_string),
        ("length", InternalTraversal.dp_plain_obj),
    ]

    def __init__(self, element: Any, part: str) -> None:
        self.element = element
        self.part = part
        self.length = _declared(element)
        self.type = NullType()

    @property
    def _from_objects(self) -> Any:
        return self.element._from_objects


def _declared(element: Any) -> int | None:
    """Return the length of the column of a table; None for what is made."""
    tables = [getattr(c, "table", None) for c in element.base_columns]
    if element.__visit_name__ != "column" or not all(
        getattr(table, "__visit_name__", None) == "table" for table in tables
    ):
        return None
    length: int | None = getattr(element.type, "length", None)
    return length


@compiles(OfText)
def _of_text(element: OfText, compiler: Any, **kw: Any) -> str:
    if element.part in ("sorted_padding", "extreme_padding"):
        return "NULL"
    if element.part == "unsorted":
        # So that tests on SQLite show what other servers refuse.
        value = compiler.process(element.element, **kw)
        return f"CASE WHEN LENGTH({value}) > {MOST_SORTED} THEN {TOO_LONG} END"
    if _collated(element.element):
        # Without one, Python compares text as SQLite does.
        raise ScatterUnsupportedError(
            f"{element.element} has a collation of its own, which cannot be "
            "followed outside of the server; compare func.lower() of it",
            construct="COLLATE",
        )
    return str(compiler.process(element.element, **kw))


def _collated(element: Any) -> bool:
    return any(
        isinstance(part, CollationClause)
        or getattr(getattr(part, "type", None), "collation", None) is not None
        for part in iterate(element)
    )


@compiles(OfText, "mysql", "mariadb")
def _of_text_mysql(element: OfText, compiler: Any, **kw: Any) -> str:
    value = compiler.process(element.element, **kw)
    mariadb = getattr(compiler.dialect, "is_mariadb", False)
    weights = (_MariaDB if mariadb else _MySQL)(value)
    if element.part == "unsorted":
        return weights.unsorted(element.length)
    return _PARTS[element.part](weights)


class _MySQL:
    """SQL about a text.

    ``WEIGHT_STRING()`` of MySQL separates levels itself, and only collations
    of one level pad.

    :param value: the text in SQL.
    """

    def __init__(self, value: str) -> None:
        self.value = value
        # In the collation of the text, which need not be evaluated for it.
        self.space = f"IF(1, ' ', {value})"
        self.empty = f"IF(1, '', {value})"
        self.pads = f"{self.space} = {self.empty}"
        self.unless_inexact = (
            f"IF(COLLATION({value}) RLIKE '{_INEXACT}', "
            f"CAST(COLLATION({value}) AS BINARY), {{}})"
        )

    def weights(self, size: int) -> str:
        # Its result is as long as what it might have been.
        return (
            f"LEFT(IF(0, REPEAT(' ', {size}), WEIGHT_STRING({self.value})), "
            f"{size})"
        )

    def same(self, size: int) -> str:
        """Return weights without those of spaces at the end."""
        padding = self.extreme_padding()
        return f"TRIM(TRAILING {padding} FROM {self.weights(size)})"

    def sorted_padding(self) -> str:
        return f"IF({self.pads}, WEIGHT_STRING({self.empty} AS CHAR(1)), '')"

    def extreme_padding(self) -> str:
        return f"IF({self.pads}, WEIGHT_STRING({self.space} AS CHAR(1)), '')"

    def identity(self) -> str:
        value = self.value
        found = f"UNHEX(SHA2({self.same(_WHOLE)}, 256))"
        return self.unless_inexact.format(
            f"CASE WHEN LENGTH({value}) > {_LONGEST_GROUPED} "
            f"THEN 0x{TOO_LONG_TO_GROUP.hex()} "
            # What has no weights is no text.
            f"ELSE IFNULL({found}, IF({value} IS NULL, NULL, "
            f"0x{NO_TEXT.hex()})) END"
        )

    def unsorted(self, length: int | None) -> str:
        value = self.value
        return (
            f"CASE WHEN CHAR_LENGTH({value}) > {MOST_SORTED} "
            f"OR LENGTH({self.weights(2 * _SORTED)}) > {_SORTED} THEN 1 END"
        )


class _MariaDB(_MySQL):
    def __init__(self, value: str) -> None:
        super().__init__(value)
        self.padding = f"WEIGHT_STRING({self.empty} AS CHAR(1))"
        self.by_levels = f"COLLATION({value}) RLIKE '{_LEVELS}'"

    def level(self, number: int, size: int) -> str:
        flag = 1 << (number - 1)
        return f"WEIGHT_STRING({self.value}, {size}, {size}, {flag})"

    def weights(self, size: int) -> str:
        levels = [self.level(number, size) for number in (1, 2, 3)]
        return self._either(levels)

    def _either(self, levels: list[str]) -> str:
        # No weight of a collation that has levels is 0.
        every = ", 0x0000, ".join(levels)
        return f"IF({self.by_levels}, CONCAT({every}), {levels[0]})"

    def same(self, size: int) -> str:
        paddings = (
            f"IF({self.pads}, WEIGHT_STRING({self.space}, 8, 8, 1), '')",
            f"SUBSTR({self.padding}, 3, 2)",
            f"RIGHT({self.padding}, 2)",
        )
        return self._either(
            [
                f"TRIM(TRAILING {padding} FROM {self.level(number, size)})"
                for number, padding in enumerate(paddings, 1)
            ]
        )

    def sorted_padding(self) -> str:
        return self.padding

    def extreme_padding(self) -> str:
        return (
            f"IF({self.by_levels}, CONCAT(IF({self.pads}, "
            f"LEFT({self.padding}, 2), 0x0000), SUBSTR({self.padding}, 3)), "
            f"IF({self.pads}, WEIGHT_STRING({self.space}, 8, 8, 1), ''))"
        )

    def unsorted(self, length: int | None) -> str:
        value = self.value
        # Levels are sorted one after another, each in the length of the
        # column, as far as that goes.
        level = 8 * (MOST_SORTED if length is None else length)
        return (
            f"CASE WHEN CHAR_LENGTH({value}) > {MOST_SORTED} "
            f"OR LENGTH({self.level(1, 2 * _SORTED)}) > {_SORTED} THEN 1 "
            f"WHEN {self.by_levels} AND "
            f"{level} * LENGTH({self.padding}) > {_SORTED} THEN 2 "
            # Sorted as if it ended before.
            f"WHEN {self.space} <> {self.empty} AND {self.padding} = "
            f"WEIGHT_STRING(RIGHT({value}, 1), 8, 8, 1) THEN 3 END"
        )


TOO_LONG = 1
#: Why a server may not sort exactly by a text, and what does.
UNSORTED: Mapping[int, str] = {
    TOO_LONG: "is longer than what servers sort by, "
    f"{MOST_SORTED} characters or {_SORTED // 2} weights of its collation; "
    "order by func.left() of the column",
    2: "is of a collation that compares accents or case after all letters, "
    "and servers do not sort by so much of a column of this length; collate() "
    "it to one that compares letters only",
    3: "ends in a character that its collation sorts as if nothing were "
    "there; order by another column, or collate() it to one that pads",
}


_PARTS: Mapping[str, Callable[[_MySQL], str]] = {
    "sorted": lambda text: text.weights(_SORTED),
    "same": lambda text: text.same(_SORTED),
    "extreme": lambda text: text.weights(_EXTREME),
    "sorted_padding": lambda text: text.unless_inexact.format(
        text.sorted_padding()
    ),
    "extreme_padding": lambda text: text.unless_inexact.format(
        text.extreme_padding()
    ),
    "identity": lambda text: text.identity(),
}
