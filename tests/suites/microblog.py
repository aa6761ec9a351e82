"""The microblog as a visitor uses it, on one database or many.

A test module has a fixture ``app``, set up and with its tables, and takes the
suite::

    class TestMicroblog(Microblog):
        pass
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask
from werkzeug.security import generate_password_hash

CONFIG = {"SECRET_KEY": "test", "TESTING": True, "WTF_CSRF_ENABLED": False}


class Visitor:
    """A browser without a display.

    :param settle: called after each form, before the next page.
    """

    def __init__(self, app: Flask, settle: Callable[[Flask], None]) -> None:
        self._app = app
        self._client = app.test_client()
        self._settle = settle
        self.page = ""
        self.status = 0

    def get(self, path: str) -> str:
        response = self._client.get(path, follow_redirects=True)
        self.page, self.status = response.text, response.status_code
        return self.page

    def post(self, path: str, **form: str) -> str:
        response = self._client.post(path, data=form)
        self._settle(self._app)
        if response.location is not None:
            return self.get(response.location)
        self.page, self.status = response.text, response.status_code
        return self.page

    def sign_up(self, name: str) -> Visitor:
        self.post(
            "/register", username=name, email=f"{name}@example.com", password="secret"
        )
        assert "<h1>Home</h1>" in self.page, self.page
        return self

    def found(self, pattern: str) -> list[Any]:
        return re.findall(pattern, self.page)

    @property
    def bodies(self) -> list[str]:
        return self.found('<span class="body">(.*?)</span>')

    @property
    def total(self) -> int:
        (count,) = self.found(r"of (\d+)</p>")
        return int(count)


def promote(app: Flask, version: Any, name: str) -> None:
    """Make a user an administrator.

    :param version: the package of one version of the application.
    """
    with app.app_context():
        version.models.find_user(name).is_admin = True
        version.db.session.commit()


def settle(app: Flask, version: Any) -> None:
    """Apply operations that a busy machine has left to a worker."""
    with app.app_context():
        while version.db.cluster.pending():
            assert version.db.cluster.repair(now=True).ok


class Microblog:
    @pytest.fixture
    def join(
        self, app: Flask, monkeypatch: pytest.MonkeyPatch
    ) -> Callable[[str], Visitor]:
        """Return a sign-up of a user, without 0.1 s for hashing a password."""
        monkeypatch.setattr(
            generate_password_hash, "__defaults__", ("scrypt:256:8:1", 16)
        )
        return lambda name: Visitor(app, self.settle).sign_up(name)

    def test_sign_up_and_in(self, app):
        Visitor(app, self.settle).sign_up("ada")
        other = Visitor(app, self.settle)
        for name, email in [("ada", "x@y.z"), ("bob", "ADA@example.com")]:
            other.post("/register", username=name, email=email, password="secret")
            assert "is taken" in other.page
        other.post("/login", username="ada", password="wrong")
        assert "is wrong" in other.page
        other.post("/login", username="nobody", password="secret")
        assert "is wrong" in other.page
        other.post("/login", username="ada", password="secret")
        assert "<h1>Home</h1>" in other.page
        other.post("/logout")
        assert "<h1>Home</h1>" not in other.get("/")

    def test_posts_and_pages(self, join):
        ada = join("ada")
        for number in range(12):
            ada.post("/", body=f"post {number}")
        assert ada.bodies == [f"post {n}" for n in (11, 10, 9, 8, 7)]
        ada.get("/?page=3")
        assert (ada.bodies, ada.total) == (["post 1", "post 0"], 12)
        ada.get("/?page=4")
        assert ada.status == 404
        ada.get("/user/ada?page=2")
        assert ada.bodies == [f"post {n}" for n in (6, 5, 4, 3, 2)]

    def test_follow_and_unfollow(self, join):
        ada, bob, eve = (join(name) for name in ("ada", "bob", "eve"))
        bob.post("/", body="of bob")
        eve.post("/", body="of eve")
        ada.post("/", body="of ada")
        assert ada.bodies == ["of ada"]
        ada.post("/follow/bob")
        assert "1 followers, 0 following" in ada.page
        ada.post("/follow/bob")
        assert "1 followers, 0 following" in ada.page
        assert ">Unfollow<" in ada.page
        ada.get("/")
        assert (ada.bodies, ada.total) == (["of ada", "of bob"], 2)
        eve.post("/follow/bob")
        assert "2 followers, 0 following" in eve.page
        assert "0 followers, 1 following" in bob.get("/user/ada")
        ada.post("/unfollow/bob")
        assert "1 followers, 0 following" in ada.page
        ada.post("/unfollow/bob")
        ada.get("/")
        assert ada.bodies == ["of ada"]
        ada.post("/follow/ada")
        assert ada.status == 400
        ada.post("/follow/nobody")
        assert ada.status == 404

    def test_explore_and_search(self, join):
        visitors = [join(name) for name in ("ada", "bob", "eve", "dan")]
        for number in range(12):
            body = f"{'Sea' if number % 3 == 0 else 'land'} {number}% of it"
            visitors[number % 4].post("/", body=body)
        ada = visitors[0]
        ada.get("/explore")
        assert ada.bodies == [
            f"{'Sea' if n % 3 == 0 else 'land'} {n}% of it" for n in (11, 10, 9, 8, 7)
        ]
        ada.get("/explore?page=3")
        assert (ada.bodies, ada.total) == (["land 1% of it", "Sea 0% of it"], 12)
        ada.get("/search?q=sEA")
        assert (ada.bodies, ada.total) == ([f"Sea {n}% of it" for n in (9, 6, 3, 0)], 4)
        ada.get("/search?q=1%25")
        assert ada.bodies == ["land 11% of it", "land 1% of it"]
        ada.get("/search?q=%25%25")
        assert (ada.bodies, ada.total) == ([], 0)

    def test_profiles_and_deleting(self, join):
        ada, bob = join("ada"), join("bob")
        ada.post("/profile", about_me="counts")
        assert '<p class="about">counts</p>' in bob.get("/user/ada")
        ada.post("/", body="mine")
        (post_id,) = ada.found(r'id="p(\d+)"')
        bob.post(f"/post/{post_id}/delete")
        assert bob.status == 403
        ada.post(f"/post/{post_id}/delete")
        assert ada.bodies == []
        ada.post(f"/post/{post_id}/delete")
        assert ada.status == 404
        ada.get("/user/nobody")
        assert ada.status == 404

    def test_messages(self, join):
        ada, bob, eve = (join(name) for name in ("ada", "bob", "eve"))
        for number in range(6):
            (bob, eve)[number % 2].post("/message/ada", body=f"no {number}")
        assert "was sent" in eve.page
        ada.get("/messages")
        pattern = '<p class="message"><b>(.*?)</b>: (.*?)</p>'
        assert ada.found(pattern) == [
            ("eve", "no 5"),
            ("bob", "no 4"),
            ("eve", "no 3"),
            ("bob", "no 2"),
            ("eve", "no 1"),
        ]
        assert ada.total == 6
        bob.get("/messages")
        assert bob.total == 0

    def test_administrators(self, app, join):
        names = [f"user{number:02}" for number in range(11)]
        visitors = {name: join(name) for name in names}
        boss, gone, left = (visitors[names[n]] for n in (0, 3, 4))
        assert boss.get("/admin") is not None
        assert boss.status == 403
        self.promote(app, names[0])
        boss.get("/admin")
        pattern = '<p class="user">(.*?)\n'
        assert (boss.found(pattern), boss.total) == (names[:5], 11)
        boss.get("/admin?page=3")
        assert boss.found(pattern) == names[10:]
        gone.post("/", body="soon gone")
        gone.post(f"/follow/{names[4]}")
        left.post(f"/follow/{names[3]}")
        gone.post(f"/message/{names[4]}", body="bye")
        left.post(f"/message/{names[3]}", body="bye")
        assert "1 posts" in boss.get("/admin")
        boss.post(f"/admin/delete/{names[3]}")
        assert "0 posts" in boss.page
        assert boss.total == 10
        assert "0 followers, 0 following" in boss.get(f"/user/{names[4]}")
        left.get("/messages")
        assert left.total == 0
        gone.get("/")
        assert "<h1>Home</h1>" not in gone.page
        # The name and the address are free again.
        visitors[names[3]].sign_up(names[3])

    def promote(self, app: Flask, name: str) -> None:
        raise NotImplementedError

    def settle(self, app: Flask) -> None:
        """Wait for what follows a COMMIT on other shards."""
