"""The JSON API of the pinboard, moves above all."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
from flask import Flask

from examples.pinboard.boards import PAGE
from examples.pinboard.models import BoardHasPins
from sqla_shard import Cluster
from tests.servers.visiting import (
    app as app,
    cluster as cluster,
    Visitor,
    visitor as visitor,
)

# No page may scatter, write two shards or read objects one by one.
pytestmark = pytest.mark.sqla_shard_lint


def test_boards(visitor: Visitor) -> None:
    made = visitor.api("POST", "/boards", {"title": "Boats"}, 201)
    assert made == {
        "id": made["id"],
        "user_id": str(visitor.user_id),
        "title": "Boats",
        "details": "",
        "count": 0,
        "removed": 0,
        "followers": 0,
    }
    path = f"/boards/{made['id']}"
    changed = visitor.api("PATCH", path, {"details": "Wooden"})
    assert changed == {**made, "details": "Wooden"}
    assert visitor.api("GET", path) == changed
    listed = visitor.api("GET", "/boards")
    del changed["removed"], changed["followers"]
    assert listed == {"boards": [changed], "next": None}


def test_boards_come_in_pages(visitor: Visitor) -> None:
    made = [str(visitor.add_board(f"b{n}")) for n in range(PAGE + 1)]
    first = visitor.api("GET", "/boards")
    rest = visitor.api("GET", f"/boards?after={first['next']}")
    assert rest["next"] is None
    found = [one["id"] for one in first["boards"] + rest["boards"]]
    assert found == made[::-1]


def test_pins(visitor: Visitor) -> None:
    board_id = visitor.add_board()
    body = {"link": "https://www.example.com/a", "details": "d"}
    made = visitor.api("POST", f"/boards/{board_id}/pins", body, 201)
    assert made == {
        "id": made["id"],
        "board_id": str(board_id),
        "link": "https://www.example.com/a",
        "host": "example.com",
        "title": "example.com",
        "details": "d",
        "hue": made["hue"],
        "tone": made["tone"],
        "letter": "E",
        "removed": False,
    }
    path = f"/pins/{made['id']}"
    assert visitor.api("GET", path) == made
    changed = visitor.api("PATCH", path, {"title": "New"})
    assert changed == {**made, "title": "New", "letter": "N"}
    listed = visitor.api("GET", f"/boards/{board_id}/pins")
    assert listed == {"pins": [changed], "next": None}

    assert visitor.call("DELETE", path).data == b""
    visitor.api("GET", path, status=404)
    visitor.api("PATCH", path, {"title": "x"}, 404)
    visitor.api("DELETE", path, status=404)
    answer = visitor.api("GET", f"/boards/{board_id}")
    assert (answer["count"], answer["removed"]) == (0, 1)
    assert visitor.api("POST", f"{path}/restore") == changed


def test_moves_persist(visitor: Visitor, cluster: Cluster) -> None:
    board_id = visitor.add_board()
    a, b, c, d = visitor.add_pins(board_id, 4)
    moved = visitor.move(board_id, d, before=a, after=b)
    assert visitor.order(board_id) == [a, d, b, c]
    assert visitor.pins_on(f"/boards/{board_id}") == [a, d, b, c]
    with cluster.session() as session:
        position = BoardHasPins.position(session, board_id, d)
    # It exceeds 2**53 and came as a string, to the last digit.
    assert moved == {"id": str(d), "sequence": str(position)}
    assert len(moved["sequence"]) == 38

    visitor.move(board_id, c, after=a)
    assert visitor.order(board_id) == [c, a, d, b]
    visitor.move(board_id, c, before=b)
    assert visitor.order(board_id) == [a, d, b, c]


def test_random_moves_are_those_of_a_list(visitor: Visitor, rng: random.Random) -> None:
    board_id = visitor.add_board()
    shown = visitor.add_pins(board_id, 8)
    for _ in range(60):
        pin_id = shown.pop(rng.randrange(len(shown)))
        index = rng.randrange(len(shown) + 1)
        before = shown[index - 1] if index else None
        after = shown[index] if index < len(shown) else None
        visitor.move(board_id, pin_id, before, after)
        shown.insert(index, pin_id)
    assert visitor.order(board_id) == shown


def test_another_browser_sees_it(
    app: Flask, cluster: Cluster, visitor: Visitor
) -> None:
    board_id = visitor.add_board()
    a, b, c = visitor.add_pins(board_id, 3)
    other = Visitor.new(app, cluster)
    other.name = visitor.name
    other.sign_in()
    assert other.pins_on(f"/boards/{board_id}") == [a, b, c]
    visitor.move(board_id, c, before=a, after=b)
    assert other.pins_on(f"/boards/{board_id}") == [a, c, b]
    # It saw a and b side by side; they still are ahead and behind.
    other.move(board_id, c, after=a)
    assert visitor.pins_on(f"/boards/{board_id}") == [c, a, b]


def test_stale_moves(visitor: Visitor) -> None:
    board_id = visitor.add_board()
    a, b, c, d = visitor.add_pins(board_id, 4)
    visitor.move(board_id, b, after=a)  # b a c d
    # Another browser still shows a b c d.
    error = visitor.move(board_id, d, before=a, after=b, status=409)["error"]
    assert error["code"] == "conflict"
    assert "were moved" in error["message"]
    assert visitor.order(board_id) == [b, a, c, d]

    visitor.api("DELETE", f"/pins/{c}", status=204)
    visitor.move(board_id, d, before=a, after=c, status=409)
    visitor.move(board_id, c, before=b, status=409)
    assert visitor.order(board_id) == [b, a, d]


def test_neighbours_of_another_board(visitor: Visitor) -> None:
    board_id, other_id = visitor.add_board(), visitor.add_board()
    a, b = visitor.add_pins(board_id, 2)
    x, y = visitor.add_pins(other_id, 2)
    visitor.move(board_id, a, before=x, status=409)
    visitor.move(board_id, x, before=b, status=409)
    assert visitor.order(board_id) == [a, b]
    assert visitor.order(other_id) == [x, y]


def test_moving_next_to_a_removed_pin(visitor: Visitor) -> None:
    board_id = visitor.add_board()
    a, b, c, d = visitor.add_pins(board_id, 4)
    visitor.api("DELETE", f"/pins/{b}", status=204)
    # The browser shows a c d; a and c are side by side there.
    visitor.move(board_id, d, before=a, after=c)
    assert visitor.order(board_id) == [a, d, c]
    visitor.api("POST", f"/pins/{b}/restore")
    assert visitor.order(board_id) == [a, d, b, c]


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"pin": None},
        {"before": None},
        {"pin": 68719476737},
        {"before": 68719476737},
        {"pin": "-1"},
        {"pin": "١"},
        {"before": ["1"]},
        {"before": "1" * 20},
    ],
)
def test_malformed_moves(visitor: Visitor, wrong: dict[str, Any]) -> None:
    board_id = visitor.add_board()
    a, b = visitor.add_pins(board_id, 2)
    body = {"pin": str(b), "before": str(a), **wrong} if wrong else {}
    answer = visitor.api("POST", f"/boards/{board_id}/moves", body, 400)
    assert answer["error"]["code"] == "malformed"
    assert visitor.order(board_id) == [a, b]


def test_moves_of_what_is_no_pin(visitor: Visitor) -> None:
    board_id = visitor.add_board()
    a, b = visitor.add_pins(board_id, 2)
    never = a + 1000
    visitor.move(board_id, board_id, before=a, status=404)
    visitor.move(board_id, b, before=board_id, status=404)
    visitor.move(board_id, b, before=(1 << 62) - 1, status=404)
    visitor.move(board_id, b, before=2**63, status=404)
    visitor.move(board_id, never, before=a, status=409)
    visitor.move(board_id, b, before=b, status=409)
    visitor.move(never, b, before=a, status=404)
    assert visitor.order(board_id) == [a, b]


def test_bad_bookmarks(visitor: Visitor) -> None:
    board_id, other_id = visitor.add_board(), visitor.add_board()
    visitor.add_pins(board_id, PAGE + 1)
    bookmark = visitor.api("GET", f"/boards/{board_id}/pins")["next"]
    for path in (
        f"/boards/{other_id}/pins?after={bookmark}",
        f"/boards/{board_id}/pins?after=rubbish",
        f"/boards/{board_id}/pins?after=%00",
        f"/boards?after={bookmark}",
    ):
        error = visitor.api("GET", path, status=400)["error"]
        assert error["code"] == "bad_bookmark"
    assert 'role="alert"' in visitor.get(f"/boards/{board_id}?after=rubbish", 400)


def test_bodies_that_are_not_understood(visitor: Visitor) -> None:
    headers = {"X-CSRF-Token": visitor.token}
    for data, kind in [
        (b"{", "application/json"),
        (b"[1]", "application/json"),
        (b'"text"', "application/json"),
        (b"title=x", "application/x-www-form-urlencoded"),
        (b"", "text/plain"),
        (b'{"title": 1}', "application/json"),
        (b'{"title": null}', "application/json"),
        (b'\xff{"title": "x"}', "application/json"),
    ]:
        answer = visitor.client.post(
            "/api/boards", data=data, content_type=kind, headers=headers
        )
        assert answer.status_code == 400, data
        assert answer.get_json()["error"]["code"] == "malformed"


def test_errors_are_json(visitor: Visitor) -> None:
    for method, path, status in [
        ("GET", "/nothing", 404),
        ("PUT", "/boards", 405),
        ("GET", "/boards/1", 404),
        ("GET", "/pins/999999999999999999", 404),
        ("GET", f"/boards/{visitor.user_id}", 404),
    ]:
        answer = visitor.call(method, path)
        assert answer.status_code == status
        assert set(answer.get_json()["error"]) == {"code", "message"}


def test_many_at_once(app: Flask, cluster: Cluster, visitor: Visitor) -> None:
    """Moves, removals and additions of several browsers lose nothing."""
    board_id = visitor.add_board()
    pins = visitor.add_pins(board_id, 6)
    browsers = []
    for _ in range(4):
        browser = Visitor.new(app, cluster)
        browser.name = visitor.name
        browser.sign_in()
        browsers.append(browser)
    errors: list[BaseException] = []

    def work(browser: Visitor, number: int) -> None:
        choice = random.Random(number)
        try:
            for _ in range(6):
                pin_id, neighbour = choice.sample(pins, 2)
                body = {"pin": str(pin_id), "before": str(neighbour)}
                answer = browser.call("POST", f"/boards/{board_id}/moves", body)
                assert answer.status_code == 200, answer.text
            added = browser.add_pin(board_id, f"from{number}")
            browser.api("DELETE", f"/pins/{added}", status=204)
        except BaseException as error:  # handed to the test's own thread
            errors.append(error)
            raise

    threads = [
        threading.Thread(target=work, args=(browser, number))
        for number, browser in enumerate(browsers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert sorted(visitor.order(board_id)) == sorted(pins)
    answer = visitor.api("GET", f"/boards/{board_id}")
    assert (answer["count"], answer["removed"]) == (6, 4)
