"""The pages of the pinboard, as a browser without JavaScript uses them."""

from __future__ import annotations

import re

import pytest
from flask import Flask

from examples.pinboard import boards
from examples.pinboard.boards import PAGE
from sqla_shard import Cluster, unpack
from sqla_shard.testing import StatementLog
from tests.servers.visiting import (
    app as app,
    cluster as cluster,
    Visitor,
    visitor as visitor,
)

# No page may scatter, write two shards or read objects one by one.
pytestmark = pytest.mark.sqla_shard_lint


def located(answer: object) -> str:
    return str(answer.location).split("#")[0]  # type: ignore[attr-defined]


def page_of(text: str) -> str:
    found = re.search(r'<main[^>]*data-page="([^"]+)"', text)
    assert found
    return found[1]


def test_choosing_and_leaving(app: Flask, visitor: Visitor) -> None:
    assert page_of(visitor.get("/")) == "users"
    mine = visitor.get("/boards")
    assert page_of(mine) == "boards"
    assert "No boards yet" in mine
    assert visitor.name in mine
    assert "About &lt;b&gt;me&lt;/b&gt;" in mine

    answer = visitor.post("/session/leave")
    assert answer.status_code == 303
    assert located(answer) == "/"
    assert located(visitor.client.get("/boards")) == "/"


def test_a_choice_starts_a_session_of_its_own(visitor: Visitor) -> None:
    before = visitor.token
    visitor.sign_in()
    assert visitor.token != before
    visitor.token = before
    assert visitor.post("/boards", title="x").status_code == 400


def test_boards(visitor: Visitor) -> None:
    answer = visitor.post("/boards", title="  Old \t boats ", details="Wood")
    assert answer.status_code == 303
    page = visitor.get(located(answer))
    assert page_of(page) == "board"
    assert "<h1>Old boats</h1>" in page
    assert "Nothing here yet" in page
    board_id = int(located(answer).rsplit("/", 1)[1])
    newer = visitor.add_board("Newer")
    visitor.add_pin(board_id, "one")

    mine = visitor.get("/boards")
    found = re.findall(r'data-board-id="(\d+)"', mine)
    assert found == [str(newer), str(board_id)]
    assert "1 pin<" in mine
    assert "0 pins<" in mine

    visitor.post(f"/boards/{board_id}", title="Renamed", details="")
    assert "<h1>Renamed</h1>" in visitor.get(f"/boards/{board_id}")


def test_a_users_life_is_on_one_shard(visitor: Visitor) -> None:
    board_id = visitor.add_board()
    pin_id = visitor.add_pin(board_id)
    shards = {unpack(i).shard_id for i in (visitor.user_id, board_id, pin_id)}
    assert len(shards) == 1


def test_adding_and_editing_a_pin(visitor: Visitor) -> None:
    board_id = visitor.add_board()
    answer = visitor.post(
        f"/boards/{board_id}/pins",
        link=" example.com/?a=1&b=2 ",
        title="",
        details="Two\r\nlines",
    )
    assert answer.status_code == 303
    (pin_id,) = visitor.pins_on(f"/boards/{board_id}")
    assert str(answer.location).endswith(f"#pin-{pin_id}")

    form = visitor.get(f"/pins/{pin_id}/edit")
    assert page_of(form) == "pin-edit"
    assert 'value="https://example.com/?a=1&amp;b=2"' in form
    assert 'placeholder="That of the page, if empty" value=""' in form
    assert ">example.com</a>" in visitor.get(f"/boards/{board_id}")
    assert ">Two\nlines</textarea>" in form

    answer = visitor.post(
        f"/pins/{pin_id}/edit", link="http://other.example/", title="Other"
    )
    assert located(answer) == f"/boards/{board_id}"
    page = visitor.get(f"/boards/{board_id}")
    assert '<a href="http://other.example/" rel="noopener noreferrer' in page
    assert "nofollow" in page
    assert "Saved." in page


def test_removing_and_restoring_keep_the_place(visitor: Visitor) -> None:
    board_id = visitor.add_board()
    first, second, third = visitor.add_pins(board_id, 3)
    path = f"/boards/{board_id}"
    assert "data-removed-link hidden" in visitor.get(path)

    answer = visitor.post(f"/pins/{second}/remove")
    assert located(answer) == path
    assert visitor.pins_on(path) == [first, third]
    assert "data-removed-link>" in visitor.get(path)
    removed = visitor.get(f"{path}/removed")
    assert page_of(removed) == "removed"
    assert re.findall(r'data-removed-pin-id="(\d+)"', removed) == [str(second)]
    assert 'data-action="restore"' in removed
    assert "2 pins<" in visitor.get("/boards")
    # It cannot be removed twice, nor edited meanwhile.
    assert visitor.post(f"/pins/{second}/remove").status_code == 404
    visitor.get(f"/pins/{second}/edit", 404)

    visitor.post(f"/pins/{second}/restore")
    assert visitor.pins_on(path) == [first, second, third]
    assert "Nothing was removed" in visitor.get(f"{path}/removed")
    assert "3 pins<" in visitor.get("/boards")
    # Restoring a pin that is not removed changes nothing.
    visitor.post(f"/pins/{second}/restore")
    assert visitor.pins_on(path) == [first, second, third]


def test_removed_pins_are_listed_latest_first(visitor: Visitor) -> None:
    board_id = visitor.add_board()
    one, two, three = visitor.add_pins(board_id, 3)
    for pin_id in (two, three, one):
        visitor.api("DELETE", f"/pins/{pin_id}", status=204)
    found = visitor.api("GET", f"/boards/{board_id}/removed")["pins"]
    assert [int(pin["id"]) for pin in found] == [one, three, two]
    assert all(pin["removed"] for pin in found)


