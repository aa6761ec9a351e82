"""Looking through mappings, on MariaDB."""

from __future__ import annotations

import pytest

from tests.shared import verify_relations
from tests.shared.verify_relations import BoardLikesBoard
from tests.shared.verify_relations import relations_on_mariadb

pytestmark = pytest.mark.live

tables, cluster = relations_on_mariadb("relations")


class TestDamage(verify_relations.Damage):
    pass


class TestBesideWriters(verify_relations.BesideWriters):
    pass


@pytest.mark.parametrize("end", ["source", "target"])
def test_an_object_that_is_not_committed_yet(cluster, end):
    there = cluster.run(verify_relations.new, verify_relations.Board, 1)
    with cluster.begin() as session:
        late = verify_relations.new(session, verify_relations.Board, 2)
        pair = (late, there) if end == "source" else (there, late)
        verify_relations.plant(cluster, BoardLikesBoard, *pair)
        report = verify_relations.verify(cluster, repair=True)
        assert verify_relations.counts(report) == {}
    with cluster.session() as session:
        assert BoardLikesBoard.count(session, pair[0]) == 1
