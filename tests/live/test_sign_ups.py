"""Many sign-ups with one name, on objects' servers and keys' servers."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, UTC
from typing import Any

import pytest
from sqlalchemy import func, select

from sqla_shard import Cluster, exc, scatter
from sqla_shard.models import Claim
from sqla_shard.testing.server_fleet import ServerFleet
from sqla_shard.testing.topology_documents import topology_document
from sqla_shard.upkeep import verify_lookups
from tests.models import verify_models
from tests.models.lookup_models import Base, end_at, new_user, rows_of, User, UserEmail
from tests.models.verify_models import Account, AccountEmail, add_account
from tests.servers.kinds import own_fleet
from tests.suites.lookup_claiming import all_at_once

pytestmark = pytest.mark.live

SIGN_UPS = 200
NAMES = 20
_LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


fleet = own_fleet(6, 16)


@pytest.fixture(scope="module")
def cluster(fleet: ServerFleet[Any]) -> Iterator[Cluster]:
    """Four servers of objects, and two of keys alone."""
    (space,) = fleet.topology_mapping()["keyspaces"].values()
    servers = {one["name"]: one["primary"] for one in space["servers"]}
    names = list(servers)
    document = topology_document({n: servers[n] for n in names[:4]}, 16)
    keys = topology_document(
        {n: servers[n] for n in names[4:]}, 32, database="lookup{shard:05d}"
    )
    document["keyspaces"]["lookup"] = {**keys["keyspaces"]["objects"], "kind": "mod"}
    options = {"pool_size": 20, "max_overflow": 0, "pool_timeout": 120}
    with Cluster.from_topology(document, engine_options=options) as cluster:
        cluster.create_all(Base.metadata)
        cluster.create_all(verify_models.Base.metadata)
        yield cluster


class CrashError(Exception):
    """The process is gone, between one transaction and the next."""


class SignUps:
    """Sign-ups of users, and a count of their outcomes."""

    def __init__(
        self, cluster: Cluster, lookup: Any = UserEmail, new: Any = new_user
    ) -> None:
        self._cluster = cluster
        self._lookup = lookup
        self._new = new
        self._lock = threading.Lock()
        self.ended: Counter[str] = Counter()
        self.winners: dict[str, int] = {}
        self.left: list[tuple[str, Claim]] = []

    def sign_up(self, key: str, crash: str = "") -> None:
        """Sign up; crash after one of the transactions."""
        try:
            user = self._in_three(key, crash)
        except (CrashError, exc.KeyTakenError, exc.ClaimLostError) as error:
            how = type(error).__name__
        else:
            how = "won"
            with self._lock:
                assert self.winners.setdefault(key, user) == user
        with self._lock:
            self.ended[how] += 1

    def _in_three(self, key: str, crash: str) -> int:
        cluster = self._cluster
        claim = cluster.run(self._lookup.claim, key, timeout=120)
        if crash == "claimed":
            with self._lock:
                self.left.append((key, claim))
            raise CrashError
        user = cluster.run(self._new, key, timeout=120)
        if crash == "created":
            with self._lock:
                self.left.append((key, claim))
            raise CrashError
        try:
            cluster.run(claim.confirm, user, timeout=120)
        except exc.ClaimLostError:
            cluster.run(delete_user, user, self._lookup)
            raise
        return user


def delete_user(session: Any, user_id: int, lookup: Any = UserEmail) -> None:
    target = lookup.__sqla_shard_lookup__.target
    session.delete(session.get_one(target, user_id))


def new_account(session: Any, email: str) -> int:
    return add_account(session, email=email)


def users(cluster: Cluster, cls: Any = User) -> int:
    counted = select(func.count(cls.id)).options(scatter())
    with cluster.session() as session:
        return int(session.scalar(counted) or 0)


def test_two_hundred_for_twenty_names(cluster, rng, say):
    assert not {
        server.name for server in cluster.topology.keyspace("objects").servers
    } & {server.name for server in cluster.topology.keyspace("lookup").servers}
    names = [f"User{i}@example.com" for i in range(NAMES)]
    wanted = [rng.choice([n, n.upper()]) for n in names * (SIGN_UPS // NAMES)]
    rng.shuffle(wanted)
    crashes = [rng.choice(["claimed", "created", "", ""]) for _ in range(SIGN_UPS)]
    first = SignUps(cluster)
    all_at_once(SIGN_UPS, lambda i: first.sign_up(wanted[i], crashes[i]))
    say(f"at first {dict(first.ended)}")
    keys = {name.lower() for name in names}
    rows = rows_of(cluster, UserEmail)
    assert set(rows) == keys
    pending = {key for key, row in rows.items() if row.user_id is None}
    # Each name has a user, or was claimed by a sign-up that crashed.
    assert pending == {key.lower() for key, _ in first.left}
    assert len(first.winners) + len(pending) == NAMES
    assert pending, "nobody has crashed; a seed that shows nothing"

    for key in pending:
        end_at(cluster, UserEmail, key, _LONG_AGO)
    second = SignUps(cluster)
    all_at_once(SIGN_UPS, lambda i: second.sign_up(wanted[i]))
    say(f"after {len(pending)} claims have ended {dict(second.ended)}")
    assert second.ended == {
        "won": len(pending),
        "KeyTakenError": SIGN_UPS - len(pending),
    }
    winners = {
        key.lower(): user
        for key, user in (*first.winners.items(), *second.winners.items())
    }
    with cluster.session() as session:
        assert UserEmail.resolve_many(session, names) == {
            name: winners[name.lower()] for name in names
        }
    rows = rows_of(cluster, UserEmail)
    assert {key: row.user_id for key, row in rows.items()} == winners
    assert len(set(winners.values())) == NAMES
    # Crashed sign-ups resume too late, and none of their rows stay.
    before = users(cluster)
    for _, claim in first.left:
        user = cluster.run(new_user, "late")
        with pytest.raises(exc.ClaimLostError):
            cluster.run(claim.confirm, user)
        cluster.run(delete_user, user)
    assert users(cluster) == before
    assert rows_of(cluster, UserEmail) == rows


def test_nothing_of_a_crash_is_left_after_a_repair(cluster, rng, say):
    names = [f"user{i}@example.com" for i in range(NAMES)]
    wanted = names * (SIGN_UPS // NAMES)
    rng.shuffle(wanted)
    sign_ups = SignUps(cluster, AccountEmail, new_account)
    for _ in range(3):
        crashes = [rng.choice(["claimed", "created", ""]) for _ in wanted]
        crashes[0] = "created"
        all_at_once(
            SIGN_UPS, lambda i, how=crashes: sign_ups.sign_up(wanted[i], how[i])
        )
        for key, row in rows_of(cluster, AccountEmail).items():
            if row.account_id is None:
                end_at(cluster, AccountEmail, key, _LONG_AGO)
    say(f"in the end {dict(sign_ups.ended)}")
    orphans = users(cluster, Account) - len(sign_ups.winners)
    assert orphans > 0, "nobody has crashed; a seed that shows nothing"

    # A key that is free goes to one of those who had asked for it; the other
    # objects are reported, and are for the application to delete.
    deleted = 0
    while True:
        report = verify_lookups(cluster, [AccountEmail], repair=True, grace=0).tallies[
            "AccountEmail"
        ]
        if not report.found:
            break
        for finding in report.findings:
            if finding.kind == "conflicting":
                account = finding.row["target_id"]
                cluster.run(delete_user, account, AccountEmail)
                deleted += 1
    rows = rows_of(cluster, AccountEmail)
    given = len(rows) - len(sign_ups.winners)
    assert deleted + given == orphans
    assert set(rows) <= set(names)
    assert (
        sign_ups.winners.items()
        <= {key: row.account_id for key, row in rows.items()}.items()
    )
    assert users(cluster, Account) == len(rows)
    with cluster.session() as session:
        for key, row in rows.items():
            assert session.get_one(Account, row.account_id).email == key
