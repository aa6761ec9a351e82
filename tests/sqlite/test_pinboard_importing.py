"""Importing a bookmark file into the pinboard."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import event
from sqlalchemy import select
from sqlalchemy.exc import OperationalError
from werkzeug.test import TestResponse

from examples.pinboard.boards import add_board
from examples.pinboard.errors import ConflictError
from examples.pinboard.importing import Importer
from examples.pinboard.importing import MAX_PINS
from examples.pinboard.importing import Progress
from examples.pinboard.importing import read_upload
from examples.pinboard.importing import Upload
from examples.pinboard.inputs import BoardInput
from examples.pinboard.inputs import MAX_DETAILS
from examples.pinboard.inputs import MAX_TITLE
from examples.pinboard.inputs import PinInput
from examples.pinboard.models import Base
from examples.pinboard.models import Board
from examples.pinboard.samples import add_samples
from examples.pinboard.samples import add_user
from examples.pinboard.security import MAX_UPLOAD
from sqla_shard import Cluster
from sqla_shard import ShardSession
from sqla_shard.testing import sqlite_topology
from tests.servers.visiting import app as app
from tests.servers.visiting import cluster as cluster
from tests.servers.visiting import Visitor
from tests.servers.visiting import visitor as visitor

# No page may scatter, write two shards or read objects one by one.
pytestmark = pytest.mark.sqla_shard_lint

FILE = Path(__file__).parents[2] / "examples" / "bookmarks.html"
DOCTYPE = "<!DOCTYPE NETSCAPE-Bookmark-file-1>\n"
NESTED = f"""{DOCTYPE}
<DL><p>
    <DT><A HREF="https://loose.example/">Loose</A>
    <DT><H3>Outer &amp; all</H3>
    <DD>What is in it.
    <DL><p>
        <DT><A HREF="https://one.example/">One</A>
        <DD>First.
        <DT><A HREF="javascript:alert(1)">Script</A>
        <DT><A HREF="https://me:secret@two.example/">Password</A>
        <DT><A HREF="https://two.example/"></A>
        <DT><H3>Inner</H3>
        <DL><p>
            <DT><A HREF="https://three.example/"><b>Three</b></A>
        </DL><p>
        <DT><H3>Empty</H3>
        <DL><p></DL><p>
    </DL><p>
