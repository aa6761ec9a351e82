"""Signing up: concurrent users, and processes that are killed.

A test module has a fixture ``cluster`` with the tables of the pinboard, and
``document`` with its topology, and takes the suite::

    class TestSigningUp(SigningUp):
        pass
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from sqlalchemy import func, select

from examples.pinboard import signing_up
from examples.pinboard.accounts import sign_in
from examples.pinboard.errors import TakenError
from examples.pinboard.inputs import read_user
from examples.pinboard.models import User, UserEmail, UserName
from examples.pinboard.signing_up import sign_up
from sqla_shard import Cluster, scatter
from tests.workers.pinboard_process import STEPS

ROOT = Path(__file__).parents[2]
AT_ONCE = 20
TIMEOUT = 60
_numbers = itertools.count(1)


def new_names() -> tuple[str, str]:
    """Return an unused address and name."""
    number = next(_numbers)
    return f"Somebody.{number}@Example.com", f"Somebody {number}"


def users(cluster: Cluster) -> int:
    """Return how many users there are, whether found by an address or not."""
    counted = select(func.count(User.id)).options(scatter())
    with cluster.session() as session:
        return int(session.scalar(counted) or 0)


def keys(cluster: Cluster, lookup: Any) -> dict[str, int | None]:
    """Return all rows of a lookup, claims too: whose is which key."""
    with cluster.session() as session:
        rows = session.scalars(select(lookup).options(scatter()))
        return {row.key: row.user_id for row in rows}


def all_at_once(
    cluster: Cluster, entered: list[tuple[str, str]]
) -> tuple[list[int], list[str]]:
    """Let all sign up; return the users, and the taken fields of the rest."""
    ready = threading.Barrier(len(entered))

    def one(email: str, name: str) -> int | str:
        ready.wait(TIMEOUT)
        try:
            return sign_up(cluster, read_user(email, name))
        except TakenError as error:
            return error.field

    with ThreadPoolExecutor(len(entered)) as threads:
        results = list(threads.map(lambda given: one(*given), entered))
    return (
        [found for found in results if isinstance(found, int)],
        [found for found in results if isinstance(found, str)],
    )


def until(answer: Callable[[], Any]) -> Any:
    """Return what there is when it is not refused any more."""
    pause, deadline = threading.Event(), monotonic() + TIMEOUT
    while True:
        try:
            return answer()
        except TakenError:
            assert monotonic() < deadline
            pause.wait(0.05)


def killed_after(step: str, document: Any, email: str, name: str) -> None:
    """Let a process sign up, and kill it after one of its transactions."""
    program = [sys.executable, "-m", "tests.workers.pinboard_process"]
    with subprocess.Popen(
        [*program, step, email, name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(document))
            process.stdin.close()
            assert process.stdout.readline() == "stopped\n"
        finally:
            process.kill()


class SigningUp:
    def test_of_many_who_want_an_address_one_gets_it(self, cluster: Cluster) -> None:
        email, name = new_names()
        before = users(cluster)
        emails, names = keys(cluster, UserEmail), keys(cluster, UserName)
        forms = itertools.cycle([email, email.upper(), email.lower()])
        won, lost = all_at_once(
            cluster, [(next(forms), f"{name} {n}") for n in range(AT_ONCE)]
        )
        assert (len(won), lost) == (1, ["email"] * (AT_ONCE - 1))
        # Nothing is left of the others: no user, and no claim.
        assert users(cluster) == before + 1
        emails[email.lower()] = won[0]
        with cluster.session() as session:
            names[session.get_one(User, won[0]).name.casefold()] = won[0]
        assert keys(cluster, UserEmail) == emails
        assert keys(cluster, UserName) == names

    def test_of_many_who_want_a_name_one_gets_it(self, cluster: Cluster) -> None:
        email, name = new_names()
        before, emails = users(cluster), keys(cluster, UserEmail)
        forms = itertools.cycle([name, name.upper(), f"  {name} "])
        won, lost = all_at_once(
            cluster, [(f"{n}.{email}", next(forms)) for n in range(AT_ONCE)]
        )
        assert (len(won), lost) == (1, ["name"] * (AT_ONCE - 1))
        assert users(cluster) == before + 1
        with cluster.session() as session:
            assert UserName.resolve(session, name) == won[0]
            winner = session.get_one(User, won[0])
            assert winner.email is not None
            emails[winner.email.lower()] = won[0]
        # The addresses of the others are free for another name at once.
        assert keys(cluster, UserEmail) == emails

    @pytest.mark.thorough
    @pytest.mark.parametrize("step", STEPS[:2])
    def test_killed_before_the_user_is_there(
        self, cluster: Cluster, document: Any, step: str
    ) -> None:
        email, name = new_names()
        before = users(cluster)
        killed_after(step, document, email, name)
        assert users(cluster) == before
        with cluster.session() as session:
            assert UserEmail.resolve(session, email) is None
            assert UserName.resolve(session, name) is None
        assert not cluster.pending()
        # The same person comes back, and has to wait for the claims.
        user_id = until(lambda: sign_up(cluster, read_user(email, name)))
        assert users(cluster) == before + 1
        with cluster.session() as session:
            assert sign_in(session, email.lower()).id == user_id
            assert UserName.resolve(session, name.lower()) == user_id
        with pytest.raises(TakenError):
            sign_up(cluster, read_user(email, f"{name} again"))

    def test_killed_after_the_user_is_there(
        self, cluster: Cluster, document: Any
    ) -> None:
        email, name = new_names()
        before = users(cluster)
        killed_after("user", document, email, name)
        assert users(cluster) == before + 1
        with cluster.session() as session:
            assert UserEmail.resolve(session, email) is None
            assert UserName.resolve(session, name) is None
        assert len(cluster.pending()) == 1
        while cluster.pending():
            assert cluster.repair().ok
        with cluster.session() as session:
            user_id = sign_in(session, email).id
            assert UserName.resolve(session, name) == user_id
        for entered in (email, "Other"), (f"other.{email}", name):
            with pytest.raises(TakenError):
                sign_up(cluster, read_user(*entered))
        assert users(cluster) == before + 1

    def test_an_address_that_was_lost_meanwhile(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        email, name = new_names()
        before = users(cluster)
        won: list[int] = []

        def slowly(session: Any, entered: Any) -> int:
            # As if the claim had expired before this was committed.
            monkeypatch.undo()
            other = read_user(email, f"{name} faster")
            won.append(until(lambda: sign_up(cluster, other)))
            return signing_up.add_user(session, entered)

        monkeypatch.setattr(signing_up, "LIFETIME", timedelta(microseconds=1))
        with pytest.raises(TakenError) as caught:
            sign_up(cluster, read_user(email, name), slowly)
        assert caught.value.field == "email"
        assert users(cluster) == before + 1
        with cluster.session() as session:
            assert sign_in(session, email).id == won[0]

    def test_a_failure_releases_its_claims(self, cluster: Cluster) -> None:
        email, name = new_names()

        def fail(session: Any, entered: Any) -> int:
            raise RuntimeError("no room")

        with pytest.raises(RuntimeError, match="no room"):
            sign_up(cluster, read_user(email, name), fail)
        assert sign_up(cluster, read_user(email, name))
