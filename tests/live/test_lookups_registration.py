"""Signing up and changing keys, on servers, also where COMMITs are cut."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from sqla_shard import Cluster, exc
from sqla_shard.models import change, sign_up
from sqla_shard.testing import Proxy
from sqla_shard.testing.server_fleet import ServerFleet
from tests.models.lookup_models import (
    Base,
    lookups_on_servers,
    MODULUS,
    new_user,
    SHARDS,
    Suite,
    UserEmail,
    UserName,
)
from tests.servers.kinds import own_lines
from tests.suites.lookup_registration import finish, named_users, owners, set_name

pytestmark = pytest.mark.live

_WHENS = ("before", "after")

cluster = lookups_on_servers("lkreg")


lines = own_lines()


@pytest.fixture(scope="module")
def proxied(fleet: ServerFleet[Any], lines: list[Proxy]) -> Iterator[Cluster]:
    document = fleet.topology_mapping(
        shards=SHARDS,
        database="db_lkcut_{shard:05d}",
        lookup=MODULUS,
        lookup_database="lookup_lkcut_{shard:05d}",
        proxies=lines,
    )
    fleet.drop_databases(document)
    with Cluster.from_topology(document) as cluster:
        cluster.create_all(Base.metadata)
        yield cluster
        for line in lines:
            line.restore()
    fleet.drop_databases(document)


class TestCutCommits(Suite):
    """Each COMMIT of a sign-up and of a change, cut on each server."""

    @pytest.mark.parametrize(
        ("number", "when"), list(itertools.product((1, 2, 3), _WHENS))
    )
    def test_sign_up_and_change(
        self, proxied: Cluster, lines: list[Proxy], mark: str, number: int, when: Any
    ) -> None:
        for line in lines:
            old, new = (f"{n}{mark}{line.port}@x.org" for n in ("a", "b"))
            name = f"{mark}{line.port}"
            keys = {UserEmail: old, UserName: name}
            line.cut_at_commit(number, when=when)
            user_id = None
            with contextlib.suppress(exc.ShardError):
                user_id = sign_up(proxied, keys, new_user, name)
            line.restore()
            finish(proxied)
            made = named_users(proxied, name)
            assert user_id is None or made == [user_id]
            for cls, key in keys.items():
                assert owners(proxied, cls, key) == (made or [None])
            if not made:
                continue
            (user_id,) = made
            line.cut_at_commit(number, when=when)
            with contextlib.suppress(exc.ShardError):
                change(proxied, UserEmail, old, new, user_id, set_name, user_id, new)
            line.restore()
            finish(proxied)
            is_switched = named_users(proxied, new) == made
            has_old, has_new = owners(proxied, UserEmail, old, new)
            assert (has_new if is_switched else has_old) == user_id
            assert {has_old, has_new} <= {user_id, None}
