"""Types of the package, written without it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, sqlite
from sqlalchemy.types import TypeDecorator

from sqla_shard import JSONBlob, ObjectRef, Sequence38, ShardedId, types
from sqla_shard.dialects.sql import UpdatedAt
from sqla_shard.schema.revisions.types import render_item

MARIADB = mysql.dialect(is_mariadb=True)
MYSQL = mysql.dialect(is_mariadb=False)
SQLITE = sqlite.dialect()
OURS = [
    ShardedId(3),
    ObjectRef(3, colocated=True),
    Sequence38(),
    types.UTCTimestamp(),
    types.LookupKey(),
    JSONBlob(60_000),
    JSONBlob(),
    JSONBlob(100_000_000),
    JSONBlob(compression="zstd"),
    types.Vector(3),
]


def rendered(kind: str, item: Any, dialect: Any) -> tuple[Any, set[str]]:
    context: Any = SimpleNamespace(dialect=dialect, imports=set())
    return render_item(kind, item, context), context.imports


def test_every_type_is_tried() -> None:
    tried = {type(kind) for kind in OURS}
    for name in types.__all__:
        kind = getattr(types, name)
        if isinstance(kind, type) and issubclass(kind, TypeDecorator):
            assert kind in tried or kind is types.IdType, name


@pytest.mark.parametrize("kind", OURS, ids=repr)
@pytest.mark.parametrize(
    "seen", [MARIADB, MYSQL, SQLITE], ids=["mariadb", "mysql", "sqlite"]
)
def test_is_the_same_type_in_sql(kind: Any, seen: Any) -> None:
    text, imports = rendered("type", kind, seen)
    assert "sqla_shard" not in text
    names: dict[str, Any] = {"sa": sa}
    for line in imports:
        exec(line, names)  # noqa: S102  # our own text
    made = eval(text, names)  # noqa: S307  # our own text
    for dialect in (MARIADB, MYSQL, SQLITE):
        assert made.compile(dialect) == kind.compile(dialect)


@pytest.mark.parametrize(
    ("default", "expected"),
    [
        ("'x'", "\"'x'\""),
        (sa.text("1 + 2"), "sa.text('1 + 2')"),
        (sa.text("a\\:b"), "sa.text('a\\\\:b')"),
        (sa.true(), "sa.true()"),
        (sa.false(), "sa.false()"),
        (sa.func.now(), "sa.func.now()"),
        (sa.func.current_timestamp(), "sa.func.current_timestamp()"),
        (sa.func.uuid(), False),
        (UpdatedAt(), "UpdatedAt()"),
    ],
)
def test_defaults(default: Any, expected: Any) -> None:
    column = sa.Column("c", sa.String(9), server_default=default)
    found, _ = rendered("server_default", column.server_default, SQLITE)
    assert found == expected


def test_other_items_are_alembics_own() -> None:
    assert rendered("type", sa.Integer(), SQLITE) == (False, set())
    assert rendered("server_default", None, SQLITE) == (False, set())
    assert rendered("column", sa.Column("c", JSONBlob()), SQLITE)[0] is False
