"""The tables of lookups, on SQLite; and keyspaces that are not for them."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.orm import DeclarativeBase, Mapped

from sqla_shard import blob_field, Cluster, LookupMixin, ObjectMixin
from sqla_shard.exc import LookupTableError, UnknownKeyspaceError
from sqla_shard.models import normalization
from sqla_shard.testing import sqlite_topology
from tests.models.databases import databases_on_sqlite
from tests.models.lookup_models import ids, lookups_on_sqlite
from tests.suites import lookup_tables

cluster = lookups_on_sqlite()


database = databases_on_sqlite()


TestGenerating = lookup_tables.Generating
TestDrifting = lookup_tables.Drifting


def lookup_in(keyspace: str | None) -> Any:
    class Base(DeclarativeBase):
        pass

    class User(ObjectMixin, Base, type_id=3):
        __tablename__ = "users"
        name: Mapped[str] = blob_field()

    class UserName(
        LookupMixin, Base, target=User, normalize=normalization.exact, keyspace=keyspace
    ):
        pass

    return UserName


@pytest.mark.parametrize("kind", ["objects", "main"])
def test_only_mod_shards_stay_as_many_as_they_are(tmp_path, kind):
    cls = lookup_in(kind)
    document = sqlite_topology(tmp_path, 1, 4, main=True, lookup=4)
    with Cluster.from_topology(document) as cluster, cluster.session() as session:
        for call, *given in (
            (cls.resolve, "x"),
            (cls.claim, "x"),
            (cls.release, "x", ids()[0]),
            (cls.shard_of, "x"),
        ):
            with pytest.raises(LookupTableError) as caught:
                call(session, *given)
            assert f"is in keyspace {kind!r}" in str(caught.value)


def test_no_mod_shards(tmp_path):
    cls = lookup_in(None)
    document = sqlite_topology(tmp_path, 1, 4)
    with (
        Cluster.from_topology(document) as cluster,
        cluster.session() as session,
        pytest.raises(UnknownKeyspaceError),
    ):
        cls.resolve(session, "x")


def test_a_keyspace_that_is_named(tmp_path):
    cls = lookup_in("keys")
    document = sqlite_topology(tmp_path, 1, 4, lookup=4)
    spaces = document["keyspaces"]
    spaces["keys"] = {**spaces["lookup"], "database": "keys{shard:05d}"}
    (user,) = ids()
    with Cluster.from_topology(document) as cluster:
        cluster.create_all(cls.metadata)
        cluster.run(cls.claim, "x", user)
        with cluster.session() as session:
            assert cls.resolve(session, "x") == user
    files = {path.name for path in tmp_path.rglob("keys*")}
    assert "keys00000.sqlite" in files
