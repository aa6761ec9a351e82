"""Keys that belong to one object: claims, their end, and their owners."""

from __future__ import annotations

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, UTC
from time import monotonic
from typing import Any

import pytest

from sqla_shard import exc
from tests.models.lookup_models import (
    end_at,
    ids,
    LOOKUPS,
    new_user,
    rows_of,
    Suite,
    UserEmail,
    UserName,
)

THREADS = 20
_LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def all_at_once(count: int, work: Any) -> list[Any]:
    """Call ``work(number)`` in threads that begin together."""
    barrier = threading.Barrier(count)

    def one(number: int) -> Any:
        barrier.wait(60)
        return work(number)

    with ThreadPoolExecutor(count) as executor:
        return list(executor.map(one, range(count)))


def owner(cluster: Any, key: str, cls: Any = UserName) -> int | None:
    with cluster.session() as session:
        found: int | None = cls.resolve(session, key)
        return found


class Claiming(Suite):
    def test_claim_create_confirm(self, cluster, mark):
        claim = cluster.run(UserEmail.claim, f"Me{mark}@x.org")
        assert claim.key == f"me{mark}@x.org"
        user = cluster.run(new_user)
        cluster.run(claim.confirm, user)
        assert owner(cluster, f"me{mark}@X.org", UserEmail) == user
        row = rows_of(cluster, UserEmail)[claim.key]
        assert (row.policy, row.claim, row.expires_at) == ("email/1", claim.token, None)

    def test_the_lifetime_is_by_the_clock_of_the_server(self, cluster, mark):
        lifetime = timedelta(minutes=7, microseconds=3000)
        before = datetime.now(UTC)
        claim = cluster.run(UserName.claim, mark, lifetime=lifetime)
        after = datetime.now(UTC)
        # SQLite's clock has milliseconds.
        slack = timedelta(milliseconds=2)
        assert before - slack <= claim.expires_at - lifetime <= after + slack
        assert rows_of(cluster, UserName)[mark].expires_at == claim.expires_at

    def test_taken_by_a_claim(self, cluster, mark):
        claim = cluster.run(UserName.claim, mark)
        for given in ((mark,), (mark, ids()[0])):
            with pytest.raises(exc.KeyTakenError) as caught:
                cluster.run(UserName.claim, *given)
            assert caught.value.target_id is None
            assert caught.value.expires_at == claim.expires_at
            assert caught.value.key == mark
            assert caught.value.lookup == "UserName"

    def test_taken_by_an_object(self, cluster, mark):
        one, two = ids(2)
        cluster.run(UserName.claim, mark, one)
        for given in ((mark,), (mark, two)):
            with pytest.raises(exc.KeyTakenError) as caught:
                cluster.run(UserName.claim, *given)
            assert caught.value.target_id == one
            assert caught.value.expires_at is None
        assert owner(cluster, mark) == one

    def test_the_shortcut_twice(self, cluster, mark):
        (user,) = ids()
        for _ in range(2):
            claim = cluster.run(UserName.claim, mark, user)
            assert claim.token is claim.expires_at is None
        cluster.run(claim.confirm, user)
        assert not cluster.run(claim.release)
        assert owner(cluster, mark) == user

    def test_confirm_twice(self, cluster, mark):
        one, two = ids(2)
        claim = cluster.run(UserName.claim, mark)
        for _ in range(2):
            cluster.run(claim.confirm, one)
        with pytest.raises(exc.ClaimLostError) as caught:
            cluster.run(claim.confirm, two)
        assert caught.value.target_id == one
        assert owner(cluster, mark) == one

    def test_a_claim_that_was_pickled(self, cluster, mark):
        claim = pickle.loads(pickle.dumps(cluster.run(UserName.claim, mark)))
        (user,) = ids()
        cluster.run(claim.confirm, user)
        assert owner(cluster, mark) == user
        assert claim.token.hex() not in repr(claim)

    def test_release_of_a_claim(self, cluster, mark):
        claim = cluster.run(UserName.claim, mark)
        assert cluster.run(claim.release)
        assert not cluster.run(claim.release)
        assert mark not in rows_of(cluster, UserName)
        with pytest.raises(exc.ClaimLostError) as caught:
            cluster.run(claim.confirm, ids()[0])
        assert caught.value.target_id is None
        cluster.run(UserName.claim, mark)

    def test_release_of_a_claim_that_was_confirmed(self, cluster, mark):
        claim = cluster.run(UserName.claim, mark)
        (user,) = ids()
        cluster.run(claim.confirm, user)
        assert not cluster.run(claim.release)
        assert owner(cluster, mark) == user

    def test_a_transaction_that_was_rolled_back(self, cluster, mark):
        with cluster.session() as session:
            claim = UserName.claim(session, mark)
            session.rollback()
        with pytest.raises(exc.ClaimLostError):
            cluster.run(claim.confirm, ids()[0])
        cluster.run(UserName.claim, mark)

    # -- the end of a claim

    def test_an_abandoned_claim_is_taken_over(self, cluster, mark):
        lost = cluster.run(UserName.claim, mark)
        end_at(cluster, UserName, mark, _LONG_AGO)
        claim = cluster.run(UserName.claim, mark)
        assert claim.token != lost.token
        one, two = ids(2)
        # Fenced, before the other is confirmed and after.
        with pytest.raises(exc.ClaimLostError) as caught:
            cluster.run(lost.confirm, one)
        assert caught.value.target_id is None
        assert not cluster.run(lost.release)
        cluster.run(claim.confirm, two)
        with pytest.raises(exc.ClaimLostError) as caught:
            cluster.run(lost.confirm, one)
        assert caught.value.target_id == two
        assert not cluster.run(lost.release)
        assert owner(cluster, mark) == two

    def test_the_shortcut_takes_over(self, cluster, mark):
        lost = cluster.run(UserName.claim, mark)
        end_at(cluster, UserName, mark, _LONG_AGO)
        (user,) = ids()
        cluster.run(UserName.claim, mark, user)
        assert owner(cluster, mark) == user
        with pytest.raises(exc.ClaimLostError):
            cluster.run(lost.confirm, ids()[0])

    def test_a_claim_that_was_not_taken_over(self, cluster, mark):
        claim = cluster.run(UserName.claim, mark)
        end_at(cluster, UserName, mark, _LONG_AGO)
        assert owner(cluster, mark) is None
        (user,) = ids()
        cluster.run(claim.confirm, user)
        assert owner(cluster, mark) == user

    def test_claims_of_an_object_have_no_end(self, cluster, mark):
        (user,) = ids()
        cluster.run(UserName.claim, mark, user)
        end_at(cluster, UserName, mark, _LONG_AGO)
        with pytest.raises(exc.KeyTakenError):
            cluster.run(UserName.claim, mark)
        assert owner(cluster, mark) == user

    def test_a_claim_ends_by_itself(self, cluster, mark):
        first = cluster.run(UserName.claim, mark, lifetime=timedelta(milliseconds=80))
        deadline = monotonic() + 20
        while monotonic() < deadline:
            try:
                second = cluster.run(UserName.claim, mark)
            except exc.KeyTakenError:
                continue
            break
        assert second.token != first.token
        start = second.expires_at - timedelta(minutes=15)
        assert start >= first.expires_at - timedelta(milliseconds=2)

    @pytest.mark.parametrize(
        "lifetime", [None, 900, timedelta(0), timedelta(-1), timedelta(days=367)]
    )
    def test_no_lifetimes(self, session, mark, lifetime):
        with pytest.raises(ValueError, match="lifetime="):
            UserName.claim(session, mark, lifetime=lifetime)

    # -- keys of an object

    def test_release(self, cluster, mark):
        one, two = ids(2)
        cluster.run(UserEmail.claim, f"{mark}@x.org", one)
        assert not cluster.run(UserEmail.release, f"{mark}@x.org", two)
        assert owner(cluster, f"{mark}@x.org", UserEmail) == one
        assert cluster.run(UserEmail.release, f"{mark}@X.org", one)
        assert not cluster.run(UserEmail.release, f"{mark}@x.org", one)
        assert owner(cluster, f"{mark}@x.org", UserEmail) is None

    def test_release_leaves_claims(self, cluster, mark):
        claim = cluster.run(UserName.claim, mark)
        (user,) = ids()
        assert not cluster.run(UserName.release, mark, user)
        cluster.run(claim.confirm, user)

    def test_rename(self, cluster, mark):
        (user,) = ids()
        cluster.run(UserName.claim, f"a{mark}", user)
        for _ in range(2):  # as after an unknown outcome
            with cluster.begin(cross_shard="unordered") as session:
                UserName.rename(session, f"a{mark}", f"b{mark}", user)
        assert owner(cluster, f"a{mark}") is None
        assert owner(cluster, f"b{mark}") == user

    def test_rename_to_itself(self, cluster, mark):
        (user,) = ids()
        cluster.run(UserEmail.claim, f"{mark}@x.org", user)
        cluster.run(UserEmail.rename, f"{mark}@x.org", f"{mark}@X.ORG", user)
        assert owner(cluster, f"{mark}@x.org", UserEmail) == user

    def test_rename_that_finishes_another(self, cluster, mark):
        # Of one in two transactions the second was not committed.
        (user,) = ids()
        for key in (f"a{mark}", f"b{mark}"):
            cluster.run(UserName.claim, key, user)
        with cluster.begin(cross_shard="unordered") as session:
            UserName.rename(session, f"a{mark}", f"b{mark}", user)
        assert owner(cluster, f"a{mark}") is None
        assert owner(cluster, f"b{mark}") == user

    def test_rename_of_what_it_has_not(self, cluster, mark):
        one, two = ids(2)
        cluster.run(UserName.claim, f"a{mark}", one)
        for key in (f"a{mark}", f"c{mark}"):
            with cluster.begin(cross_shard="unordered") as session:
                with pytest.raises(exc.KeyNotHeldError) as caught:
                    UserName.rename(session, key, f"b{mark}", two)
                assert caught.value.key == key
        assert owner(cluster, f"a{mark}") == one
        # Nothing was written that the commit has kept.
        assert f"b{mark}" not in rows_of(cluster, UserName)

    def test_rename_to_what_is_taken(self, cluster, mark):
        one, two = ids(2)
        cluster.run(UserName.claim, f"a{mark}", one)
        cluster.run(UserName.claim, f"b{mark}", two)
        with (
            cluster.session(cross_shard="unordered") as session,
            pytest.raises(exc.KeyTakenError),
        ):
            UserName.rename(session, f"a{mark}", f"b{mark}", one)
        assert owner(cluster, f"a{mark}") == one

    def test_rename_in_one_transaction_is_refused(self, cluster, mark):
        (user,) = ids()
        cluster.run(UserName.claim, f"a{mark}", user)
        with cluster.begin() as session:
            others = (f"{i}-{mark}" for i in range(1000))
            here = UserName.shard_of(session, f"a{mark}")
            new = next(k for k in others if UserName.shard_of(session, k) != here)
            with pytest.raises(exc.CrossShardWriteError, match=r"lookup\.change"):
                UserName.rename(session, f"a{mark}", new, user)
        # Refused before a part of it was done.
        assert new not in rows_of(cluster, UserName)
        assert owner(cluster, f"a{mark}") == user

    def test_rename_on_one_shard(self, cluster, mark):
        (user,) = ids()
        cluster.run(UserName.claim, f"a{mark}", user)
        with cluster.begin() as session:
            others = (f"{i}-{mark}" for i in range(10_000))
            here = UserName.shard_of(session, f"a{mark}")
            new = next(k for k in others if UserName.shard_of(session, k) == here)
            UserName.rename(session, f"a{mark}", new, user)
        assert owner(cluster, new) == user
        assert owner(cluster, f"a{mark}") is None

    def test_a_user_and_a_key_are_two_transactions(self, cluster, mark):
        with cluster.session() as session:
            user = new_user(session)
            with pytest.raises(exc.CrossShardWriteError):
                UserName.claim(session, mark, user)
        assert owner(cluster, mark) is None


