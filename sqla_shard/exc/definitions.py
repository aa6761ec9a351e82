"""Errors of ids, classes, objects, caches, lists and lookups."""

from __future__ import annotations

from dataclasses import InitVar
from datetime import datetime

from sqlalchemy.exc import SAWarning
from sqlalchemy.orm.exc import StaleDataError as _OrmStaleDataError

from sqla_shard.exc.base import cut, MessageError, ShardError, shortened_list, shown
from sqla_shard.util import masking


class InvalidIdError(MessageError, ValueError):
    """Raised when a value is not an object id or not a part of one.

    :ivar value: the value that was given.
    """

    value: object


class WrongTypeError(InvalidIdError):
    """Raised when an object id belongs to another class than expected.

    :ivar value: the id.
    :ivar expected: the type ids that are allowed.
    """

    expected: tuple[int, ...]


class IdLayoutError(MessageError, ValueError):
    """Raised for widths that ids cannot have.

    :ivar value: the width, or their sum.
    """

    value: object


class IdLayoutMismatchError(ShardError):
    """Raised when a class and its keyspace have different id layouts.

    Each id would be read as that of another object.

    :ivar keyspace: the keyspace.
    :ivar keyspace_layout: the layout in the topology.
    :ivar class_layout: the layout of the class.
    """

    keyspace: str
    keyspace_layout: str
    class_layout: str
    _text = (
        "keyspace {keyspace!r} has {keyspace_layout} in the topology, and the "
        "class has {class_layout}. Declare the layout that existing ids have "
        "in both: id_layout of the declarative base, and id_layout of the "
        "keyspace"
    )


class MissingIdError(ShardError):
    """Raised for a new row without id, if nothing gives ids to rows.

    :ivar table: name of the table.
    :ivar reason: why, and what to do.
    """

    table: str
    reason: str
    _text = (
        "a new row of {table} has no id, and the server does not give it one: {reason}"
    )


class IdServiceError(ShardError):
    """Raised if a service of ids issues none, or not those requested."""


class LocalIdsExhaustedError(ShardError):
    """Raised for a row whose local id has too many bits.

    The server has given it to a new row, since the table has no local id
    left.  The transaction that has inserted the row must be rolled back.

    :ivar object_id: the id that the row would have.
    :ivar type_id: type of the objects of the table.
    :ivar bits: bits of a local id.
    """

    object_id: int
    type_id: int
    bits: int
    _text = (
        "a row of type {type_id} has a local id of more than {bits} bits: its "
        "id would be {object_id}, of another object. Its shard has no local "
        "ids left; open more shards, and create new objects there. Or another "
        "SELECT of a UNION returns ids of another type; write full_id() in the first"
    )


class DuplicateTypeError(ShardError):
    """Raised when two classes have the same type id.

    :ivar type_id: the type id.
    :ivar holder: the class that has it.
    :ivar claimant: the class that would be the second.
    """

    type_id: int
    holder: str
    claimant: str
    _text = (
        "type_id {type_id} already belongs to {holder}; object ids could not "
        "tell the two classes apart. Give {claimant} another type_id"
    )

    @property
    def names(self) -> tuple[str, str]:
        """The class that has the type id, and the second one."""
        return self.holder, self.claimant


class ClassDefinitionError(MessageError, TypeError):
    """Raised while a class is created that could not work when used.

    :ivar class_name: the class.
    """

    class_name: str
    _text = "class {class_name}: {message}"


class ManyToManyError(ClassDefinitionError):
    """Raised when the rows of a link table would be on several shards.

    :ivar relationship: the attribute.
    :ivar secondary: the link table.
    """

    relationship: str
    secondary: str


class UniquePerShardWarning(SAWarning):
    """Issued for a unique constraint that holds on each virtual shard only.

    ``info={"unique_per_shard": True}`` of the column, the constraint or the
    index says that this is intended.
    """


# -- Objects that cannot be written.


class PlacementError(MessageError):
    """Raised when no virtual shard can be chosen for a new object."""


class ColocationError(PlacementError):
    """Raised when an object cannot be on the shard of its parent.

    :ivar class_name: the class of the object.
    :ivar field: the field that holds the parent's id.
    :ivar value: value of the field.
    """

    class_name: str
    field: str
    value: object
    _text = "{class_name}.{field}: {message}"


