"""Texts of others are read in a time that grows with their length.

Each of these texts would take minutes if it did by the square of it, and years
if all ways of dividing it were tried.
"""

from __future__ import annotations

from collections.abc import Callable
from time import process_time
from typing import Any

import pytest

from sqla_shard.cli.output import coloured
from sqla_shard.dialects.mysql import _end_of_select
from sqla_shard.dialects.mysql.catalogue import without_implied
from sqla_shard.dialects.mysql.ddl import creation_of
from sqla_shard.dialects.sqlite import _words
from sqla_shard.exc import SchemaOptionError
from sqla_shard.fleet.binlog_statements import qualifiers
from sqla_shard.fleet.fences import is_like
from sqla_shard.fleet.fleet import bare_url
from sqla_shard.fleet.replication_base import _NAMED
from sqla_shard.fleet.watcher import WatchReport
from sqla_shard.models.codecs import _DECIMAL
from sqla_shard.planning.clauses import _CONSTANT_TEXT
from sqla_shard.schema.effects import Effect, read
from sqla_shard.schema.revisions.autogenerate import _bare
from sqla_shard.schema.selection import parse_shards
from sqla_shard.topology.urls import _URL

N = 100_000
FEW = 20_000
OPEN = "'\\" * N


def effect(statement: str) -> Effect:
    return read(statement).effect


def state(line: str) -> tuple[str, ...]:
    return WatchReport(is_leader=True, lines=(line,)).state


@pytest.mark.parametrize(
    ("function", "text", "expected"),
    [
        (effect, f"SELECT {OPEN}", Effect.READS),
        (effect, f"SELECT {OPEN}; a", Effect.UNKNOWN),
        (effect, f"DROP TABLE a {'b' * N}!", Effect.UNKNOWN),
        (effect, f"DROP TABLE a, `b`{' c' * N}", Effect.TABLES),
        (effect, f"WITH a{'(' * N}{')' * N} DELETE FROM b", Effect.ROWS),
        (effect, f"ALTER TABLE a {'CHANGE b c, ' * FEW}", Effect.TABLES),
        (effect, f"ALTER TABLE a {'CHANGE b b, ' * FEW}", Effect.UNKNOWN),
        (_bare, f"{'(' * N}1{')' * N}", "1"),
        (_bare, f"_utf8{OPEN}", OPEN),
        (_end_of_select, OPEN, None),
        (without_implied, OPEN, OPEN),
        (_words, "[" * N, ["[" * N]),
        (qualifiers, f"a.b {OPEN}", ["a"]),
        (qualifiers, f"a{' -- ' * N}.b", []),
        (qualifiers, "a. " * (N // 2), ["a"] * (N // 2)),
        (_NAMED.findall, "`" * N, []),
        (bare_url, "a" * N, "a" * N),
        (state, "5" * N, ("5" * N,)),
        (state, f"{'5' * N} s ago", ("# s ago",)),
        (coloured, "a" * N, "a" * N),
        (_DECIMAL.fullmatch, "0" * N + "_", None),
        (_CONSTANT_TEXT.fullmatch, f"select 1{' ' * N}!", None),
    ],
    ids=range(22),
)
def test_long_texts(function: Callable[[str], Any], text: str, expected: Any) -> None:
    begun = process_time()
    assert function(text) == expected
    assert process_time() - begun < 20


def test_odd_texts() -> None:
    with pytest.raises(SchemaOptionError, match="must be a shard or a range"):
        parse_shards("9" * N)
    assert not _URL.fullmatch(f"a://{'@' * N}?\n")
    table = "CREATE TABLE a (b INT, PRIMARY KEY (b)) CHARSET c"
    assert creation_of([table]) == table
    assert creation_of([f"{table}{'DEFAULT CHARSET c' * 99}!"]) is None
    assert creation_of([f"{table}OLLATE{' ' * N}!"]) is None


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("%a" * 32 + "b", "a" * 64, False),
        ("%a" * 32 + "%", "A" * 64, True),
        ("%ab%b", "aabb", True),
        ("%ab%b", "aab", False),
        ("d_%\\_\\%", "db1_%", True),
        ("d_%\\_", "d_", False),
        ("%", "", True),
        ("", "a", False),
    ],
)
def test_patterns_of_grants(pattern: str, name: str, expected: bool) -> None:
    assert is_like(pattern, name) == expected
