"""One pass over all rows of both sides; see :mod:`.comparing`."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeAlias

from sqlalchemy.engine import URL

from sqla_shard.exc import ConversionError, UnclaimableRowError
from sqla_shard.migrate.comparing import compare, Comparison, look, Seen
from sqla_shard.migrate.copying import read_images, snapshot
from sqla_shard.migrate.fences import DatabaseFence
from sqla_shard.migrate.links import MovedLinks
from sqla_shard.migrate.mark_tables import Key
from sqla_shard.migrate.move import Move
from sqla_shard.migrate.pass_reports import (
    DifferentRow,
    Pass,
    PassPosition,
    record_pass,
)
from sqla_shard.migrate.rows import AttributeDifference
from sqla_shard.migrate.stages import Progress
from sqla_shard.migrate.tables import MovedRows, MovedTable
from sqla_shard.migrate.waiting import grouped, Waiting
from sqla_shard.verify.position import PositionFile

#: Rows of a page.
_PAGE = 500
#: Maximum number of characters that are shown of a value.
_SHOWN = 200

#: Reads the rows of a table after a key, and yields that of each page.
_Walk: TypeAlias = Callable[[MovedRows, Key | None], Iterator[Key]]


class FullPass:
    """Compares all rows of both sides.

    :param move: the move.
    :param now: the stage.
    :param limit: called with a number of rows that were compared or repaired;
        waits.
    :param on_progress: called with the name of a table and the number of rows
        that were compared.
    :param repairs: whether rows that differ are repaired, on the side that is
        not the truth.
    :param position: file with the position, from which an interrupted pass is
        resumed; it is removed at the end.
    """

    def __init__(
        self,
        move: Move,
        now: Progress,
        limit: Callable[[int], object],
        on_progress: Callable[[str, int], object],
        *,
        repairs: bool,
        position: str | os.PathLike[str] | None = None,
    ) -> None:
        self._move = move
        self._copier = move.copier
        self._now = now
        self._limit = limit
        self._on_progress = on_progress
        self._repairs = repairs
        self._from_legacy = now.rules.source == "legacy"
        self._pass = Pass()
        self._file: PositionFile[PassPosition] | None = None
        if position is not None:
            self._file = PositionFile(
                position, self._identity(), PassPosition.from_dict
            )

    def _identity(self) -> dict[str, Any]:
        url = self._move.engine.url
        where = URL.create(
            url.get_backend_name(), host=url.host, port=url.port, database=url.database
        )
        return {
            "command": "reconcile" if self._repairs else "verify",
            # A rehearsal has the same stages, and the same numbers.
            "database": str(where),
            "round": self._now.round,
            "change of the stage": self._now.number,
            "tables": list(self._move.tables),
            "shards": [
                one.keyspace(self._move.cluster.places).shards
                for one in self._move.tables.values()
            ],
        }

    def run(self) -> Pass:
        """Compare everything, and record the result.

        :raises VerifyPositionError: if the file belongs to another pass.
        """
        position = (self._file and self._file.load()) or PassPosition()
        self._pass = position.result
        for number, (one, walk) in enumerate(self._steps()):
            if number < position.step:
                continue
            after = position.after if number == position.step else None
            for last in walk(one, after):
                if self._file is not None:
                    self._file.save(
                        PassPosition(step=number, after=last, result=self._pass)
                    )
        record_pass(self._move, self._now, self._pass)
        if self._file is not None:
            self._file.remove()
        return self._pass

    def _steps(self) -> Iterator[tuple[MovedRows, _Walk]]:
        """Yield tables with the action on their rows."""
        for one in self._move.tables.values():
            yield one, self._unmarked_rows
            yield one, self._marked_rows
            yield one, self._unknown_rows

    def _find(self, one: MovedRows, key: Key | None, ids: Key, reason: str) -> None:
        self._pass.add(DifferentRow(table=one.name, key=key, ids=ids, reason=reason))

    # -- rows that no session has written, or the backfill not reached

    def _unmarked_rows(self, one: MovedRows, after: Key | None) -> Iterator[Key]:
        has_ids = not isinstance(one, MovedLinks)
        while True:
            with snapshot(self._move.engine) as connection:
                end = one.marks.page_end(connection, after=after, limit=_PAGE)
                found = one.marks.unmarked(
                    connection, after=after, until=end, needs_id=has_ids
                )
            for key, waits in found.items():
                if waits:
                    self._pass.waiting += 1
                else:
                    self._find(one, key, (), "written without a mark")
            if self._from_legacy and self._repairs and found:
                self._limit(len(found))
                self._repair_rows(one, found)
            if end is None:
                return
            yield end
            after = end

    # -- rows that both sides should have

    def _marked_rows(self, one: MovedRows, after: Key | None) -> Iterator[Key]:
        for last, keys in self._marked_pages(one, after):
            for shard_id, some in grouped(one, keys).items():
                self._compare_or_name(
                    one, shard_id, {there: keys[there] for there in some}
                )
            yield last

    def _marked_pages(
        self, one: MovedRows, after: Key | None
    ) -> Iterator[tuple[Key, dict[Key, Key]]]:
        """Yield positions, and keys in the database by those on the shards."""
        while isinstance(one, MovedLinks):
            with snapshot(self._move.engine) as connection:
                keys = one.marks.keys_after(connection, after=after, limit=_PAGE)
            if not keys:
                return
            after = keys[-1]
            there = self._copier.ids.link_keys(one, keys)
            self._count_without_ends(one, [k for k in keys if k not in there])
            yield after, {there[key]: key for key in keys if key in there}
        last = 0 if after is None else after[0]
        while True:
            with snapshot(self._move.engine) as connection:
                found = one.marks.marked(connection, after=last, limit=_PAGE)
            if not found:
                return
            last = max(found)
            yield ((last,), {(object_id,): key for object_id, key in found.items()})

    def _count_without_ends(self, one: MovedRows, keys: list[Key]) -> None:
        """Count rows that wait for a row without an object id."""
        with snapshot(self._move.engine) as connection:
            marks = one.marks.marks_of(connection, keys)
        self._pass.waiting += sum(mark.waits for mark in marks.values())

    def _compare_or_name(
        self, one: MovedRows, shard_id: int, keys: Mapping[Key, Key]
    ) -> None:
        """Compare rows, each apart if one cannot be converted."""
        try:
            self._compare(one, shard_id, keys)
        except (UnclaimableRowError, ConversionError) as error:
            for there, key in keys.items():
                if len(keys) > 1:
                    self._compare_or_name(one, shard_id, {there: key})
                else:
                    self._find(one, key, there, str(error))

    def _compare(self, one: MovedRows, shard_id: int, keys: Mapping[Key, Key]) -> None:
        """Compare rows of one shard.

        :param keys: keys in the database by those on the shard.
        """
        images = read_images(one.legacy(self._move.engine), keys.values())
        there = {key: other for other, key in keys.items()}
        values = self._copier.converted(one, images, there)
        ours = Seen(
            versions={key: image.version for key, image in values.items()},
            rows={
                key: image.row for key, image in values.items() if image.row is not None
            },
        )
        theirs = look(one.on(self._move.cluster, shard_id), list(keys))
        result = compare(
            ours,
            theirs,
            list(keys),
            is_same=lambda *both: not any(one.conversion.differences(*both)),
        )
        # Before repairs: a pass that is interrupted while it waits would
        # repair them, and not name them.
        self._limit(len(keys))
        self._pass.rows += len(keys)
        self._pass.waiting += len(result.waiting)
        self._name(one, keys, result, ours, theirs)
        different = [*result.different, *result.unmarked]
        if self._from_legacy:
            self._repair_rows(one, [keys[other] for other in different])
        else:
            self._repair_on_shard(one, shard_id, different)
        self._on_progress(one.name, len(keys))

    def _name(
        self,
        one: MovedRows,
        keys: Mapping[Key, Key],
        result: Comparison,
        ours: Seen,
        theirs: Seen,
    ) -> None:
        for there in (*result.different, *result.unmarked):
            row, found = ours.rows.get(there), theirs.rows.get(there)
            if row is None:
                reason = "only the shards have it"
            elif found is None:
                reason = "only the database has it"
            else:
                reason = "; ".join(
                    map(_described, one.conversion.differences(row, found))
                )
            self._find(one, keys[there], there, reason or "written without a mark")

    # -- repairs

    def _repair_rows(self, one: MovedRows, keys: Collection[Key]) -> None:
        """Make rows wait that were written without a mark, and copy them."""
        if not self._repairs or not keys:
            return
        with snapshot(self._move.engine) as connection:
            DatabaseFence().enter_as(connection, self._now)
            one.marks.raise_versions(connection, keys, number=self._now.round)
        self._copy((one, None, list(keys)))

    def _repair_on_shard(
        self, one: MovedRows, shard_id: int, keys: Collection[Key]
    ) -> None:
        if not self._repairs or not keys:
            return
        part = one.on(self._move.cluster, shard_id)
        with part.begin() as connection:
            DatabaseFence().enter_as(connection, self._now)
            part.marks.raise_versions(connection, keys, number=self._now.round)
        self._copy((one, shard_id, list(keys)))

    def _copy(self, waiting: Waiting) -> None:
        self._copier.copy_or_log(waiting, number=self._now.round)

    # -- rows of the shards that the map does not have

    def _unknown_rows(self, one: MovedRows, after: Key | None) -> Iterator[Key]:
        first, *rest = after or (0,)
        shards = one.keyspace(self._move.cluster.places).shards
        for shard_id in range(first, shards):
            last = tuple(rest) if rest and shard_id == first else None
            for page in self._unknown_on(one, shard_id, last):
                yield shard_id, *page

    def _unknown_on(
        self, one: MovedRows, shard_id: int, after: Key | None
    ) -> Iterator[Key]:
        while True:
            part = one.on(self._move.cluster, shard_id)
            with part.begin():
                keys = part.page(after, _PAGE)
            if not keys:
                return
            after = keys[-1]
            unknown = self._without_marks(one, keys)
            if not self._from_legacy:
                unknown = self._not_waiting(one, shard_id, unknown)
            for there in unknown:
                self._find(one, None, there, "only the shards have it")
            if not self._from_legacy:
                self._repair_on_shard(one, shard_id, unknown)
            elif self._repairs and unknown:
                self._delete(one, shard_id, unknown)
            yield after
            if self._repairs and unknown:
                self._limit(len(unknown))

    def _without_marks(self, one: MovedRows, keys: Collection[Key]) -> list[Key]:
        known = self._copier.existing_keys(one, keys)
        if isinstance(one, MovedTable):
            # They are those of marks.
            return [key for key in keys if key not in known]
        with snapshot(self._move.engine) as connection:
            marks = one.marks.marks_of(connection, set(known.values()))
        return [key for key in keys if known.get(key) not in marks]

    def _not_waiting(
        self, one: MovedRows, shard_id: int, keys: Collection[Key]
    ) -> list[Key]:
        part = one.on(self._move.cluster, shard_id)
        with part.begin() as connection:
            marks = part.marks.marks_of(connection, keys)
        waiting = {key for key, mark in marks.items() if mark.waits}
        self._pass.waiting += len(waiting)
        return [key for key in keys if key not in waiting]

    def _delete(self, one: MovedRows, shard_id: int, keys: Collection[Key]) -> None:
        """Delete rows that another program has inserted.

        A row of a copy has a mark in the database before, so these are not
        on their way.
        """
        part = one.on(self._move.cluster, shard_id)
        with part.begin() as connection:
            DatabaseFence().enter_as(connection, self._now)
            part.delete(keys)


def _described(difference: AttributeDifference) -> str:
    """Return both values; of long ones the part in which they differ."""
    texts = repr(difference.expected), repr(difference.found)
    differing = (
        at for at, (one, other) in enumerate(zip(*texts, strict=False)) if one != other
    )
    start = next(differing, min(map(len, texts))) - _SHOWN // 2
    # A pass has up to 1,000 of them, and writes them after each page.
    expected, found = (
        text if len(text) <= _SHOWN else f"...{text[max(start, 0) :][:_SHOWN]}..."
        for text in texts
    )
    return (
        f"{difference.attribute} is {expected} in the database and {found} on the shard"
    )
