"""Objects that cannot be written."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm.exc import StaleDataError as _OrmStaleDataError

from sqla_shard.exc.base import ShardError

__all__ = [
    "BlobError",
    "BlobTooLargeError",
    "BlobValueError",
    "ColocationError",
    "CrossShardWriteError",
    "PlacementError",
    "StaleDataError",
]


class PlacementError(ShardError):
    """Raised when no virtual shard can be told for a new object."""


class ColocationError(PlacementError):
    """Raised when an object cannot live on the shard of its parent.

    :ivar class_name: the class of the object.
    :ivar field: the field that holds the parent's id.
    :ivar value: its value.
    """

    def __init__(
        self, message: str, *, class_name: str, field: str, value: object
    ) -> None:
        super().__init__(f"{class_name}.{field}: {message}")
        self.class_name = class_name
        self.field = field
        self.value = value


_TWO_SHARDS = (
    'Use a transaction for each; or begin(cross_shard="logged") and an '
    "operation, which is done on the other shard in any case; or "
    'begin(cross_shard="ordered") where a half-finished write can be told and '
    "repaired"
)


class CrossShardWriteError(ShardError):
    """Raised when a transaction would write a second virtual shard.

    :ivar first: what was written first, as ``(shard_id, description)``.
    :ivar second: what would be written, in the same form.
    """

    def __init__(
        self,
        *,
        first: tuple[int, str],
        second: tuple[int, str],
        remedy: str = _TWO_SHARDS,
    ) -> None:
        super().__init__(
            f"this transaction would write {second[1]}, and has written "
            f"{first[1]} already: two shards cannot be committed as one. "
            f"{remedy}"
        )
        self.first = first
        self.second = second


class BlobError(ShardError):
    """Base of the errors of JSON blobs and their fields."""


class BlobValueError(BlobError, ValueError):
    """Raised when a field cannot hold a value.

    :ivar field: the field as ``Class.field``, or the path inside a blob.
    :ivar value: the value.
    """

    def __init__(self, message: str, *, field: str, value: object) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.value = value


class BlobTooLargeError(BlobError):
    """Raised when a blob is larger than its column, before it is sent.

    :ivar size: bytes of the encoded blob.
    :ivar limit: bytes that the column holds.
    """

    def __init__(self, *, size: int, limit: int) -> None:
        super().__init__(
            f"the encoded blob has {size} bytes, its column holds {limit}: "
            "the server might have cut it off without a word. Store less, "
            "or give the class a larger max_bytes= (the column type, for "
            "others: JSONBlob(max_bytes=...))"
        )
        self.size = size
        self.limit = limit


class StaleDataError(ShardError, _OrmStaleDataError):
    """Raised when a flush would overwrite what another writer changed.

    :ivar class_name: the class of the object.
    :ivar object_id: its id.
    :ivar fields: the fields changed on both sides; empty where the row is
        gone.
    """

    def __init__(
        self, *, class_name: str, object_id: int, fields: Sequence[str]
    ) -> None:
        if fields:
            what = (
                f"another writer changed {', '.join(map(repr, fields))} of "
                f"{class_name} {object_id} since it was read"
            )
        else:
            what = f"the row of {class_name} {object_id} is gone"
        super().__init__(
            f"{what}; nothing was written. Roll back and repeat the "
            "transaction (cluster.run does), or read with_for_update=True"
        )
        self.class_name = class_name
        self.object_id = object_id
        self.fields = tuple(fields)
