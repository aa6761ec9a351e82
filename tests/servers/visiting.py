"""Visitors of the pinboard: Flask's test client, with tokens and cookies."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from examples.pinboard.app import create_app
from examples.pinboard.samples import add_user, email_of
from sqla_shard import Cluster
from sqla_shard.testing import sqlite_topology
from tests.suites.pinboard_tables import create_tables

_numbers = count(1)
_PIN = re.compile(r'<li class="card[^>]*data-pin-id="(\d+)"')


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("pinboard")
    document = sqlite_topology(directory, 2, 8, lookup=4)
    with Cluster.from_topology(document) as cluster:
        create_tables(cluster)
        yield cluster


@pytest.fixture(scope="module")
def app(cluster: Cluster) -> Flask:
    return create_app(cluster, testing=True)


@pytest.fixture
def visitor(app: Flask, cluster: Cluster) -> Visitor:
    """A user of its own for each test, signed in."""
    return Visitor.new(app, cluster)


class Visitor:
    """A browser with one user."""

    def __init__(self, client: FlaskClient, user_id: int, name: str) -> None:
        self.client = client
        self.user_id = user_id
        self.name = name
        self.token = ""

    @classmethod
    def new(cls, app: Flask, cluster: Cluster) -> Visitor:
        name = f"user {next(_numbers)}"
        user_id = add_user(cluster, name, "About <b>me</b>")
        visitor = cls(app.test_client(), user_id, name)
        visitor.sign_in()
        return visitor

    def sign_in(self) -> None:
        self.read_token()
        answer = self.post("/session", email=email_of(self.name))
        assert answer.status_code == 303, answer.text
        self.read_token()

    def read_token(self) -> None:
        # The first page reads all users that tests have made.
        page = self.client.get("/sign-up").text
        found = re.search(r'name="csrf-token" content="([^"]+)"', page)
        assert found
        self.token = html.unescape(found[1])

    # -- pages

    def get(self, path: str, status: int = 200) -> str:
        answer = self.client.get(path)
        assert answer.status_code == status, answer.text
        return answer.text

    def post(self, path: str, **form: Any) -> TestResponse:
        data = {"csrf_token": self.token, **form}
        return self.client.post(path, data=data)

    def refused(self, status: int, path: str, **form: Any) -> str:
        """Post, and return the message of the page."""
        answer = self.post(path, **form)
        assert answer.status_code == status, answer.text
        found = re.search(r'role="alert"[^>]*>([^<]+)<', answer.text)
        assert found, answer.text
        return html.unescape(found[1])

    def pins_on(self, path: str) -> list[int]:
        shown = self.get(path).split("<template")[0]
        return [int(one) for one in _PIN.findall(shown)]

    # -- JSON

    def call(self, method: str, path: str, json: Any = None) -> TestResponse:
        headers = {"X-CSRF-Token": self.token}
        return self.client.open(
            f"/api{path}", method=method, json=json, headers=headers
        )

    def api(self, method: str, path: str, json: Any = None, status: int = 200) -> Any:
        answer = self.call(method, path, json)
        assert answer.status_code == status, answer.text
        return answer.get_json() if status != 204 else None

    # -- making things

    def add_board(self, title: str = "Boats") -> int:
        made = self.api("POST", "/boards", {"title": title}, 201)
        return int(made["id"])

    def add_pin(self, board_id: int, title: str = "") -> int:
        link = f"https://{title or 'pin'}.example/"
        body = {"link": link, "title": title}
        made = self.api("POST", f"/boards/{board_id}/pins", body, 201)
        return int(made["id"])

    def add_pins(self, board_id: int, count: int) -> list[int]:
        """Return the ids of new pins as they are shown, the newest first."""
        made = [self.add_pin(board_id, f"n{n}") for n in range(count)]
        return made[::-1]

    def order(self, board_id: int) -> list[int]:
        """Return all pins of a board, page by page."""
        found: list[int] = []
        query = ""
        while True:
            page = self.api("GET", f"/boards/{board_id}/pins{query}")
            found += [int(pin["id"]) for pin in page["pins"]]
            if page["next"] is None:
                return found
            query = f"?after={page['next']}"

    def move(
        self,
        board_id: int,
        pin_id: int,
        before: int | None = None,
        after: int | None = None,
        status: int = 200,
    ) -> Any:
        body = {
            "pin": str(pin_id),
            "before": None if before is None else str(before),
            "after": None if after is None else str(after),
        }
        return self.api("POST", f"/boards/{board_id}/moves", body, status)
