"""Keys and objects that do not fit: found, and put right."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime, timedelta, UTC
from time import monotonic
from typing import Any

import pytest
from sqlalchemy.orm import DeclarativeBase

from sqla_shard import LookupMixin
from sqla_shard.exc import ClaimLostError, CommitUnknownError, VerifyPositionError
from sqla_shard.models import normalization
from sqla_shard.models.lookup_table import shard_of
from sqla_shard.types.columns import LookupKey
from sqla_shard.upkeep import delete_abandoned, open_claims, verify_lookups
from sqla_shard.upkeep.lookups import KeyRepair
from sqla_shard.upkeep.run import PositionFile
from tests.models.layouts import pack
from tests.models.verify_models import (
    Account,
    AccountEmail,
    AccountHandle,
    AccountLogin,
    AccountName,
    AccountTag,
    add_account,
    ALL,
    everything,
    home,
    LONG_AGO,
    missing_account,
    MODULUS,
    plant,
    remove,
    verified,
)

tables, cluster = verified()

_RECENTLY = timedelta(minutes=5)


def verify(cluster: Any, **options: Any) -> Any:
    options = {"grace": 0.0, **options}
    return verify_lookups(cluster, ALL, **options)


def counts(report: Any) -> dict[str, int]:
    """Return how many of each kind were found."""
    found = {kind: report.found(kind) for kind in report.kinds}
    return {kind: count for kind, count in found.items() if count}


def owner(cluster: Any, cls: Any, key: str) -> int | None:
    with cluster.session() as session:
        if cls is AccountTag:
            return next(iter(cls.resolve_all(session, key)), None)
        found: int | None = cls.resolve(session, key)
        return found


def signed_up(cluster: Any, email: str, *tags: str) -> int:
    """Return an account that has all of its rows."""
    user: int = cluster.run(add_account, email=email, tags=list(tags))
    cluster.run(AccountEmail.claim, email, user)
    for tag in tags:
        cluster.run(AccountTag.add, tag, user)
    return user


# -- damage that can be repaired: each returns the kind that it is, and who
# -- resolves to what afterwards


def dangling(cluster: Any) -> Any:
    plant(cluster, AccountEmail, "gone@x.org", missing_account())
    return "dangling", [(AccountEmail, "gone@x.org", None)]


def dangling_without_a_field(cluster: Any) -> Any:
    plant(cluster, AccountName, "gone", missing_account())
    return "dangling", [(AccountName, "gone", None)]


def dangling_share(cluster: Any) -> Any:
    user = signed_up(cluster, "sailor@x.org", "sea")
    plant(cluster, AccountTag, "sea", missing_account())
    return "dangling", [(AccountTag, "sea", user)]


def dangling_elsewhere(cluster: Any) -> Any:
    shard_id = (home("lost@x.org") + 1) % MODULUS
    plant(cluster, AccountEmail, "lost@x.org", missing_account(), shard_id=shard_id)
    return "dangling", [(AccountEmail, "lost@x.org", None)]


def stale(cluster: Any) -> Any:
    user = signed_up(cluster, "new@x.org")
    cluster.run(AccountEmail.claim, "old@x.org", user)
    return "stale", [
        (AccountEmail, "old@x.org", None),
        (AccountEmail, "new@x.org", user),
    ]


def stale_share(cluster: Any) -> Any:
    user = signed_up(cluster, "rower@x.org", "river")
    cluster.run(AccountTag.add, "land", user)
    return "stale", [(AccountTag, "land", None), (AccountTag, "River", user)]


def misplaced(cluster: Any) -> Any:
    user = cluster.run(add_account)
    shard_id = (home("here") + 3) % MODULUS
    plant(cluster, AccountName, "here", user, shard_id=shard_id)
    return "misplaced", [(AccountName, "here", user)]


def misplaced_copy(cluster: Any) -> Any:
    user = cluster.run(add_account)
    cluster.run(AccountName.claim, "there", user)
    shard_id = (home("there") + 3) % MODULUS
    plant(cluster, AccountName, "there", user, shard_id=shard_id)
    return "misplaced", [(AccountName, "there", user)]


def misplaced_share(cluster: Any) -> Any:
    user = cluster.run(add_account, tags=["lake"])
    cluster.run(AccountTag.add, "lake", user)
    shard_id = (home("lake") + 3) % MODULUS
    plant(cluster, AccountTag, "lake", user, shard_id=shard_id)
    return "misplaced", [(AccountTag, "lake", user)]


def missing(cluster: Any) -> Any:
    user = signed_up(cluster, "Me@X.org")
    remove(cluster, AccountEmail, "me@x.org")
    return "missing", [(AccountEmail, "me@x.org", user)]


def missing_share(cluster: Any) -> Any:
    user = signed_up(cluster, "diver@x.org", "Reef", "cave")
    remove(cluster, AccountTag, "reef")
    return "missing", [(AccountTag, "reef", user), (AccountTag, "cave", user)]


def missing_behind_a_claim(cluster: Any) -> Any:
    # It has ended, but not long ago.
    user = cluster.run(add_account, email="late@x.org")
    ended = datetime.now(UTC) - _RECENTLY
    plant(cluster, AccountEmail, "late@x.org", None, ended=ended)
    return "missing", [(AccountEmail, "late@x.org", user)]


def abandoned(cluster: Any) -> Any:
    plant(cluster, AccountEmail, "left@x.org", None, ended=LONG_AGO)
    return "abandoned", [(AccountEmail, "left@x.org", None)]


_REPAIRED = [
    dangling,
    dangling_without_a_field,
    dangling_share,
    dangling_elsewhere,
    stale,
    stale_share,
    misplaced,
    misplaced_copy,
    misplaced_share,
    missing,
    missing_share,
    missing_behind_a_claim,
    abandoned,
]


# -- damage that needs an operator's decision


def conflicting(cluster: Any) -> str:
    signed_up(cluster, "twice@x.org")
    cluster.run(add_account, email="TWICE@x.org")
    return "conflicting"


def foreign_type(cluster: Any) -> str:
    plant(cluster, AccountEmail, "odd@x.org", pack(1, ACCOUNT_NOT, 7))
    return "foreign"


def foreign_shard(cluster: Any) -> str:
    plant(cluster, AccountName, "other", pack(4000, 5, 7))
    return "foreign"


def unknown_policy(cluster: Any) -> str:
    user = cluster.run(add_account)
    plant(cluster, AccountName, "old", user, policy="none/7")
    return "unknown-policy"


def unfit(cluster: Any) -> str:
    cluster.run(add_account, email="no address")
    return "unfit"


ACCOUNT_NOT = 6
_REPORTED = [conflicting, foreign_type, foreign_shard, unknown_policy, unfit]


class Together:
    def test_all_damage_at_once(self, cluster):
        made = [damage(cluster) for damage in _REPAIRED]
        reported = Counter(damage(cluster) for damage in _REPORTED)
        expected = Counter(kind for kind, _ in made)
        before = everything(cluster)
        report = verify(cluster, batch=2)
        assert counts(report) == expected + reported
        assert everything(cluster) == before, "a dry run has written"
        report = verify(cluster, batch=2, repair=True)
        assert counts(report) == expected + reported
        assert not report.ok
        for kind, count in expected.items():
            assert report.repaired(kind) == count
        for _, owned in made:
            for cls, key, user in owned:
                assert owner(cluster, cls, key) == user
        mended = everything(cluster)
        report = verify(cluster, repair=True)
        assert counts(report) == reported
        assert everything(cluster) == mended


class Damage:
    def test_all_is_well(self, cluster):
        signed_up(cluster, "a@x.org", "sea", "land")
        signed_up(cluster, "b@x.org", "sea")
        user = cluster.run(add_account, handle="Bob")
        cluster.run(AccountHandle.claim, "Bob", user)
        cluster.run(AccountEmail.claim, "c@x.org")
        before = everything(cluster)
        for repair in (False, True):
            report = verify(cluster, repair=repair)
            assert report.ok
            assert counts(report) == {}
            assert "no findings" in str(report)
        tally = report.tallies["AccountEmail"]
        assert tally.looked == {"rows": 3, "objects": 3}
        assert report.tallies["AccountTag"].looked["rows"] == 3
        assert set(report.skipped) == {"AccountName", "AccountLogin"}
        assert everything(cluster) == before

    @pytest.mark.parametrize("damage", _REPAIRED, ids=lambda d: d.__name__)
    def test_found_and_repaired(self, cluster, damage):
        kind, expected = damage(cluster)
        before = everything(cluster)
        report = verify(cluster)
        assert counts(report) == {kind: 1}
        assert report.ok == (kind == "abandoned")
        (finding,) = report.findings
        assert finding.row["key"] in str(report)
        assert everything(cluster) == before, "a dry run has written"
        report = verify(cluster, repair=True)
        assert counts(report) == {kind: 1}
        assert report.repaired(kind) == 1
        assert report.ok
        assert report.findings[0].repaired
        for cls, key, user in expected:
            assert owner(cluster, cls, key) == user
        assert counts(verify(cluster)) == {}

    @pytest.mark.parametrize("damage", _REPORTED, ids=lambda d: d.__name__)
    def test_reported_only(self, cluster, damage):
        kind = damage(cluster)
        before = everything(cluster)
        for _ in range(2):
            report = verify(cluster, repair=True)
            assert counts(report) == {kind: 1}
            assert report.repaired(kind) == 0
            assert not report.ok
            assert everything(cluster) == before
        document = json.loads(json.dumps(report.as_dict()))
        assert not document["ok"]
        (shown,) = (
            one for tally in document["classes"].values() for one in tally["findings"]
        )
        assert shown["kind"] == kind
        assert isinstance(shown["row"]["target_id"], str)

    @pytest.mark.parametrize("is_done", [False, True])
    @pytest.mark.parametrize("damage", _REPAIRED, ids=lambda d: d.__name__)
    def test_a_commit_that_is_lost(self, cluster, monkeypatch, damage, is_done):
        """Each first COMMIT of a repair: whether it was done is not known."""
        kind, expected = damage(cluster)
        lost: set[str] = set()
        run = cluster.run

        def losing(fn: Any, *args: Any, **options: Any) -> Any:
            name = getattr(fn, "__qualname__", "")
            if not name.startswith("KeyRepair.") or name in lost:
                return run(fn, *args, **options)
            lost.add(name)
            if is_done:
                run(fn, *args, **options)
            raise CommitUnknownError(server="server1")

        with monkeypatch.context() as patched:
            patched.setattr(cluster, "run", losing)
            report = verify(cluster, repair=True)
        assert lost
        assert (counts(report), report.ok) == ({kind: 1}, True)
        assert report.repaired(kind) == 1
        for cls, key, user in expected:
            assert owner(cluster, cls, key) == user
        assert counts(verify(cluster)) == {}

    def test_commits_that_are_lost_again_and_again(self, cluster, monkeypatch):
        kind, _ = dangling(cluster)
        signed_up(cluster, "a@x.org")
        run = cluster.run

        def losing(fn: Any, *args: Any, **options: Any) -> Any:
            if getattr(fn, "__qualname__", "").startswith("KeyRepair."):
                raise CommitUnknownError(server="server1")
            return run(fn, *args, **options)

        with monkeypatch.context() as patched:
            patched.setattr(cluster, "run", losing)
            report = verify(cluster, repair=True)
        assert (counts(report), report.ok) == ({kind: 1}, False)
        assert "server1 was lost during COMMIT" in str(report)
        assert report.tallies["AccountEmail"].looked["objects"] == 1

    def test_misplaced_and_taken(self, cluster):
        user, other = (cluster.run(add_account) for _ in range(2))
        cluster.run(AccountName.claim, "here", other)
        shard_id = (home("here") + 3) % MODULUS
        plant(cluster, AccountName, "here", user, shard_id=shard_id)
        before = everything(cluster)
        assert counts(verify(cluster)) == {"misplaced": 1}
        report = verify(cluster, repair=True)
        assert counts(report) == {"conflicting": 1}
        assert str(other) in report.findings[0].detail
        assert not report.ok
        assert everything(cluster) == before

    def test_inactive_objects_are_there(self, cluster):
        user = signed_up(cluster, "a@x.org")
        bare = cluster.run(add_account, email="b@x.org")
        for one in (user, bare):
            with cluster.begin() as session:
                session.get_one(Account, one).deactivate()
        assert counts(verify(cluster, repair=True)) == {}
        assert owner(cluster, AccountEmail, "a@x.org") == user
        assert owner(cluster, AccountEmail, "b@x.org") is None

    def test_keys_of_a_user_who_signs_up(self, cluster):
        # Created, and not confirmed yet.
        claim = cluster.run(AccountEmail.claim, "a@x.org")
        user = cluster.run(add_account, email="a@x.org")
        assert counts(verify(cluster, repair=True)) == {}
        cluster.run(claim.confirm, user)
        assert owner(cluster, AccountEmail, "a@x.org") == user

    def test_rows_that_are_correct_at_the_second_check(self, cluster):
        users = [cluster.run(add_account, email=f"{i}@x.org") for i in range(3)]
        seen = []

        def claim_them(progress: Any) -> None:
            seen.append(progress.waiting)
            if progress.waiting == 3:
                for i, user in enumerate(users):
                    cluster.run(AccountEmail.claim, f"{i}@x.org", user)

        began = monotonic()
        # Time to find all three before the first is looked at again.
        report = verify(cluster, grace=1.5, repair=True, on_progress=claim_them)
        assert monotonic() - began >= 1.5
        assert max(seen) == 3
        assert counts(report) == {}

    def test_a_changed_finding_is_checked_again(self, cluster):
        user = cluster.run(add_account, email="me@x.org")

        def take(progress: Any) -> None:
            if progress.waiting:
                other = missing_account()
                if owner(cluster, AccountEmail, "me@x.org") != other:
                    plant(cluster, AccountEmail, "me@x.org", other)

        report = verify(cluster, grace=0.2, on_progress=take)
        # The row came after the rows were looked through.
        assert counts(report) == {"conflicting": 1}
        assert report.findings[0].row["target_id"] == user

    def test_each_key_counts_once(self, cluster):
        # Several of an object, or of a key, whose second looks are made
        # one by one.
        tags = ["a", "b", "c", "b"]
        for _ in range(2):
            cluster.run(add_account, tags=tags)
        for number in range(3):
            for tag in ("d", "e"):
                plant(cluster, AccountTag, tag, missing_account(number))
        report = verify(cluster, batch=1, grace=0.1)
        assert counts(report) == {"missing": 6, "dangling": 6}
        report = verify(cluster, batch=2, repair=True)
        assert counts(report) == {"missing": 6, "dangling": 6}
        assert counts(verify(cluster)) == {}

    def test_more_than_are_shown(self, cluster):
        for i in range(25):
            plant(cluster, AccountName, f"{i:03}", missing_account(i))
        report = verify(cluster, batch=2)
        assert counts(report) == {"dangling": 25}
        assert len(report.findings) == 20
        assert "and 5 more" in str(report)

    # -- claims

    def test_open_claims(self, cluster):
        assert open_claims(cluster, ALL) == []
        for number in range(7):
            cluster.run(AccountEmail.claim, f"{number}@x.org")
        plant(cluster, AccountEmail, "left@x.org", None, ended=LONG_AGO)
        cluster.run(add_account, email="done@x.org")
        done = cluster.run(AccountEmail.claim, "confirmed@x.org")
        user = cluster.run(add_account, email="confirmed@x.org")
        cluster.run(done.confirm, user)
        given_back = cluster.run(AccountEmail.claim, "back@x.org")
        cluster.run(given_back.release)
        cluster.run(AccountLogin.claim, "login")
        found = open_claims(cluster, ALL, batch=2)
        assert found == open_claims(cluster, ALL)
        assert {(one.lookup, one.key, one.has_ended) for one in found} == {
            *(("AccountEmail", f"{n}@x.org", False) for n in range(7)),
            ("AccountEmail", "left@x.org", True),
            ("AccountLogin", "login", False),
        }
        now = datetime.now(UTC)
        for one in found:
            assert (one.expires_at < now) is one.has_ended
            key = LookupKey.encoded(one.key)
            assert one.shard_id == shard_of(key, MODULUS)
        (login,) = open_claims(cluster, [AccountLogin])
        assert login.as_dict()["key"] == "login"
        with pytest.raises(ValueError, match="batch=0"):
            open_claims(cluster, ALL, batch=0)

    def test_abandoned_claims_alone(self, cluster):
        plant(cluster, AccountEmail, "left@x.org", None, ended=LONG_AGO)
        ended = datetime.now(UTC) - _RECENTLY
        plant(cluster, AccountEmail, "late@x.org", None, ended=ended)
        plant(cluster, AccountEmail, "gone@x.org", missing_account())
        cluster.run(AccountEmail.claim, "now@x.org")
        assert delete_abandoned(cluster, ALL) == 1
        hour, none = timedelta(hours=1), timedelta(0)
        assert delete_abandoned(cluster, ALL, older_than=hour) == 0
        assert delete_abandoned(cluster, ALL, older_than=none) == 1
        keys = {row[2] for row in everything(cluster)}
        assert keys == {"gone@x.org", "now@x.org"}

    def test_findings_confirmed_too_late(self, cluster):
        claim = cluster.run(
            AccountEmail.claim, "a@x.org", lifetime=timedelta(microseconds=1)
        )
        user = cluster.run(add_account, email="a@x.org")
        deadline = monotonic() + 20
        while not delete_abandoned(cluster, ALL, older_than=timedelta(0)):
            assert monotonic() < deadline
        with pytest.raises(ClaimLostError):
            cluster.run(claim.confirm, user)


class Rekeying:
    def old(self, cluster: Any, key: str, user: int) -> None:
        plant(cluster, AccountLogin, key, user, policy="exact/1")

    def test_rows_of_a_previous_policy(self, cluster):
        one, two, three = (cluster.run(add_account) for _ in range(3))
        self.old(cluster, "same", one)
        self.old(cluster, "Other", two)
        cluster.run(AccountLogin.claim, "new", three)
        before = everything(cluster)
        report = verify(cluster, repair=True)
        assert report.ok
        assert counts(report) == {"outdated": 2}
        assert everything(cluster) == before
        report = verify(cluster, rekey=True)
        assert report.repaired("outdated") == 2
        assert counts(verify(cluster)) == {}
        rows = {row[2]: row for row in everything(cluster)}
        for key, user in (("same", one), ("other", two), ("new", three)):
            assert rows[key][1] == home(key)
            assert rows[key][3:5] == (user, "casefold/1")
            assert owner(cluster, AccountLogin, key) == user
        assert "Other" not in rows

    def test_two_keys_that_become_one(self, cluster):
        one, two = (cluster.run(add_account) for _ in range(2))
        self.old(cluster, "Bob", one)
        self.old(cluster, "BOB", two)
        for _ in range(2):
            report = verify(cluster, rekey=True)
            assert report.found("conflicting") == 1
            assert not report.ok
        keys = {row[2] for row in everything(cluster)}
        assert len(keys & {"Bob", "BOB"}) == 1
        assert owner(cluster, AccountLogin, "Bob") in (one, two)

    def test_two_keys_of_one_object_that_become_one(self, cluster):
        user = cluster.run(add_account)
        self.old(cluster, "Bob", user)
        self.old(cluster, "BOB", user)
        report = verify(cluster, rekey=True)
        assert report.repaired("outdated") == 2
        assert [row[2] for row in everything(cluster)][1:] == ["bob"]

    def test_interrupted_between_two_transactions(self, cluster):
        user = cluster.run(add_account)
        self.old(cluster, "Bob", user)
        plant(cluster, AccountLogin, "bob", user)
        report = verify(cluster, rekey=True)
        assert report.repaired("outdated") == 1
        assert [row[2] for row in everything(cluster)][1:] == ["bob"]

    def test_a_key_that_is_being_claimed(self, cluster):
        user = cluster.run(add_account)
        self.old(cluster, "Bob", user)
        plant(cluster, AccountLogin, "bob", None)
        before = everything(cluster)
        report = verify(cluster, rekey=True)
        assert counts(report) == {"outdated": 1}
        assert "claimed until" in report.findings[0].detail
        assert everything(cluster) == before

    def test_keys_that_objects_share(self, cluster):
        users = [cluster.run(add_account, tags=["Sea", "Land"]) for _ in range(2)]
        for user in users:
            for tag in ("Sea", "Land"):
                plant(cluster, AccountTag, tag, user, policy="exact/1")
        assert counts(verify(cluster)) == {"outdated": 4}
        verify(cluster, rekey=True)
        assert counts(verify(cluster)) == {}
        with cluster.session() as session:
            for tag in ("sea", "LAND"):
                assert AccountTag.resolve_all(session, tag) == sorted(users)

    def test_lost_rows_are_read_from_the_object(self, cluster):
        user = cluster.run(add_account, handle="Bob")
        plant(cluster, AccountHandle, "bob", user, policy="casefold/1")
        assert verify(cluster, rekey=True).repaired("outdated") == 1
        assert counts(verify(cluster)) == {}
        row = next(r for r in everything(cluster) if r[0] != "Account")
        assert row[1:5] == (home("Bob"), "Bob", user, "exact/1")


class Resuming:
    @pytest.fixture
    def damaged(self, cluster: Any, rng: Any) -> Any:
        """Many rows, of which some are wrong."""
        for i in range(40):
            if rng.random() < 0.4:
                plant(cluster, AccountName, f"{i:03}", missing_account(i))
            else:
                user = cluster.run(add_account, email=f"{i}@x.org")
                cluster.run(AccountName.claim, f"{i:03}", user)
                if rng.random() < 0.6:
                    cluster.run(AccountEmail.claim, f"{i}@x.org", user)
        return cluster

    @pytest.mark.parametrize("repair", [False, True])
    def test_again_and_again(self, damaged, tmp_path, rng, repair):
        file = tmp_path / "deep" / "position.json"
        whole = verify(damaged, batch=5)
        runs = 0

        def stop(progress: Any) -> None:
            # The first run comes to its end with no seed.
            if rng.random() < (0.5 if runs == 1 else 0.1):
                raise KeyboardInterrupt

        while True:
            runs += 1
            try:
                report = verify(
                    damaged, batch=5, repair=repair, position=file, on_progress=stop
                )
            except KeyboardInterrupt:
                assert file.stat().st_mode & 0o777 == 0o600
            else:
                break
        assert runs > 1
        assert not file.exists()
        expected = whole.as_dict()
        found = report.as_dict()
        for name, tally in found["classes"].items():
            theirs = expected["classes"][name]
            assert tally["found"] == theirs["found"]
            if not repair:
                assert tally == theirs
        assert report.ok == repair
        if repair:
            assert counts(verify(damaged)) == {}

    def test_nothing_is_looked_at_twice(self, damaged, tmp_path):
        file = tmp_path / "position.json"
        once: list[Any] = []
        whole = verify(damaged, batch=5, on_progress=once.append)
        twice: list[Any] = []

        def stop(progress: Any) -> None:
            twice.append(progress)
            if len(twice) == len(once) // 2:
                raise OSError("the disk is full")

        with pytest.raises(OSError, match="disk"):
            verify(damaged, batch=5, position=file, on_progress=stop)
        report = verify(damaged, batch=5, position=file, on_progress=stop)
        assert len(twice) in (len(once), len(once) + 1)
        for name, tally in report.tallies.items():
            assert tally.looked == whole.tallies[name].looked

    def test_suspects_survive_an_interruption(self, cluster, tmp_path):
        file = tmp_path / "position.json"
        plant(cluster, AccountName, "gone", missing_account())

        def stop(progress: Any) -> None:
            if progress.subject == "AccountLogin":
                assert progress.waiting == 1
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            verify(cluster, grace=60, position=file, on_progress=stop)
        assert counts(verify(cluster, position=file)) == {"dangling": 1}

    def test_repairs_of_a_run_that_died_are_reported(
        self, cluster, tmp_path, monkeypatch
    ):
        file = tmp_path / "position.json"
        for i in range(3):
            plant(cluster, AccountName, f"{i}", missing_account(i))
        repair = KeyRepair.repair

        def repair_and_die(*args: Any) -> None:
            repair(*args)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(KeyRepair, "repair", repair_and_die)
            with pytest.raises(KeyboardInterrupt):
                verify(cluster, repair=True, position=file)
        assert len(everything(cluster)) == 2
        found = verify(cluster, repair=True, position=file)
        assert counts(found) == {"dangling": 3}
        assert found.repaired("dangling") == 3

    def test_shards_that_are_left_survive_an_interruption(
        self, cluster, tmp_path, monkeypatch
    ):
        file = tmp_path / "position.json"
        for i in range(20):
            plant(cluster, AccountName, f"{i}", missing_account(i))
        save = PositionFile.save

        def save_and_die(*args: Any) -> None:
            save(*args)
            raise KeyboardInterrupt

        def verify_names() -> Any:
            options = {"batch": 2, "grace": 0.0, "position": file}
            return verify_lookups(cluster, [AccountName], **options)

        with monkeypatch.context() as patch:
            patch.setattr(PositionFile, "save", save_and_die)
            with pytest.raises(KeyboardInterrupt):
                verify_names()
            # As after a run whose server did not respond.
            document = json.loads(file.read_text())
            left = {"check": 0, "after": None, "server": "server1"}
            cause = ["it is down", 2003, False]
            document["state"] = {
                "check": 1,
                "unreachable": [
                    {**left, "cause": cause, "shard_id": i} for i in range(MODULUS)
                ],
            }
            file.write_text(json.dumps(document))
            for _ in range(3):
                with pytest.raises(KeyboardInterrupt):
                    verify_names()
        assert counts(verify_names()) == {"dangling": 20}

    @pytest.mark.parametrize(
        ("other", "names"),
        [
            ({"classes": [AccountName]}, "classes"),
            ({"repair": True}, "repair"),
            ({"rekey": True}, "repair"),
        ],
        ids=str,
    )
    def test_the_file_of_another_run(self, cluster, tmp_path, other, names):
        file = tmp_path / "position.json"

        def stop(progress: Any) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            verify(cluster, position=file, on_progress=stop)
        before = file.read_bytes()
        options = {"classes": ALL, **other}
        with pytest.raises(VerifyPositionError, match=names) as caught:
            verify_lookups(cluster, position=file, **options)
        assert caught.value.path == str(file)
        assert file.read_bytes() == before

    @pytest.mark.parametrize(
        "text",
        ["", "[]", "{}", '{"run": 7, "state": {}}', "\x80", "[" * 50_000],
        ids=lambda text: text[:10],
    )
    def test_no_position(self, cluster, tmp_path, text):
        file = tmp_path / "position.json"
        file.write_text(text, "latin-1")
        with pytest.raises(VerifyPositionError, match="not the position file"):
            verify(cluster, position=file)


class Runs:
    def test_the_rate_is_not_exceeded(self, cluster):
        for i in range(30):
            cluster.run(AccountName.claim, f"{i}")
        began = monotonic()
        verify_lookups(cluster, [AccountName], rate=60)
        assert 0.5 <= monotonic() - began < 20

    @pytest.mark.parametrize(
        "options",
        [
            {"rate": 0},
            {"rate": -1.0},
            {"grace": -1},
            {"batch": 0},
            {"batch": True},
            {"keep": 3},
            {"keep": timedelta(-1)},
        ],
        ids=str,
    )
    def test_arguments_that_make_no_sense(self, cluster, options):
        with pytest.raises(ValueError, match="must be"):
            verify(cluster, **options)

    @pytest.mark.parametrize("classes", [[Account], [7], [type("A", (), {})]])
    def test_no_lookup_classes(self, cluster, classes):
        with pytest.raises(ValueError, match="is not a mapped class with"):
            verify_lookups(cluster, classes)

    def test_two_of_one_name(self, cluster):
        class Other(DeclarativeBase):
            pass

        twin = type(LookupMixin)(
            "AccountName",
            (LookupMixin, Other),
            {},
            target=Account,
            normalize=normalization.exact,
        )
        with pytest.raises(ValueError, match="are named AccountName"):
            verify_lookups(cluster, [AccountName, twin])


class Uncommitted:
    def test_an_object_that_is_not_committed_yet(self, cluster: Any) -> None:
        # As between two of the COMMITs of cross_shard="ordered".
        with cluster.begin() as session:
            account = Account(email="slow@x.org")
            session.add(account)
            session.flush()
            plant(cluster, AccountEmail, "slow@x.org", account.id)
            report = verify(cluster, repair=True)
            assert counts(report) == {}
        assert len(everything(cluster)) == 2
        assert counts(verify(cluster)) == {}
