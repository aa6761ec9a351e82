"""Snapshots of transactions on servers, which are older than a lease."""

from __future__ import annotations

import pytest

from sqla_shard.cache.rows import ObjectCache
from tests.models.mapping_models import (
    BoardHasPins,
    lists_on_servers,
    new_board,
    new_pins,
    User,
)

pytestmark = pytest.mark.live

cluster = lists_on_servers("csnapshots")


@pytest.fixture
def cache(cluster):
    memory = {"backend": "dogpile.cache.memory"}
    yield cluster.configure_cache(
        {"rows": memory}, classes={User: "rows", BoardHasPins: "rows"}, prefix="t"
    )
    cluster.cache = None


def new_user(cluster):
    with cluster.begin(shard_id=0) as session:
        user = User(name="old")
        session.add(user)
        session.flush()
        return user.id


@pytest.fixture
def at_second_look(cache, monkeypatch):
    """Run a function while a reader waits for the holder of a lease."""
    store = cache.region("rows").store
    fetch = store.fetch
    todo = []

    def set_up(key, do):
        fetch([key], 5)
        looks = []

        def fetching(keys, lease):
            looks.append(keys)
            if len(looks) == 2:
                do()
            return fetch(keys, lease)

        todo.append(looks)
        monkeypatch.setattr(store, "fetch", fetching)

    yield set_up
    assert all(len(looks) >= 2 for looks in todo)


def test_an_object_that_is_written_while_we_wait(cluster, at_second_look):
    one, other = new_user(cluster), new_user(cluster)

    def rename():
        with cluster.begin() as writer:
            writer.get_one(User, one).name = "new"

    at_second_look(f"t:users:{one}", rename)
    with cluster.session() as session:
        # The first of them begins the transaction on the server.
        session.get_many(User, [other, one])
    with cluster.session() as session:
        assert session.get(User, one).name == "new"


def test_a_list_that_is_written_while_we_wait(cluster, at_second_look):
    one, other = new_board(cluster), new_board(cluster)
    ids = new_pins(cluster, 1)

    def append():
        with cluster.begin() as writer:
            BoardHasPins.append_many(writer, one, ids)

    table = BoardHasPins.__table__.name
    at_second_look(f"t:{table}:{one}", append)
    with cluster.session() as session:
        BoardHasPins.pages(session, [other, one], 5)
    with cluster.session() as session:
        page = BoardHasPins.page(session, one, 5)
        assert [row.pin_id for row in page] == ids


def test_an_object_that_is_inserted_after_we_looked(cluster, cache, monkeypatch):
    missing = new_user(cluster) + 1
    rows = ObjectCache.rows
    looks = []

    def reading(self, scope, ids):
        found = rows(self, scope, ids)
        looks.append(ids)
        if len(looks) == 1:
            assert new_user(cluster) == missing
        return found

    monkeypatch.setattr(ObjectCache, "rows", reading)
    with cluster.session() as session:
        assert session.get(User, missing) is None
    with cluster.session() as session:
        assert session.get(User, missing).name == "old"
    assert len(looks) > 1
