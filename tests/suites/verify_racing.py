"""Verifying while an application is running."""

from __future__ import annotations

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from time import monotonic
from typing import Any

from sqla_shard import exc
from sqla_shard.upkeep import delete_abandoned, verify_lookups
from tests.models.verify_models import (
    Account,
    AccountEmail,
    AccountLogin,
    AccountTag,
    add_account,
    plant,
    verified,
)

tables, cluster = verified()

THREADS = 4
_PATIENCE = 120
_NAMES = 12
_ENDS = {"stays", "leaves", "changes"}


class _CrashError(Exception):
    """The process is gone, between one transaction and the next."""


class _Application:
    """Users who sign up, change their address and leave; some crash.

    :ivar emails: the address of each account that was confirmed, and has
        not begun to leave.
    """

    def __init__(self, cluster: Any) -> None:
        self._run = cluster.run
        self._lock = threading.Lock()
        self.emails: dict[int, str] = {}
        self.ended: Counter[str] = Counter()

    def go_on(self, number: int, seed: int, until: float) -> None:
        """Run actions until the deadline, and until each was run once.

        On a busy machine few come to their end before that.
        """
        rng = random.Random(seed)
        serial = 0
        latest = until + _PATIENCE
        while monotonic() < until or not (self.has_done_all() or monotonic() > latest):
            serial += 1
            try:
                how = self._one(f"{number}.{serial}@x.org", rng)
            except (_CrashError, exc.KeyTakenError, exc.ClaimLostError) as error:
                how = type(error).__name__
            with self._lock:
                self.ended[how] += 1

    def has_done_all(self) -> bool:
        with self._lock:
            return set(self.ended) >= _ENDS

    def _one(self, own: str, rng: random.Random) -> str:
        # Some want what others want, too.
        shared = f"name{rng.randrange(_NAMES)}@x.org"
        email = rng.choice([own, shared])
        user = self._sign_up(email, rng.choice(["", "", "claimed", "made"]))
        how = rng.choice(sorted(_ENDS))
        if how == "leaves":
            self._leave(user, email)
        elif how == "changes":
            self._change(user, email, f"new.{own}")
        return how

    def _sign_up(self, email: str, crash: str) -> int:
        lifetime = timedelta(milliseconds=300)
        claim = self._run(AccountEmail.claim, email, lifetime=lifetime)
        if crash == "claimed":
            raise _CrashError
        user: int = self._run(add_account, email=email, tags=["all"])
        if crash == "made":
            raise _CrashError
        try:
            self._run(claim.confirm, user)
        except exc.ClaimLostError:
            self._run(_delete, user)
            raise
        self._run(AccountTag.add, "all", user)
        with self._lock:
            self.emails[user] = email
        return user

    def _leave(self, user: int, email: str) -> None:
        with self._lock:
            del self.emails[user]
        self._run(AccountTag.release, "all", user)
        self._run(AccountEmail.release, email, user)
        self._run(_delete, user)

    def _change(self, user: int, old: str, new: str) -> None:
        self._run(AccountEmail.claim, new, user)
        self._run(_set_email, user, new)
        with self._lock:
            self.emails[user] = new
        self._run(AccountEmail.release, old, user)


def _delete(session: Any, user: int) -> None:
    found = session.get(Account, user)
    if found is not None:
        session.delete(found)


def _set_email(session: Any, user: int, email: str) -> None:
    session.get_one(Account, user).email = email


