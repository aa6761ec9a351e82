"""Classes whose rows are cached, and clusters that cache them."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator
from datetime import date, datetime, time
from decimal import Decimal
from secrets import token_bytes
from typing import Any

import pytest
from sqlalchemy import (
    BigInteger,
    Boolean,
    Date,
    DateTime,
    Enum,
    Float,
    ForeignKey,
    JSON,
    LargeBinary,
    Numeric,
    String,
    Time,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from sqla_shard import blob_field, Cluster, MappingMixin, ObjectMixin
from sqla_shard.cache import Cached
from sqla_shard.testing import StatementLog
from sqla_shard.types import ObjectRef, ShardedId, UTCTimestamp
from tests.models.backends import Clusters, On
from tests.models.layouts import LAYOUT
from tests.servers.memcached import nodes

USER, EVERYTHING, BOARD, PIN, NOTE = 1, 2, 3, 4, 5
SHARDS = 8
PATIENCE = 60
MEMORY = {"backend": "dogpile.cache.memory"}


class Base(DeclarativeBase):
    id_layout = LAYOUT


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class User(ObjectMixin, Base, type_id=USER):
    __tablename__ = "users"

    name: Mapped[str] = blob_field(default="")
    n: Mapped[int] = blob_field(default=0)
    tags: Mapped[list[str]] = blob_field(default_factory=list)
    city: Mapped[str | None] = mapped_column(String(40))
    bio: Mapped[str | None] = mapped_column(String(200), deferred=True)


class Everything(ObjectMixin, Base, type_id=EVERYTHING):
    """With a column of each type."""

    __tablename__ = "everything"

    big: Mapped[int | None] = mapped_column(BigInteger)
    text: Mapped[str | None] = mapped_column("words", String(100))
    moment: Mapped[datetime | None] = mapped_column(DateTime)
    day: Mapped[date | None] = mapped_column(Date)
    clock: Mapped[time | None] = mapped_column(Time)
    price: Mapped[Decimal | None] = mapped_column(Numeric(20, 6))
    ratio: Mapped[float | None] = mapped_column(Float(53))
    flag: Mapped[bool | None] = mapped_column(Boolean)
    color: Mapped[Color | None] = mapped_column(Enum(Color))
    data_bytes: Mapped[bytes | None] = mapped_column(LargeBinary(200))
    document: Mapped[Any | None] = mapped_column(JSON)
    at: Mapped[datetime | None] = mapped_column(UTCTimestamp())
    owner_id: Mapped[int | None] = mapped_column(ObjectRef(USER))
    free: Mapped[Any] = blob_field(default=None)


class Board(ObjectMixin, Base, type_id=BOARD):
    __tablename__ = "boards"

    name: Mapped[str] = blob_field(default="")
    notes: Mapped[list[Note]] = relationship(
        back_populates="board", cascade="all, delete-orphan", order_by="Note.id"
    )


class Note(ObjectMixin, Base, type_id=NOTE, colocate_with="board_id"):
    __tablename__ = "notes"

    board_id: Mapped[int] = mapped_column(
        ShardedId(BOARD), ForeignKey("boards.local_id")
    )
    text: Mapped[str] = blob_field(default="")
    board: Mapped[Board] = relationship(back_populates="notes")


class Pin(ObjectMixin, Base, type_id=PIN):
    __tablename__ = "pins"

    title: Mapped[str] = blob_field(default="")


class BoardHasPins(MappingMixin, Base, source=Board, target=Pin):
    """Five rows of each list are cached."""


class BoardHasRatedPins(MappingMixin, Base, source=Board, target=Pin):
    stars: Mapped[int] = mapped_column(default=3)


class PinInBoards(MappingMixin, Base, source=Pin, target=Board):
    pass


class BoardKeepsPins(MappingMixin, Base, source=Board, target=Pin, inverse=PinInBoards):
    pass


CLASSES: dict[Any, Any] = {
    User: "objects",
    Everything: "objects",
    Board: "objects",
    Note: "objects",
    Pin: "objects",
    BoardHasPins: Cached(region="lists", rows=5),
    BoardHasRatedPins: "lists",
    BoardKeepsPins: "lists",
    PinInBoards: "lists",
}


# -- clusters


def configure(cluster: Cluster, region: dict[str, Any]) -> None:
    """Cache all classes, in two regions of one kind."""
    cluster.configure_cache(
        {"objects": dict(region), "lists": dict(region)}, classes=CLASSES, prefix="test"
    )


# -- what tests do with them


def stored(cluster: Cluster, new: Any, shard_id: int = 5, *, warm: bool = False) -> int:
    """Insert an object and return its id.

    :param warm: whether it is to be in the cache.
    """
    cls = type(new)
    with cluster.begin(shard_id=shard_id) as session:
        session.add(new)
        session.flush()
        object_id: int = new.id
    if warm:
        settled(lambda: seen(cluster, cls, object_id))
    return object_id


def seen(cluster: Cluster, cls: Any, object_id: int) -> Any:
    """Return an object as another session sees it, by the cache."""
    with cluster.session() as session:
        return session.get(cls, object_id)


def cached_of(cluster: Cluster, cls: Any) -> Any:
    assert cluster.cache is not None
    return cluster.cache._of_class(cls)


def key_of(cluster: Cluster, cls: Any, object_id: int) -> str:
    """Return the key of an object, or of the list of a source."""
    return f"{cached_of(cluster, cls).head}{object_id}"


def value_of(cluster: Cluster, key: str, region: str = "objects") -> bytes:
    """Return the cached value of a key; empty if there is none."""
    assert cluster.cache is not None
    store = cluster.cache.region(region).store
    return store.fetch([key], 0)[key].value


def poison(cluster: Cluster, key: str, value: bytes, region: str = "objects") -> None:
    """Put a value under a key, whatever was there."""
    assert cluster.cache is not None
    store = cluster.cache.region(region).store
    assert store.unblock([key], token_bytes(16)) == set()
    lease = store.fetch([key], 5)[key].lease
    assert lease is not None
    assert store.fill({key: (lease, value)}, 60) == {key}


@contextlib.contextmanager
def sent() -> Iterator[list[str]]:
    """Collect the statements that are sent to servers."""
    found: list[str] = []
    with StatementLog() as log:
        try:
            yield found
        finally:
            found += [event.statement for event in log.executions]


def changed(cluster: Cluster, method: Any, *args: Any, **options: Any) -> Any:
    """Call a method of a mapping class in a transaction."""
    with cluster.begin() as session:
        return method(session, *args, **options)


def settled(read: Any) -> None:
    """Read, and see that another read sends no statement.

    No tombstone outlives its transaction, in an event loop either.
    """
    # The first may find that there was nothing, and take that out.
    read()
    read()
    with sent() as statements:
        read()
    assert statements == []


class Suite:
    """The test module has a fixture ``cluster``."""

    @pytest.fixture
    def session(self, cluster: Cluster) -> Iterator[Any]:
        with cluster.session() as session:
            yield session


@contextlib.contextmanager
def _with_a_cache(
    cluster: Cluster, request: pytest.FixtureRequest, on: On
) -> Iterator[None]:
    """Cache in memory on SQLite, on two memcached nodes with MariaDB."""
    if not on.live:
        configure(cluster, MEMORY)
        yield
        return
    request.getfixturevalue("memcached_installed")
    with nodes(2) as servers:
        addresses = [server.address for server in servers]
        # A busy machine may take its time.
        arguments = {"servers": addresses, "timeout": 5.0}
        region = {"backend": "sqla_shard.memcached"}
        configure(cluster, {**region, "arguments": arguments})
        yield


#: Clusters with these tables.
CACHED = Clusters(Base.metadata, SHARDS, prepare=_with_a_cache)
cached_on_sqlite = CACHED.on_sqlite
cached_on_servers = CACHED.on_servers
