"""Signing up to the pinboard, following boards and saving pins, on SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.pinboard.accounts import sign_in
from examples.pinboard.models import User, UserName
from examples.pinboard.samples import add_samples, email_of, sample_users
from sqla_shard import Cluster
from sqla_shard.testing import sqlite_topology
from tests.suites.pinboard_relations import Relations
from tests.suites.pinboard_signing_up import SigningUp
from tests.suites.pinboard_tables import create_tables


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("pinboard")
    return sqlite_topology(folder, 2, 4, lookup=4)


@pytest.fixture(scope="module")
def cluster(document: Any) -> Iterator[Cluster]:
    with Cluster.from_topology(document) as cluster:
        create_tables(cluster)
        yield cluster


TestSigningUp = SigningUp
TestRelations = Relations


def test_samples_of_a_version_without_addresses(tmp_path: Path) -> None:
    old = User(name="Grace")
    with Cluster.from_topology(sqlite_topology(tmp_path, 2, 4, lookup=4)) as c:
        create_tables(c)
        with c.begin() as session:
            session.add(old)
            session.flush()
            user_id = old.id
        assert add_samples(c) == 2
        with c.session() as session:
            assert sign_in(session, email_of("Grace")).id == user_id
            assert UserName.resolve(session, "grace") == user_id
            names = [user.name for user in sample_users(session)]
        assert names == ["Ada", "Grace", "Mary"]
        assert add_samples(c) == 0
