"""Signing up and changing keys: right in every order of failure.

A test module has a fixture ``cluster`` with the tables of
:mod:`tests.models.lookup_models`, and takes the suite::

    class TestRegistration(Registration):
        pass
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from datetime import datetime, timedelta, UTC
from functools import partial, wraps
from typing import Any

import pytest
from sqlalchemy import func, select

from sqla_shard import Cluster, exc, operation, scatter, ShardSession
from sqla_shard.models import async_change, async_sign_up, change, sign_up
from sqla_shard.outbox import apply, operations
from tests.models.lookup_models import (
    end_at,
    LOOKUPS,
    new_user,
    rows_of,
    Suite,
    User,
    UserEmail,
    UserLogin,
    UserName,
)

_LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
MOMENT = timedelta(microseconds=1)
HOWS = ("refused", "lost", "answer lost", "killed", "killed before")


class KilledError(BaseException):
    """The process is gone: nothing more of it runs."""


def unknown() -> exc.CommitUnknownError:
    return exc.CommitUnknownError(server="server1")


class Faulty:
    """A cluster on which one transaction fails in some way.

    :param number: of the transaction, from 0.
    :param how: ``refused``: it is rolled back with an error; ``lost``: it is
        rolled back, with an unknown outcome; ``answer lost``: it is committed,
        with an unknown outcome; ``killed``: it is committed, and the process
        ends; ``killed before``: the process ends before it.
    """

    def __init__(self, cluster: Cluster, number: int, how: str) -> None:
        self._cluster = cluster
        self._left = number
        self._how = how
        self.met = False

    def run(self, fn: Callable[..., Any], **options: Any) -> Any:
        self._left -= 1
        if self._left != -1:
            return self._cluster.run(fn, **options)
        self.met = True
        if self._how == "refused":
            raise exc.ServerUnreachableError(server="server1", error=OSError("refused"))
        if self._how == "lost":
            raise unknown()
        if self._how == "killed before":
            raise KilledError
        with pytest.MonkeyPatch.context() as patched:
            if self._how == "killed":
                # The steps after COMMIT are skipped, too.
                patched.setattr(
                    operations, "apply_after_commit", lambda session, intents, _: None
                )
            self._cluster.run(fn, **options)
        raise KilledError if self._how == "killed" else unknown()


def named_users(cluster: Cluster, name: str) -> list[int]:
    """Return the ids of the users that were made under a name."""
    found = select(User.id).where(User.name == name).options(scatter())
    with cluster.session() as session:
        return list(session.scalars(found))


def finish(cluster: Cluster) -> None:
    """Apply all pending operations, and those that they enqueue."""
    for _ in range(5):
        if not cluster.pending():
            return
        report = cluster.repair(now=True)
        assert report.ok, report
    raise AssertionError("there is always something left")


def owners(cluster: Cluster, cls: Any, *keys: str) -> list[int | None]:
    with cluster.session() as session:
        return [cls.resolve(session, key) for key in keys]


def is_claimed(cluster: Cluster, cls: Any, key: str) -> bool:
    row = rows_of(cluster, cls).get(key)
    return row is not None and row.user_id is None


def set_name(session: ShardSession, user_id: int, name: str) -> None:
    session.get_one(User, user_id).name = name


@operation("tests.undo_user")
def undo_user(session: ShardSession, user_id: int) -> None:
    set_name(session, user_id, f"undone {user_id}")


class Registration(Suite):
    @pytest.fixture(autouse=True)
    def _nothing_is_left(self, cluster: Cluster) -> Any:
        yield
        finish(cluster)

    # -- signing up

    def test_sign_up(self, cluster, mark):
        keys = {UserEmail: f"Me{mark}@x.org", UserName: mark}
        user_id = sign_up(cluster, keys, new_user, name=mark)
        assert named_users(cluster, mark) == [user_id]
        assert owners(cluster, UserEmail, f"me{mark}@X.org") == [user_id]
        assert owners(cluster, UserName, mark) == [user_id]
        assert not cluster.pending()

    @pytest.mark.parametrize("taken", [UserEmail, UserName])
    def test_a_key_that_is_taken(self, cluster, mark, taken):
        keys = {UserEmail: f"{mark}@x.org", UserName: mark}
        (other,) = [cluster.run(new_user, "other")]
        cluster.run(taken.claim, keys[taken], other)
        with pytest.raises(exc.KeyTakenError) as caught:
            sign_up(cluster, keys, new_user, mark)
        assert caught.value.lookup == taken.__name__
        assert caught.value.target_id == other
        assert named_users(cluster, mark) == []
        (free,) = {UserEmail, UserName} - {taken}
        assert keys[free] not in rows_of(cluster, free)

    @pytest.mark.parametrize(("number", "how"), list(itertools.product(range(4), HOWS)))
    def test_every_order_of_failure(self, cluster, mark, number, how):
        keys = {UserEmail: f"{mark}@x.org", UserName: mark}
        faulty: Any = Faulty(cluster, number, how)
        error: BaseException | None = None
        user_id = None
        try:
            user_id = sign_up(faulty, keys, new_user, mark)
        except (exc.ShardError, KilledError) as caught:
            error = caught
        assert faulty.met
        finish(cluster)
        made = named_users(cluster, mark)
        claimed = [is_claimed(cluster, cls, key) for cls, key in keys.items()]
        found = [
            owner for cls, key in keys.items() for owner in owners(cluster, cls, key)
        ]
        # Either there is a user with both keys, or there is none, and
        # only one who was killed has left claims.
        assert len(made) <= 1
        assert found == (made * 2 or [None, None])
        if user_id is not None:
            assert made == [user_id]
        if (number, how) == (3, "refused"):
            assert isinstance(error, exc.KeyPendingError)
            assert [error.target_id] == made
        elif error is None:
            assert user_id is not None
        if made or isinstance(error, exc.ServerUnreachableError):
            assert claimed == [False, False]
        if number == 2 and how in ("answer lost", "killed"):
            assert made, "it was committed"

    def test_killed_after_the_object_and_verified_before_it_is_repaired(
        self, cluster, mark
    ):
        """A claim that has ended meanwhile is taken over by the object."""
        keys = {UserEmail: f"{mark}@x.org", UserName: mark}
        with pytest.raises(KilledError):
            sign_up(
                Faulty(cluster, 2, "killed"),  # type: ignore[arg-type]  # run
                keys,
                new_user,
                mark,
            )
        for cls, key in keys.items():
            end_at(cluster, cls, key, _LONG_AGO)
        (user_id,) = named_users(cluster, mark)
        # As verify_lookups() with repair=True does for a field.
        cluster.run(UserEmail.claim, keys[UserEmail], user_id)
        finish(cluster)
        assert owners(cluster, UserEmail, keys[UserEmail]) == [user_id]
        assert owners(cluster, UserName, mark) == [user_id]

    @pytest.mark.parametrize("which", [UserEmail, UserName])
    @pytest.mark.parametrize("undo", [None, undo_user])
    def test_a_claim_that_is_lost_meanwhile(self, cluster, mark, which, undo):
        keys = {UserEmail: f"{mark}@x.org", UserName: mark}
        other = cluster.run(new_user, "faster")

        def slowly(session: ShardSession, name: str) -> int:
            cluster.run(which.claim, keys[which], other)
            return new_user(session, name)

        with pytest.raises(exc.ClaimLostError) as caught:
            sign_up(cluster, keys, slowly, mark, lifetime=MOMENT, undo=undo)
        assert caught.value.lookup == which.__name__
        assert caught.value.target_id == other
        finish(cluster)
        assert owners(cluster, which, keys[which]) == [other]
        (free,) = {UserEmail, UserName} - {which}
        assert keys[free] not in rows_of(cluster, free)
        assert named_users(cluster, mark) == []
        if undo is not None:
            undone = select(func.count(User.id)).where(User.name.like("undone %"))
            with cluster.session() as session:
                assert session.scalar(undone.options(scatter())) > 0

    def test_an_object_that_was_there_before_is_never_deleted(self, cluster, mark):
        keys = {UserEmail: f"{mark}@x.org"}
        user_id = cluster.run(new_user, mark)
        other = cluster.run(new_user, "faster")

        def slowly(session: ShardSession) -> int:
            cluster.run(UserEmail.claim, keys[UserEmail], other)
            return user_id

        with pytest.raises(exc.ClaimLostError):
            sign_up(cluster, keys, slowly, lifetime=MOMENT)
        finish(cluster)
        assert named_users(cluster, mark) == [user_id]
        again = {UserEmail: f"again{mark}@x.org"}
        assert sign_up(cluster, again, lambda session: user_id) == user_id

    @pytest.mark.parametrize("is_down", [True, False])
    def test_a_key_that_is_not_confirmed_right_after_commit(
        self, cluster, mark, monkeypatch, is_down
    ):
        """As on a busy machine, or while the server of the key is down."""
        keys = {UserEmail: f"{mark}@x.org"}

        def fail(home: Any, intent: Any) -> Any:
            raise exc.ServerUnreachableError(server="server1", error=OSError("refused"))

        with monkeypatch.context() as patched:
            patched.setattr(apply, "_apply", fail)
            if is_down:
                down: Any = Faulty(cluster, 3, "refused")
                with pytest.raises(exc.KeyPendingError) as caught:
                    sign_up(down, keys, new_user, mark)
                user_id = caught.value.target_id
                assert owners(cluster, UserEmail, *keys.values()) == [None]
            else:
                user_id = sign_up(cluster, keys, new_user, mark)
                assert owners(cluster, UserEmail, *keys.values()) == [user_id]
        assert named_users(cluster, mark) == [user_id]
        finish(cluster)
        assert owners(cluster, UserEmail, keys[UserEmail]) == [user_id]

    def test_invalid_sign_ups(self, cluster, mark):
        with pytest.raises(ValueError, match="keys"):
            sign_up(cluster, {}, new_user)
        keys = {UserEmail: f"{mark}@x.org"}
        with pytest.raises(exc.WrongTypeError):
            sign_up(cluster, keys, lambda session: new_user(session) + 2**36)
        with pytest.raises(RuntimeError, match="no room"):
            sign_up(cluster, keys, self._fail)
        assert keys[UserEmail] not in rows_of(cluster, UserEmail)

    def _fail(self, session: ShardSession) -> int:
        new_user(session)
        raise RuntimeError("no room")

    # -- changing

    def _member(self, cluster: Cluster, key: str) -> int:
        return sign_up(cluster, {UserEmail: key}, new_user, key)

    def test_change(self, cluster, mark):
        old, new = f"old{mark}@x.org", f"New{mark}@x.org"
        user_id = self._member(cluster, old)
        for _ in range(2):  # a second time does no harm
            change(cluster, UserEmail, old, new, user_id, set_name, user_id, new)
            assert owners(cluster, UserEmail, old, new) == [None, user_id]
        assert named_users(cluster, new) == [user_id]
        change(cluster, UserEmail, new, old, user_id)
        assert owners(cluster, UserEmail, old, new) == [user_id, None]
        assert not cluster.pending()

    def test_keys_that_are_equal_are_not_given_away(self, cluster, mark):
        old, new = f"me{mark}@x.org", f"ME{mark}@X.org"
        user_id = self._member(cluster, old)
        change(cluster, UserEmail, old, new, user_id, set_name, user_id, new)
        finish(cluster)
        assert named_users(cluster, new) == [user_id]
        assert owners(cluster, UserEmail, old, new) == [user_id, user_id]
        with pytest.raises(exc.KeyTakenError):
            cluster.run(UserEmail.claim, new)

    def test_keys_of_an_older_policy(self, cluster, mark):
        """Both forms of the old key go, and the new one stays."""
        key = f"Me{mark}"
        user_id = cluster.run(new_user, mark)
        cluster.run(UserLogin.claim, key, user_id)
        change(cluster, UserLogin, key, key.upper(), user_id)
        assert owners(cluster, UserLogin, key.lower()) == [user_id]
        change(cluster, UserLogin, key, f"other{key}", user_id)
        assert owners(cluster, UserLogin, key, f"Other{key}") == [None, user_id]

    def test_a_key_that_is_not_held_or_taken(self, cluster, mark):
        user_id = self._member(cluster, f"{mark}@x.org")
        other = self._member(cluster, f"other{mark}@x.org")
        with pytest.raises(exc.KeyNotHeldError):
            change(cluster, UserEmail, f"a{mark}@x.org", f"b{mark}@x.org", other)
        with pytest.raises(exc.KeyTakenError):
            change(
                cluster, UserEmail, f"{mark}@x.org", f"other{mark}@x.org",
                user_id, set_name, user_id, "never",
            )  # fmt: skip
        assert owners(cluster, UserEmail, f"{mark}@x.org", f"other{mark}@x.org") == [
            user_id,
            other,
        ]
        assert f"b{mark}@x.org" not in rows_of(cluster, UserEmail)

    @pytest.mark.parametrize(("number", "how"), list(itertools.product(range(2), HOWS)))
    def test_every_order_of_failure_of_a_change(self, cluster, mark, number, how):
        old, new = f"old{mark}@x.org", f"new{mark}@x.org"
        user_id = self._member(cluster, old)
        faulty: Any = Faulty(cluster, number, how)
        with contextlib.suppress(exc.ShardError, KilledError):
            change(faulty, UserEmail, old, new, user_id, set_name, user_id, new)
        assert faulty.met
        finish(cluster)
        has_old, has_new = owners(cluster, UserEmail, old, new)
        switched = named_users(cluster, new) == [user_id]
        # The key that the object names is always its own.
        assert {has_old, has_new} <= {user_id, None}
        assert (has_new if switched else has_old) == user_id
        if switched:
            assert has_old is None
        change(cluster, UserEmail, old, new, user_id, set_name, user_id, new)
        assert owners(cluster, UserEmail, old, new) == [None, user_id]

    def test_a_release_that_comes_late(self, cluster, mark):
        """The object has got the key back meanwhile."""
        old, new = f"old{mark}@x.org", f"new{mark}@x.org"
        user_id = self._member(cluster, old)
        with pytest.raises(KilledError):
            change(
                Faulty(cluster, 1, "killed"),  # type: ignore[arg-type]  # run
                UserEmail, old, new, user_id, set_name, user_id, new,
            )  # fmt: skip
        change(cluster, UserEmail, new, old, user_id, set_name, user_id, old)
        assert owners(cluster, UserEmail, old, new) == [user_id, None]
        finish(cluster)
        assert owners(cluster, UserEmail, old, new) == [user_id, None]

    # -- in event loops

    def test_awaited(self, cluster, mark):
        old, new = f"old{mark}@x.org", f"new{mark}@x.org"

        async def main() -> int:
            user_id = await async_sign_up(cluster, {UserEmail: old}, new_user, mark)
            with pytest.raises(exc.KeyTakenError):
                await async_sign_up(cluster, {UserEmail: old}, new_user)
            await async_change(
                cluster, UserEmail, old, new, user_id, set_name, user_id, new
            )
            return user_id

        user_id = asyncio.run(main())
        assert owners(cluster, UserEmail, old, new) == [None, user_id]
        assert named_users(cluster, new) == [user_id]

    def test_coroutine_functions_are_awaited(self, cluster, mark):
        old, new = f"old{mark}@x.org", f"new{mark}@x.org"

        async def create(session, name):
            return await session.run_sync(new_user, name)

        async def switch(session, user_id, name):
            await session.run_sync(set_name, user_id, name)

        async def main() -> int:
            user_id = await async_sign_up(cluster, {UserEmail: old}, create, mark)
            await async_change(
                cluster, UserEmail, old, new, user_id, switch, user_id, new
            )
            return user_id

        user_id = asyncio.run(main())
        assert owners(cluster, UserEmail, old, new) == [None, user_id]
        assert named_users(cluster, new) == [user_id]
        with pytest.raises(exc.OptionError, match=r"async_sign_up\(\)"):
            sign_up(cluster, {UserEmail: old}, create, mark)
        with pytest.raises(exc.OptionError, match=r"async_change\(\)"):
            change(cluster, UserEmail, new, old, user_id, switch, user_id, old)

    def test_code_that_has_not_run_is_refused(self, cluster, mark):
        """Decorators hide async def; a partial object has no name."""
        old, new = f"old{mark}@x.org", f"new{mark}@x.org"
        user_id = sign_up(cluster, {UserEmail: old}, new_user, mark)

        async def wait(session, *args):
            raise AssertionError

        @wraps(wait)
        def decorated(*args):
            return wait(*args)

        def with_yield(*args):
            yield

        class Waiting:
            __call__ = staticmethod(decorated)

        refused = pytest.raises(exc.OptionError, match="has not run: async_sign_up")
        for fn in (decorated, wait, partial(wait), with_yield, Waiting()):
            with refused:
                change(cluster, UserEmail, old, new, user_id, fn)
            with refused:
                sign_up(cluster, {UserEmail: new}, fn)
            if fn is wait or isinstance(fn, partial):
                continue
            with refused:
                asyncio.run(async_sign_up(cluster, {UserEmail: new}, fn))
            with refused:
                asyncio.run(async_change(cluster, UserEmail, old, new, user_id, fn))
        assert owners(cluster, UserEmail, old, new) == [user_id, None]


cluster = LOOKUPS.on_backend()
