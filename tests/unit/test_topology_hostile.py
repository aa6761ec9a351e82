"""Malicious documents, and those of broken programs.

Whatever is read ends in a topology or in a :exc:`TopologyError`, within
limits of time and memory by its size.
"""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from time import process_time
from typing import Any, Literal

import pytest

from sqla_shard import FileSource
from sqla_shard.exc import TopologyError
from sqla_shard.topology import describe, diff, read_document, to_json, Topology
from sqla_shard.topology.follow import Snapshot
from sqla_shard.topology.source import MAX_BYTES
from sqla_shard.topology.urls import MAX_LENGTH
from tests.servers.sums import SOAK

ENVIRON = {"MYSQL_USER": "app", "MYSQL_PASSWORD": "hunter2"}

#: Seconds and bytes that each byte of a document may take, and those that
#: any document may.  What was found took by the square, or more: hours.
_SECONDS, _ANY_SECONDS = 100e-6, 10.0
_BYTES, _ANY_BYTES = 400, 4_000_000


def read(
    data: bytes | dict[str, Any], form: Literal["toml", "json"] = "json"
) -> Topology | TopologyError:
    """Return what comes of a document; nothing else may be raised."""
    if isinstance(data, dict):
        data = json.dumps(data).encode()
    try:
        return read_document(data, form, source="test", environ=ENVIRON)
    except TopologyError as error:
        return error


def check_limits(
    data: bytes, form: Literal["toml", "json"] = "json"
) -> Topology | TopologyError:
    """Return what comes of a document, within the limits."""
    begun = process_time()
    read(data, form)
    took = process_time() - begun
    assert took < _ANY_SECONDS + _SECONDS * len(data)
    tracemalloc.start()
    try:
        found = read(data, form)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < _ANY_BYTES + _BYTES * len(data)
    return found


def keyspace(database: str = "main", **server: object) -> dict[str, Any]:
    one = {"name": "a", "primary": "mysql://h", **server}
    return {"kind": "global", "database": database, "servers": [one]}


def document(**keyspaces: object) -> dict[str, Any]:
    return {"epoch": 1, "keyspaces": keyspaces}


def message(found: Topology | TopologyError) -> str:
    assert isinstance(found, TopologyError)
    return str(found)


class TestOptions:
    """Connection options that a URL may and may not have."""

    @pytest.mark.parametrize(
        "url",
        [
            "mysql://h?ssl_ca=/ca.pem&ssl_check_hostname=0",
            "mysql://h?ssl_cert=/c&ssl_key=/k&ssl_capath=/p&ssl_cipher=X",
            "mysql+pymysql://h?connect_timeout=5&read_timeout=30",
            "mysql+asyncmy://h?program_name=shop-1&charset=utf8mb4",
            "mariadb+mysqldb://h?ssl_ca=/ca.pem",
            "mysql://h?ssl%5Fca=/ca.pem",
        ],
    )
    def test_allowed(self, url: str) -> None:
        assert isinstance(read(document(m=keyspace(primary=url))), Topology)

    @pytest.mark.parametrize(
        "option",
        [
            *("ssl_disabled=1", "ssl_verify_cert=0", "ssl_verify_identity=0"),
            *("ssl=true", "ssl_key_password=hunter2", "ssl_mode=DISABLED"),
            *("local_infile=1", "client_flag=128", "read_default_file=/x"),
            *("read_default_group=x", "init_command=DROP", "sql_mode="),
            *("autocommit=1", "auth_plugin_map=x", "plugin_dir=/x"),
            *("plugin=x", "server_public_key=x", "bind_address=1.2.3.4"),
            *("write_timeout=1", "compress=1", "conv=x", "cursorclass=x"),
            *("nonsense=1", "SSL_CA=/x", "ssl%5Fdisabled=1", "hunter2"),
        ],
    )
    def test_refused(self, option: str) -> None:
        name = option.partition("=")[0].replace("%5F", "_")
        found = message(read(document(m=keyspace(primary=f"mysql://h?{option}"))))
        assert "keyspaces.m.servers[0].primary" in found
        assert "which is not allowed in a URL" in found
        assert "engine_options={'connect_args'" in found
        assert "hunter2" not in found
        if name != "hunter2":
            assert f"option '{name}'" in found or "option '***'" in found

    @pytest.mark.parametrize(
        ("option", "words"),
        [
            ("connect_timeout=0", "write whole seconds"),
            ("connect_timeout=hunter2", "write whole seconds"),
            ("read_timeout=1e9", "write whole seconds"),
            ("charset=latin1", "write utf8mb4"),
            ("ssl_check_hostname=maybe", "write 0, 1, true or false"),
            ("ssl_ca=", "write a value"),
            ("program_name=a b", "write 1 to 64 letters"),
        ],
    )
    def test_values(self, option: str, words: str) -> None:
        url = f"mysql://h?{option}"
        found = message(read(document(m=keyspace(primary=url))))
        assert words in found
        assert option.partition("=")[0] in found

    def test_one_that_is_given_twice(self) -> None:
        url = "mysql://h?ssl_ca=/mine&ssl_ca=/theirs"
        found = message(read(document(m=keyspace(primary=url))))
        assert "the option 'ssl_ca' twice" in found

    @pytest.mark.parametrize("driver", ["mariadbconnector", "mysqlconnector", "pyodbc"])
    def test_drivers_whose_options_are_not_known(self, driver: str) -> None:
        url = f"mysql+{driver}://h?ssl_ca=/ca"
        found = message(read(document(m=keyspace(primary=url))))
        assert "(allowed: none with this driver)" in found

    def test_one_that_this_driver_has_not(self) -> None:
        url = "mysql+mysqldb://h?ssl_check_hostname=1"
        found = message(read(document(m=keyspace(primary=url))))
        assert "option 'ssl_check_hostname', which is not allowed" in found