_TWO_SHARDS = (
    'Use a transaction for each; or begin(cross_shard="logged") and an '
    "operation, which is applied on the other shard in any case; or "
    'begin(cross_shard="ordered") where a partial commit can be detected and '
    "repaired"
)


class CrossShardWriteError(ShardError):
    """Raised when a transaction would write a second virtual shard.

    :ivar first: the first write, as ``(shard_id, description)``.
    :ivar second: the refused write, in the same form.
    """

    first: tuple[int, str]
    second: tuple[int, str]
    remedy: InitVar[str] = _TWO_SHARDS
    _text = (
        "this transaction would write {second[1]}, and has already written "
        "{first[1]}: two shards cannot be committed as one. {remedy}"
    )


class BlobError(ShardError):
    """Base of the errors of JSON blobs and their fields."""


class BlobValueError(BlobError, MessageError, ValueError):
    """Raised when a field cannot hold a value.

    :ivar field: the field as ``Class.field``, or the path inside a blob.
    :ivar value: the value.
    """

    field: str
    value: object
    _text = "{field}: {message}"


class BlobTooLargeError(BlobError):
    """Raised when a blob is larger than its column, before it is sent.

    :ivar size: size of the encoded blob in bytes.
    :ivar limit: maximum number of bytes that the column holds.
    """

    size: int
    limit: int
    _text = (
        "the encoded blob has {size} bytes, its column holds {limit}: the "
        "server might truncate it silently. Store less, or give the class a "
        "larger max_bytes= (other column types: JSONBlob(max_bytes=...))"
    )


class StaleDataError(ShardError, _OrmStaleDataError):
    """Raised when a flush would overwrite what another writer changed.

    :ivar class_name: the class of the object.
    :ivar object_id: id of the object.
    :ivar fields: the fields changed on both sides; empty if the row was
        deleted.
    """

    class_name: str
    object_id: int
    fields: tuple[str, ...]

    def _describe(self) -> str:
        what = f"the row of {self.class_name} {self.object_id} was deleted"
        if self.fields:
            what = (
                f"another writer changed {', '.join(map(repr, self.fields))} "
                f"of {self.class_name} {self.object_id} since it was read"
            )
        return (
            f"{what}; nothing was written. Roll back and repeat the "
            "transaction (cluster.run does), or read with_for_update=True"
        )


# -- Reference tables: the same rows on every shard.


class ReferenceTableError(ShardError):
    """Base of the errors of reference tables."""


class ReferenceWriteError(ReferenceTableError):
    """Raised when a session would write a reference table.

    :ivar reference: the reference class.
    """

    reference: str
    _text = (
        "{reference} is a reference class: its rows are the same on every "
        "shard, and a session cannot write one of them; use "
        "{reference}.replace(cluster, rows), .upsert() or .delete()"
    )


class ReferenceRowsError(ReferenceTableError, ValueError):
    """Raised when rows, or keys, are not valid for a reference table.

    :ivar reference: the reference class.
    :ivar row: the row, or its key.
    :ivar reason: why it is not valid.
    """

    reference: str
    row: object
    reason: str

    def _describe(self) -> str:
        return f"{cut(self.row)} for {self.reference}: {self.reason}"


class ReferenceSizeError(ReferenceTableError):
    """Raised when a reference table would have too many rows.

    Nothing was written.

    :ivar reference: the reference class.
    :ivar rows: number of rows that the table would have.
    :ivar most: maximum number of rows.
    """

    reference: str
    rows: int
    most: int
    _text = (
        "{reference} would have {rows} rows on every shard, and at most "
        "{most} are allowed: a write reads and compares all of them. Store "
        "them in a global keyspace, or on the objects"
    )


