"""Values of the cache, changed at random, and what reads make of them.

A read answers as the database does, or with what might be a value of the
same types; it never raises.  A value that cannot be read is gone after it.
"""

from __future__ import annotations

import json
import os
import random
import socket
from collections.abc import Callable
from datetime import date, datetime, time, UTC
from decimal import Decimal
from typing import Any, ClassVar, NamedTuple

import pytest

from sqla_shard.cache import cached_list, cached_objects
from tests.models.cached_models import (
    Board,
    BoardHasPins,
    BoardHasRatedPins,
    CACHED,
    changed,
    Color,
    Everything,
    key_of,
    Pin,
    poison,
    stored,
    Suite,
    USER,
    User,
    value_of,
)
from tests.models.layouts import unpack

MANY = 100 if os.environ.get("SQLA_SHARD_SOAK") == "1" else 1

#: JSON that may stand where something else was.
ODD: list[Any] = [
    *(None, True, False, 0, 1, -1, 7, 2**31, 2**63, 2**64, 10**30, -(2**70)),
    *(0.0, 1.5, 206158430286.0, 1e308, "", "x", "0", "7", "\ud800", "é\n"),
    *([], [[]], [None], {}, {"t": "x"}, {"t": "2024-01-01T00:00:00"}),
    *({"t": "2024-01-01T00:00:00+05:00"}, {"d": "2024-01-01"}),
    *({"n": "1"}, {"n": "NaN"}, {"n": "sNaN"}, {"n": "1e999999999"}),
    *({"n": 7}, {"n": [0, [1], 2]}, {"b": "eA=="}, {"b": "?"}, {"b": 7}),
    *({"i": [1, 2, 3]}, {"i": [True, 0, 0]}, {"i": [10**12, 0, 0]}),
    *({"a": 1, "b": 2}, {"": None}, "2024-01-01 00:00:00.000000"),
]
#: The same as texts, with what Python cannot write.
RAW = [
    *(b"NaN", b"-Infinity", b"1e400", b"9" * 5000, b'"\\ud800"', b"", b"-"),
    *(b"[" * 2000, b"[" * 2000 + b"]" * 2000, b'{"t":', b"\xff", b"\x00"),
]


class Shown(NamedTuple):
    """A value that was read, and whether it is plausible."""

    value: Any
    is_plausible: bool


# -- changing values


def mutated(rng: random.Random, value: bytes) -> bytes:
    """Return a value of the cache with something changed."""
    digest, generation, body = value.split(b":", 2)
    tag = b"%s:%s:" % (digest, generation)
    if rng.random() < 0.1:
        return _bytes(rng, value)
    if rng.random() < 0.2:
        return tag + _bytes(rng, body)
    try:
        document = json.loads(body)
    except ValueError:
        return tag + _bytes(rng, body)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        document = _json(rng, document)
    return tag + json.dumps(document, separators=(",", ":")).encode()


def _bytes(rng: random.Random, value: bytes) -> bytes:
    at = rng.randrange(len(value) + 1)
    how = rng.randrange(6)
    if how == 0:
        return value[:at]
    if how == 1:
        return value[at:]
    if how == 2:
        return value + value
    if how == 3:
        return value[:at] + rng.choice(RAW) + value[at:]
    if how == 4:
        return value[:at] + rng.choice(RAW) + value[at + 1 :]
    return value[:at] + bytes([rng.randrange(256)]) + value[at + 1 :]


def _json(rng: random.Random, value: Any) -> Any:
    """Return a document with one of its parts changed."""
    if isinstance(value, list) and value and rng.random() < 0.85:
        new = list(value)
        at = rng.randrange(len(new))
        how = rng.random()
        if how < 0.05:
            del new[at]
        elif how < 0.1:
            new.insert(at, new[at])
        elif how < 0.15:
            other = rng.randrange(len(new))
            new[at], new[other] = new[other], new[at]
        else:
            new[at] = _json(rng, new[at])
        return new
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        if rng.random() < 0.3:
            return {rng.choice("tdinbx"): value[key]}
        return {**value, key: _json(rng, value[key])}
    if isinstance(value, str) and value and rng.random() < 0.5:
        return _text(rng, value)
    if type(value) is int and rng.random() < 0.3:
        return value ^ 1 << rng.randrange(70)
    return rng.choice(ODD)