@pytest.mark.parametrize("name", ["MYSQL_PASSWORD", "SHOP_PW", "API_TOKEN"])
def test_a_secret_cannot_be_the_user(name: str) -> None:
    """The server's "Access denied for user" would have it, and its log."""
    environ = {name: "hunter2"}
    for user in (f"${{{name}}}", f"x%24%7B{name}%7D"):
        values = document(m=keyspace(primary=f"mysql://{user}:x@h"))
        with pytest.raises(TopologyError, match="is a secret by its name"):
            Topology.from_mapping(values, placeholders=[name], environ=environ)
    values = document(m=keyspace(primary=f"mysql://x:${{{name}}}@h"))
    Topology.from_mapping(values, placeholders=[name], environ=environ)


@pytest.mark.parametrize(
    "values",
    [
        document(m=keyspace(primary="mysql://a:\ud800@h")),
        document(m=keyspace(primary="mysql://\udfff@h")),
        document(m=keyspace(primary="sqlite:///\ud800")),
        document(m=keyspace(name="a\ud800")),
        document(m=keyspace("main\ud800")),
        document(**{"m\ud800": keyspace()}),
        document(m=keyspace(**{"x\ud800": 1})),
        {"epoch": "\ud800", "keyspaces": {"\ud800": "\ud800"}},
    ],
)
def test_half_of_a_surrogate_pair(values: dict[str, Any]) -> None:
    found = read(values)
    assert isinstance(found, TopologyError)
    # It can be written to a terminal and a log.
    str(found).encode()


def test_control_sequences_of_terminals() -> None:
    found = message(read(document(**{"\x1b[2J\x07": keyspace()})))
    assert found.replace("\n", "").isprintable()


class TestSizes:
    def test_of_a_document(self) -> None:
        data = json.dumps(document(m=keyspace())).encode()
        assert isinstance(read(data.ljust(MAX_BYTES)), Topology)
        found = read(data.ljust(MAX_BYTES + 1))
        assert f"is larger than {MAX_BYTES} bytes" in message(found)

    @pytest.mark.parametrize("name", ["a.json", "a.toml"])
    def test_of_a_file(self, tmp_path: Path, name: str) -> None:
        path = tmp_path / name
        with path.open("wb") as file:
            # Sparse: it is not read to its end.
            file.truncate(2**40)
        with pytest.raises(TopologyError, match="is larger than"):
            FileSource(path).load()

    def test_of_a_snapshot(self, tmp_path: Path) -> None:
        path = tmp_path / "snapshot.json"
        with path.open("wb") as file:
            file.truncate(2**40)
        path.chmod(0o600)
        snapshot = Snapshot(path, placeholders=())
        with pytest.raises(TopologyError, match="is larger than"):
            snapshot.load()

    def test_of_a_url(self) -> None:
        url = "mysql://h?ssl_ca=".ljust(MAX_LENGTH, "x")
        assert isinstance(read(document(m=keyspace(primary=url))), Topology)
        found = message(read(document(m=keyspace(primary=f"{url}x"))))
        assert f"has {MAX_LENGTH + 1} characters" in found
        assert "xxx" not in found

    def test_of_an_error(self) -> None:
        found = read({f"key{n}": n for n in range(5000)})
        assert isinstance(found, TopologyError)
        assert len(found.problems) == 5002
        assert len(str(found).splitlines()) == 102
        assert "and 4902 more" in str(found)