class ReferenceIncompleteError(ReferenceTableError):
    """Raised when a reference table was not written on all shards.

    The lowest shard has the new rows, unless it is among those that have
    failed; each other shard has either the new rows or the previous ones.

    :ivar reference: the reference class.
    :ivar keyspace: name of its keyspace.
    :ivar done: shards that have the rows.
    :ivar errors: the errors of the other shards, by shard.
    :ivar not_reached: shards that were not tried, since an earlier one on the
        same server failed.
    """

    reference: str
    keyspace: str
    done: tuple[int, ...]
    errors: dict[int, Exception]
    not_reached: tuple[int, ...]

    def _describe(self) -> str:
        first = next(iter(self.errors.values()))
        failed = shortened_list(list(self.errors))
        not_tried = shortened_list(self.not_reached) or "none"
        return (
            f"{self.reference} was written on {len(self.done)} shards of "
            f"{self.keyspace}, but not on shard {failed} "
            f"(not tried: {not_tried}), because of "
            f"{type(first).__name__}: {first}. Write it again once that is "
            "fixed, which is harmless where it was written; or run "
            "sqla-shard verify references --repair"
        )


# -- The row cache.  A node that does not respond raises none of these: rows
# are read from the database.


class OptionError(MessageError, ValueError):
    """Raised when a setting or argument is not valid.

    :ivar option: name of the setting.
    :ivar value: the value that was given.
    """

    option: str
    value: object

    def _describe(self, message: str) -> str:
        return f"{self.option}={masking.masked(self.value)} {message}"


class CacheKeyError(ShardError, ValueError):
    """Raised when a value is not a valid key of memcached.

    :ivar key: the value.
    """

    key: object
    _text = (
        "{key!r:.300} is not a valid cache key: use 1 to 250 ASCII "
        "characters, without spaces or control characters"
    )


class CacheClassError(MessageError, TypeError):
    """Raised when rows of a class cannot be cached.

    :ivar class_name: name of the class.
    """

    class_name: object
    _text = "{class_name} cannot be cached: it {message}"


class CachedFunctionError(MessageError, TypeError):
    """Raised when the arguments or the result of a function cannot be cached.

    :ivar function: name of the function.
    """

    function: str
    _text = "{function}() {message}"


class CachedWriteError(MessageError):
    """Raised by a write to cached rows that cannot be invalidated.

    :ivar table: name of the table.
    """

    table: str
    _text = "rows of {table!r} are cached, and {message}"


class CacheConfigError(MessageError, ValueError):
    """Raised when a file that configures a cache cannot be used.

    :ivar path: the file.
    :ivar key: the key in the file, such as ``regions.pins.backend``; ``file``
        if the problem is not about one key.
    """

    path: str
    key: str
    _text = "{path}: {key}: {message}"


# -- Ordered lists and their pages.


class MappingError(ShardError):
    """Base of the errors of ordered lists."""


class InvalidMoveError(MappingError, MessageError, ValueError):
    """Raised when the neighbours given for a row are not valid.

    :ivar target_id: the row that was to be moved.
    :ivar before: the neighbour before it; None if not given.
    :ivar after: the neighbour after it; None if not given.
    """

    target_id: int
    before: int | None
    after: int | None


class InvalidSequenceError(MappingError, ValueError):
    """Raised when a value is not a position in an ordered list.

    :ivar value: the value.
    """

    value: object

    def _describe(self) -> str:
        return (
            f"{shown(self.value)} is not a valid sequence: it must be an "
            "integer from 0 to 10**38 - 1. In JSON it is a string; convert "
            "it with int()"
        )


class KeptMappingError(MappingError):
    """Raised for a change that would not reach all rows that depend on it.

    These are the inverse, the stored count, and a copy of the row while the
    number of pieces of a spread class is increased.

    :ivar mapping: the class whose rows would be changed.
    :ivar kept_by: the class whose changes write its rows.
    :ivar reason: ``"inverse"``, ``"count"`` or ``"spread"``.
    """

    mapping: str
    kept_by: str
    reason: str = "inverse"

    def _describe(self) -> str:
        how = "append(), append_many(), remove() and clear()"
        if self.reason == "spread":
            return (
                f"rows of {self.mapping} are being copied to more pieces, and "
                "a change of their columns could miss the copy; repeat it "
                "after spread_to= or spread_from= was removed"
            )
        has = "stored counts" if self.reason == "count" else "an inverse"
        return (
            f"{self.mapping} has {has}, updated by {how} only; use these "
            "instead of adding and deleting rows"
            if self.mapping == self.kept_by
            else f"{self.mapping} is the inverse of {self.kept_by}, which "
            f"writes its rows; use {how} of {self.kept_by}"
        )


class StaleListError(MappingError):
    """Base of the errors of a list that has changed since it was read.

    Nothing was changed; read the list again.
    """


