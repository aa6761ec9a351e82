"""Messages of refusals name a way that works, on SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sqla_shard import Cluster
from sqla_shard.testing import sqlite_topology
from tests.shared import remedy_classes
from tests.shared.refusal_sites import ELSEWHERE
from tests.shared.refusal_sites import Site
from tests.shared.refusal_sites import sites
from tests.shared.remedies import ALL
from tests.shared.remedies import refusal
from tests.shared.remedies import Remedies
from tests.shared.remedy_classes import CLASSES
from tests.shared.remedy_models import Base
from tests.shared.remedy_models import Data
from tests.shared.remedy_models import filled
from tests.shared.remedy_models import SHARDS


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory: Path = tmp_path_factory.mktemp("remedies")
    document = sqlite_topology(
        directory, servers=2, shards=SHARDS, main=True, lookup=2
    )
    with Cluster.from_topology(document) as cluster:
        cluster.create_all(Base.metadata)
        yield cluster


data = filled()


class TestRemedies(Remedies):
    pass


def test_every_refusal_has_a_remedy_that_is_run(
    cluster: Cluster, data: Data
) -> None:
    messages = [remedy_classes.refusal(one) for one in CLASSES.values()]
    for case in ALL.values():
        with cluster.session() as session:
            messages.append(refusal(session, data, case))
    found = [str(s) for s in sites() if not any(map(s.wrote, messages))]
    known = [begin for listed in ELSEWHERE.values() for begin in listed]
    # Whoever adds a refusal adds a case, whose remedy is run.
    assert [one for one in found if not one.startswith(tuple(known))] == []
    # What has a case by now is listed no longer.
    assert [k for k in known if not any(f.startswith(k) for f in found)] == []


def test_sites_are_found() -> None:
    assert len(sites()) > 200
    assert not Site("a.py", "{} cannot be told").wrote("x can be told")
    assert Site("a.py", "{} cannot be told").wrote("x cannot be told")
