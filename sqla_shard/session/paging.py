"""Keyset pages: a limited number of rows, and a bookmark of the next page.

A page begins after the key of the last row of the previous page; rows are not
counted.  So a page costs the same anywhere in a list, and inserted or deleted
rows do not shift it.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import hmac
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Generic, NamedTuple, TypeVar

from sqlalchemy import (
    bindparam,
    Boolean,
    cast,
    Date,
    DateTime,
    Float,
    Integer,
    Interval,
    literal,
    Numeric,
    Select,
    select,
    String,
    Time,
    type_coerce,
    Uuid,
)
from sqlalchemy.dialects.mysql import TIME
from sqlalchemy.engine import Dialect
from sqlalchemy.types import NullType, TypeDecorator

from sqla_shard.dialects.sorting import kind_of, value_of_function
from sqla_shard.exc import BookmarkKeyError, InvalidBookmarkError, InvalidIdError
from sqla_shard.types import IdType, ShardedId

# One statement reads the newest rows of many lists, with a branch for each.
# The number of branches is a power of two, so that SQLAlchemy's compiled cache
# has few statements.


BRANCHES = 64
"""Maximum number of lists that one statement reads."""


def sources(ids: Sequence[int]) -> dict[str, int | None]:
    """Return the parameters with the sources, one for each branch.

    :param ids: ids of the sources of the lists, at least one.
    """
    count = 1 << (len(ids) - 1).bit_length()
    # No row has the source NULL
    padded = [*ids, *[None] * (count - len(ids))]
    return {f"source_{index}": one for index, one in enumerate(padded)}


def branch(index: int, rows: Select[Any], source: Any, *order: Any) -> Select[Any]:
    """Return the branch of one list.

    Its parameters are those of :func:`sources`, and ``number``, the maximum
    number of rows.

    :param index: number of the branch, from 0.
    :param rows: a SELECT of rows of all lists.
    :param source: the column with the source.
    :param order: the columns that order the rows, newest first.
    """
    # Inside a subquery: SQLite has no LIMIT in a branch.
    newest = (
        rows.where(source == bindparam(f"source_{index}", type_=source.type))
        .order_by(*(column.desc() for column in order))
        .limit(bindparam("number", type_=Integer()))
        .subquery()
    )
    return select(*newest.c)


T = TypeVar("T")

#: Maximum number of rows of a page.  Without this limit the driver would
#: raise an error that does not name the argument.
MOST_ROWS = 2**31 - 1
#: Maximum size of a payload: proxies and servers accept URLs of about 8 kB.
MOST_BYTES = 5900
_MAX_BOOKMARK_LENGTH = 8000
_URL_SAFE = re.compile("[-_A-Za-z0-9]*")

# The first byte of a bookmark.
_EARLIER = b"\x01"  # versions without WHERE and cluster in the digest
_PLAIN = b"\x02"
_SIGNED = b"\x03"
_DIGEST = 8  # bytes; detects mistakes
_SIGNATURE = 16  # bytes of HMAC-SHA256; detects forgery
_SHORTEST_KEY = 16
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(frozen=True)
class Page(Generic[T]):
    """A page of rows.

    :ivar items: the rows, in order.
    :ivar next: bookmark of the next page; None on the last page.
    :ivar previous: bookmark of the page before; None on the first page.
    """

    items: list[T]
    next: str | None
    previous: str | None = None

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __bool__(self) -> bool:
        """Return whether the page has rows."""
        return bool(self.items)


def check_limit(limit: int, name: str = "limit") -> None:
    """Refuse an invalid number of rows.

    :param name: name of the argument, for messages.
    :raises ValueError: if ``limit`` is not an int from 1 to :data:`MOST_ROWS`.
    """
    if type(limit) is not int or not 1 <= limit <= MOST_ROWS:
        raise ValueError(f"{name}={limit!r} must be an integer from 1 to {MOST_ROWS}")


class Subject(NamedTuple):
    """The rows that a bookmark belongs to.

    :ivar name: the list and its order, for messages.
    :ivar details: further strings that must be equal when the bookmark is
        used.
    """

    name: str
    details: tuple[str, ...] = ()


class Seal:
    """Signer and verifier of the bookmarks of a cluster.

    Without keys, mistakes are detected, but forgery is not: the payload must
    be checked in any case.

    :param keys: secret keys for HMAC-SHA256.  The first key signs; only
        bookmarks that are signed with one of the keys are accepted.
    """

    def __init__(self, keys: Sequence[bytes] = ()) -> None:
        self._keys = tuple(keys)

    def __repr__(self) -> str:
        return f"<Seal with {len(self._keys)} keys>"

    def seal(self, payload: bytes, subject: Subject) -> str:
        """Return a bookmark of characters that are safe in a URL.

        :param payload: at most :data:`MOST_BYTES` bytes.
        :param subject: the rows that the bookmark belongs to.
        """
        if not self._keys:
            return _written(_PLAIN + _digest(payload, subject) + payload)
        signature = _signature(self._keys[0], payload, subject)
        return _written(_SIGNED + signature + payload)

    def unseal(self, bookmark: object, subject: Subject) -> bytes:
        """Return the payload of :meth:`seal`.

        :raises InvalidBookmarkError: if it is not a bookmark, belongs to
            another subject, or is not signed with a key of this cluster.
        """
        if not isinstance(bookmark, str):
            raise InvalidBookmarkError(
                "a bookmark must be a str, the .next of a page, not a "
                f"{type(bookmark).__name__}",
                bookmark=bookmark,
            )
        sealed = _read(bookmark)
        version, rest = sealed[:1], sealed[1:]
        why = "it was altered, or belongs to another list, order, condition or cluster"
        if version == _EARLIER:
            why = "it is of an earlier version of sqla_shard"
        elif version == _SIGNED and not self._keys:
            why = "it is signed, and this cluster has no bookmark_keys"
        elif version == _PLAIN and self._keys:
            why = "it is not signed, as those of this cluster are"
        elif version == _SIGNED:
            signature, payload = rest[:_SIGNATURE], rest[_SIGNATURE:]
            for key in self._keys:
                right = _signature(key, payload, subject)
                if hmac.compare_digest(signature, right):
                    return payload
        elif version == _PLAIN:
            digest, payload = rest[:_DIGEST], rest[_DIGEST:]
            if digest == _digest(payload, subject):
                return payload
        raise InvalidBookmarkError(
            f"{bookmark_text(bookmark)} is not a bookmark of {subject.name}: {why}",
            bookmark=bookmark,
        )


def seal_of(keys: Sequence[str | bytes], environ: Mapping[str, str]) -> Seal:
    """Return the seal of a cluster.

    :param keys: secrets, or ``"${NAME}"`` for the value of an environment
        variable.
    :param environ: the environment variables.
    :raises BookmarkKeyError: if a value is not a valid key.
    """
    if isinstance(keys, (str, bytes)):
        # Otherwise each character of the string would be a key.
        raise BookmarkKeyError("is one key; pass a list of keys")
    secrets = []
    for index, given in enumerate(keys):
        key: Any = given
        match = _REFERENCE.fullmatch(key) if isinstance(key, str) else None
        if match is not None:
            key = environ.get(match[1])
            if key is None:
                raise BookmarkKeyError(
                    f"names {match[0]}, which is not set", index=index
                )
        if isinstance(key, str):
            key = key.encode("utf-8", "surrogatepass")
        if not isinstance(key, bytes):
            raise BookmarkKeyError(
                f"is a {type(key).__name__}; a key is a str or bytes", index=index
            )
        if len(key) < _SHORTEST_KEY:
            raise BookmarkKeyError(
                f"has {len(key)} bytes, and needs {_SHORTEST_KEY}: use "
                "secrets.token_urlsafe()",
                index=index,
            )
        secrets.append(key)
    return Seal(secrets)


def bookmark_text(bookmark: str) -> str:
    """Return a shortened bookmark for messages."""
    return repr(bookmark if len(bookmark) < 80 else bookmark[:77] + "...")


def _written(sealed: bytes) -> str:
    return base64.urlsafe_b64encode(sealed).rstrip(b"=").decode()


def _read(bookmark: str) -> bytes:
    """Return the bytes of a bookmark; b"" if it is not valid."""
    # Python decodes "+" and "/", too, and warns of them since 3.15.
    if len(bookmark) > _MAX_BOOKMARK_LENGTH or _URL_SAFE.fullmatch(bookmark) is None:
        return b""
    padding = "=" * (-len(bookmark) % 4)
    try:
        sealed = base64.b64decode(bookmark + padding, b"-_", validate=True)
    except ValueError:
        return b""
    # The decoder accepts several strings for the same bytes.
    return sealed if _written(sealed) == bookmark else b""


def _sealed(payload: bytes, subject: Subject) -> bytes:
    # ascii() of a tuple of strings is unambiguous, even with lone surrogates.
    about = (subject.name, *subject.details)
    return ascii(about).encode() + b"\0" + payload


def _digest(payload: bytes, subject: Subject) -> bytes:
    sealed = _sealed(payload, subject)
    return hashlib.blake2b(sealed, digest_size=_DIGEST).digest()


def _signature(key: bytes, payload: bytes, subject: Subject) -> bytes:
    sealed = _sealed(payload, subject)
    return hmac.digest(key, sealed, "sha256")[:_SIGNATURE]


# The payload of a bookmark: the values of the row before the page.
#
# Without a key anyone can forge a bookmark.  So each value has one of a few
# formats, is short before anything is computed from it, has only one spelling,
# and is of a type that its column can be compared with: servers raise an error
# if a date is compared with the string ``x``, and ``Decimal("1e999999999")``
# uses all memory.


class BookmarkValueError(ValueError):
    """Raised for a value that a key cannot have; the session catches it.

    :ivar index: index of the key; None if all values together are invalid.
    """

    def __init__(self, index: int | None = None) -> None:
        super().__init__("not the value of a key")
        self.index = index


@dataclass(frozen=True)
class PagePosition:
    """The position of a page.

    :ivar values: values of the row after which the page begins; empty if
        the page begins with the first or the last row.
    :ivar back: whether rows are read backwards.
    """

    values: Sequence[Any] = ()
    back: bool = False


class _ValueFormat(NamedTuple):
    """Format of the values of a type; ``read`` may raise ValueError."""

    kind: type[Any]
    pattern: re.Pattern[str]
    write: Callable[[Any], str]
    read: Callable[[str], Any]


def _decimal(value: Decimal) -> str:
    # Servers have 65 digits; a large exponent would give a gigabyte of zeros.
    fits = value.is_finite() and -100 < value.adjusted() < 100
    return format(value, "f") if fits else ""


def _microseconds(value: dt.timedelta) -> str:
    return str(value // dt.timedelta(microseconds=1))


def _time(text: str) -> dt.timedelta:
    duration = dt.timedelta(microseconds=int(text))
    if abs(duration) > _LONGEST_TIME:
        raise BookmarkValueError
    return duration


#: Maximum value of a TIME of MySQL, rounded up
_LONGEST_TIME = dt.timedelta(hours=839)
_DAY = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_CLOCK = r"[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{6})?"
#: Dates that a driver returns as a string, since Python has no such day
_NO_DAY = re.compile(
    r"[0-9]{4}-(?:00-(?:[0-2][0-9]|3[01])|(?:0[0-9]|1[0-2])-00)"
    r"(?: (?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?)?"
)
_UUID = re.compile("[0-9a-fA-F]{8}(?:-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}")

# A datetime is also a date, so it must come first.
_FORMATS: dict[str, _ValueFormat] = {
    "i": _ValueFormat(int, re.compile("-?[0-9]{1,65}"), lambda v: str(int(v)), int),
    "f": _ValueFormat(float, re.compile("[-+.e0-9]{1,30}"), float.__repr__, float),
    "n": _ValueFormat(
        Decimal, re.compile(r"-?[0-9]{1,66}(?:\.[0-9]{1,66})?"), _decimal, Decimal
    ),
    "t": _ValueFormat(
        dt.datetime,
        re.compile(f"{_DAY}T{_CLOCK}"),
        dt.datetime.isoformat,
        dt.datetime.fromisoformat,
    ),
    "d": _ValueFormat(
        dt.date, re.compile(_DAY), dt.date.isoformat, dt.date.fromisoformat
    ),
    "h": _ValueFormat(
        dt.time, re.compile(_CLOCK), dt.time.isoformat, dt.time.fromisoformat
    ),
    "l": _ValueFormat(dt.timedelta, re.compile("-?[0-9]{1,13}"), _microseconds, _time),
    "s": _ValueFormat(str, re.compile(".*", re.DOTALL), str, str),
}
_NULL = "-"
_HEAD = struct.Struct(">cH")
_BACK = b"<"
_ONWARD = b">"

_NUMBERS = frozenset("ifn")
_DAYS = frozenset("tds")
_TIMES = frozenset("lh")
_TEXT = frozenset("s")
#: Formats of the values that SQLite stores; it compares any of their types.
_SQLITE = frozenset("ifs")


def pack(
    values: Sequence[Any], keys: Sequence[PageKey], dialect: Dialect, *, back: bool
) -> bytes:
    """Return the payload of a bookmark.

    :param values: one value per key, or none.
    :raises BookmarkValueError: if the value of a key has no format.
    """
    out = [_BACK if back else _ONWARD]
    for index, value in enumerate(values):
        try:
            tag = _tag(value)
            text = "" if tag == _NULL else _FORMATS[tag].write(value)
            body = text.encode()
            _value(tag, text, keys[index], dialect)
        except ValueError:
            raise BookmarkValueError(index) from None
        if len(body) > MOST_BYTES:
            raise BookmarkValueError(index)
        out.append(_HEAD.pack(tag.encode(), len(body)) + body)
    payload = b"".join(out)
    if len(payload) > MOST_BYTES:
        raise BookmarkValueError
    return payload


def unpack(payload: bytes, keys: Sequence[PageKey], dialect: Dialect) -> PagePosition:
    """Return the position in a payload of :func:`pack`.

    :raises BookmarkValueError: if the payload is not valid.
    """
    if payload[:1] not in (_BACK, _ONWARD):
        raise BookmarkValueError
    parts = list(_parts(payload[1:]))
    if len(parts) not in (0, len(keys)):
        raise BookmarkValueError
    values = [
        _value(tag, text, key, dialect)
        for (tag, text), key in zip(parts, keys, strict=bool(parts))
    ]
    return PagePosition(values, payload[:1] == _BACK)


def _tag(value: Any) -> str:
    if value is None:
        return _NULL
    for tag, value_format in _FORMATS.items():
        if isinstance(value, value_format.kind):
            return tag
    raise BookmarkValueError


def _parts(payload: bytes) -> Iterator[tuple[str, str]]:
    """Yield the tag and the encoded string of each value."""
    at = 0
    while at < len(payload):
        body = at + _HEAD.size
        if body > len(payload):
            raise BookmarkValueError
        tag, length = _HEAD.unpack_from(payload, at)
        at = body + length
        if at > len(payload):
            raise BookmarkValueError
        try:
            yield tag.decode("ascii"), payload[body:at].decode()
        except UnicodeDecodeError:
            raise BookmarkValueError from None


def _value(tag: str, text: str, key: PageKey, dialect: Dialect) -> Any:
    """Return the value of a key from its encoded string.

    :raises BookmarkValueError: if the string is not a valid value.
    """
    if tag == _NULL:
        if text or not key.nullable:
            raise BookmarkValueError
        return None
    if tag not in _tags(key.element, dialect):
        raise BookmarkValueError
    value_format = _FORMATS[tag]
    if not value_format.pattern.fullmatch(text):
        raise BookmarkValueError
    try:
        value = value_format.read(text)
    except ValueError:  # such as a day that does not exist
        raise BookmarkValueError from None
    # Each value has one spelling: 1 cannot be 01, and inf cannot be 1e999.
    if value_format.write(value) != text or not _fits(value, key.element, dialect):
        raise BookmarkValueError
    return value


def _fits(value: Any, element: Any, dialect: Dialect) -> bool:
    """Return whether a value of the right type is in the range of a key."""
    type_ = element.type
    if isinstance(type_, IdType):
        try:
            type_.shard_of(value, str(element))
        except InvalidIdError:
            return False
        return True
    if dialect.name == "sqlite":
        return not isinstance(value, int) or -(1 << 63) <= value < 1 << 63
    if isinstance(value, str):
        if isinstance(type_, Uuid):
            return _UUID.fullmatch(value) is not None
        if _tags(element, dialect) != _TEXT:
            return _NO_DAY.fullmatch(value) is not None
    return True


def _tags(element: Any, dialect: Dialect) -> frozenset[str]:
    """Return the formats that values of a key may have."""
    type_ = element.type
    if isinstance(type_, IdType):
        return frozenset("i")
    if dialect.name == "sqlite":
        return _SQLITE
    while isinstance(type_, TypeDecorator):
        type_ = type_.load_dialect_impl(dialect)
    for kinds, tags in (
        ((String, Uuid), _TEXT),
        ((Integer, Numeric, Float, Boolean), _NUMBERS),
        ((Date, DateTime, Interval), _DAYS),
        ((Time,), _TIMES),
    ):
        if isinstance(type_, kinds):
            return tags
    return {"number": _NUMBERS, "time": _DAYS | _TIMES, "text": _TEXT}.get(
        value_of_function(element) or "", _NUMBERS | _DAYS | _TIMES
    )


@dataclass(frozen=True)
class PageKey:
    """A value of ORDER BY.

    :ivar element: the expression.
    :ivar nullable: whether the value may be NULL.
    """

    element: Any
    descending: bool
    nullable: bool

    @property
    def is_text(self) -> bool:
        """Whether the value is a string."""
        return kind_of(self.element) == "text"

    @property
    def ordered(self) -> Any:
        """The element of ORDER BY."""
        return self.element.desc() if self.descending else self.element.asc()

    @property
    def value(self) -> Any:
        """The expression to select and to compare."""
        # Select the driver's value: the Python value may be rounded, such as
        # decimals that SQLite stores as floats, or not comparable, such as
        # True and members of an Enum.  Ids are an exception: the driver
        # returns only their local part.
        if isinstance(self.element.type, ShardedId):
            return self.element
        return type_coerce(self.element, NullType())

    def given(self, value: Any) -> Any:
        """Return a value of a bookmark, for comparisons with the key."""
        # Pass a type: SQLAlchemy would treat a timedelta as an Interval.
        bound = literal(value, self.value.type)
        if isinstance(value, dt.timedelta):
            # MySQL compares time(), and the text that drivers send, as texts:
            # "00:00:00" and "00:00:00.000000" are two.
            return cast(bound, TIME(fsp=6))
        return bound