def _text(rng: random.Random, value: str) -> Any:
    try:
        # The document of an object.
        inner = json.loads(value)
    except ValueError:
        inner = None
    if isinstance(inner, dict) and rng.random() < 0.8:
        return json.dumps(_json(rng, inner))
    at = rng.randrange(len(value))
    return value[:at] + rng.choice(["", "0", "}", '"', "\0", "\ud800"])


# -- plausible values


def _is_plain(value: Any) -> bool:
    return value is None or type(value) in (bool, int, float, str, list, dict)


def _is_reference(value: Any) -> bool:
    return type(value) is int and unpack(value) is not None


_EVERYTHING: dict[str, Callable[[Any], bool]] = {
    "big": lambda one: type(one) is int and -(2**63) <= one < 2**64,
    "text": lambda one: type(one) is str,
    "moment": lambda one: type(one) is datetime and one.tzinfo is None,
    "day": lambda one: type(one) is date,
    "clock": lambda one: type(one) is time and one.tzinfo is None,
    "price": lambda one: type(one) is Decimal and one.is_finite(),
    "ratio": lambda one: type(one) is float,
    "flag": lambda one: type(one) is bool,
    # MySQL has '' for a value that is not one of the enumeration.
    "color": lambda one: one == "" or type(one) is Color,
    "data_bytes": lambda one: type(one) is bytes,
    "at": lambda one: type(one) is datetime and one.tzinfo is not None,
    "owner_id": _is_reference,
}


def everything(one: Any) -> Shown:
    """Read all of an object."""
    found = {name: getattr(one, name) for name in _EVERYTHING}
    plausible = all(
        value is None or _EVERYTHING[name](value) for name, value in found.items()
    )
    found.update(free=one.free, document=one.document, ts=one.ts, id=one.id)
    return Shown(
        _comparable(found),
        plausible and type(one.ts) is datetime and one.ts.tzinfo is not None,
    )


def user(one: Any) -> Shown:
    """Read all of a user."""
    tags = list(one.tags)
    found = (one.id, one.name, one.n, tags, one.city, one.ts)
    plausible = (
        type(one.id) is int
        and unpack(one.id).type_id == USER
        and type(one.name) is str
        and type(one.n) is int
        and all(type(tag) is str for tag in tags)
        and (one.city is None or type(one.city) is str)
        and type(one.ts) is datetime
        and one.ts.tzinfo is not None
    )
    return Shown(_comparable(found), plausible)


def _comparable(value: Any) -> str:
    return repr(value)


# -- the items of a store


class Items:
    """The items of the store of a region, as they are.

    :param cluster: whose cache it is.
    """

    def __init__(self, cluster: Any, region: str) -> None:
        self._cluster = cluster
        self._region = region
        self._store = cluster.cache.region(region).store

    def get(self, key: str) -> bytes:
        return value_of(self._cluster, key, self._region)

    def put(self, key: str, value: bytes) -> None:
        poison(self._cluster, key, value or b"?", self._region)


class MemcachedItems(Items):
    """With their flags, past the protocol of the cache."""

    def _say(self, key: str, command: bytes, end: bytes) -> bytes:
        host, _, port = self._store.node_of(key).rpartition(":")
        with socket.create_connection((host, int(port)), 20) as line:
            line.sendall(command)
            answer = b""
            while not answer.endswith(end):
                got = line.recv(65536)
                assert got, answer
                answer += got
            return answer

    def put_with(self, key: str, value: bytes, flags: int) -> None:
        said = b"set %s %d 60 %d\r\n%s\r\n" % (
            *(key.encode(), flags, len(value)),
            value,
        )
        assert self._say(key, said, b"\r\n") == b"STORED\r\n"

    def flags(self, key: str) -> int | None:
        answer = self._say(key, b"get %s\r\n" % key.encode(), b"END\r\n")
        return int(answer.split()[2]) if answer != b"END\r\n" else None


# -- reads


class Case(NamedTuple):
    """One value of the cache, and how it is read."""

    key: str
    region: str
    read: Callable[[Any], Shown]


