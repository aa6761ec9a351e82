"""Refusals of the pinboard: no login, other users' boards, bad input."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from examples.pinboard.app import create_app
from examples.pinboard.inputs import MAX_DETAILS, MAX_LINK, MAX_TITLE
from examples.pinboard.models import Board
from examples.pinboard.security import MAX_REQUEST
from sqla_shard import Cluster, pack
from sqla_shard.exc import CommitUnknownError, RetriesExhaustedError
from tests.servers.visiting import (
    app as app,
    cluster as cluster,
    Visitor,
    visitor as visitor,
)

# No page may scatter, write two shards or read objects one by one.
pytestmark = pytest.mark.sqla_shard_lint

PIN = "68719476737"  # shard 0, type 1, local id 1
BOARD = str(pack(0, 2, 1))
USER = str(pack(0, 3, 1))
IMPORT = str(pack(0, 4, 1))
WRITES = [
    ("POST", "/session"),
    ("POST", "/sign-up"),
    ("POST", "/api/users"),
    ("POST", "/session/leave"),
    ("POST", "/boards"),
    ("POST", f"/boards/{BOARD}"),
    ("POST", f"/boards/{BOARD}/pins"),
    ("POST", f"/boards/{BOARD}/follow"),
    ("POST", f"/boards/{BOARD}/unfollow"),
    ("POST", f"/users/{USER}/follow"),
    ("POST", f"/users/{USER}/unfollow"),
    ("POST", f"/boards/{BOARD}/saved/{PIN}/remove"),
    ("POST", f"/pins/{PIN}/save"),
    ("POST", f"/pins/{PIN}/edit"),
    ("POST", f"/pins/{PIN}/remove"),
    ("POST", f"/pins/{PIN}/restore"),
    ("POST", "/import"),
    ("POST", "/cache/<name>"),
    ("POST", "/api/boards"),
    ("PATCH", f"/api/boards/{BOARD}"),
    ("POST", f"/api/boards/{BOARD}/moves"),
    ("POST", f"/api/boards/{BOARD}/pins"),
    ("PATCH", f"/api/pins/{PIN}"),
    ("DELETE", f"/api/pins/{PIN}"),
    ("POST", f"/api/pins/{PIN}/restore"),
    ("PUT", f"/api/boards/{BOARD}/follow"),
    ("DELETE", f"/api/boards/{BOARD}/follow"),
    ("PUT", f"/api/users/{USER}/follow"),
    ("DELETE", f"/api/users/{USER}/follow"),
    ("PUT", f"/api/boards/{BOARD}/saved/{PIN}"),
    ("DELETE", f"/api/boards/{BOARD}/saved/{PIN}"),
    ("POST", "/api/imports"),
]
SCRIPTS = [
    "javascript:alert(1)",
    "JavaScript:alert(1)",
    " javascript:alert(1)",
    "java\nscript:alert(1)",
    "\x01javascript:alert(1)",
    "data:text/html,<script>alert(1)</script>",
    "vbscript:msgbox",
    "file:///etc/passwd",
    "ftp://example.com/",
    "blob:https://example.com/x",
    "about:blank",
    "//example.com/",
    "/boards",
    "http://",
    "https:///path",
    "https:example.com",
    "https://user:secret@example.com/",
    "https://example.com\\@evil.example/",
    "https://example.com/a b",
    "https://example.com:port/",
    "https://example.com:99999/",
    "https://[::1",
    "https://exa\u2028mple.com/",
    "https://exa\u202emple.com/",
    "https://exa\u3000mple.com/",
    "word",
    "",
    "https://example.com/" + "x" * MAX_LINK,
]


def test_every_write_is_listed(app: Flask) -> None:
    found = {
        (method, re.sub(r"<[^>]*:(\w+)>", r"<\1>", rule.rule))
        for rule in app.url_map.iter_rules()
        for method in (rule.methods or set()) - {"GET", "HEAD", "OPTIONS"}
    }
    listed = {
        (
            m,
            p.replace(BOARD, "<board_id>")
            .replace(PIN, "<pin_id>")
            .replace(USER, "<user_id>"),
        )
        for m, p in WRITES
    }
    assert found == listed


@pytest.fixture(scope="module")
def unheard(app: Flask, cluster: Cluster) -> Visitor:
    """A user who changes nothing."""
    return Visitor.new(app, cluster)


@pytest.mark.parametrize(("method", "path"), WRITES)
@pytest.mark.parametrize("token", [None, "", "rubbish"])
def test_no_write_without_a_token(
    unheard: Visitor, method: str, path: str, token: str | None
) -> None:
    headers = {} if token is None else {"X-CSRF-Token": token}
    answer = unheard.client.open(path, method=method, headers=headers)
    assert answer.status_code == 400
    if path.startswith("/api/"):
        assert answer.get_json()["error"]["code"] == "csrf"
    else:
        assert "has expired" in answer.text


def test_a_token_of_another_session(
    app: Flask, cluster: Cluster, visitor: Visitor
) -> None:
    visitor.token = Visitor.new(app, cluster).token
    assert visitor.post("/boards", title="x").status_code == 400
    assert visitor.call("POST", "/boards", {"title": "x"}).status_code == 400


@pytest.mark.parametrize(("method", "path"), WRITES[4:])
def test_writes_require_a_sign_in(app: Flask, method: str, path: str) -> None:
    nobody = Visitor(app.test_client(), 0, "nobody")
    nobody.read_token()
    body: Any = {"link": "https://example.com", "title": "x", "pin": PIN}
    if path.startswith("/api/"):
        error = nobody.api(method, path[4:], body, 401)["error"]
        assert error["code"] == "signed_out"
    else:
        nobody.refused(401, path, **body)


@pytest.mark.parametrize(
    "path", ["/boards", "/import", f"/import/{IMPORT}", f"/pins/{PIN}/edit"]
)
def test_signed_out_users_are_redirected(app: Flask, path: str) -> None:
    answer = app.test_client().get(path)
    assert (answer.status_code, answer.location) == (303, "/")


def test_boards_of_others(app: Flask, cluster: Cluster, visitor: Visitor) -> None:
    board_id = visitor.add_board("Mine")
    a, b = visitor.add_pins(board_id, 2)
    other = Visitor.new(app, cluster)
    link = {"link": "https://evil.example/", "title": "evil"}
    for path, form in [
        (f"/boards/{board_id}", {"title": "evil"}),
        (f"/boards/{board_id}", {"title": ""}),
        (f"/boards/{board_id}/pins", link),
        (f"/boards/{board_id}/pins", {"link": "javascript:"}),
        (f"/pins/{a}/edit", link),
        (f"/pins/{a}/edit", {"link": "javascript:"}),
        (f"/pins/{a}/remove", {}),
        (f"/pins/{a}/restore", {}),
    ]:
        other.refused(403, path, **form)
    for path in (f"/boards/{board_id}/removed", f"/pins/{a}/edit"):
        other.get(path, 403)
    for method, path, body in [
        ("PATCH", f"/boards/{board_id}", {"title": "evil"}),
        ("POST", f"/boards/{board_id}/pins", link),
        ("PATCH", f"/pins/{a}", link),
        ("DELETE", f"/pins/{a}", None),
        ("POST", f"/pins/{a}/restore", None),
        ("GET", f"/boards/{board_id}/removed", None),
    ]:
        error = other.api(method, path, body, 403)["error"]
        assert error["code"] == "forbidden"
    other.move(board_id, b, after=a, status=403)

    # A pin of one's own does not open the board of another.
    mine = other.add_pin(other.add_board())
    other.move(board_id, mine, after=a, status=403)
    assert visitor.order(board_id) == [a, b]
    assert visitor.api("GET", f"/boards/{board_id}")["title"] == "Mine"
    assert visitor.api("GET", f"/pins/{a}")["title"] == "n1"


@pytest.mark.parametrize("link", SCRIPTS)
def test_invalid_links(visitor: Visitor, link: str) -> None:
    board_id = visitor.add_board()
    pin_id = visitor.add_pin(board_id)
    for path in (f"/boards/{board_id}/pins", f"/pins/{pin_id}/edit"):
        assert visitor.refused(422, path, link=link, title="Kept")
        page = visitor.post(path, link=link, title="Kept").text
        assert 'value="Kept"' in page
        assert 'name="link"' in page
    body = {"link": link}
    error = visitor.api("POST", f"/boards/{board_id}/pins", body, 422)
    assert error["error"]["field"] == "link"
    visitor.api("PATCH", f"/pins/{pin_id}", body, 422)
    assert visitor.order(board_id) == [pin_id]
    assert visitor.api("GET", f"/pins/{pin_id}")["link"].startswith("https:")


def test_texts_that_are_too_long(visitor: Visitor) -> None:
    board_id = visitor.add_board()
    link = "https://example.com/"
    for form, status in [
        ({"title": "x" * MAX_TITLE}, 303),
        ({"title": "x" * (MAX_TITLE + 1)}, 422),
        ({"title": "x", "details": "y" * MAX_DETAILS}, 303),
        ({"title": "x", "details": "y" * (MAX_DETAILS + 1)}, 422),
    ]:
        for path in ("/boards", f"/boards/{board_id}"):
            assert visitor.post(path, **form).status_code == status
        path = f"/boards/{board_id}/pins"
        assert visitor.post(path, link=link, **form).status_code == status
    visitor.refused(422, "/boards", title=" \t ")
    assert len(visitor.order(board_id)) == 2


def test_characters_removed_from_titles(visitor: Visitor) -> None:
    title = " a\x00b\x1b[0m\u202egnp.exe\u2066  c\n"
    made = visitor.api("POST", "/boards", {"title": title}, 201)
    assert made["title"] == "a b [0mgnp.exe c"
    made = visitor.api("POST", "/boards", {"title": "\ud800"}, 201)
    assert made["title"] == "?"


def test_ids_of_nothing(visitor: Visitor) -> None:
    board_id = visitor.add_board()
    pin_id = visitor.add_pin(board_id)
    user_id = visitor.user_id
    shard = pack(500, 2, 1)  # is not open
    for path in (
        *(f"/boards/{i}" for i in (pin_id, user_id, board_id + 99, shard)),
        *(f"/boards/{i}" for i in ("0", "1", "x", "-1", 2**62, 2**63 - 1)),
        *(f"/users/{i}" for i in (pin_id, board_id, user_id + 99)),
        *(f"/pins/{i}/edit" for i in (board_id, pin_id + 99)),
        *(f"/where/{i}" for i in (pin_id + 99, shard, pack(0, 9, 1), 7)),
        *(f"/boards/{i}/removed" for i in (pin_id, board_id + 99)),
        "/import/unknown",
        "/nowhere",
    ):
        assert 'role="alert"' in visitor.get(path, 404), path
    for path in (f"/boards/{pin_id}/pins", f"/boards/{board_id + 99}/pins"):
        visitor.refused(404, path, link="https://example.com/")
    for path in ("/pins", "/boards", "/where"):
        for object_id in (user_id + 99, pack(500, 1, 1), pack(0, 9, 1)):
            if path != "/where" or object_id != user_id + 99:
                visitor.api("GET", f"{path}/{object_id}", status=404)


def test_invalid_users(visitor: Visitor) -> None:
    nobody = "nobody@example.com"
    for email in ("", "nobody", nobody, "x" * 300 + nobody, "\u0000@x"):
        message = visitor.refused(422, "/session", email=email)
        assert "address" in message
    # The user is still signed in.
    assert visitor.name in visitor.get("/boards")


def test_large_requests(visitor: Visitor) -> None:
    text = "x" * (MAX_REQUEST + 1)
    visitor.refused(413, "/boards", title=text)
    error = visitor.api("POST", "/boards", {"title": text}, 413)["error"]
    assert error["message"].startswith("The request is too large")


def test_headers(visitor: Visitor) -> None:
    board_id = visitor.add_board()
    for path in ("/", f"/boards/{board_id}", "/nowhere", "/api/boards"):
        headers = visitor.client.get(path).headers
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "same-origin"
        assert headers["Cache-Control"] == "no-store"
    with visitor.client.get("/static/main.js") as answer:
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.mimetype == "text/javascript"


def test_pages_keep_to_their_policy(visitor: Visitor) -> None:
    board_id = visitor.add_board()
    pin_id = visitor.add_pin(board_id)
    for path in (
        "/",
        "/sign-up",
        "/boards",
        f"/boards/{board_id}",
        f"/pins/{pin_id}",
        f"/pins/{pin_id}/edit",
        f"/where/{pin_id}",
        "/import",
    ):
        page = visitor.get(path)
        assert not re.search(r"<style|\sstyle=|\son\w+=", page), path
        assert not re.search(r"<script(?![^>]*\ssrc=)", page), path
        assert not re.search(r'(src|rel="stylesheet" href)="http', page), path


def test_files_named_by_a_page_exist(visitor: Visitor) -> None:
    page = visitor.get("/")
    names = set(re.findall(r'"(/static/[^"]+)"', page))
    assert len(names) == 8
    for name in list(names):
        with visitor.client.get(name) as answer:
            assert answer.status_code == 200
            text = answer.get_data(as_text=True)
            found = re.findall(r'from "\./(\w+\.js)"', text)
            names |= {f"/static/{one}" for one in found}
    files = Path(str(visitor.client.application.static_folder)).iterdir()
    assert {f"/static/{path.name}" for path in files} >= names


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OperationalError("INSERT", None, Exception("secret")), "unavailable"),
        (RetriesExhaustedError(attempts=1, last=Exception()), "unavailable"),
        (CommitUnknownError(server="server1"), "unknown"),
    ],
)
def test_a_server_that_does_not_answer(
    visitor: Visitor, error: Exception, code: str
) -> None:
    def fail(mapper: Any, connection: Any, target: Board) -> None:
        raise error

    event.listen(Board, "before_insert", fail)
    try:
        body = {"title": "x"}
        answer = visitor.api("POST", "/boards", body, 503)["error"]
        assert answer["code"] == code
        assert visitor.refused(503, "/boards", title="x") == answer["message"]
        assert "secret" not in answer["message"]
    finally:
        event.remove(Board, "before_insert", fail)


def test_the_cookie(app: Flask) -> None:
    cookie = app.test_client().get("/").headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie


def test_a_forged_cookie(app: Flask, cluster: Cluster) -> None:
    forger = create_app(cluster, secret_key="guessed", testing=True)
    client = Visitor.new(forger, cluster).client
    cookie = client.get_cookie("pinboard")
    assert cookie is not None
    other = app.test_client()
    other.set_cookie("pinboard", cookie.value)
    assert other.get("/boards").status_code == 303


def test_other_names_of_the_host(app: Flask) -> None:
    client = app.test_client()
    for host in ("127.0.0.1:5000", "localhost"):
        assert client.get("/", headers={"Host": host}).status_code == 200
    for host in ("evil.example", "127.0.0.1.evil.example"):
        assert client.get("/", headers={"Host": host}).status_code == 400


def test_json_that_is_no_text(visitor: Visitor) -> None:
    board_id = visitor.add_board()
    for link in ("https://example.com/\ud800", "https://\udfff.example/"):
        body = {"link": link}
        answer = visitor.api("POST", f"/boards/{board_id}/pins", body, 422)
        assert answer["error"]["field"] == "link"


@pytest.mark.parametrize("text", ["[" * 30_000, '{"a":' * 10_000])
def test_json_of_too_many_lists(visitor: Visitor, text: str) -> None:
    answer = visitor.client.post(
        "/api/boards",
        data=text,
        content_type="application/json",
        headers={"X-CSRF-Token": visitor.token},
    )
    assert answer.status_code == 400
    assert answer.get_json()["error"]["code"] == "malformed"


def test_removed_pins_are_for_their_owner(
    app: Flask, cluster: Cluster, visitor: Visitor
) -> None:
    pin_id = visitor.add_pin(visitor.add_board())
    other = Visitor.new(app, cluster)
    other.get(f"/where/{pin_id}")
    visitor.api("DELETE", f"/pins/{pin_id}", status=204)
    visitor.get(f"/where/{pin_id}")
    other.get(f"/where/{pin_id}", 403)
    assert app.test_client().get(f"/where/{pin_id}").status_code == 303


def test_writes_over_https(visitor: Visitor) -> None:
    # CSRFProtect wants a Referer there, which a page may forbid to send.
    page = visitor.client.get("/boards", base_url="https://localhost/")
    assert page.headers["Referrer-Policy"] == "same-origin"
    for referrer, status in (
        ("https://localhost/boards", 303),
        ("https://example.com/", 400),
    ):
        answer = visitor.client.post(
            "/boards",
            base_url="https://localhost/",
            data={"csrf_token": visitor.token, "title": "Boats"},
            headers={"Referer": referrer},
        )
        assert answer.status_code == status, answer.text