</DL><p>
"""


def upload(visitor: Visitor, text: str | bytes, path: str) -> TestResponse:
    content = text.encode() if isinstance(text, str) else text
    # By hand: of large files the test client leaves temporary ones open.
    body = (
        b"--end\r\nContent-Disposition: form-data; name=csrf_token\r\n\r\n"
        + visitor.token.encode()
        + b"\r\n--end\r\nContent-Disposition: form-data; name=file; "
        + b"filename=bookmarks.html\r\n\r\n"
        + content
        + b"\r\n--end--\r\n"
    )
    return visitor.client.post(
        path, data=body, content_type="multipart/form-data; boundary=end"
    )


def finished(visitor: Visitor, key: str) -> dict[str, Any]:
    end = monotonic() + 60
    tick = threading.Event()
    while monotonic() < end:
        progress = visitor.api("GET", f"/imports/{key}")
        if progress["state"] != "running":
            return dict(progress)
        # Asked without a pause, Python would hardly let the import's thread
        # run: it has to wait for its turn after each call of SQLite.
        tick.wait(0.02)
    raise AssertionError(progress)


def links(count: int) -> str:
    rows = [
        f'<DT><A HREF="https://{n}.example/">{n}</A>' for n in range(count)
    ]
    return f"{DOCTYPE}<DL><DT><H3>Many</H3><DL>{''.join(rows)}</DL></DL>"


def test_folders_become_boards_and_links_pins(visitor: Visitor) -> None:
    answer = upload(visitor, NESTED, "/import")
    assert answer.status_code == 303
    key = answer.location.rsplit("/", 1)[1]
    progress = finished(visitor, key)
    assert progress["state"] == "done"
    assert progress["message"] == ""
    assert (progress["done"], progress["total"]) == (4, 4)
    assert (progress["boards"], progress["total_boards"]) == (3, 3)
    assert progress["skipped"] == 2
    assert "javascript: is no web page" in progress["reasons"][0]
    assert "password" in progress["reasons"][1]

    page = visitor.get(f"/import/{key}")
    assert 'data-page="import"' in page
    assert 'data-state="done"' in page
    assert "2 links left out" in page
    assert "secret" not in page

    boards = visitor.api("GET", "/boards")["boards"]
    assert [board["title"] for board in boards] == [
        "Unsorted",
        "Outer & all",
        "Outer & all / Inner",
    ]
    assert boards[1]["details"] == "What is in it."
    pins = visitor.api("GET", f"/boards/{boards[1]['id']}/pins")["pins"]
    assert [(pin["title"], pin["details"]) for pin in pins] == [
        ("One", "First."),
        ("two.example", ""),
    ]


def test_over_the_api(visitor: Visitor) -> None:
    headers = {"X-CSRF-Token": visitor.token}
    file = (io.BytesIO(FILE.read_bytes()), "bookmarks.html")
    answer = visitor.client.post(
        "/api/imports", data={"file": file}, headers=headers
    )
    assert answer.status_code == 202
    key = answer.get_json()["id"]
    assert answer.location == f"/api/imports/{key}"
    progress = finished(visitor, key)
    assert progress["state"] == "done"
    assert progress["done"] == 25
    assert progress["skipped"] == 2


def test_an_order_of_many_is_that_of_the_file(visitor: Visitor) -> None:
    key = upload(visitor, links(250), "/import").location.rsplit("/", 1)[1]
    assert finished(visitor, key)["done"] == 250
    (board,) = visitor.api("GET", "/boards")["boards"]
    assert board["count"] == 250
    titles = []
    page: dict[str, Any] = {"next": ""}
    while page["next"] is not None:
        query = page["next"] and f"?after={page['next']}"
        page = visitor.api("GET", f"/boards/{board['id']}/pins{query}")
        titles += [pin["title"] for pin in page["pins"]]
    assert titles == [str(n) for n in range(250)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no bookmark file"),
        ("<html><a href='https://example.com'>x</a></html>", "Line 1: no "),
        ("%PDF-1.4 \x00\x01", "binary data"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (DOCTYPE + "<DL><p>", "not closed"),
        (DOCTYPE + "<DL><p></DL>", "no link to a web page"),
        (
            DOCTYPE + '<DL><DT><A HREF="javascript:alert(1)">x</A></DL>',
            "no link to a web page",
        ),
        (links(MAX_PINS + 1), "At most 10,000 links"),
    ],
)
def test_files_that_are_refused(
    visitor: Visitor, content: str | bytes, message: str
) -> None:
    page = upload(visitor, content, "/import")
    assert page.status_code == 422
    assert message in page.text
    assert 'role="alert"' in page.text
    assert 'data-form="import"' in page.text
    answer = upload(visitor, content, "/api/imports")
    assert answer.status_code == 422
    assert message in answer.get_json()["error"]["message"]
    assert visitor.api("GET", "/boards")["boards"] == []


def test_no_file(visitor: Visitor) -> None:
    assert visitor.refused(422, "/import") == "Choose a file."
    error = visitor.api("POST", "/imports", {}, 422)["error"]
    assert error["field"] == "file"


def test_uploads_are_bounded(visitor: Visitor) -> None:
    for size, status in [(MAX_UPLOAD - 4096, 303), (MAX_UPLOAD + 1, 413)]:
        padding = " " * (size - len(NESTED))
        answer = upload(visitor, NESTED + padding, "/import")
        assert answer.status_code == status
        if status == 303:
            # Or it would meet the gates of later tests.
            finished(visitor, answer.location.rsplit("/", 1)[1])
    error = upload(visitor, padding + padding, "/api/imports")
    assert error.status_code == 413
    assert "4 MB" in error.get_json()["error"]["message"]


def test_what_is_too_long_is_cut() -> None:
    text = (
        f'{DOCTYPE}<DL><DT><A HREF="https://x.example">{"t" * 999}</A>'
        f"<DD>{'d' * 9999}</DL>"
    )
    ((_, (pin,)),) = read_upload(io.BytesIO(text.encode())).boards
    assert len(pin.title) == MAX_TITLE
    assert len(pin.details) == MAX_DETAILS
    assert pin.title.endswith("…")


def test_imports_are_their_users(
    app: Flask, cluster: Cluster, visitor: Visitor
) -> None:
    key = upload(visitor, NESTED, "/import").location.rsplit("/", 1)[1]
    other = Visitor.new(app, cluster)
    other.get(f"/import/{key}", 404)
    other.api("GET", f"/imports/{key}", status=404)
    finished(visitor, key)


# -- the importer itself


class Gate:
    """Holds the first insertion of a board until it is opened."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()

    def __call__(self, *details: Any) -> None:
        self.reached.set()
        assert self.opened.wait(30)


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    event.listen(Board, "before_insert", made)
    yield made
    made.opened.set()
    event.remove(Board, "before_insert", made)


