"""Importing a bookmark file into the pinboard."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import event, func, select, update
from sqlalchemy.exc import OperationalError
from werkzeug.test import TestResponse

from examples.pinboard.boards import add_board
from examples.pinboard.errors import ConflictError
from examples.pinboard.import_jobs import start_import
from examples.pinboard.importing import MAX_PINS, read_upload, Upload
from examples.pinboard.inputs import BoardInput, MAX_DETAILS, MAX_TITLE, PinInput
from examples.pinboard.models import Base, Board, Import, ImportPart, Pin
from examples.pinboard.samples import add_samples, add_user
from examples.pinboard.security import MAX_UPLOAD
from sqla_shard import Cluster, ShardSession
from sqla_shard.ids import unpack
from sqla_shard.jobs import retry_jobs, Worker
from sqla_shard.outbox.tables import JOBS
from sqla_shard.testing import sqlite_topology
from tests.servers.visiting import (
    app as app,
    cluster as cluster,
    Visitor,
    visitor as visitor,
)

# No page may scatter, write two shards or read objects one by one.
pytestmark = pytest.mark.sqla_shard_lint

ROOT = Path(__file__).parents[2]
FILE = ROOT / "examples" / "bookmarks.html"
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


def finished(visitor: Visitor, cluster: Cluster, key: str) -> dict[str, Any]:
    """Run the job of an import, and return the progress."""
    report = Worker(cluster, ["imports"]).run(until_empty=True)
    assert (report.succeeded, report.failed) == (1, 0)
    progress = visitor.api("GET", f"/imports/{key}")
    assert progress["state"] == "done"
    return dict(progress)


def links(count: int) -> str:
    rows = [f'<DT><A HREF="https://{n}.example/">{n}</A>' for n in range(count)]
    return f"{DOCTYPE}<DL><DT><H3>Many</H3><DL>{''.join(rows)}</DL></DL>"


def test_folders_become_boards_and_links_pins(
    visitor: Visitor, cluster: Cluster
) -> None:
    answer = upload(visitor, NESTED, "/import")
    assert answer.status_code == 303
    key = answer.location.rsplit("/", 1)[1]
    progress = finished(visitor, cluster, key)
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


def test_over_the_api(visitor: Visitor, cluster: Cluster) -> None:
    headers = {"X-CSRF-Token": visitor.token}
    file = (io.BytesIO(FILE.read_bytes()), "bookmarks.html")
    answer = visitor.client.post("/api/imports", data={"file": file}, headers=headers)
    assert answer.status_code == 202
    key = answer.get_json()["id"]
    assert answer.location == f"/api/imports/{key}"
    progress = finished(visitor, cluster, key)
    assert progress["state"] == "done"
    assert progress["done"] == 25
    assert progress["skipped"] == 2


def test_an_order_of_many_is_that_of_the_file(
    visitor: Visitor, cluster: Cluster
) -> None:
    key = upload(visitor, links(250), "/import").location.rsplit("/", 1)[1]
    assert finished(visitor, cluster, key)["done"] == 250
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


def test_uploads_are_bounded(visitor: Visitor, cluster: Cluster) -> None:
    for size, status in [(MAX_UPLOAD - 4096, 303), (MAX_UPLOAD + 1, 413)]:
        padding = " " * (size - len(NESTED))
        answer = upload(visitor, NESTED + padding, "/import")
        assert answer.status_code == status
        if status == 303:
            # Or the second file would be refused.
            finished(visitor, cluster, answer.location.rsplit("/", 1)[1])
    error = upload(visitor, padding + padding, "/api/imports")
    assert error.status_code == 413
    assert "4 MB" in error.get_json()["error"]["message"]


def test_long_titles_are_truncated() -> None:
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
    visitor.get(f"/where/{key}", 404)
    other.api("GET", f"/imports/{key}", status=404)
    finished(visitor, cluster, key)


# -- the job


PINS = [
    PinInput(link=f"https://{n}.example/", title=str(n), details="") for n in range(130)
]
TWO = Upload(boards=[(BoardInput(title=t, details=""), PINS) for t in ("a", "b")])


def parts_of(cluster: Cluster, user_id: int) -> int:
    """Return how many parts the shard of a user has."""
    with cluster.session() as session:
        on_shard = {"shard_id": unpack(user_id).shard_id}
        count = select(func.count()).select_from(ImportPart)
        found = session.execute(count, bind_arguments=on_shard).scalar_one()
        return int(found)


def assert_stored_once(visitor: Visitor, cluster: Cluster) -> None:
    """Assert that both boards have each pin once, in order."""
    boards = visitor.api("GET", "/boards")["boards"]
    assert [board["title"] for board in boards] == ["a", "b"]
    for board in boards:
        ids = visitor.order(int(board["id"]))
        with cluster.session() as session:
            pins = session.get_many(Pin, ids)
        found = [pin and pin.title for pin in pins]
        assert found == [pin.title for pin in PINS]
    assert parts_of(cluster, visitor.user_id) == 0


def test_one_import_of_a_user_at_a_time(visitor: Visitor, cluster: Cluster) -> None:
    first = cluster.run(start_import, visitor.user_id, TWO)
    assert parts_of(cluster, visitor.user_id) == 6
    with pytest.raises(ConflictError):
        cluster.run(start_import, visitor.user_id, TWO)
    assert parts_of(cluster, visitor.user_id) == 6
    assert visitor.api("GET", f"/imports/{first}")["state"] == "running"
    assert finished(visitor, cluster, str(first))["done"] == 260
    assert_stored_once(visitor, cluster)
    second = cluster.run(start_import, visitor.user_id, TWO)
    assert finished(visitor, cluster, str(second))["done"] == 260


def test_a_database_that_fails_and_recovers(visitor: Visitor, cluster: Cluster) -> None:
    def fail(mapper: Any, connection: Any, target: Board) -> None:
        if target.title == "a":
            raise OperationalError("INSERT", None, Exception("disk full"))

    key = cluster.run(start_import, visitor.user_id, TWO)
    with cluster.session() as session:
        job = session.get_one(Import, key).job
    worker = Worker(cluster, ["imports"])
    event.listen(Board, "before_insert", fail)
    try:
        assert worker.run(until_empty=True).failed == 1
        found = visitor.api("GET", f"/imports/{key}")
        # It is tried again; with the last attempt, it has failed.
        assert (found["state"], found["done"]) == ("running", 130)
        set_row(cluster, job, max_attempts=2, due_at=JOBS.c.created_at)
        assert worker.run(until_empty=True).failed == 1
    finally:
        event.remove(Board, "before_insert", fail)
    found = visitor.api("GET", f"/imports/{key}")
    assert (found["state"], found["done"]) == ("failed", 130)
    assert "could not be finished" in found["message"]
    assert "disk full" not in found["message"]
    assert found["message"] in visitor.get(f"/import/{key}")

    # An operator can run it again: it continues where it has failed.
    assert retry_jobs(cluster, [job]).changed == 1
    assert finished(visitor, cluster, str(key))["done"] == 260
    assert_stored_once(visitor, cluster)


def set_row(cluster: Cluster, job: str, **values: Any) -> None:
    """Change the row of a job."""
    keyspace, shard_id, local_id = job.split("/")
    with cluster.begin() as session:
        session.execute(
            update(JOBS).where(JOBS.c.id == int(local_id)).values(**values),
            bind_arguments={"keyspace": keyspace, "shard_id": int(shard_id)},
        )


@pytest.mark.parametrize("when", ["inside", "between"])
def test_a_worker_that_is_killed(visitor: Visitor, cluster: Cluster, when: str) -> None:
    key = cluster.run(start_import, visitor.user_id, TWO)
    with cluster.session() as session:
        job = session.get_one(Import, key).job
    topology = json.dumps(cluster.topology.to_mapping())
    process = subprocess.Popen(
        [*(sys.executable, "-m", "tests.workers.pinboard_importer"), when],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(topology)
        process.stdin.close()
        said = process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    assert said == "stopped\n"
    found = visitor.api("GET", f"/imports/{key}")
    assert (found["state"], found["done"]) == ("running", 100)

    # Instead of waiting until the claim of the killed one expires.
    set_row(cluster, job, due_at=JOBS.c.created_at)
    assert finished(visitor, cluster, str(key))["done"] == 260
    assert_stored_once(visitor, cluster)


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
def test_the_samples_of_a_user_are_whole_or_absent(tmp_path: Path) -> None:
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
