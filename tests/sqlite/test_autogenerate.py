"""Revisions are generated, run and compared on SQLite."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, ForeignKey, Integer, MetaData, Table
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from examples.pinboard import models as pinboard
from sqla_shard import KeyspaceMixin, MappingMixin, ObjectMixin, ShardedId
from sqla_shard.exc import ReservedNameError, UnknownKeyspaceError
from sqla_shard.planning import spec_of
from sqla_shard.schema import comparing
from tests.models import many_models, revision_models
from tests.models.databases import databases_on_sqlite
from tests.models.revisions import Revisions, topology_of
from tests.suites import reference_tables
from tests.suites.autogenerating import BOTH, Finding, Generating

database = databases_on_sqlite()


TestGenerating = Generating


class TestFinding(Finding):
    alters = False


def test_the_package_has_its_table_names_to_itself() -> None:
    for name in ("sqla_shard_things", "alembic_version"):
        metadata = MetaData()
        Table(name, metadata, Column("id", Integer, primary_key=True))
        with pytest.raises(ReservedNameError, match=name) as caught:
            comparing(metadata, keyspace="main", topology=BOTH)
        assert caught.value.table == name


def test_a_keyspace_that_is_not_there_is_refused() -> None:
    with pytest.raises(UnknownKeyspaceError, match="'other'"):
        comparing(MetaData(), keyspace="other", topology=BOTH)


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        ({"objects": "objects"}, "no keyspace of kind 'global'"),
        (
            {"objects": "objects", "a": "global", "b": "global"},
            "2 keyspaces of kind 'global'",
        ),
    ],
)
def test_a_table_of_an_unknown_keyspace_is_refused(
    kinds: dict[str, str], message: str
) -> None:
    metadata = revision_models.Base.metadata
    topology = topology_of(**kinds)
    with pytest.raises(UnknownKeyspaceError, match="table 'settings'") as caught:
        comparing(metadata, keyspace="objects", topology=topology)
    assert message in str(caught.value)


def test_keyspaces_of_one_kind(database: Any, tmp_path: Path) -> None:
    class Base(KeyspaceMixin, DeclarativeBase):
        pass

    class Owner(ObjectMixin, Base, type_id=1, keyspace="near"):
        __tablename__ = "owners"

    class Item(ObjectMixin, Base, type_id=2, keyspace="far"):
        __tablename__ = "items"

    class OwnerHasItems(MappingMixin, Base, source="Owner", target="Item"):
        pass

    class Left(Base, keyspace="a"):
        __tablename__ = "lefts"
        id: Mapped[int] = mapped_column(primary_key=True)
        rights: Mapped[list[Right]] = relationship(
            secondary=lambda: Base.metadata.tables["pairs"]
        )

    class Right(Base, keyspace="a"):
        __tablename__ = "rights"
        id: Mapped[int] = mapped_column(primary_key=True)

    Table(
        "pairs",
        Base.metadata,
        Column("left_id", ForeignKey("lefts.id"), primary_key=True),
        Column("right_id", ForeignKey("rights.id"), primary_key=True),
    )
    topology = topology_of(near="objects", far="objects", a="global", b="mod")
    expected = {
        "near": {"owners", "owner_has_items"},
        "far": {"items"},
        "a": {"lefts", "rights", "pairs"},
        "b": set(),
    }
    for keyspace, names in expected.items():
        revisions = Revisions(tmp_path / keyspace, database(), topology)
        revision = revisions.generate(Base.metadata, keyspace)
        found = re.findall(r"op\.create_table\('(\w+)'", revision)
        assert set(found) == names


def test_the_server_keeps_the_time_of_the_last_change(
    database: Any, tmp_path: Path
) -> None:
    engine = database()
    revisions = Revisions(tmp_path / "revisions", engine, BOTH)
    revisions.generate(pinboard.Base.metadata)
    revisions.upgrade()
    old = "2001-02-03 04:05:06.000000"
    with engine.begin() as connection:
        run = connection.exec_driver_sql
        run(f"INSERT INTO users (data, ts) VALUES ('{{}}', '{old}')")
        assert run("SELECT ts FROM users").scalar() == old
        run('UPDATE users SET data = \'{"name": "x"}\'')
        assert str(run("SELECT ts FROM users").scalar()) > "2002"


def test_comments_of_users_on_a_table_stay(database: Any, tmp_path: Path) -> None:
    metadata = MetaData()
    Table(
        "things",
        metadata,
        Column("id", ShardedId(1), primary_key=True),
        info={"owner": "us"},
    )
    revisions = Revisions(tmp_path / "revisions", database(), BOTH)
    revisions.generate(metadata)
    assert metadata.tables["things"].info["owner"] == "us"
    assert spec_of(metadata.tables["things"]).type_id == 1


TestReferences = reference_tables.Generating


class TestLinkTables(reference_tables.Generating):
    metadata = many_models.Base.metadata