def test_pages_without_scripts(visitor: Visitor) -> None:
    board_id = visitor.add_board()
    pins = visitor.add_pins(board_id, 2 * PAGE + 1)
    path = f"/boards/{board_id}"
    found = []
    for _ in range(3):
        found.append(visitor.pins_on(path))
        more = re.search(
            r'data-more data-after="[^"]*" href="([^"]+)"', visitor.get(path)
        )
        assert more
        path = f"/boards/{board_id}{more[1]}"
    assert [len(page) for page in found] == [PAGE, PAGE, 1]
    assert [pin for page in found for pin in page] == pins


def test_many_removed_pins_do_not_hide_the_rest(visitor: Visitor) -> None:
    board_id = visitor.add_board()
    pins = visitor.add_pins(board_id, 3 * PAGE)
    for pin_id in pins[: 2 * PAGE]:
        visitor.api("DELETE", f"/pins/{pin_id}", status=204)
    assert visitor.pins_on(f"/boards/{board_id}") == pins[2 * PAGE :]


@pytest.mark.parametrize("kind", ["user", "board", "pin"])
def test_where(visitor: Visitor, cluster: Cluster, kind: str) -> None:
    board_id = visitor.add_board()
    pin_id = visitor.add_pin(board_id)
    ids = {"user": visitor.user_id, "board": board_id, "pin": pin_id}
    parts = unpack(ids[kind])
    page = visitor.get(f"/where/{ids[kind]}")
    assert page_of(page) == "where"
    assert f'data-where-shard="{parts.shard_id}">{parts.shard_id}<' in page
    assert f'data-where-local="{parts.local_id}">{parts.local_id}<' in page
    (target,) = cluster.explain(ids[kind]).targets
    assert f'data-where-server="{target.server}">{target.server}<' in page
    digits = "".join(re.findall(r'<i class="d\d">(\d)</i>', page))
    assert digits == f"{ids[kind]:064b}"
    assert ("data-where-position" in page) == (kind == "pin")
    # Paths of files are not disclosed.
    directory = target.database.rsplit("/", 2)[0]
    assert directory not in page

    answer = visitor.api("GET", f"/where/{ids[kind]}")
    assert answer["id"] == str(ids[kind])
    assert answer["shard"] == parts.shard_id
    assert answer["server"] == target.server
    assert directory not in str(answer)


def test_where_a_removed_pin_lives(visitor: Visitor) -> None:
    pin_id = visitor.add_pin(visitor.add_board())
    visitor.post(f"/pins/{pin_id}/remove")
    assert "data-where-shard" in visitor.get(f"/where/{pin_id}")


def test_boards_of_others_can_be_looked_at(
    app: Flask, cluster: Cluster, visitor: Visitor
) -> None:
    board_id = visitor.add_board("Mine alone")
    pin_id = visitor.add_pin(board_id)
    other = Visitor.new(app, cluster)
    assert "Mine alone" in other.get(f"/users/{visitor.user_id}")
    for reader in (other.client, app.test_client()):
        page = reader.get(f"/boards/{board_id}").text
        assert f'data-pin-id="{pin_id}"' in page
        assert "data-handle" not in page
        assert 'data-form="add-pin"' not in page
        assert 'data-form="edit-board"' not in page
        assert 'data-action="remove"' not in page


def test_titles_are_escaped(visitor: Visitor) -> None:
    evil = "<script>alert('1')</script>\"&"
    board_id = visitor.add_board(evil)
    answer = visitor.post(
        f"/boards/{board_id}/pins",
        link='https://example.com/?q="><script>x</script>',
        title=evil,
        details=evil,
    )
    assert answer.status_code == 303
    (pin_id,) = visitor.pins_on(f"/boards/{board_id}")
    paths = [
        "/boards",
        f"/boards/{board_id}",
        f"/pins/{pin_id}/edit",
        f"/pins/{pin_id}",
        f"/where/{pin_id}",
        f"/where/{board_id}",
    ]
    visited = [visitor.get(path) for path in paths]
    visitor.post(f"/pins/{pin_id}/remove")
    visited.append(visitor.get(f"/boards/{board_id}/removed"))
    for page in visited:
        assert "<script>" not in page
        assert 'q="><' not in page
        assert "&lt;script&gt;alert" in page


def test_statements_of_a_page_do_not_grow_with_it(visitor: Visitor) -> None:
    board_id = visitor.add_board()
    counts = []
    for _ in range(2):
        visitor.add_pins(board_id, 10)
        visitor.add_board()
        paths = ("/boards", f"/boards/{board_id}")
        for path in paths:
            visitor.get(path)
            with StatementLog() as log:
                visitor.get(path)
            counts.append(len(log.executions))
    assert counts[:2] == counts[2:]
    assert max(counts) <= 11, counts


def test_more_removed_pins_than_are_listed(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boards, "MAX_REMOVED", 2)
    board_id = visitor.add_board()
    for number in range(3):
        visitor.add_pin(board_id)
        page = visitor.get(f"/boards/{board_id}/removed")
        assert "the latest" not in page, number
    for pin_id in visitor.pins_on(f"/boards/{board_id}"):
        visitor.api("DELETE", f"/pins/{pin_id}", status=204)
    page = visitor.get(f"/boards/{board_id}/removed")
    assert "the latest 2 of 3" in page
