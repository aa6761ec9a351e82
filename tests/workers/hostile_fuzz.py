"""Random bookmarks and values, in a process with little memory.

``python -m tests.workers.hostile_fuzz KIND SEED COUNT``, with a topology as
JSON on standard input, prints what it has found as JSON.
"""

from __future__ import annotations

import base64
import json
import random
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.exc import DBAPIError, StatementError

from sqla_shard import Cluster, full_id, pack, scatter, unpack
from sqla_shard.exc import (
    BlobError,
    InvalidBookmarkError,
    InvalidIdError,
    ParameterValueError,
    ShardError,
)
from sqla_shard.models.list_pages import bookmarks_of, ListBookmarks, PositionKey
from sqla_shard.models.mapping_list import List
from sqla_shard.session.scatter_pages import _keys, StatementBookmarks
from sqla_shard.types.blob import decode_blob, encode_blob
from tests.suites.hostile_values import FIELDS, Item, ItemBase, store
from tests.suites.scatter_pages import (
    _written,
    PagesBase,
    random_thing,
    Thing,
    ThingHasThings,
)

#: Bytes of address space: threads and libraries have some of it.
MEMORY = 2 << 30
#: Seconds of processor for one input, and for each byte of it.
SECONDS = 2.0
SECONDS_OF_BYTE = 0.001