@pytest.fixture
def importer(cluster: Cluster) -> Iterator[Importer]:
    made = Importer(cluster)
    yield made
    made.close()


PINS = [
    PinInput(link=f"https://{n}.example/", title=str(n), details="")
    for n in range(3)
]
TWO = Upload(
    boards=[(BoardInput(title=t, details=""), PINS) for t in ("a", "b")]
)


def wait(importer: Importer, progress: Progress) -> Progress:
    end = monotonic() + 60
    tick = threading.Event()
    while monotonic() < end:
        found = importer.progress(progress.key, progress.user_id)
        if found.state != "running":
            return found
        # As above: it would be hindered by who asks.
        tick.wait(0.02)
    raise AssertionError(found)


def titles(cluster: Cluster, user_id: int) -> list[str]:
    with cluster.session() as session:
        query = select(Board).where(Board.user_id == user_id)
        return sorted(board.title for board in session.scalars(query))


def test_one_import_of_a_user_at_a_time(
    visitor: Visitor, gate: Gate, importer: Importer
) -> None:
    progress = importer.start(visitor.user_id, TWO)
    assert gate.reached.wait(30)
    assert progress.state == "running"
    with pytest.raises(ConflictError):
        importer.start(visitor.user_id, TWO)
    gate.opened.set()
    assert wait(importer, progress).done == 6
    assert wait(importer, importer.start(visitor.user_id, TWO)).done == 6


def test_closing_ends_after_the_transaction(
    visitor: Visitor, cluster: Cluster, gate: Gate
) -> None:
    importer = Importer(cluster)
    progress = importer.start(visitor.user_id, TWO)
    assert gate.reached.wait(30)
    closing = threading.Thread(target=importer.close)
    closing.start()
    gate.opened.set()
    closing.join(30)
    found = importer.progress(progress.key, visitor.user_id)
    # The last board comes first, and is there with all its pins.
    assert titles(cluster, visitor.user_id) in (["b"], ["a", "b"])
    assert found.state in ("failed", "done")
    if found.state == "failed":
        assert "shutting down" in found.message
        assert found.done == 3


def test_a_database_that_fails(
    visitor: Visitor, cluster: Cluster, importer: Importer
) -> None:
    def fail(mapper: Any, connection: Any, target: Board) -> None:
        if target.title == "a":
            raise OperationalError("INSERT", None, Exception("disk full"))

    event.listen(Board, "before_insert", fail)
    try:
        found = wait(importer, importer.start(visitor.user_id, TWO))
    finally:
        event.remove(Board, "before_insert", fail)
    assert found.state == "failed"
    assert found.done == 3
    assert "disk full" not in found.message
    assert titles(cluster, visitor.user_id) == ["b"]


def test_an_import_for_a_user_that_is_gone(
    visitor: Visitor, importer: Importer
) -> None:
    found = wait(importer, importer.start(visitor.user_id + 99, TWO))
    assert found.state == "failed"
    assert found.message
    assert found.done == 0


# -- samples


# Users of an older version are looked for everywhere, once.
@pytest.mark.sqla_shard_allow("scatter")
def test_samples_are_made_once(cluster: Cluster) -> None:
    assert add_samples(cluster) == 3
    assert add_samples(cluster) == 0


def test_users_on_a_shard_of_choice(cluster: Cluster) -> None:
    user_id = add_user(cluster, "chosen", shard_id=7)
    board = BoardInput(title="There too", details="")
    board_id = cluster.run(add_board, user_id, board)
    assert cluster.explain(board_id).shards == (7,)


# Users of an older version are looked for everywhere, once.
@pytest.mark.sqla_shard_allow("scatter")
def test_the_samples_of_a_user_are_whole_or_absent(
    tmp_path: Path,
) -> None:
    document = sqlite_topology(tmp_path, 2, 4, lookup=4)
    with Cluster.from_topology(document) as fresh:
        fresh.create_all(Base.metadata)

        def fail(mapper: Any, connection: Any, target: Board) -> None:
            if target.title == "Boats":
                raise RuntimeError("power failure")

        event.listen(Board, "before_insert", fail)
        try:
            with pytest.raises(RuntimeError):
                add_samples(fresh)
        finally:
            event.remove(Board, "before_insert", fail)
        # Ada was made, Grace was not.
        assert add_samples(fresh) == 2


def test_the_service_needs_no_flask(cluster: Cluster) -> None:
    def work(session: ShardSession) -> int:
        return add_board(session, user_id, BoardInput(title="x", details=""))

    user_id = add_user(cluster, "by hand")
    assert cluster.run(work) > 0
