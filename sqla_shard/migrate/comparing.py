"""Passes that compare the rows of both sides, and repair what differs.

The content of a row follows from its version.  So rows with the same version
on both sides must be the same; if they are not, a row was written without a
mark.  Rows with different versions are on their way, and say nothing: a later
pass looks at them again.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from dataclasses import dataclass

from sqla_shard.migrate.copying import Part
from sqla_shard.migrate.copying import Row
from sqla_shard.migrate.fences import Fence
from sqla_shard.migrate.marks import Key
from sqla_shard.migrate.stages import Progress

__all__ = ["Comparison", "compare_rows", "repair_rows"]


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


def compare_rows(
    source: Part,
    target: Part,
    keys: Collection[Key],
    *,
    is_same: Callable[[Row, Row], bool],
) -> Comparison:
    """Compare rows of two databases with the same keys.

    :param keys: keys of rows of either side.
    :param is_same: whether two rows are the same.
    """
    sides = []
    for part in (source, target):
        with part.begin() as connection:
            marks = part.marks.marks_of(connection, keys)
            sides.append((marks, part.read(connection, keys)))
    (ours, our_rows), (theirs, their_rows) = sides
    same, waiting, different, unmarked = 0, [], [], []
    for key in keys:
        one, other = our_rows.get(key), their_rows.get(key)
        if (one is not None and key not in ours) or (
            other is not None and key not in theirs
        ):
            unmarked.append(key)
            continue
        versions = [
            marks[key].version if key in marks else 0
            for marks in (ours, theirs)
        ]
        if versions[0] != versions[1]:
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


def repair_rows(
    source: Part,
    fence: Fence,
    progress: Progress,
    found: Comparison,
) -> None:
    """Make the rows wait to be copied that were written without a mark.

    Their versions are raised; the next copy replaces them on the other side,
    or deletes them if the source does not have them.

    :param fence: the fence of the source.
    :param progress: the stage in which the pass was started.
    :raises StageChangedError: if the stage has changed since.
    """
    with source.begin() as connection:
        fence.enter_as(connection, progress)
        source.marks.raise_versions(
            connection,
            [*found.different, *found.unmarked],
            number=progress.round,
        )
