"""The tables of lookups: revisions, and what verify says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from sqla_shard import Cluster
from sqla_shard.schema import verify
from tests.models.lookup_models import Base, MODULUS, UserEmail, UserTag
from tests.models.revisions import Revisions, shown, topology_of

_TOPOLOGY = topology_of(objects="objects", lookup="mod")
_LOOKUPS = {"user_contact", "user_email", "user_login", "user_name", "user_tag"}


class Generating:
    """The test module has a fixture ``database``, as for autogenerate."""

    @pytest.mark.parametrize("portable", [True, False])
    def test_revisions_make_what_create_all_makes(
        self, database: Any, tmp_path: Path, portable: bool
    ) -> None:
        metadata = Base.metadata
        by_hand = database()
        metadata.create_all(
            by_hand, tables=[t for t in metadata.sorted_tables if t.name in _LOOKUPS]
        )
        engine = database()
        if engine.dialect.name == "sqlite":
            portable = True
        revisions = Revisions(
            tmp_path / "revisions", engine, _TOPOLOGY, portable=portable
        )
        revision = revisions.generate(metadata, "lookup")
        assert "sqla_shard" not in revision
        assert revision.count("create_table") == len(_LOOKUPS)
        revisions.upgrade()
        assert shown(engine) == shown(by_hand)
        revisions.check(metadata, "lookup")


class Drifting:
    """The test module has a fixture ``cluster``."""

    def test_all_tables_are_alike(self, cluster: Cluster) -> None:
        report = verify(cluster)
        assert report.ok, report
        (found,) = [k for k in report.keyspaces if k.keyspace == "lookup"]
        assert found.shards == MODULUS

    def test_one_that_is_not(self, cluster: Cluster) -> None:
        name = UserEmail.__tablename__
        with cluster.session() as session:
            connection = session.connection({"keyspace": "lookup", "shard_id": 5})
            connection.execute(text(f"ALTER TABLE {name} ADD COLUMN note INTEGER"))
            session.commit()
        report = verify(cluster)
        assert not report.ok
        assert name in str(report)
        assert UserTag.__tablename__ not in str(report)
        with cluster.session() as session:
            connection = session.connection({"keyspace": "lookup", "shard_id": 5})
            connection.execute(text(f"ALTER TABLE {name} DROP COLUMN note"))
            session.commit()
        assert verify(cluster).ok