def encoded(values: object) -> bytes:
    return json.dumps(values).encode()


def many(count: int, entry: Callable[[int], dict[str, Any]]) -> bytes:
    return json.dumps(document(**{f"k{n}": entry(n) for n in range(count)})).encode()


def sharded(database: str, first: int = 0, last: int = 7) -> dict[str, Any]:
    one = {"name": "a", "primary": "mysql://h", "shards": [[0, 7]]}
    return {"kind": "mod", "shards": 8, "database": database, "servers": [one]}


def one_server_of(shards: object, **more: object) -> dict[str, Any]:
    return {
        "kind": "objects",
        "shards": 65536,
        "database": "db{shard}",
        "servers": [{"name": "a", "primary": "mysql://h", "shards": shards, **more}],
    }


def many_servers(count: int) -> dict[str, Any]:
    found = one_server_of([0, 1])
    found["servers"] = [
        {"name": f"s{n}", "primary": f"mysql://h{n}"} for n in range(count)
    ]
    return found


_LONG = 400_000 if SOAK else 100_000
_PAIRS = ",".join(f'"k{n}":0' for n in range(20_000))
#: Values for a URL, and for all else that is a text.
_TEXTS = {
    "options": "mysql://h?" + "&a" * _LONG,
    "pass": "mysql://h?" + "pass" * _LONG,
    "at": "@" * _LONG,
    "colons": "mysql://" + ":" * _LONG,
    "dollars": "mysql://u:" + "$" * _LONG,
    "fields": "{shard}" * 50_000,
}
JSON: dict[str, Callable[[], bytes]] = {
    "globals": lambda: many(2000, lambda n: keyspace(f"g{n}")),
    "globals of one name": lambda: many(2000, lambda n: keyspace("main")),
    "mods": lambda: many(1500, lambda n: sharded(f"s{n}_{{shard}}")),
    "mods of one name": lambda: many(1500, lambda n: sharded("s{shard}")),
    "digits": lambda: many(300, lambda n: sharded(f"{'1' * (n % 59)}{{shard}}")),
    "widths": lambda: many(500, lambda n: sharded(f"s{{shard:0{n % 60}d}}")),
    "servers": lambda: encoded(document(k=many_servers(5000))),
    "ranges": lambda: encoded(
        document(k=one_server_of([[0, n] for n in range(15_000)]))
    ),
    "short form": lambda: encoded(
        {f"s{n}": {"range": "x", "master": 5} for n in range(5000)}
    ),
    "keys": lambda: encoded({f"k{n}": n for n in range(20_000)}),
    "a key twice": lambda: f'{{{_PAIRS},"k19999":0}}'.encode(),
    "long key": lambda: encoded({"a" * _LONG: 1}),
    "dots": lambda: encoded(document(**{"a." * _LONG: 1})),
    "number": lambda: b'{"epoch": ' + b"9" * _LONG + b"}",
    "negative": lambda: b'{"epoch": -' + b"9" * 4000 + b"}",
    "exponent": lambda: b'{"epoch": 1e999999999}',
    "nested lists": lambda: b"[" * _LONG,
    "nested tables": lambda: b'{"a":' * _LONG,
    "no end of a string": lambda: b'"' + b"\\" * _LONG,
    "blanks": lambda: b" " * _LONG,
    "NUL": lambda: b"\x00" * _LONG,
    "no UTF-8": lambda: b"\xff" * _LONG,
}
TOML: dict[str, bytes] = {
    "dotted key": b"a." * _LONG + b"a = 1",
    "dotted table": b"[" + b"a." * _LONG + b"a]",
    "quoted keys": b'"a".' * _LONG + b"a = 1",
    "quotes": b"'" * _LONG,
    "words": b"a" * _LONG,
    "blanks in a key": b"a" + b" " * _LONG,
    "lists": b"a = " + b"[" * _LONG,
    "inline tables": b"a = " + b"{a=" * _LONG,
    "tables": b"[[a]]\n" * 20_000,
    "integer": b"a = " + b"9" * _LONG,
    "comment": b"#" * _LONG,
}


@pytest.mark.parametrize("case", JSON)
def test_time_and_memory_of_json(case: str) -> None:
    check_limits(JSON[case]())


@pytest.mark.parametrize("case", TOML)
def test_time_and_memory_of_toml(case: str) -> None:
    check_limits(TOML[case], "toml")


@pytest.mark.parametrize("text", _TEXTS)
def test_time_and_memory_of_a_text(text: str) -> None:
    value = _TEXTS[text]
    for entry in (
        keyspace(primary=value, standby=value, name=value, weight=value),
        keyspace(value),
        sharded(value),
        value,
    ):
        check_limits(encoded(document(k=entry)))
    check_limits(encoded({value: {"range": value, "master": value}}))