@cached_objects("objects", format="mutated:object:%d")
def documents(session: Any, ids: list[int]) -> dict[int, Any]:
    return {one: {"n": one, "of": [1.5, None, "x"]} for one in ids}


@cached_objects("objects", format="mutated:listed:%d")
def listed(session: Any, ids: list[int]) -> list[Any]:
    return [[one, "x"] for one in ids]


@cached_list("objects", format="mutated:list:%d", rows=10)
def numbers(session: Any, one: int, offset: int, limit: int) -> list[Any]:
    return list(range(20))[offset : offset + limit]


def _full() -> Everything:
    return Everything(
        big=2**62,
        text="wörds\\ud800",
        moment=datetime(2024, 2, 29, 12, 30, 15),
        day=date(2024, 2, 29),
        clock=time(23, 59, 58),
        price=Decimal("12345.678900"),
        ratio=0.1,
        flag=True,
        color=Color.BLUE,
        data_bytes=b"\x00\xff",
        document={"a": [1, None]},
        at=datetime(2024, 2, 29, tzinfo=UTC),
        owner_id=None,
        free={"x": [1, 2.5]},
    )


def _read_page(session: Any, board: int, cls: Any) -> Shown:
    page = list(cls.page(session, board, 4))
    found = [(row.board_id, row.pin_id, row.sequence) for row in page]
    numbers = [sequence for _, _, sequence in found]
    return Shown(
        _comparable(found),
        all(type(cell) is int for row in found for cell in row)
        and all(source == board for source, _, _ in found)
        and numbers == sorted(numbers, reverse=True)
        and len({pin for _, pin, _ in found}) == len(found),
    )


def _read_count(session: Any, board: int) -> Shown:
    count = BoardHasPins.count(session, board)
    return Shown(count, type(count) is int and count >= 0)


def _plain_result(value: Any) -> Shown:
    if isinstance(value, dict):
        plausible = all(_is_plain(one) for one in value.values())
    else:
        plausible = type(value) is list and all(map(_is_plain, value))
    return Shown(_comparable(value), plausible)


class Mutated(Suite):
    """The test module has a fixture ``cluster``, and perhaps ``items``."""

    times = 40 * MANY

    @pytest.fixture
    def items(self) -> type[Items]:
        return Items

    @pytest.fixture(scope="class")
    @classmethod
    def cases(cls, cluster: Any) -> list[Case]:
        one = stored(cluster, User(name="n", tags=["a", "b"], city="Rome"))
        full = stored(cluster, _full())
        absent = stored(cluster, User(name="x"))
        with cluster.begin() as session:
            session.delete(session.get(User, absent))
        board = stored(cluster, Board())
        pins = [stored(cluster, Pin(title="p")) for _ in range(7)]
        for mapping in (BoardHasPins, BoardHasRatedPins):
            changed(cluster, mapping.append_many, board, pins)
        prefix = cluster.cache.prefix
        lists = key_of(cluster, BoardHasPins, board)
        return [
            Case(
                key_of(cluster, User, one),
                "objects",
                lambda session: user(session.get(User, one)),
            ),
            Case(
                key_of(cluster, User, one),
                "objects",
                lambda session: user(session.get_many(User, [one])[0]),
            ),
            Case(
                key_of(cluster, Everything, full),
                "objects",
                lambda session: everything(session.get(Everything, full)),
            ),
            Case(
                key_of(cluster, User, absent),
                "objects",
                lambda session: Shown(session.get(User, absent), False),
            ),
            Case(
                lists, "lists", lambda session: _read_page(session, board, BoardHasPins)
            ),
            Case(
                key_of(cluster, BoardHasRatedPins, board),
                "lists",
                lambda session: _read_page(session, board, BoardHasRatedPins),
            ),
            Case(
                lists.replace(f":{board}", f":count:{board}"),
                "lists",
                lambda session: _read_count(session, board),
            ),
            Case(
                f"{prefix}:f:mutated:object:7",
                "objects",
                lambda session: _plain_result(documents(session, [7])),
            ),
            Case(
                f"{prefix}:f:mutated:listed:7",
                "objects",
                lambda session: _plain_result(listed(session, [7])),
            ),
            Case(
                f"{prefix}:f:mutated:list:7",
                "objects",
                lambda session: _plain_result(numbers(session, 7, 0, 5)),
            ),
        ]

    def test_reads(self, cluster, cases, items, rng):
        def read(case: Case) -> Shown:
            with cluster.session() as session:
                return case.read(session)

        self.play(cluster, cases, items, rng, read, self.times)

    def play(
        self,
        cluster: Any,
        cases: list[Case],
        items: type[Items],
        rng: random.Random,
        read: Callable[[Case], Shown],
        times: int,
    ) -> None:
        """Change values, and read."""
        gone = kept = 0
        for case in cases:
            of = items(cluster, case.region)
            before = _warm(of, case, read)
            expected = read(case)
            for _ in range(times):
                value = mutated(rng, before)
                of.put(case.key, value)
                first, second = read(case), read(case)
                now = of.get(case.key)
                if now == value and value != before:
                    kept += 1
                    for shown in (first, second):
                        assert shown.is_plausible or shown == expected, value
                    of.put(case.key, before)
                    continue
                gone += 1
                assert first == second == expected, value
                read(case)
                assert of.get(case.key) == before, value
        # Both are distinguished: neither is the whole content.
        assert gone > kept > 0