def fuzzed(
    kind: str, seed: Any, count: int, topology: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the findings of a process of its own.

    :returns: ``outcomes`` by name, ``findings``, and the largest figures.
    """
    done = subprocess.run(
        [
            sys.executable,
            *("-m", "tests.workers.hostile_fuzz"),
            *(kind, str(seed), str(count)),
        ],
        input=json.dumps(topology),
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def check_fuzzed(
    kind: str,
    topology: Mapping[str, Any],
    count: int,
    request: Any,
    say: Callable[[str, object], None],
) -> None:
    """Fuzz with the seed of the run; fail where that has found anything."""
    seed = request.config.getoption("hypothesis_seed")
    found = fuzzed(kind, seed, count, topology)
    outcomes = ", ".join(f"{k} {v}" for k, v in found["outcomes"].items())
    say(
        "said",
        f"{request.node.name}: {count} inputs, {outcomes}; at most "
        f"{found['slowest']:.2f} s of processor and {found['megabytes']} MB",
    )
    assert not found["findings"], "\n".join(found["findings"])
    # It has tried both refused and accepted values.
    assert found["outcomes"]["accepted"] > count / 50
    assert found["outcomes"]["accepted"] < count * 0.9


class _Fuzzer:
    """Tries inputs, and judges what comes of each.

    :param expected: the errors that an input may end with.
    """

    expected: tuple[type[Exception], ...]

    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        self.cluster = cluster
        self.rng = rng
        self.outcomes: Counter[str] = Counter()
        self.findings: list[str] = []
        self.slowest = 0.0

    def run(self, count: int) -> None:
        for number in range(count):
            name, size, attempt = self.input()
            start = time.process_time()
            try:
                attempt()
                outcome = "accepted"
            except self.expected as error:
                outcome = type(error).__name__
                # Of a value of megabytes, too.
                if len(str(error)) > 2000:
                    self.findings.append(f"{number} {name}: long message")
            except Exception as error:  # this is what we look for
                outcome = type(error).__name__
                if not self.is_fine(error):
                    self.findings.append(f"{number} {name}: {_described(error)}")
            seconds = time.process_time() - start
            self.outcomes[outcome] += 1
            self.slowest = max(self.slowest, seconds)
            if seconds > SECONDS + SECONDS_OF_BYTE * size:
                self.findings.append(
                    f"{number} {name}: {seconds:.1f} s for {size} bytes"
                )

    def input(self) -> tuple[str, int, Callable[[], Any]]:
        """Return a name, a size in bytes, and what to do."""
        raise NotImplementedError

    def is_fine(self, error: Exception) -> bool:
        """Tell whether an error is one that others expect, too."""
        return False

    def number(self) -> str:
        """Return a text that is a number, or nearly."""
        rng = self.rng
        return rng.choice(
            [
                lambda: str(rng.randrange(-5, 5)),
                lambda: str(rng.randrange(-(2**66), 2**66)),
                lambda: "9" * rng.choice([38, 65, 66, 309, 4300, 4301, 5800]),
                lambda: f"{rng.choice('19')}e{rng.randrange(-400, 400)}",
                lambda: f"1e{rng.choice('+-')}{'9' * rng.randrange(3, 25)}",
                lambda: f"0.{'0' * rng.randrange(400)}1",
                lambda: repr(rng.uniform(-1e10, 1e10)),
                lambda: rng.choice(
                    ["nan", "-inf", "Infinity", "-0", "0x1", "1_0", "\u0661"]
                ),
            ]
        )()

    def text(self) -> str:
        rng = self.rng
        pieces = ["a", "'", "\\", "%s", "?", "\0", "\ud800", "\udc80", "漢"]
        pieces += ["😀", "__sqla_shard__", "\n", '"', "1", " "]
        return "".join(rng.choices(pieces, k=rng.choice([0, 1, 3, 30])))


_CONTAINERS = (list, dict, set)


class _Bookmarks(_Fuzzer):
    expected = (InvalidBookmarkError,)

    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        super().__init__(cluster, rng)
        with cluster.begin(cross_shard="unordered") as session:
            things = [random_thing(rng) for _ in range(30)]
            session.add_all(things)
            session.flush()
            self._ids = [thing.id for thing in things]
            ThingHasThings.append_many(session, self._ids[0], self._ids[1:20])
        self._made = [
            select(Thing).order_by(*order)
            for order in (
                (),
                (Thing.n,),
                (Thing.n.desc(), Thing.name),
                (Thing.name.desc(),),
                (Thing.price, Thing.weight.desc()),
                (Thing.weight,),
                (Thing.at.desc(), Thing.day),
                (Thing.day,),
                (Thing.title,),
                (Thing.id.desc(),),
                (func.length(Thing.name),),
                (func.date(Thing.at),),
                (func.upper(Thing.name),),
                (Thing.n + 1,),
            )
        ]
        self._made.append(
            select(Thing.id, ThingHasThings.part_id)
            .join(ThingHasThings, ThingHasThings.whole_id == full_id(Thing.id))
            .order_by(ThingHasThings.sequence, Thing.n)
        )
        self._good: dict[tuple[bool, int], str] = {}

    def input(self) -> tuple[str, int, Callable[[], Any]]:
        which = self.rng.randrange(len(self._made) * 2)
        in_list = which >= len(self._made)
        which %= len(self._made)
        with self.cluster.session() as session:
            after = self._bookmark(session, in_list, which)

        def attempt() -> None:
            with self.cluster.session() as session:
                self._page(session, in_list, which, after)

        name = f"{'list' if in_list else self._made[which]} {after!r:.200}"
        return " ".join(name.split()), len(after), attempt

    def _page(self, session: Any, in_list: bool, which: int, after: Any) -> Any:
        if in_list:
            return ThingHasThings.page(
                session, self._ids[0], 3, after, newest_first=which % 2 == 0
            )
        return session.scatter_page(self._made[which], 3, after)

    def _bookmark(self, session: Any, in_list: bool, which: int) -> Any:
        rng = self.rng
        made = self._made[which]
        marks: StatementBookmarks | ListBookmarks
        if in_list:
            rows = List(ThingHasThings, session, self._ids[0])
            marks = bookmarks_of(rows, which % 2 == 0)
        else:
            marks = StatementBookmarks(session, made, _keys(made))
        seal = session.cluster.seal
        good = self._good.get((in_list, which))
        if good is None:
            good = self._page(session, in_list, which, None).next
            self._good[in_list, which] = good
        way = rng.randrange(4)
        if way == 0:
            return self._text_like(good)
        if way == 1:
            payload = bytearray(seal.unseal(good, marks.subject))
            for _ in range(rng.choice([1, 1, 2, 8])):
                payload[rng.randrange(len(payload))] = rng.randrange(256)
            if rng.random() < 0.2:
                payload *= rng.randrange(0, 30)
            return seal.seal(bytes(payload), marks.subject)
        if in_list:
            return self._keys_of_list(marks)
        values = [self._value() for _ in _keys(made)]
        if rng.random() < 0.1:
            values = values[1:] or values * 9
        elif rng.random() < 0.7:
            # The id fits, so that what comes before it is looked at.
            values[-1] = ("i", str(rng.choice(self._ids)))
        return seal.seal(_written(values)[: 2**14], marks.subject)

    def _text_like(self, good: str) -> Any:
        rng = self.rng
        return rng.choice(
            [
                lambda: good[: rng.randrange(len(good))],
                lambda: good * rng.choice([2, 1000]),
                lambda: self.text(),
                lambda: self.number(),
                lambda: "A" * rng.choice([1, 8000, 8001, 10**6]),
                lambda: (
                    base64.urlsafe_b64encode(
                        rng.choice([b"\1", b"\2", b"\3"]) + rng.randbytes(50)
                    )
                    .rstrip(b"=")
                    .decode()
                ),
                lambda: good.encode(),
                lambda: [good],
            ]
        )()

    def _keys_of_list(self, marks: Any) -> str:
        rng = self.rng
        keys = tuple(
            PositionKey(
                rng.choice([0, 1, 2**64, 10**38 - 1, 2**128 - 1]),
                rng.choice([*self._ids[:3], 0, 1, pack(9, 101, 1), 2**62, 2**64 - 1]),
            )
            for _ in range(rng.randrange(1, 7))
        )
        made: str = marks.make_bookmark(keys[:-1], keys[-1], back=rng.random() < 0.5)
        return made

    def _value(self) -> tuple[str, str]:
        rng = self.rng
        tag = rng.choice("ifntdhls--x[")
        if tag in "ifnl":
            return tag, self.number()
        if tag in "td":
            day = f"{rng.choice([0, 1, 1970, 2020, 9999]):04}-"
            day += f"{rng.randrange(14):02}-{rng.randrange(33):02}"
            clock = f"T{rng.randrange(25):02}:00:{rng.randrange(61):02}"
            return tag, day + (clock if tag == "t" else "")
        if tag == "-":
            return tag, ""
        return tag, self.text()


class _Values(_Fuzzer):
    expected = (BlobError, InvalidIdError, ParameterValueError)

    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        super().__init__(cluster, rng)
        with cluster.begin() as session:
            item = Item(shard_id=1, name="a")
            session.add(item)
            session.flush()
            self._id = item.id

    def input(self) -> tuple[str, int, Callable[[], Any]]:
        way = self.rng.choice(["read", "stored", "set", "where", "id"])
        if way in ("read", "stored"):
            # No server has a text with lone surrogates but as escapes.
            document = self._document().encode(errors="ignore").decode()
            run = self._decode if way == "read" else self._load
            size = len(document)
            return f"{way} {document!r:.200}", size, lambda: run(document)
        value = self._value()
        size = self._size(value)
        if way == "where" and isinstance(value, _CONTAINERS):
            way = "set"
        name = f"{way} {type(value).__name__} of {size}"
        run_: Any = {"set": self._set, "where": self._where, "id": self._as_id}[way]
        field = self.rng.choice(FIELDS)
        return f"{name} {field}", size, lambda: run_(field, value)

    def is_fine(self, error: Exception) -> bool:
        # A list is no value of a column, and 31 characters are none of 30:
        # that is the server's, or the driver's, to say, and no outage.
        if isinstance(error, DBAPIError):
            return not (isinstance(error, ShardError) or error.connection_invalidated)
        # A value whose type the column's type does not handle.
        return (
            isinstance(error, StatementError)
            and isinstance(error.orig, (TypeError, ValueError))
            and "Exceeds the limit" not in str(error.orig)
        )

    @staticmethod
    def _size(value: Any) -> int:
        if isinstance(value, int):
            return value.bit_length() // 3
        return len(value) if isinstance(value, (str, list)) else 50

    def _decode(self, document: str) -> None:
        blob = decode_blob(document)
        # A value that was read can be written.
        if _levels(blob) < 30:
            encode_blob(dict(blob), 2**24)
        json.dumps(blob, allow_nan=False, ensure_ascii=False).encode()

    def _load(self, document: str) -> None:
        with self.cluster.session() as session:
            store(session, self._id, document)
            item = session.get(Item, self._id)
            for field in FIELDS:
                repr(getattr(item, field))
            if item.exact is not None:
                int(item.exact)
                format(item.exact, "f")

    def _set(self, field: str, value: Any) -> None:
        with self.cluster.session() as session:
            item = session.get(Item, self._id)
            # Drivers handle lists in different ways.
            if not isinstance(value, _CONTAINERS):
                field = self.rng.choice([field, "n", "name"])
            setattr(item, field, value)
            session.flush()

    def _where(self, field: str, value: Any) -> None:
        with self.cluster.session() as session:
            if field in ("tags", "free"):
                field = "n"  # these are compared with NULL alone
            made = select(Item.id).where(getattr(Item, field) == value)
            session.execute(made.options(scatter())).all()

    def _as_id(self, field: str, value: Any) -> None:
        with self.cluster.session() as session:
            self.rng.choice(
                [
                    lambda: unpack(value),
                    lambda: self.cluster.explain(value),
                    lambda: session.get_many(Item, [value]),
                    lambda: session.scalars(
                        select(Item).where(Item.id.in_([value]))
                    ).all(),
                    lambda: session.connection(bind_arguments={"shard_id": value}),
                ]
            )()

    def _document(self) -> str:
        rng = self.rng
        fields = [
            f"{json.dumps(rng.choice([*FIELDS, 'active', 'other']))}:{self._json()}"
            for _ in range(rng.randrange(4))
        ]
        document = "{" + ",".join(fields) + "}"
        if rng.random() < 0.2 and document:
            at = rng.randrange(len(document))
            piece = rng.choice(["", "{", "]", '"', "\\", "\0", ",", "1"])
            document = document[:at] + piece + document[at + 1 :]
        return document

    def _json(self, levels: int = 3) -> str:
        rng = self.rng
        way = rng.randrange(9 if levels else 6)
        if way < 2:
            return self.number()
        if way < 4:
            return json.dumps(
                rng.choice([self.text, self.number])(), ensure_ascii=rng.random() < 0.7
            )
        if way == 4:
            return rng.choice(["null", "true", "[]", "{}", '""'])
        if way == 5:
            deep = rng.choice([10, 31, 98, 101, 900, 50_000])
            return "[" * deep + "]" * (deep - rng.choice([0, 0, 1]))
        inner = [self._json(levels - 1) for _ in range(rng.randrange(4))]
        if way == 6:
            return "[" + ",".join(inner) + "]"
        return ("{" + ",".join(f"{json.dumps(self.text())}:{i}" for i in inner)) + "}"

    def _value(self) -> Any:
        rng = self.rng
        return rng.choice(
            [
                lambda: 10 ** rng.choice([19, 66, 400, 4299, 4300, 5000]),
                lambda: -(2 ** rng.choice([62, 63, 64, 10**5])),
                lambda: Decimal(f"1e{rng.randrange(-(10**9), 10**9)}"),
                lambda: Decimal("1" * rng.choice([20, 70, 5000])),
                lambda: Decimal(rng.choice(["NaN", "sNaN", "-Infinity"])),
                lambda: float(rng.choice(["nan", "inf", "1e308", "5e-324"])),
                self.text,
                lambda: [self.text()],
                lambda: {self.text(): [self.text()]},
                lambda: _nested(rng.choice([5, 40, 50_000])),
                lambda: rng.choice([True, 1.0, {1}, b"\xff", object()]),
            ]
        )()


def _described(error: Exception) -> str:
    # The text of SQLAlchemy's errors has the values, nested ones, too.
    text = getattr(error, "orig", None) or error
    return f"{type(error).__name__} {text!s:.300}"


def _levels(blob: Any) -> int:
    found, level = 0, [blob]
    while level:
        found += 1
        level = [
            item
            for holder in level
            for item in (holder.values() if isinstance(holder, dict) else holder)
            if isinstance(item, (dict, list))
        ]
    return found


def _nested(levels: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


KINDS = {"bookmarks": (_Bookmarks, PagesBase), "values": (_Values, ItemBase)}


def _main(kind: str, seed: str, count: str) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    topology = json.load(sys.stdin)
    fuzzer_class, base = KINDS[kind]
    with Cluster.from_topology(topology) as cluster:
        cluster.create_all(base.metadata)
        fuzzer = fuzzer_class(cluster, random.Random(f"{kind} {seed}"))
        fuzzer.run(int(count))
    usage = resource.getrusage(resource.RUSAGE_SELF)
    json.dump(
        {
            "outcomes": fuzzer.outcomes,
            "findings": fuzzer.findings[:50],
            "slowest": fuzzer.slowest,
            "megabytes": usage.ru_maxrss >> 10,
        },
        sys.stdout,
    )


if __name__ == "__main__":
    _main(*sys.argv[1:])