def test_300_global_keyspaces_on_as_many_servers() -> None:
    def entry(n: int) -> dict[str, Any]:
        return keyspace(f"g{n}", standby=f"mysql://h{n + 1}")

    assert isinstance(check_limits(many(300, entry)), Topology)


def _values(rng: random.Random) -> Iterator[object]:
    """Yield what may stand anywhere in a document."""
    yield from (None, True, -1, 0, 1, 2**63 - 1, 2**63, 10**400, 1.5)
    yield from ("", "x", "\ud800", "\x1b[2J", "${MYSQL_PASSWORD}", "{shard}")
    yield from ([], {}, [[]], [[0, 7]], [0, 7], [7, 0], {"a": {}})
    yield float("inf")
    yield rng.randrange(2**70)
    yield "".join(chr(rng.randrange(1, 0x3000)) for _ in range(9))
    url = "mysql://a:hunter2@h?ssl_ca=/x&local_infile=1#/:$%[]"
    # From its beginning: a password by itself looks like any word.
    end = rng.randrange(len(url))
    yield url[:end] + url[end:] * rng.randrange(3)
    yield url[:end] + rng.choice(["%", "@", ":", "?", "&"]) * 200


def _edited(value: Any, rng: random.Random) -> Any:
    """Return a document with something in it changed."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        found = dict(value)
        match rng.randrange(8):
            case 0:
                del found[key]
            case 1:
                found[str(rng.choice(list(_values(rng))))] = value[key]
            case _:
                found[key] = _edited(value[key], rng)
        return found
    if isinstance(value, list) and value and rng.random() < 0.85:
        at = rng.randrange(len(value))
        found = _edited(value[at], rng)
        copies = rng.choice([0, 1, 1, 1, 2, 50])
        return [*value[:at], *[found] * copies, *value[at + 1 :]]
    return rng.choice(list(_values(rng)))


def _mangled(data: bytes, rng: random.Random) -> bytes:
    """Return bytes with some of them cut, repeated or replaced."""
    for _ in range(rng.randrange(3)):
        start = rng.randrange(len(data) + 1)
        end = min(start + rng.randrange(40), len(data))
        part = rng.choice(
            [b"", data[start:end] * 30, rng.randbytes(3), b'"', b"{", b"[["]
        )
        data = data[:start] + part + data[end:]
    return data


_TOML = b"""
epoch = 3
[keyspaces.objects]
kind = "objects"
shards = 8
database = "db{shard:05d}"
[[keyspaces.objects.servers]]
name = "a"
primary = "mysql://app:${MYSQL_PASSWORD}@h:3306?ssl_ca=/ca"
standby = "mysql://app:${MYSQL_PASSWORD}@i"
shards = [[0, 3], [4, 7]]
weight = 0.5
generation = 3
"""


def test_any_document(rng: random.Random, say: Callable[[str], None]) -> None:
    """A topology or its error, which shows no password, and can be sent."""
    start = read(_TOML, "toml")
    assert isinstance(start, Topology)
    values = start.to_mapping()
    values["keyspaces"]["users"] = sharded("user{shard}")
    values["keyspaces"]["main"] = keyspace()
    short = {
        "a": {"range": [0, 3], "master": "h", "slave": "i:3307"},
        "b": {"range": [4, 7], "master": "mysql://x:hunter2@j"},
    }
    accepted = []
    rounds = 40_000 if SOAK else 800
    for number in range(rounds):
        form: Literal["toml", "json"] = "json"
        if number % 4 == 0:
            data, form = _mangled(_TOML, rng), "toml"
        elif number % 4 == 1:
            data = _mangled(json.dumps(values).encode(), rng)
        else:
            edited: Any = values if number % 4 == 2 else short
            for _ in range(rng.randrange(1, 5)):
                edited = _edited(edited, rng)
            data = json.dumps(edited).encode()
        begun = process_time()
        found = read(data, form)
        assert process_time() - begun < _ANY_SECONDS + _SECONDS * len(data)
        if isinstance(found, TopologyError):
            text = str(found)
            assert "hunter2" not in text
            text.encode()
            assert len(text) < 100_000 + 20 * len(data)
            continue
        accepted.append(found)
        assert "hunter2" not in describe(found) + repr(found.keyspaces)
        assert read(to_json(found)) == found
    assert accepted
    for old, new in pairwise(accepted):
        assert "hunter2" not in str(diff(old, new))
    say(f"topologies: {rounds} documents, {len(accepted)} of them accepted")