class Racing(Suite):
    """The test module has a fixture ``cluster``."""

    def test_one_of_many_gets_a_key(self, cluster, mark):
        def claim(number: int) -> Any:
            try:
                return cluster.run(UserName.claim, mark)
            except exc.KeyTakenError as error:
                return error.expires_at

        found = all_at_once(THREADS, claim)
        (won,) = [one for one in found if not isinstance(one, datetime)]
        assert {one for one in found if one is not won} == {won.expires_at}

    def test_one_of_many_takes_over(self, cluster, mark):
        lost = cluster.run(UserName.claim, mark)
        end_at(cluster, UserName, mark, _LONG_AGO)
        users = ids(THREADS)

        def take(number: int) -> int | None:
            try:
                if number % 2:
                    cluster.run(UserName.claim, mark, users[number])
                else:
                    claim = cluster.run(UserName.claim, mark)
                    cluster.run(claim.confirm, users[number])
            except exc.KeyTakenError:
                return None
            return users[number]

        found = [one for one in all_at_once(THREADS, take) if one]
        assert len(found) == 1
        assert owner(cluster, mark) == found[0]
        with pytest.raises(exc.ClaimLostError):
            cluster.run(lost.confirm, ids()[0])

    def test_a_late_owner_against_a_takeover(self, cluster, mark):
        for turn in range(10):
            key = f"{turn}-{mark}"
            lost = cluster.run(UserName.claim, key)
            end_at(cluster, UserName, key, _LONG_AGO)
            one, two = ids(2)

            def act(number: int) -> int | None:
                try:
                    if number:
                        cluster.run(UserName.claim, key, two)  # noqa: B023  # called in this turn
                        return two  # noqa: B023
                    cluster.run(lost.confirm, one)  # noqa: B023
                except (exc.KeyTakenError, exc.ClaimLostError):
                    return None
                return one  # noqa: B023

            found = [one for one in all_at_once(2, act) if one]
            assert len(found) == 1
            assert owner(cluster, key) == found[0]

    def test_swapping_names(self, cluster, mark):
        # Each wants the name of another; no user ends without a name.
        users = ids(6)
        keys = [f"{i}-{mark}" for i in range(6)]
        for key, user in zip(keys, users, strict=True):
            cluster.run(UserName.claim, key, user)

        def swap(number: int) -> None:
            with cluster.session(cross_shard="unordered") as session:
                try:
                    UserName.rename(
                        session, keys[number], keys[(number + 1) % 6], users[number]
                    )
                except exc.KeyTakenError:
                    return
                session.commit()

        all_at_once(6, swap)
        with cluster.session() as session:
            found = UserName.resolve_many(session, keys)
        assert found == dict(zip(keys, users, strict=True))


cluster = LOOKUPS.on_backend()
