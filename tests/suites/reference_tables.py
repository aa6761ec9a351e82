"""The tables of references: revisions, and what verify says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sqla_shard import Cluster
from sqla_shard.schema import verify
from tests.models.reference_models import Base, spoil, Suite
from tests.models.revisions import Revisions, shown, topology_of


class Generating:
    """The test module has a fixture ``database``, as for autogenerate."""

    metadata = Base.metadata

    @pytest.mark.parametrize("portable", [True, False])
    def test_revisions_make_what_create_all_makes(
        self, database: Any, tmp_path: Path, portable: bool
    ) -> None:
        by_hand = database()
        self.metadata.create_all(by_hand)
        engine = database()
        if engine.dialect.name == "sqlite":
            portable = True
        revisions = Revisions(
            tmp_path / "revisions",
            engine,
            topology_of(objects="objects", lookup="mod", main="global"),
            portable=portable,
        )
        revision = revisions.generate(self.metadata, "objects")
        assert revision.count("create_table") == len(self.metadata.tables)
        revisions.upgrade()
        assert shown(engine) == shown(by_hand)
        revisions.check(self.metadata, "objects")


class Drifting(Suite):
    """The test module has a fixture ``cluster``."""

    def test_one_that_is_not_like_the_others(self, cluster: Cluster) -> None:
        assert verify(cluster).ok
        spoil(cluster, 5, "ALTER TABLE rates ADD COLUMN note INTEGER")
        report = verify(cluster)
        assert not report.ok
        assert "rates" in str(report)
        assert "country" not in str(report)
        spoil(cluster, 5, "ALTER TABLE rates DROP COLUMN note")
        assert verify(cluster).ok