class MissingTargetError(StaleListError, LookupError):
    """Raised when a target is not in the list of a source.

    :ivar mapping: the mapping class.
    :ivar source_id: id of the source, whose list it is.
    :ivar target_id: the target.
    """

    mapping: str
    source_id: int
    target_id: int
    _text = (
        "{target_id} is not in {mapping} of {source_id}; append() it, or "
        "read the list again"
    )


class SequenceExhaustedError(MappingError):
    """Raised when a re-spacing would change too many rows.

    :ivar mapping: the mapping class.
    :ivar source_id: id of the source, whose list it is.
    :ivar rows: number of rows that were read.
    """

    mapping: str
    source_id: int
    rows: int
    _text = (
        "{mapping} of {source_id} has no free sequence among {rows} rows "
        "around the position; {mapping}.respace(session, {source_id}) "
        "re-spaces the whole list. If that also fails, or the row is to be "
        "the first, the highest sequences are too close to 10**38: give those "
        "rows lower ones"
    )


class StaleNeighbourError(StaleListError):
    """Raised when the neighbours of a move have left the list or changed.

    One of them has left the list, or the two are now in reverse order.

    :ivar mapping: the mapping class.
    :ivar source_id: id of the source, whose list it is.
    :ivar target_id: the row that was to be moved.
    :ivar before: the neighbour before it; None if not given.
    :ivar after: the neighbour after it; None if not given.
    :ivar missing: the neighbours that are not in the list.
    """

    mapping: str
    source_id: int
    target_id: int
    before: int | None
    after: int | None
    missing: tuple[int, ...]

    def _describe(self) -> str:
        what = f"{self.before} is now after {self.after}"
        if self.missing:
            what = f"{', '.join(map(str, self.missing))} not in the list"
        return (
            f"{self.target_id} was not moved in {self.mapping} of "
            f"{self.source_id}: {what}. Read the list again and show it to "
            "the user"
        )


class InvalidBookmarkError(MessageError, ValueError):
    """Raised when a bookmark does not belong to the list it is used for.

    :ivar bookmark: the bookmark that was given.
    """

    bookmark: object
    _text = "{message}; start from the first page again"


class BookmarkKeyError(MessageError, ValueError):
    """Raised when ``bookmark_keys`` of a cluster is not valid.

    No key is part of the message.

    :ivar index: position of the key; None if the error is about all keys.
    """

    index: int | None = None

    def _describe(self, message: str) -> str:
        where = "" if self.index is None else f"[{self.index}]"
        return f"bookmark_keys{where} {message}"


# -- Lookups.


class LookupTableError(ShardError):
    """Base of the errors of lookups."""


class InvalidKeyError(LookupTableError, ValueError):
    """Raised when a value cannot be a key.

    :ivar key: the value as it was given.
    :ivar reason: why it is not valid.
    """

    key: object
    reason: str

    def _describe(self) -> str:
        return f"{cut(self.key)} is not a valid key: {self.reason}"


class KeyTakenError(LookupTableError):
    """Raised when a key belongs to another object, or is claimed.

    :ivar lookup: the lookup class.
    :ivar key: the key, normalized.
    :ivar target_id: the object that the key belongs to; None if the key is
        only claimed.
    :ivar expires_at: time when the claim expires; None if the key is not
        claimed.
    """

    lookup: str
    key: str
    target_id: int | None
    expires_at: datetime | None

    def _describe(self) -> str:
        what = f"belongs to {self.target_id}; choose another key"
        if self.target_id is None:
            what = (
                f"is claimed until {self.expires_at} and may be free after "
                "that; try again then, or choose another key"
            )
        return f"{self.key!r} in {self.lookup} {what}"


class ClaimLostError(LookupTableError):
    """Raised when a claim is lost before it is confirmed.

    The claim has expired and the key was claimed again, or it was released.

    :ivar lookup: the lookup class.
    :ivar key: the key, normalized.
    :ivar target_id: the object that the key belongs to now; None if there is
        none.
    """

    lookup: str
    key: str
    target_id: int | None

    def _describe(self) -> str:
        now = "no object" if self.target_id is None else self.target_id
        return (
            f"the claim of {self.key!r} in {self.lookup} expired, or was "
            f"released, before it was confirmed; the key belongs to {now}. "
            "Claim it again, and roll back what was created for it if the "
            "key is taken. To allow more time, pass a longer lifetime="
        )


