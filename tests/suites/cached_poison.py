"""Values in the cache that are foreign, or outdated."""

from __future__ import annotations

import pickle
import random
import zlib
from typing import Any

import pytest
from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_shard import blob_field, Cluster, ObjectMixin
from sqla_shard.cache import Cached
from tests.models.cached_models import (
    Board,
    BoardHasPins,
    CACHED,
    changed,
    key_of,
    Pin,
    poison,
    seen,
    sent,
    stored,
    Suite,
    USER,
    User,
    value_of,
)


class Bomb:
    """Goes off when it is unpickled."""

    went_off = False

    def __reduce__(self) -> Any:
        return _go_off, ()


def _go_off() -> None:
    Bomb.went_off = True


#: Contents after the tag of a value.
BODIES: dict[str, bytes] = {
    "nothing": b"",
    "text": b"what?",
    "bytes": bytes(range(256)),
    "half": b'[70,"{}",',
    "not a list": b'{"t": "x"}',
    "a time": b'[{"t":"x"},{"t":"x"},{"t":"x"},{"t":"x"}]',
    "a time of a number": b'[{"t":1},{"t":null},{"t":[]},{"t":{}}]',
    "a date": b'[{"d":"2024-13-01"}]',
    "bytes that are none": '[{"b":"é"}]'.encode(),
    "a decimal": b'[{"n":"x"}]',
    "a span": b'[{"i":[1e400,0,0]}]',
    "a span of text": b'[{"i":["a","b","c"]}]',
    "an unknown tag": b'[{"__class__":"os.system"}]',
    "no tag": b"[{}]",
    "two tags": b'[{"t":"x","d":"x"}]',
    "fewer columns": b"[1]",
    "more columns": b"[" + b"null," * 40 + b"null]",
    "null": b"null",
    "true": b"true",
    "a number": b"7",
    "deep": b"[" * 100_000,
    "deep and closed": b"[" * 50_000 + b"]" * 50_000,
    "digits": b"9" * 10_000,
    "a huge number": b"[" + b"9" * 10_000 + b"]",
    "a pickle": pickle.dumps(Bomb()),
    "packed": zlib.compress(b"x" * 1000),
    "a row": b"],[1",
    "a row that ends": b"[1],[2]",
    "no text": b"[\xff\xfe]",
    "absent": b"-",
    "absent by nobody": b"-0123456789abcdef",
    "absent by bytes": b"-\xff\xfe",
}


def _tag(value: bytes) -> bytes:
    """Return what stands before the body: two words and their colons."""
    digest, generation, _ = value.split(b":", 2)
    return b"%s:%s:" % (digest, generation)


class Garbage(Suite):
    """Is a miss, never an error; and is replaced."""

    @pytest.mark.parametrize("tagged", [True, False])
    @pytest.mark.parametrize("name", BODIES)
    def test_objects(self, cluster, name, tagged):
        users = [stored(cluster, User(name=str(i)), warm=True) for i in range(3)]
        key = key_of(cluster, User, users[1])
        value = value_of(cluster, key)
        body = BODIES[name]
        poison(cluster, key, (_tag(value) if tagged else b"") + body or b"?")
        for _ in range(2):
            with cluster.session() as session:
                found = session.get_many(User, users)
                assert [user.name for user in found] == ["0", "1", "2"]
        assert seen(cluster, User, users[1]).name == "1"
        assert value_of(cluster, key) == value
        with sent() as statements:
            seen(cluster, User, users[1])
        assert statements == []
        assert not Bomb.went_off

    @pytest.mark.parametrize("tagged", [True, False])
    @pytest.mark.parametrize("name", BODIES)
    def test_lists(self, cluster, board, name, tagged):
        board, pins = board
        key = key_of(cluster, BoardHasPins, board)
        count = key.replace(f":{board}", f":count:{board}")
        self.look(cluster, board, pins)
        values = {one: value_of(cluster, one, "lists") for one in (key, count)}
        for one, value in values.items():
            tag = _tag(value) if tagged else b""
            poison(cluster, one, tag + BODIES[name] or b"?", "lists")
        for _ in range(2):
            self.look(cluster, board, pins)
        for one, value in values.items():
            assert value_of(cluster, one, "lists") == value

    @pytest.fixture(scope="class")
    @classmethod
    def board(cls, cluster):
        board = stored(cluster, Board())
        pins = [stored(cluster, Pin(title="p")) for _ in range(7)]
        changed(cluster, BoardHasPins.append_many, board, pins)
        return board, pins[::-1]

    def look(self, cluster, board, pins):
        with cluster.session() as session:
            page = BoardHasPins.page(session, board, 4)
            assert [row.pin_id for row in page] == pins[:4]
        with cluster.session() as session:
            # More than are kept: it is kept on its own.
            assert BoardHasPins.count(session, board) == 7

    @pytest.mark.parametrize("name", BODIES)
    def test_lists_that_are_appended_to(self, cluster, name):
        """A process that stores the longer list has read the old one."""
        board = stored(cluster, Board())
        pins = [stored(cluster, Pin(title="p")) for _ in range(3)]
        changed(cluster, BoardHasPins.append_many, board, pins[:2])
        self.look_at(cluster, board, pins[1::-1])
        key = key_of(cluster, BoardHasPins, board)
        value = value_of(cluster, key, "lists")
        poison(cluster, key, _tag(value) + BODIES[name] or b"?", "lists")
        changed(cluster, BoardHasPins.append, board, pins[2])
        self.look_at(cluster, board, pins[::-1])

    def look_at(self, cluster, board, pins):
        for _ in range(2):
            with cluster.session() as session:
                page = BoardHasPins.page(session, board, 5)
                assert [row.pin_id for row in page] == pins