class Racing:
    """The test module has a fixture ``cluster`` with no rows in it."""

    #: How long people sign up, at least.
    seconds = 2.0

    def test_during_sign_ups(self, cluster, rng, say):
        application = _Application(cluster)
        until = monotonic() + self.seconds
        classes = [AccountEmail, AccountTag]
        runs, found = 0, Counter()
        with ThreadPoolExecutor(THREADS) as executor:
            going = [
                executor.submit(application.go_on, i, rng.randrange(10**9), until)
                for i in range(THREADS)
            ]
            while not runs or not all(one.done() for one in going):
                report = verify_lookups(
                    cluster, classes, repair=True, grace=0.5, batch=20
                )
                runs += 1
                for kind in report.kinds:
                    found[kind] += report.found(kind)
            for one in going:
                one.result(_PATIENCE)
        say(f"{runs} runs beside {dict(application.ended)}: {+found}")
        assert application.has_done_all()
        emails = application.emails
        with cluster.session() as session:
            owners = AccountEmail.resolve_many(session, emails.values())
            sharing = AccountTag.resolve_all(session, "all", limit=10**6)
        assert owners == {email: user for user, email in emails.items()}
        assert set(sharing) >= set(emails)
        # Claims of crashed sign-ups have ended by now, or are waited
        # for here.
        report = self._settled(cluster, classes)
        left = {kind for kind in report.kinds if report.found(kind)}
        assert left <= {"conflicting"}
        for one in report.findings:
            assert one.row["target_id"] not in emails
        with cluster.session() as session:
            owners = AccountEmail.resolve_many(session, emails.values())
        assert owners == {email: user for user, email in emails.items()}

    def _settled(self, cluster: Any, classes: Any) -> Any:
        deadline = monotonic() + _PATIENCE
        while True:
            delete_abandoned(cluster, classes, older_than=timedelta(0))
            verify_lookups(cluster, classes, repair=True, grace=0.0)
            report = verify_lookups(cluster, classes, grace=0.0)
            kinds = {kind for kind in report.kinds if report.found(kind)}
            if kinds <= {"conflicting"} or monotonic() > deadline:
                return report

    def test_claims_that_are_confirmed_while_they_are_deleted(self, cluster, rng, say):
        until = monotonic() + 1.0
        # Lists, since threads that count at the same time lose some.
        lost: list[str] = []
        kept: dict[str, int] = {}

        def confirm(number: int) -> None:
            serial = 0
            while monotonic() < until:
                serial += 1
                key = f"{number}.{serial}@x.org"
                claim = cluster.run(
                    AccountEmail.claim, key, lifetime=timedelta(microseconds=1)
                )
                user = cluster.run(add_account, email=key)
                try:
                    cluster.run(claim.confirm, user)
                except exc.ClaimLostError:
                    lost.append(key)
                else:
                    kept[key] = user

        with ThreadPoolExecutor(2) as executor:
            going = [executor.submit(confirm, i) for i in range(2)]
            deleted = 0
            while monotonic() < until:
                deleted += delete_abandoned(
                    cluster, [AccountEmail], older_than=timedelta(0)
                )
            for one in going:
                one.result(_PATIENCE)
        say(f"{len(kept)} confirmed, {len(lost)} lost, {deleted} deleted")
        assert deleted == len(lost)
        with cluster.session() as session:
            assert AccountEmail.resolve_many(session, kept) == kept

    def test_keys_that_are_released_while_they_are_rewritten(self, cluster, rng, say):
        users = [cluster.run(add_account) for _ in range(40)]
        keys = [f"User{i}" for i in range(40)]
        for key, user in zip(keys, users, strict=True):
            plant(cluster, AccountLogin, key, user, policy="exact/1")
        released: list[str] = []
        begun = threading.Event()

        def release(numbers: Any) -> None:
            begun.wait(_PATIENCE)
            for i in numbers:
                deadline = monotonic() + _PATIENCE
                while monotonic() < deadline:
                    try:
                        done = cluster.run(AccountLogin.release, keys[i], users[i])
                    except exc.CrossShardWriteError:
                        # Just now it is there in both forms.
                        released.append("again")
                        continue
                    released.append("done" if done else "not had")
                    break

        order = list(range(0, 40, 2))
        rng.shuffle(order)
        with ThreadPoolExecutor(2) as executor:
            going = [executor.submit(release, order[i::2]) for i in range(2)]
            report = verify_lookups(
                cluster,
                [AccountLogin],
                rekey=True,
                grace=0.0,
                batch=5,
                on_progress=lambda progress: begun.set(),
            )
            for one in going:
                one.result(_PATIENCE)
        rewritten = report.repaired("outdated")
        say(f"{dict(Counter(released))}, {rewritten} rewritten")
        assert released.count("done") == 20
        assert "not had" not in released
        with cluster.session() as session:
            owners = AccountLogin.resolve_many(session, keys)
        assert owners == {keys[i]: users[i] for i in range(1, 40, 2)}
