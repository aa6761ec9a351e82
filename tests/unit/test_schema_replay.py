"""Replay of plans on other shards: packets, and plans that do not fit.

The server is replaced by a list of packets; the same on real servers is in
tests/live/test_schema_kill.py and its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, event, inspect, text
from sqlalchemy.exc import DBAPIError, OperationalError

from sqla_shard.dialects import backend_for, Batch
from sqla_shard.dialects.base import Statement
from sqla_shard.engine.rendering import Place
from sqla_shard.exc import SchemaError
from sqla_shard.outbox.tables import METADATA
from sqla_shard.schema import ledger
from sqla_shard.schema.journal import Interrupted, Journal
from sqla_shard.schema.ledger import Version
from sqla_shard.schema.replay import (
    new_tables,
    NewTable,
    NotAsPlannedError,
    Plan,
    PlannedStep,
    Replay,
)
from sqla_shard.schema.selection import Shard

VERSIONS = "alembic_version"
OWN = ledger.own_head()
PINS = "CREATE TABLE pins (id INTEGER)"
BOARDS = "CREATE TABLE boards (id INTEGER)"
LIKES = "ALTER TABLE pins ADD COLUMN likes INTEGER"
INDEX = "CREATE INDEX ix_likes ON pins (likes)"
NEW_TABLE = f"CREATE TABLE {VERSIONS} (version_num VARCHAR(32))"
NEW = Plan(
    first=(NEW_TABLE,),
    defaults=("10.11", "utf8mb4"),
    steps=(
        PlannedStep(
            direction="upgrade",
            revision="a",
            statements=(PINS, BOARDS),
            versions=(f"INSERT INTO {VERSIONS} VALUES ('a')",),
            title="upgrade of a",
        ),
    ),
)
NEXT = Plan(
    first=(),
    defaults=("10.11", "utf8mb4"),
    steps=(
        PlannedStep(
            direction="upgrade",
            revision="b",
            statements=(LIKES, INDEX),
            versions=(f"UPDATE {VERSIONS} SET version_num = 'b'",),
            title="upgrade of b",
        ),
    ),
)

#: The revision of NEXT after one without statements.
SEVERAL = Plan(
    first=(),
    defaults=NEXT.defaults,
    steps=(
        PlannedStep(
            direction="upgrade",
            revision="b0",
            statements=(),
            versions=(f"UPDATE {VERSIONS} SET version_num = 'b0'",),
            title="upgrade of b0",
        ),
        *NEXT.steps,
    ),
)

BY_ID = "CREATE INDEX by_id ON pins (id)"
JOINED = "CREATE TABLE pins (id INTEGER, KEY by_id (id))"
TABLES = Plan(
    first=(NEW_TABLE,),
    defaults=NEW.defaults,
    steps=(
        PlannedStep(
            direction="upgrade",
            revision="a",
            statements=(PINS, BY_ID, BOARDS),
            versions=(f"INSERT INTO {VERSIONS} VALUES ('a')",),
            title="upgrade of a",
            tables={0: NewTable(name="pins", count=2, creation=JOINED)},
        ),
    ),
)

Result = tuple[int, Sequence[Any]]


class Packets(Batch):
    """Records packets; the results are those of a server where all is well.

    :ivar results: results that differ, by the beginning of the statement.
    :ivar fails: the beginning of the statement that fails.
    :ivar on_result: called before each result with its statement.
    """

    def __init__(self) -> None:
        self.sent: list[list[str]] = []
        self.results: dict[str, Result] = {
            "lock": (1, [(1, "10.11", "utf8mb4")]),
            "SELECT version_num": (1, [("a",)]),
            "INSERT": (1, ()),
            "UPDATE": (1, ()),
            "define pins": (1, [("as created",)]),
        }
        self.fails: str | None = None
        self.on_result: Callable[[str], None] = lambda statement: None

    def send(self, statements: Sequence[Statement]) -> Generator[Result]:
        self.sent.append([_short(*one) for one in statements])
        for shown in self.sent[-1]:
            if self.fails is not None and shown.startswith(self.fails):
                raise OperationalError(shown, (), Exception("refused"))
            self.on_result(shown)
            found = [
                result
                for beginning, result in self.results.items()
                if shown.startswith(beginning)
            ]
            yield found[-1] if found else (0, ())

    def end(self) -> None:
        pass

    def enter(self, schema: str, seconds: float) -> list[Statement]:
        return [(f"use {schema}", ()), ("lock", ())]

    def leave(self, schema: str) -> list[Statement]:
        return [("commit", ()), ("unlock", ())]

    def names(self) -> Statement:
        return "names", ()

    def defaults(self) -> Statement:
        return "defaults", ()

    def creation(
        self, statements: Sequence[str], defaults: Sequence[Any]
    ) -> str | None:
        raise NotImplementedError

    def definition(self, table: str) -> Statement:
        return f"define {table}", ()

    def is_absent(self, error: DBAPIError) -> bool:
        return "refused" in str(error)

    def digest(self, rows: Sequence[Any]) -> str:
        return f"{rows[0][0]}!"


def _short(statement: str, parameters: Sequence[Any]) -> str:
    """Show an entry of the ledger by its number, statement and proof."""
    if statement.startswith("INSERT INTO sqla_shard_ledger"):
        found = [parameters[i : i + 11] for i in range(0, len(parameters), 11)]
        if len(found) > 1:
            assert statement.count("(") == len(found) + 1
            assert [one[6] for one in found[1:]] == [None] * (len(found) - 1)
            shown = [f"{one[2]} {one[3]} {one[4]}" for one in found]
            return f"entries {', '.join(shown)} after {found[0][6]}"
        _, _, number, _, text, _, before, *_ = parameters
        return f"entry {number} {text} after {before}"
    if statement.startswith("UPDATE sqla_shard_ledger"):
        return "close entries"
    return statement


class Given:
    """A replay with the packets that it sends."""

    def __init__(self, connection: Connection, place: Place) -> None:
        self.connection = connection
        self.packets = Packets()
        self.journal = Journal(connection, place.backend.ddl)
        self.applied: list[str] = []
        self.shard = Shard(
            keyspace="objects",
            shard_id=1,
            server="server1",
            database="db00001",
            place=place,
        )

    def run(self, plan: Plan, *heads: str) -> None:
        """Send a plan to a shard at revisions."""
        self.replay = Replay(
            plan,
            self.connection,
            self.packets,
            self.journal,
            lambda step: self.applied.append(step.title),
        )
        version = Version(shard=self.shard, heads=heads, internal=OWN)
        self.replay.run(version, VERSIONS)


@pytest.fixture
def place() -> Iterator[Place]:
    engine = create_engine("sqlite://")
    backend = backend_for("sqlite", driver="pymysql")
    yield Place("objects", 1, "server1", "main", engine, backend)
    engine.dispose()


@pytest.fixture
def given(place: Place) -> Iterator[Given]:
    with place.engine.connect() as connection:
        yield Given(connection, place)


def test_new_tables_are_one_packet_after_the_position(given: Given) -> None:
    given.run(NEW)
    position, tables, end = given.packets.sent
    assert position[:2] == ["use main", "lock"]
    assert position[2].startswith("SELECT 1 FROM sqla_shard_ledger")
    assert position[3:] == ["names"]
    assert tables == [
        NEW_TABLE,
        f'entry 0 {PINS} after {{"pins": null}}',
        PINS,
        f'entry 1 {BOARDS} after {{"boards": null}}',
        BOARDS,
        f"INSERT INTO {VERSIONS} VALUES ('a')",
        "close entries",
    ]
    assert end == ["commit", "unlock"]
    assert given.applied == ["upgrade of a"]
    assert given.journal.count == len(NEW.statements)


def test_a_definition_is_read_right_before_the_entry_that_needs_it(
    given: Given,
) -> None:
    def change(statement: str) -> None:
        if statement == LIKES:
            given.packets.results["define pins"] = 1, [("with likes",)]

    given.packets.on_result = change
    given.run(NEXT, "a")
    position, likes, index, end = given.packets.sent
    assert position[-2:] == [f"SELECT version_num FROM {VERSIONS}", "define pins"]
    assert likes == [
        f'entry 0 {LIKES} after {{"pins": "as created!"}}',
        LIKES,
        "define pins",
    ]
    assert index == [
        f'entry 1 {INDEX} after {{"pins": "with likes!"}}',
        INDEX,
        f"UPDATE {VERSIONS} SET version_num = 'b'",
        "close entries",
    ]
    assert end == ["commit", "unlock"]


def test_each_revision_is_committed_before_the_next(given: Given) -> None:
    given.run(SEVERAL, "a")
    position, *packets = given.packets.sent
    # No version is written before the lock and the revision are known.
    assert position[-1] == f"SELECT version_num FROM {VERSIONS}"
    assert packets[:3] == [
        [f"UPDATE {VERSIONS} SET version_num = 'b0'"],
        ["commit"],
        ["define pins"],
    ]
    assert packets[-1] == ["commit", "unlock"]
    assert given.applied == ["upgrade of b0", "upgrade of b"]


def test_another_state_is_seen_before_a_version_is_written(given: Given) -> None:
    given.packets.results["lock"] = 1, [(0, "10.11", "utf8mb4")]
    with pytest.raises(NotAsPlannedError):
        given.run(SEVERAL, "a")
    assert len(given.packets.sent) == 1
    assert given.applied == []


def test_a_stop_between_two_revisions(given: Given) -> None:
    def stop(statement: str) -> None:
        given.journal.stop |= statement.startswith(f"UPDATE {VERSIONS}")

    given.packets.on_result = stop
    with pytest.raises(Interrupted):
        given.run(SEVERAL, "a")
    assert given.applied == ["upgrade of b0"]
    assert _all(given)[-1] == "define pins"
    assert "commit" in _all(given)
    assert LIKES not in _all(given)


def test_a_table_that_is_there_already_is_read_too(given: Given) -> None:
    given.packets.results["names"] = 1, [("pins",)]
    given.run(NEW)
    entries = [one for one in _all(given) if one.startswith("entry")]
    assert entries == [
        f'entry 0 {PINS} after {{"pins": "as created!"}}',
        f'entry 1 {BOARDS} after {{"boards": null}}',
    ]


def test_a_table_is_created_with_its_indexes(given: Given) -> None:
    seen: list[tuple[bool, int]] = []
    journal = given.journal
    given.packets.on_result = lambda statement: seen.append(
        (journal.is_running, journal.count)
    )
    given.run(TABLES)
    position, tables, _ = given.packets.sent
    assert tables == [
        NEW_TABLE,
        f'entries 0 started {PINS}, 1 joined {BY_ID} after {{"pins": null}}',
        JOINED,
        f'entry 2 {BOARDS} after {{"boards": null}}',
        BOARDS,
        f"INSERT INTO {VERSIONS} VALUES ('a')",
        "close entries",
    ]
    assert seen[len(position) :][: len(tables)] == [
        (False, 0),
        (False, 0),
        (True, 0),
        (False, 2),
        (True, 2),
        (False, 3),
        (False, 3),
    ]


def test_a_new_table_that_exists_already(given: Given) -> None:
    given.packets.results["names"] = 1, [("pins",)]
    given.run(TABLES)
    sent = _all(given)
    assert JOINED not in sent
    assert [one for one in sent if one in (PINS, BY_ID, BOARDS)] == [
        PINS,
        BY_ID,
        BOARDS,
    ]
    assert f'entry 1 {BY_ID} after {{"pins": "as created!"}}' in sent


def test_a_stop_before_new_tables(given: Given) -> None:
    given.journal.stop = True
    with pytest.raises(Interrupted):
        given.run(TABLES)
    assert not {NEW_TABLE, JOINED} & set(_all(given))


@pytest.mark.parametrize(
    ("statements", "found"),
    [
        ((PINS,), {}),
        ((PINS, BY_ID, INDEX, BOARDS), {0: ("pins", 3)}),
        ((BOARDS, PINS, BY_ID), {1: ("pins", 2)}),
        # The index after another change of the table is apart.
        ((PINS, BY_ID, LIKES, INDEX), {0: ("pins", 2)}),
        ((PINS, LIKES, INDEX), {}),
        ((PINS, BOARDS, BY_ID), {}),
        ((BY_ID, INDEX), {}),
        ((LIKES,), {}),
        ((), {}),
    ],
)
def test_which_statements_are_joined(
    statements: tuple[str, ...], found: dict[int, tuple[str, int]]
) -> None:
    def creation(given: Sequence[str]) -> str | None:
        return None if LIKES in given else f"of {len(given)}"

    tables = new_tables(statements, creation)
    assert {
        first: (table.name, table.count) for first, table in tables.items()
    } == found
    assert all(one.creation == f"of {one.count}" for one in tables.values())


def test_a_table_that_is_missing(given: Given) -> None:
    given.packets.fails = "define"
    given.run(NEXT, "a")
    assert f'entry 0 {LIKES} after {{"pins": null}}' in _all(given)


@pytest.mark.parametrize(
    ("beginning", "result"),
    [
        ("lock", (1, [(0, "10.11", "utf8mb4")])),
        ("lock", (1, [(1, "11.4", "utf8mb4")])),
        ("SELECT 1 FROM sqla_shard_ledger", (1, [(1,)])),
        ("SELECT version_num", (1, [("other",)])),
        ("SELECT version_num", (2, [("a",), ("other",)])),
        ("SELECT version_num", (0, [])),
    ],
    ids=["locked", "other defaults", "open entries", "another", "two", "no revision"],
)
def test_another_state_is_left_to_alembic(
    given: Given, beginning: str, result: Result
) -> None:
    given.packets.results[beginning] = result
    with pytest.raises(NotAsPlannedError):
        given.run(NEXT, "a")
    assert not given.replay.is_positioned
    assert not [one for one in _all(given) if one.startswith("entry")]


def test_tables_where_none_were_expected_are_left_to_alembic(given: Given) -> None:
    given.packets.results["names"] = 1, [(VERSIONS,)]
    with pytest.raises(NotAsPlannedError):
        given.run(NEW)
    assert not given.replay.is_positioned
    assert NEW_TABLE not in _all(given)


def test_a_statement_that_fails_is_in_progress(given: Given) -> None:
    given.packets.fails = BOARDS
    with pytest.raises(OperationalError):
        given.run(NEW)
    assert given.replay.is_positioned
    assert given.journal.is_running
    assert (given.journal.count, given.applied) == (1, [])
    assert "commit" not in _all(given)


def test_a_version_that_was_changed_meanwhile(given: Given) -> None:
    given.packets.results[f"UPDATE {VERSIONS}"] = 0, ()
    with pytest.raises(SchemaError, match="was changed during the upgrade"):
        given.run(NEXT, "a")
    assert given.applied == []
    assert "commit" not in _all(given)


def test_a_stop_is_before_the_next_packet(given: Given) -> None:
    def stop(statement: str) -> None:
        given.journal.stop |= statement == LIKES

    given.packets.on_result = stop
    with pytest.raises(Interrupted):
        given.run(NEXT, "a")
    assert LIKES in _all(given)
    assert INDEX not in _all(given)


def _all(given: Given) -> list[str]:
    return [one for packet in given.packets.sent for one in packet]


class TestOwnTables:
    """The tables of this package, which are sent before the plan."""

    @pytest.fixture
    def sent(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ledger, "_sent", {})

    def _upgrade(self, path: Path, *before: str) -> list[str]:
        """Upgrade a new file; return the statements that read, of alembic."""
        engine = create_engine(f"sqlite:///{path}")
        reads: list[str] = []

        def record(connection: Any, cursor: Any, statement: str, *more: Any):
            if not statement.lstrip().startswith(("CREATE", "INSERT")):
                reads.append(statement)

        with engine.connect() as connection:
            for statement in before:
                connection.execute(text(statement))
            connection.commit()
            event.listen(connection, "before_cursor_execute", record)
            ledger.upgrade_own_tables(connection, None)
            event.remove(connection, "before_cursor_execute", record)
            tables = {*METADATA.tables, ledger.VERSION_TABLE}
            assert tables == set(inspect(connection).get_table_names())
            versions = connection.execute(
                text(f"SELECT version_num FROM {ledger.VERSION_TABLE}")
            )
            assert [row[0] for row in versions] == [OWN]
        engine.dispose()
        return reads

    def test_what_was_sent_is_sent_again(self, sent: None, tmp_path: Path) -> None:
        assert self._upgrade(tmp_path / "1.sqlite")
        assert not self._upgrade(tmp_path / "2.sqlite")

    def test_after_a_killed_runner(self, sent: None, tmp_path: Path) -> None:
        killed = (
            f"CREATE TABLE {ledger.VERSION_TABLE} (version_num VARCHAR(32) NOT NULL)"
        )
        # The first is no example for others: a table was there.
        self._upgrade(tmp_path / "1.sqlite", killed)
        assert self._upgrade(tmp_path / "2.sqlite")
        assert self._upgrade(tmp_path / "3.sqlite", killed)
        assert not self._upgrade(tmp_path / "4.sqlite")