class KeyNotHeldError(LookupTableError, LookupError):
    """Raised when a key to be renamed does not belong to the object.

    :ivar lookup: the lookup class.
    :ivar key: the key, normalized.
    :ivar target_id: the object.
    """

    lookup: str
    key: str
    target_id: int
    _text = (
        "{key!r} in {lookup} does not belong to {target_id}, so it was not "
        "renamed; claim(session, new_key, id) gives the object a new key"
    )


class KeyPendingError(LookupTableError):
    """Raised when an object is committed, and its key may be claimed only.

    :ivar lookup: the lookup class.
    :ivar key: the key, normalized.
    :ivar target_id: the object.
    """

    lookup: str
    key: str
    target_id: int
    _text = (
        "{target_id} is committed, but its key {key!r} in {lookup} may still "
        "be only a claim, because a server did not respond; "
        "cluster.repair(), or the command sqla-shard repair, confirms it once "
        "the server responds"
    )


class LookupPolicyError(LookupTableError):
    """Raised when a row was normalized under an unknown policy.

    :ivar lookup: the lookup class.
    :ivar key: the key of the row.
    :ivar policy: policy of the row, as ``name/version``.
    :ivar known: the policies of the class.
    """

    lookup: str
    key: str
    policy: str
    known: tuple[str, ...]

    def _describe(self) -> str:
        return (
            f"the row of {self.key!r} in {self.lookup} was written under the "
            f"policy {self.policy!r}, and the class knows "
            f"{', '.join(map(repr, self.known))}: keys may be equal under "
            "the one and not under the other. Add that policy to the class "
            "with previous=, until all rows are rewritten"
        )


# -- Compressed blobs, and their dictionaries.


class BlobCompressionError(BlobError):
    """Base of the errors of compressed blobs and their dictionaries."""


class UnreadableBlobError(BlobCompressionError):
    """Base of the errors of rows whose blob cannot be read.

    :ivar table: the table; None if the reader does not know it.
    :ivar object_id: id of the object, after a read by id; otherwise None.
    """

    table: str | None = None
    object_id: int | None = None

    def of(self, object_id: int) -> UnreadableBlobError:
        """Return the error with the id of the object."""
        given = {name: getattr(self, name) for name in self._parameters}
        return type(self)(**{**given, "object_id": object_id})

    def _describe(self) -> str:
        return f"{self._row()} cannot be read"

    def _row(self) -> str:
        found = "a compressed blob"
        if self.table is not None:
            found = f"a row of {self.table}"
        if self.object_id is not None:
            found += f", object {self.object_id}"
        return found


class DamagedBlobError(UnreadableBlobError):
    """Raised when a stored blob cannot be decompressed.

    :ivar dictionary_id: id of the dictionary; None if the blob has none.
    :ivar reason: what is wrong.
    """

    dictionary_id: int | None = None
    reason: str

    def _describe(self) -> str:
        dictionary = ""
        if self.dictionary_id is not None:
            dictionary = f" (dictionary {self.dictionary_id:06x})"
        return (
            f"{self._row()}: {self.reason}{dictionary}. Restore the row from "
            "a backup; sqla-shard blobs check lists all such rows"
        )


class DictionaryNotFoundError(UnreadableBlobError):
    """Raised when no virtual shard has the dictionary of a blob.

    :ivar dictionary_id: id of the dictionary.
    :ivar unreachable: servers that could not be read, which may have it.
    """

    dictionary_id: int
    unreachable: tuple[str, ...] = ()

    def _describe(self) -> str:
        remedy = (
            "Restore the rows of sqla_shard_dictionary from a backup of the "
            "shard of the row"
        )
        if self.unreachable:
            remedy = (
                f"Repeat it when {', '.join(self.unreachable)} can be read, which "
                "may have it"
            )
        return (
            f"{self._row()}: no dictionary has the id "
            f"{self.dictionary_id:06x}, with which the blob was compressed. "
            f"{remedy}"
        )


class DictionaryError(BlobCompressionError, MessageError):
    """Raised when a dictionary cannot be trained, stored or used for writing.

    :ivar name: name of the dictionary.
    """

    name: str
    _text = "{name}: {message}"
