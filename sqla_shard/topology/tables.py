"""Reading one table of a document key by key, noting all that is wrong.

Nothing here raises for a mistake in the document: it is noted, with its
place, and reading goes on, so that one attempt shows every problem.  No
message shows a value where a URL may stand, since a password may be in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from difflib import get_close_matches

from sqla_shard import masking
from sqla_shard.exc import Problem

__all__ = [
    "MISSING",
    "Table",
    "above",
    "in_document_order",
    "key_name",
    "shown",
]

MISSING = object()
"""What :meth:`Table.get` returns for a key that is not there."""

# Words of other systems, and of the short form, for our keys.
_SYNONYMS = {
    "master": "primary",
    "slave": "standby",
    "replica": "standby",
    "url": "primary",
    "host": "primary",
    "range": "shards",
    "ranges": "shards",
    "type": "kind",
    "db": "database",
    "version": "epoch",
}
_DEPTH = 8
_COMPARED = 20


def shown(value: object) -> str:
    """Return a value as a message may show it.

    :param value: anything that a document can hold.
    """
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list | tuple):
        if value and all(type(item) in (int, float) for item in value):
            return masking.cut(f"[{', '.join(map(shown, value))}]")
        return f"a list of {len(value)}"
    if value is None:
        return "null"
    if isinstance(value, int) and value.bit_length() > 128:
        # Python refuses to write out integers of thousands of digits.
        return f"an integer of {value.bit_length()} bits"
    return masking.shown(value)


def key_name(key: object) -> str:
    """Return a key as a place may show it.

    It may be a URL that was written where a name belongs, what a terminal
    would take for a command, or as long as the document.
    """
    name = masking.redact(str(key))
    return masking.cut(name if name.isprintable() else repr(name[:81])[1:-1])


class Table:
    """One table of a document.

    :param values: the table.
    :param place: where it stands; empty for the whole document.
    :param problems: what is wrong so far, of all tables; added to.
    """

    def __init__(
        self,
        values: Mapping[object, object],
        *,
        place: str,
        problems: list[Problem],
    ) -> None:
        self.values = values
        self.place = place
        self.problems = problems

    def at(self, key: object) -> str:
        """Return the place of a key."""
        name = key_name(key)
        return f"{self.place}.{name}" if self.place else name

    def note(self, key: object, message: str) -> None:
        """Note a problem with the value of a key."""
        self.problems.append(Problem(self.at(key), message))

    def get(self, key: str, *, remedy: str = "") -> object:
        """Return the value of a key, or :data:`MISSING`.

        :param key: the key.
        :param remedy: what to write; its absence is a problem if given.
        """
        value = self.values.get(key, MISSING)
        if value is MISSING and remedy:
            self.note(key, f"is missing; {remedy}")
        return value

    def text(self, key: str, *, remedy: str = "") -> str | None:
        """Return the text of a key; None where there is none.

        :param key: the key.
        :param remedy: as for :meth:`get`.
        """
        value = self.get(key, remedy=remedy)
        if value is MISSING or isinstance(value, str):
            return value if isinstance(value, str) else None
        self.note(
            key,
            f"{shown(value)} is not a text; {remedy or 'put it in quotes'}",
        )
        return None

    def integer(self, key: str, *, remedy: str = "") -> int | None:
        """Return the integer of a key; None where there is none.

        :param key: the key.
        :param remedy: as for :meth:`get`.
        """
        value = self.get(key, remedy=remedy)
        # True is an int to Python; "epoch = true" is a mistake all the same.
        if value is MISSING or type(value) is int:
            return value if type(value) is int else None
        self.note(
            key,
            f"{shown(value)} is not an integer; {remedy or 'write a number'}",
        )
        return None

    def refuse_others(self, known: Iterable[str]) -> None:
        """Note every key that is not known.

        :param known: the keys that may stand here.
        """
        known = list(known)
        others = [key for key in self.values if key not in known]
        for index, key in enumerate(others):
            # A long one is near to none, and takes long to compare; many are
            # not misspelled.
            name = str(key)[:81]
            near: list[str] = []
            if index < _COMPARED:
                near = get_close_matches(name.lower(), known, n=1)
            synonym = _SYNONYMS.get(name.lower())
            if not near and synonym in known:
                near = [synonym]
            hint = f"did you mean {near[0]!r}?" if near else "remove it"
            self.note(
                key,
                f"is not a key that can stand here ({', '.join(known)}); "
                f"{hint}",
            )


def in_document_order(
    document: object, problems: Iterable[Problem]
) -> list[Problem]:
    """Return the problems in the order in which a reader meets them.

    What is missing stands where the table that lacks it begins.

    :param document: the document.
    :param problems: in any order; those of one place keep theirs.
    """
    order: dict[str, int] = {}
    _number(document, "", order, _DEPTH)

    def position(problem: Problem) -> int:
        place = problem.place
        while place and place not in order:
            place = above(place)
        return order[place]

    return sorted(problems, key=position)


def above(place: str) -> str:
    """Return the place of what has something in it; empty for the document."""
    return place[: max(place.rfind("."), place.rfind("["), 0)]


def _number(
    value: object, place: str, order: dict[str, int], depth: int
) -> None:
    order.setdefault(place, len(order))
    if depth == 0:
        # A mapping made by a program may contain itself.
        return
    if isinstance(value, Mapping):
        for key, item in value.items():
            name = key_name(key)
            inner = f"{place}.{name}" if place else name
            _number(item, inner, order, depth - 1)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _number(item, f"{place}[{index}]", order, depth - 1)
