"""Passes that compare the rows of both sides, and repair differences.

The content of a row follows from its version.  So rows with the same version
on both sides must be the same; if they are not, a row was written without a
mark.  Rows with different versions are on their way, and say nothing: a later
pass looks at them again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from sqla_shard.migrate.copying import MarkedRows, Row
from sqla_shard.migrate.mark_tables import Key


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The result of comparing some rows.

    :ivar same: number of rows that are the same, or absent on both sides.
    :ivar waiting: keys of rows whose versions differ.
    :ivar different: keys of rows that differ in spite of equal versions.
    :ivar unmarked: keys of rows of either side without a mark there.
    """

    same: int
    waiting: tuple[Key, ...]
    different: tuple[Key, ...]
    unmarked: tuple[Key, ...]

    @property
    def is_equal(self) -> bool:
        """Whether no row was written without a mark."""
        return not self.different and not self.unmarked


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Marks and rows of one side, from one snapshot.

    :ivar versions: the versions of rows that have a mark, by key.
    :ivar rows: the rows that exist, by key.
    """

    versions: Mapping[Key, int]
    rows: Mapping[Key, Row]


def look(part: MarkedRows, keys: Collection[Key]) -> Seen:
    """Return the marks and rows of one side."""
    with part.begin() as connection:
        return Seen(
            versions=part.marks.versions_of(connection, keys),
            rows=part.read(connection, keys),
        )


def compare(
    source: Seen,
    target: Seen,
    keys: Collection[Key],
    *,
    is_same: Callable[[Row, Row], bool],
) -> Comparison:
    """Compare the rows of two sides with the same keys.

    :param keys: keys of rows of either side.
    :param is_same: whether two rows are the same.
    """
    ours, theirs = source.versions, target.versions
    same, waiting, different, unmarked = 0, [], [], []
    for key in keys:
        one, other = source.rows.get(key), target.rows.get(key)
        if (one is not None and key not in ours) or (
            other is not None and key not in theirs
        ):
            unmarked.append(key)
            continue
        if ours.get(key, 0) != theirs.get(key, 0):
            waiting.append(key)
        elif one is other or (
            one is not None and other is not None and is_same(one, other)
        ):
            same += 1
        else:
            different.append(key)
    return Comparison(
        same=same,
        waiting=tuple(waiting),
        different=tuple(different),
        unmarked=tuple(unmarked),
    )
