"""Signing up and in, following and saving, on the pages and by the API."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest
from flask import Flask

from examples.pinboard.samples import add_samples, add_user, email_of
from sqla_shard import Cluster, unpack
from tests.servers.visiting import (
    app as app,
    cluster as cluster,
    Visitor,
    visitor as visitor,
)

# No page may scatter, write two shards or read objects one by one.
pytestmark = pytest.mark.sqla_shard_lint


@pytest.fixture
def nobody(app: Flask) -> Visitor:
    """A browser without a sign-in."""
    found = Visitor(app.test_client(), 0, "nobody")
    found.read_token()
    return found


def elsewhere(app: Flask, cluster: Cluster, visitor: Visitor) -> Visitor:
    """Return a user on another shard, signed in."""
    (here, *_) = cluster.explain(visitor.user_id).shards
    name = f"far from {visitor.name}"
    user_id = add_user(cluster, name, shard_id=(here + 5) % 8)
    assert unpack(user_id).shard_id != here
    found = Visitor(app.test_client(), user_id, name)
    found.sign_in()
    return found


def titles(page: str) -> list[str]:
    """Return the boards that a page lists with their owners."""
    return re.findall(r'<li class="row" data-holder-id="(\d+)"', page)


def test_signing_up_and_in(nobody: Visitor) -> None:
    form = nobody.get("/sign-up")
    assert 'data-page="sign-up"' in form
    assert "There is no password" in form
    answer = nobody.post("/sign-up", email=" New.One@example.com ", name="  New   One ")
    assert (answer.status_code, answer.location) == (303, "/boards")
    mine = nobody.get("/boards")
    assert "New One" in mine
    assert "<span data-own-email>New.One@example.com</span>" in mine

    nobody.read_token()
    nobody.post("/session/leave")
    nobody.read_token()
    answer = nobody.post("/session", email="new.one@EXAMPLE.com")
    assert (answer.status_code, answer.location) == (303, "/boards")
    assert "New One" in nobody.get("/boards")


def test_taken_names_and_addresses(nobody: Visitor, visitor: Visitor) -> None:
    taken = email_of(visitor.name)
    for form, field in [
        ({"email": taken.upper(), "name": "Somebody"}, "email"),
        ({"email": "free@example.com", "name": visitor.name.upper()}, "name"),
    ]:
        answer = nobody.post("/sign-up", **form)
        assert answer.status_code == 409
        invalid = re.findall(r'name="(\w+)"[^>]* aria-invalid', answer.text)
        assert invalid == [field]
        assert html.escape(form["email"]) in answer.text
        # The user of the address is not disclosed.
        assert str(visitor.user_id) not in answer.text
        error = nobody.api("POST", "/users", form, 409)["error"]
        assert (error["code"], error["field"]) == ("taken", field)
        assert str(visitor.user_id) not in error["message"]
    # The value that was not taken is still free.
    form = {"email": "free@example.com", "name": "Somebody"}
    assert nobody.api("POST", "/users", form, 201)["name"] == "Somebody"


@pytest.mark.parametrize(
    ("form", "field"),
    [
        ({"email": "", "name": "x"}, "email"),
        ({"email": "x", "name": "x"}, "email"),
        ({"email": "a b@example.com", "name": "x"}, "email"),
        ({"email": f"{'x' * 250}@example.com", "name": "x"}, "email"),
        ({"email": "a@b\u0378.example", "name": "x"}, "email"),
        ({"email": "a@example.com", "name": " \t"}, "name"),
        ({"email": "a@example.com", "name": "x" * 51}, "name"),
        ({"email": "a@example.com", "name": "x\u0378"}, "name"),
    ],
)
def test_invalid_addresses_and_names(
    nobody: Visitor, form: dict[str, str], field: str
) -> None:
    assert nobody.refused(422, "/sign-up", **form)
    error = nobody.api("POST", "/users", form, 422)["error"]
    assert (error["code"], error["field"]) == ("invalid", field)


def test_an_address_is_shown_to_its_user_alone(
    app: Flask, cluster: Cluster, visitor: Visitor, nobody: Visitor
) -> None:
    email, user = email_of(visitor.name), f"/users/{visitor.user_id}"
    where = f"/where/{visitor.user_id}"
    board_id = visitor.add_board()
    other = elsewhere(app, cluster, visitor)
    other.post(f"/boards/{board_id}/follow")
    for reader in (other, nobody):
        for path in (user, f"/boards/{board_id}", where, "/"):
            assert email not in reader.get(path), path
        assert "user_email" not in reader.get(where)
        answer = reader.api("GET", user)
        assert sorted(answer) == ["about", "id", "name"]
        assert email not in str(reader.api("GET", f"{user}/followed"))
    assert email in visitor.get(user)
    assert 'data-where-table="user_email"' in visitor.get(where)


# Users of an older version are looked for everywhere, once.
@pytest.mark.sqla_shard_allow("scatter")
def test_the_samples_can_be_chosen(cluster: Cluster, nobody: Visitor) -> None:
    add_samples(cluster)
    page = nobody.get("/")
    found = re.findall(r'name="email" value="([^"]+)" data-user-name="([^"]+)"', page)
    names = ["Ada", "Grace", "Mary"]
    assert found == [(email_of(name), name) for name in names]
    nobody.post("/session", email=found[1][0])
    mine = nobody.get("/boards")
    assert "Grace" in mine
    # Each follows a board of each other, and has saved a pin of it.
    assert len(titles(mine)) == 2
    (board_id, *_) = re.findall(r'data-board-id="(\d+)"', mine)
    saved = nobody.api("GET", f"/boards/{board_id}/saved")["pins"]
    assert len(saved) == 2


def test_following_a_board(
    app: Flask, cluster: Cluster, visitor: Visitor, nobody: Visitor
) -> None:
    board_id = visitor.add_board("Boats")
    path = f"/boards/{board_id}"
    # Follows without a sign-in, and of a board of the user.
    for reader in (visitor, nobody):
        assert 'data-form="follow"' not in reader.get(path)
    visitor.refused(409, f"{path}/follow")
    visitor.api("PUT", f"{path}/follow", status=409)

    other = elsewhere(app, cluster, visitor)
    assert ">Follow</button>" in other.get(path)
    for _ in range(2):
        answer = other.post(f"{path}/follow")
        assert (answer.status_code, answer.location) == (303, path)
    page = other.get(path)
    assert ">Unfollow</button>" in page
    assert "<span data-followers>1</span>&nbsp;follower<" in page
    assert visitor.api("GET", path)["followers"] == 1
    for reader in (other, visitor, nobody):
        assert titles(reader.get(f"/users/{other.user_id}")) == [str(board_id)]
    answer = nobody.api("GET", f"/users/{other.user_id}/followed")["boards"]
    assert [(one["id"], one["user"]["name"]) for one in answer] == [
        (str(board_id), visitor.name)
    ]

    other.post(f"{path}/unfollow")
    assert ">Follow</button>" in other.get(path)
    assert titles(other.get("/boards")) == []
    other.api("PUT", f"{path}/follow", status=204)
    assert visitor.api("GET", path)["followers"] == 1
    other.api("DELETE", f"{path}/follow", status=204)
    assert visitor.api("GET", path)["followers"] == 0


def test_following_a_user_and_the_home_page(
    app: Flask, cluster: Cluster, visitor: Visitor, nobody: Visitor
) -> None:
    board_id = visitor.add_board("Boats")
    path = f"/users/{visitor.user_id}"
    for reader in (visitor, nobody):
        assert 'data-form="follow-user"' not in reader.get(path)
    visitor.refused(409, f"{path}/follow")
    visitor.api("PUT", f"{path}/follow", status=409)
    assert "Nothing here yet" in visitor.get("/home")
    assert "Nothing yet" in visitor.get("/notifications")

    other = elsewhere(app, cluster, visitor)
    assert ">Follow</button>" in other.get(path)
    answer = other.post(f"{path}/follow")
    assert (answer.status_code, answer.location) == (303, path)
    page = other.get(path)
    assert ">Unfollow</button>" in page
    assert "<span data-followers>1</span>&nbsp;follower<" in page
    assert "<span data-followees>1</span>" in other.get("/boards")
    assert f'data-person-id="{visitor.user_id}"' in other.get("/boards")
    assert ">Unfollow</button>" in other.get(f"/boards/{board_id}")

    pins = [visitor.add_pin(board_id, name) for name in ("sloop", "ketch")]
    page = other.get("/home")
    found = re.findall(r'class="card .*? data-pin-id="(\d+)"', page)
    assert found == [str(pin_id) for pin_id in pins[::-1]]
    assert "Boats" in page
    answer = other.api("GET", "/home")
    assert [one["id"] for one in answer["pins"]] == found
    assert answer["pins"][0]["user"]["name"] == visitor.name
    assert answer["next"] is None

    # New until it was read.
    assert '<span class="badge" data-fresh>1</span>' in visitor.get("/home")
    page = visitor.get("/notifications")
    assert f'data-notice-of="{other.user_id}"' in page
    assert "follows you, with all your boards" in page
    assert ">new<" in page
    assert ">new<" not in visitor.get("/notifications")
    assert "data-fresh" not in visitor.get("/home")

    other.post(f"{path}/unfollow")
    assert "Nothing here yet" in other.get("/home")
    other.api("PUT", f"{path}/follow", status=204)
    other.api("DELETE", f"{path}/follow", status=204)
    assert visitor.api("GET", "/home")["pins"] == []


def test_boards_that_hold_a_pin(
    app: Flask, cluster: Cluster, visitor: Visitor, nobody: Visitor
) -> None:
    home = visitor.add_board("Home")
    pin_id = visitor.add_pin(home, "sloop")
    other = elsewhere(app, cluster, visitor)
    theirs = other.add_board("Theirs")
    path, there = f"/pins/{pin_id}", f"/boards/{theirs}"
    assert f'href="{path}"' in other.get(f"/boards/{home}")
    page = other.get(path)
    assert titles(page) == [str(home)]
    assert re.findall(r'<option value="(\d+)"', page) == [str(theirs)]
    assert "<option" not in visitor.get(path)
    assert "<option" not in nobody.get(path)

    answer = other.post(f"{path}/save", board=str(theirs))
    assert (answer.status_code, answer.location) == (303, path)
    for reader in (other, visitor, nobody):
        assert titles(reader.get(path)) == [str(home), str(theirs)]
        page = reader.get(there)
        assert f'data-saved-pin-id="{pin_id}"' in page
        assert ('data-action="take-off"' in page) == (reader is other)
    answer = nobody.api("GET", f"{path}/boards")["boards"]
    assert [one["title"] for one in answer] == ["Home", "Theirs"]
    assert [pin["id"] for pin in nobody.api("GET", f"{there}/saved")["pins"]]
    # It is no pin of theirs, which could be moved or edited.
    assert other.order(theirs) == []
    other.refused(403, f"{path}/edit", link="https://evil.example/")
    visitor.refused(403, f"{there}/saved/{pin_id}/remove")

    other.post(f"{there}/saved/{pin_id}/remove")
    assert titles(visitor.get(path)) == [str(home)]
    other.api("PUT", f"{there}/saved/{pin_id}", status=204)
    assert titles(visitor.get(path)) == [str(home), str(theirs)]
    visitor.api("DELETE", f"{there}/saved/{pin_id}", status=403)
    other.api("DELETE", f"{there}/saved/{pin_id}", status=204)
    assert titles(visitor.get(path)) == [str(home)]


@pytest.mark.parametrize("board", ["", "x", "-1", "1" * 20, "7"])
def test_saving_on_what_is_no_board(visitor: Visitor, board: str) -> None:
    pin_id = visitor.add_pin(visitor.add_board())
    status = 404 if board == "7" else 400
    visitor.refused(status, f"/pins/{pin_id}/save", board=board)
    visitor.get(f"/pins/{pin_id + 99}", 404)


def test_where_what_leads_to_them_is(visitor: Visitor, cluster: Cluster) -> None:
    board_id = visitor.add_board()
    ids = {
        "user": (visitor.user_id, {"user_has_boards", "user_follows_boards"}),
        "board": (
            board_id,
            {
                *("board_has_pins", "board_has_removed_pins"),
                *("board_has_saved_pins", "board_has_followers"),
            },
        ),
        "pin": (visitor.add_pin(board_id), {"pin_in_boards"}),
    }
    servers: Any = cluster.topology.sole("mod")
    for object_id, lists in ids.values():
        page = visitor.get(f"/where/{object_id}")
        rows = re.findall(
            r'data-where-table="(\w+)".*?data-row-shard>(\d+)<.* of (\w+) on'
            r" <b data-row-server>(\w+)<",
            page,
        )
        (here,) = cluster.explain(object_id).targets
        at = ("objects", str(here.shard_id), here.server)
        found = {
            table: (keyspace, shard_id, server)
            for table, shard_id, keyspace, server in rows
        }
        assert {t for t, where in found.items() if where == at} == lists
        for table in found.keys() - lists:
            keyspace, shard_id, server = found[table]
            assert table in {"user_name", "user_email"}
            assert keyspace == "lookup"
            assert servers.server_for(int(shard_id)).name == server
        assert len(found) == len(lists) + 2 * (object_id == visitor.user_id)
