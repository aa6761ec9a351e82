"""Ordered lists and their pages."""

from __future__ import annotations

from collections.abc import Sequence

from sqla_shard.exc.base import ShardError
from sqla_shard.exc.base import shown

__all__ = [
    "BookmarkKeyError",
    "InvalidBookmarkError",
    "InvalidMoveError",
    "InvalidSequenceError",
    "KeptMappingError",
    "MappingError",
    "MissingTargetError",
    "SequenceExhaustedError",
    "StaleListError",
    "StaleNeighbourError",
]


class MappingError(ShardError):
    """Base of the errors of ordered lists."""


class InvalidMoveError(MappingError, ValueError):
    """Raised when the neighbours named for a row make no sense.

    :ivar target_id: the row that was to be moved.
    :ivar before: the neighbour ahead of it; None for none named.
    :ivar after: the neighbour behind it; None for none named.
    """

    def __init__(
        self,
        message: str,
        *,
        target_id: int,
        before: int | None,
        after: int | None,
    ) -> None:
        super().__init__(message)
        self.target_id = target_id
        self.before = before
        self.after = after


class InvalidSequenceError(MappingError, ValueError):
    """Raised when a value is not a position in an ordered list.

    :ivar value: the value.
    """

    def __init__(self, *, value: object) -> None:
        super().__init__(
            f"{shown(value)} is not a sequence: that is an int from 0 to "
            "10**38 - 1. In JSON it travels as a string; int() it"
        )
        self.value = value


class KeptMappingError(MappingError):
    """Raised for a change that the reverse of a mapping would not follow.

    :ivar mapping: the class whose rows were to be changed.
    :ivar kept_by: the class whose changes write them.
    """

    def __init__(self, *, mapping: str, kept_by: str) -> None:
        how = "append(), append_many(), remove() and clear()"
        super().__init__(
            f"{mapping} has an inverse, which follows only {how}; use them "
            "in place of adding and deleting rows"
            if mapping == kept_by
            else f"{mapping} is the inverse of {kept_by}, which keeps it; "
            f"use {how} of that"
        )
        self.mapping = mapping
        self.kept_by = kept_by


class StaleListError(MappingError):
    """Base of the errors of a list that is not what the caller has seen.

    Nothing was changed; read the list again.
    """


class MissingTargetError(StaleListError, LookupError):
    """Raised when a target is not in the list of a source.

    :ivar mapping: the mapping class.
    :ivar source_id: whose list it is.
    :ivar target_id: the target.
    """

    def __init__(
        self, *, mapping: str, source_id: int, target_id: int
    ) -> None:
        super().__init__(
            f"{target_id} is not in {mapping} of {source_id}; append() it, "
            "or read the list again"
        )
        self.mapping = mapping
        self.source_id = source_id
        self.target_id = target_id


class SequenceExhaustedError(MappingError):
    """Raised when a re-spacing would have to touch too many rows.

    :ivar mapping: the mapping class.
    :ivar source_id: whose list it is.
    :ivar rows: how many rows were looked at.
    """

    def __init__(self, *, mapping: str, source_id: int, rows: int) -> None:
        super().__init__(
            f"{mapping} of {source_id} has no room for a position among "
            f"{rows} rows around the place; {mapping}.respace(session, "
            f"{source_id}) re-spaces the whole list. Where that has no room "
            "either, or for a row on top, the topmost sequences are too "
            "close to 10**38: give those rows lower ones"
        )
        self.mapping = mapping
        self.source_id = source_id
        self.rows = rows


class StaleNeighbourError(StaleListError):
    """Raised when the neighbours of a move are not there any more.

    One of them has left the list, or the two now stand the other way round.

    :ivar mapping: the mapping class.
    :ivar source_id: whose list it is.
    :ivar target_id: the row that was to be moved.
    :ivar before: the neighbour ahead of it; None for none named.
    :ivar after: the neighbour behind it; None for none named.
    :ivar missing: those that are not in the list.
    """

    def __init__(
        self,
        *,
        mapping: str,
        source_id: int,
        target_id: int,
        before: int | None,
        after: int | None,
        missing: Sequence[int],
    ) -> None:
        if missing:
            what = f"{', '.join(map(str, missing))} not in the list"
        else:
            what = f"{before} now stands behind {after}"
        super().__init__(
            f"{target_id} was not moved in {mapping} of {source_id}: {what}. "
            "Read the list again and show it to the user"
        )
        self.mapping = mapping
        self.source_id = source_id
        self.target_id = target_id
        self.before = before
        self.after = after
        self.missing = tuple(missing)


class InvalidBookmarkError(ShardError, ValueError):
    """Raised when a bookmark is not one of the list that it is used for.

    :ivar bookmark: as it was given.
    """

    def __init__(self, message: str, *, bookmark: object) -> None:
        super().__init__(f"{message}; start from the first page again")
        self.bookmark = bookmark


class BookmarkKeyError(ShardError, ValueError):
    """Raised when ``bookmark_keys`` of a cluster cannot be used.

    No key is part of the message.

    :ivar index: position of the key; None where it is about all of them.
    """

    def __init__(self, message: str, *, index: int | None = None) -> None:
        where = "" if index is None else f"[{index}]"
        super().__init__(f"bookmark_keys{where} {message}")
        self.index = index