class Damage(Suite):
    """Of rows, and of absences."""

    def test_absences(self, cluster):
        """Poisoned values in the place of absences are never used."""
        absent = stored(cluster, User(name="x"))
        with cluster.begin() as session:
            session.delete(session.get(User, absent))
        for _ in range(2):
            assert seen(cluster, User, absent) is None
        name = key_of(cluster, User, absent).replace(str(absent), "none:objects:5")
        assert value_of(cluster, name)
        for body in BODIES.values():
            poison(cluster, name, body or b"?")
            for _ in range(3):
                assert seen(cluster, User, absent) is None
        with cluster.begin() as session:
            session.add(User(id=absent, name="new"))
        assert seen(cluster, User, absent).name == "new"

    def test_damaged_values(self, cluster, rng):
        """With some of their bytes changed, cut off, or there twice.

        What is JSON still may be of another value: only that none of them
        is an error where the row cannot be read.
        """
        new = stored(cluster, User(name="x", city="Rome"), warm=True)
        key = key_of(cluster, User, new)
        value = value_of(cluster, key)
        for _ in range(100):
            poison(cluster, key, _cut(rng, value))
            found = seen(cluster, User, new)
            assert found.name == "x"
            assert seen(cluster, User, new).city == "Rome"


def _cut(rng: random.Random, value: bytes) -> bytes:
    """Return a part of a value, or one with bytes that JSON has not."""
    if rng.random() < 0.5:
        return value[: rng.randrange(1, len(value))]
    at = rng.randrange(len(value))
    return value[:at] + bytes([rng.randrange(0x80, 0x100)]) + value[at:]


class Versions(Suite):
    """Programs of several versions use one cache at a time."""

    def test_another_version_of_the_class(self, cluster, twin):
        new = stored(cluster, User(name="x"), warm=True)
        other = twin({User: Cached(region="objects", version=2)})
        self.check(cluster, other, User, User, new)

    def test_other_columns(self, cluster, twin):
        """Of a process that does not know a column yet, or any more."""

        class Base(DeclarativeBase):
            pass

        class Shorter(ObjectMixin, Base, type_id=USER):
            __tablename__ = "users"
            name: Mapped[str] = blob_field(default="")
            bio: Mapped[str | None] = mapped_column(String(200))

        new = stored(cluster, User(name="x", bio="long"), warm=True)
        other = twin({Shorter: "objects"})
        with sent() as statements:
            assert seen(other, Shorter, new).bio == "long"
        assert statements
        self.check(cluster, other, User, Shorter, new)

    def check(
        self, cluster: Cluster, other: Cluster, cls: Any, twin: Any, new: int
    ) -> None:
        for number in range(3):
            for reader, entity in ((cluster, cls), (other, twin)):
                for _ in range(2):
                    with sent() as statements:
                        assert seen(reader, entity, new).name in "x012"
                # Taken from the other, and then read as its own.
                assert len(statements) <= 1
            for writer, entity in ((cluster, cls), (other, twin)):
                with writer.begin() as session:
                    session.get(entity, new).name = str(number)
                assert seen(cluster, cls, new).name == str(number)
                assert seen(other, twin, new).name == str(number)

    @pytest.fixture
    def twin(self, cluster):
        """Return another process's cluster, so to speak."""
        made = []

        def make(classes):
            other = Cluster(cluster.topology)
            made.append(other)
            regions = {
                name: region.region for name, region in cluster.cache.regions.items()
            }
            other.configure_cache(regions, classes=classes, prefix="test")
            return other

        yield make
        for other in made:
            other.close()


cluster = CACHED.on_backend()