def _warm(of: Items, case: Case, read: Callable[[Case], Shown]) -> bytes:
    for _ in range(3):
        read(case)
    value = of.get(case.key)
    assert value.count(b":") >= 2, case.key
    return value


class WrongCells(Suite):
    """A cell of another type, in the row of an object or of a list."""

    #: Values that no driver returns, by the name of a column.
    WRONG: ClassVar[dict[str, list[Any]]] = {
        "local_id": [None, 206158430286.0, "7", True, [], 7, 2**63, {}],
        "data": [None, 7, True, [], {}, {"b": "eA=="}, "7", "[]", '{"n":"x"}'],
        "ts": [None, 7, "x", 1.5, {"n": "1"}, {"d": "2024-01-01"}, []],
        "city": [7, True, 1.5, {"b": "eA=="}, [], "\ud800"],
    }

    @pytest.mark.parametrize("name", WRONG)
    def test_objects(self, cluster, name):
        new = stored(cluster, User(name="x", city="Rome"), warm=True)
        key = key_of(cluster, User, new)
        columns = cluster.cache._of_class(User).columns
        self.play(cluster, key, "objects", columns.names.index(name), name)

    def play(self, cluster, key, region, index, name):
        value = value_of(cluster, key, region)
        digest, generation, body = value.split(b":", 2)
        object_id = int(key.rpartition(":")[2])
        for wrong in [float(object_id), *self.WRONG[name]]:
            row = json.loads(body)
            row[index] = wrong
            new = b"%s:%s:%s" % (digest, generation, json.dumps(row).encode())
            poison(cluster, key, new, region)
            before = cluster.cache.stats()
            for _ in range(2):
                with cluster.session() as session:
                    found = session.get(User, object_id)
                    assert (found.name, found.city) == ("x", "Rome")
                    assert type(found.id) is int
                    assert found.ts.tzinfo is not None
            assert value_of(cluster, key, region) == value, wrong
            after = cluster.cache.stats()
            assert after[0].unreadable == before[0].unreadable + 1, wrong

    @pytest.mark.parametrize("name", ["moment", "clock"])
    @pytest.mark.parametrize("offset", ["+05:00", "-00:00", "Z"])
    def test_offsets(self, cluster, name, offset):
        """Of a column without: SQLAlchemy would load an aware value."""
        object_id = stored(cluster, _full(), warm=True)
        key = key_of(cluster, Everything, object_id)
        value = value_of(cluster, key)
        at = value.index(b"[")
        row = json.loads(value[at:])
        index = cluster.cache._of_class(Everything).columns.names.index(name)
        cell = row[index]
        # SQLite has a string, and MySQL a datetime or a timedelta.
        row[index] = (
            f"{cell}{offset}"
            if isinstance(cell, str)
            else {"t": f"2024-02-29T12:30:15{offset}"}
        )
        poison(cluster, key, value[:at] + json.dumps(row).encode())
        for _ in range(2):
            with cluster.session() as session:
                found = getattr(session.get(Everything, object_id), name)
                assert found == getattr(_full(), name)
                assert found.tzinfo is None
        assert value_of(cluster, key) == value

    def test_rows_of_another(self, cluster):
        """Of another object, of another class, of another list."""
        one = stored(cluster, User(name="one"), warm=True)
        other = stored(cluster, User(name="other"), warm=True)
        pin = stored(cluster, Pin(title="p"), warm=True)
        key = key_of(cluster, User, one)
        value = value_of(cluster, key)
        tag = value[: value.index(b"[")]
        for taken in (key_of(cluster, User, other), key_of(cluster, Pin, pin)):
            there = value_of(cluster, taken)
            for new in (there, tag + there[there.index(b"[") :]):
                poison(cluster, key, new)
                for _ in range(2):
                    with cluster.session() as session:
                        assert session.get(User, one).name == "one"
                assert value_of(cluster, key) == value

    def test_lists(self, cluster):
        board = stored(cluster, Board())
        others = stored(cluster, Board())
        pins = [stored(cluster, Pin(title="p")) for _ in range(4)]
        for one in (board, others):
            changed(cluster, BoardHasPins.append_many, one, pins)

        def read() -> list[int]:
            with cluster.session() as session:
                page = BoardHasPins.page(session, board, 3)
                return [row.pin_id for row in page]

        expected = pins[:0:-1]
        for _ in range(3):
            assert read() == expected
        key = key_of(cluster, BoardHasPins, board)
        value = value_of(cluster, key, "lists")
        at = value.index(b"[")
        tag, (is_whole, rows) = value[:at], json.loads(value[at:])
        source, target = self._places(cluster)
        for wrong in (
            [is_whole, rows[::-1]],
            [is_whole, [rows[0], *rows]],
            [is_whole, [rows[0], rows[0]]],
            [is_whole, [[*row[:source], others, *row[source + 1 :]] for row in rows]],
            [is_whole, [[*row[:target], None, *row[target + 1 :]] for row in rows]],
            [
                is_whole,
                [
                    [*row[:target], 1.0 * row[target], *row[target + 1 :]]
                    for row in rows
                ],
            ],
            [1, rows],
            [None, rows],
            ["", rows],
            [is_whole, rows * 2000],
            [is_whole, {"n": "1"}],
            [is_whole],
            [is_whole, rows, rows],
        ):
            poison(cluster, key, tag + json.dumps(wrong).encode(), "lists")
            for _ in range(3):
                assert read() == expected
            assert value_of(cluster, key, "lists") == value, wrong
            # Nor is it used by an append, which caches a longer list.
            poison(cluster, key, tag + json.dumps(wrong).encode(), "lists")
            changed(cluster, BoardHasPins.remove, board, pins[-1])
            changed(cluster, BoardHasPins.append, board, pins[-1])
            for _ in range(3):
                assert read() == expected
            value = value_of(cluster, key, "lists")
            _, rows = json.loads(value[at:])

    def _places(self, cluster: Any) -> tuple[int, int]:
        names = cluster.cache._of_class(BoardHasPins).columns.names
        return names.index("board_id"), names.index("pin_id")

    def test_values_that_cannot_be_loaded_are_logged_once(self, cluster, caplog):
        """A text that is no document fails where it is loaded."""
        new = stored(cluster, User(name="x"), warm=True)
        key = key_of(cluster, User, new)
        kept = cluster.cache._of_class(User)
        kept.tally._has_failed = False
        value = value_of(cluster, key)
        index = kept.columns.names.index("data")
        at = value.index(b"[")
        row = json.loads(value[at:])
        row[index] = "4711 is no document"
        for _ in range(3):
            poison(cluster, key, value[:at] + json.dumps(row).encode())
            with cluster.session() as session:
                assert session.get(User, new).name == "x"
        logged = [one for one in caplog.records if "cannot be loaded" in one.msg]
        assert len(logged) == 1
        assert "BlobValueError" in logged[0].getMessage()


cluster = CACHED.on_backend()
