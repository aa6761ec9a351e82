"""The pinboard fetches titles of pages by jobs, from public servers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from examples.pinboard import fetching
from examples.pinboard.fetching import is_public, page_title, PageError
from examples.pinboard.titles import ALLOWED, fetch_title
from sqla_shard import Cluster
from sqla_shard.jobs import delete_of, jobs_of, JobState, Worker
from sqla_shard.testing import run_jobs
from tests.servers.visiting import (
    app as app,
    cluster as cluster,
    Visitor,
    visitor as visitor,
)

HTML = "text/html; charset=utf-8"
PAGES = {
    "/page?a=b": (HTML, b"<head><title> Knots &amp;\n\xe2\x82\xac </title>"),
    "/none": (HTML, b"<body><svg></svg>"),
    "/open": (HTML, b"<title>Never closed"),
    "/late": (HTML, b" " * fetching.MAX_BYTES + b"<title>Late</title>"),
    "/latin": ("text/html; charset=ISO-8859-1", b"<title>\xe9t\xe9</title>"),
    "/meta": ("text/html", b"<meta charset=koi8-r><title>\xc4\xc1</title>"),
    "/odd": ("text/html; charset=punycode", b"<title>odd</title>"),
    "/picture": ("image/svg+xml", b"<svg><title>Picture</title></svg>"),
    "/two": (HTML, b"<title>First</title><svg><title>2</title></svg>"),
}
# What versions of Python make of these differs.
ODD = {
    "/section": (HTML, b"<![ ]]><title>section</title>"),
    "/keyword": (HTML, b"<![a-b[x]]><title>keyword</title>"),
    "/digits": (HTML, b"<title>&#" + b"9" * 5000 + b";</title>"),
}
PAGES |= ODD
REDIRECTS = {"/bracket": "http://[::1", "/slashes": "//[", "/x": "http://[x]/"}


class Pages(ThreadingHTTPServer):
    """Pages on 127.0.0.1; :meth:`close` ends those that do not end."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.closing = threading.Event()
        self.paths: list[str] = []
        self.name = f"127.0.0.1:{self.server_port}"

    def close(self) -> None:
        self.closing.set()
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    server: Pages

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass

    def do_GET(self) -> None:
        self.server.paths.append(self.path)
        host = self.headers["Host"]
        if self.path in PAGES:
            kind, content = PAGES[self.path]
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(content)
        elif self.path == "/trickle":
            self.send_response(200)
            self.send_header("Content-Type", HTML)
            self.end_headers()
            self.trickle()
        elif self.path.startswith("/hop"):
            hops = int(self.path.removeprefix("/hop"))
            to = f"/hop{hops - 1}" if hops else "/page?a=b"
            self.redirect(to)
        elif self.path == "/elsewhere":
            self.redirect(f"http://{host.replace('127.0.0.1', 'localhost')}/")
        elif self.path in REDIRECTS:
            self.redirect(REDIRECTS[self.path])
        elif self.path == "/chunk":
            self.send_response(200)
            self.send_header("Content-Type", HTML)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"-5\r\n<title>")
        elif self.path == "/file":
            self.redirect("file:///etc/passwd")
        else:
            self.send_error(404)

    def redirect(self, to: str) -> None:
        self.send_response(302)
        self.send_header("Location", to)
        self.end_headers()

    def trickle(self) -> None:
        try:
            while not self.server.closing.wait(0.01):
                self.wfile.write(b" ")
        except OSError:
            return  # The client has hung up.


@pytest.fixture(scope="module")
def pages() -> Iterator[Pages]:
    server = Pages()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.close()
    thread.join()


@pytest.fixture
def title(pages: Pages) -> Callable[[str], str]:
    return lambda path: page_title(f"http://{pages.name}{path}", [pages.name])


def test_a_pin_gets_the_title_of_its_page(
    visitor: Visitor, cluster: Cluster, pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ALLOWED, f"intranet.example:80,{pages.name}")
    board_id = visitor.add_board()
    before = len(pages.paths)
    for path in ("/page?a=b", "/none"):
        link = f"http://{pages.name}{path}"
        answer = visitor.post(f"/boards/{board_id}/pins", link=link)
        assert answer.status_code == 303
    named = visitor.add_pin(board_id, "named")
    none, pin = visitor.order(board_id)[1:]

    # No page is fetched by the request.
    assert len(pages.paths) == before
    assert visitor.api("GET", f"/pins/{pin}")["title"] == "127.0.0.1"
    assert f"<title>{link}" in visitor.get(f"/pins/{none}")
    assert run_jobs(cluster, ["titles"]).succeeded == 2
    assert visitor.api("GET", f"/pins/{pin}")["title"] == "Knots & €"
    assert visitor.api("GET", f"/pins/{none}")["title"] == "127.0.0.1"
    assert visitor.api("GET", f"/pins/{named}")["title"] == "named"
    assert len(pages.paths) == before + 2


def test_a_failure_is_tried_again_and_a_title_of_the_user_stays(
    visitor: Visitor, cluster: Cluster, pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    board_id = visitor.add_board()
    link = f"http://{pages.name}/two"
    made = visitor.api("POST", f"/boards/{board_id}/pins", {"link": link}, 201)
    pin_id = int(made["id"])
    before = len(pages.paths)
    worker = Worker(cluster, ["titles"])
    assert worker.run(until_empty=True).failed == 1
    (job,) = jobs_of(cluster, "titles", [JobState.PENDING]).jobs
    assert job.attempts == 1
    assert "not public" in str(job.error)
    assert len(pages.paths) == before
    assert visitor.api("GET", f"/pins/{pin_id}")["title"] == "127.0.0.1"

    # One job of a pin at a time; after that an edit adds another.
    monkeypatch.setenv(ALLOWED, pages.name)
    for details in ("one", "two"):
        visitor.api("PATCH", f"/pins/{pin_id}", {"details": details})
        pending = jobs_of(cluster, "titles", [JobState.PENDING]).jobs
        assert [one.id for one in pending] == [job.id]
    delete_of(cluster, "titles", [JobState.PENDING])
    visitor.api("PATCH", f"/pins/{pin_id}", {"details": "three"})
    assert run_jobs(cluster, ["titles"]).succeeded == 1
    assert visitor.api("GET", f"/pins/{pin_id}")["title"] == "First"

    visitor.api("PATCH", f"/pins/{pin_id}", {"title": "Mine"})
    fetch_title.enqueue_now(cluster, pin_id, near=pin_id)
    assert run_jobs(cluster, ["titles"]).succeeded == 1
    assert visitor.api("GET", f"/pins/{pin_id}")["title"] == "Mine"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/page?a=b", "Knots & €"),
        ("/page?a=b#part", "Knots & €"),
        ("/hop2", "Knots & €"),
        ("/none", ""),
        ("/open", ""),
        ("/late", ""),
        ("/latin", "été"),
        ("/meta", "да"),
        ("/odd", "odd"),
        ("/picture", ""),
        ("/two", "First"),
    ],
)
def test_titles(title: Callable[[str], str], path: str, expected: str) -> None:
    assert title(path) == expected


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/missing", "status 404"),
        ("/hop3", "more than 3 redirects"),
        ("/elsewhere", "not public"),
        ("/file", "is no web page"),
        ("/bracket", "redirects to no link"),
    ],
)
def test_pages_that_are_refused(
    title: Callable[[str], str], path: str, reason: str
) -> None:
    with pytest.raises(PageError, match=reason):
        title(path)


@pytest.mark.parametrize("path", [*ODD, *REDIRECTS, "/chunk"])
def test_odd_answers_are_refused_by_one_error(
    title: Callable[[str], str], path: str
) -> None:
    with suppress(PageError):
        assert title(path) in ("", "keyword", "section", "\N{REPLACEMENT CHARACTER}")


def test_an_answer_that_does_not_end(
    title: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "MAX_SECONDS", 0.2)
    with pytest.raises(PageError, match="no complete answer"):
        title("/trickle")


@pytest.mark.parametrize(
    "link",
    [
        "http://127.0.0.1:{port}/page",
        "http://localhost:{port}/page",
        "http://2130706433:{port}/page",
        "http://[::ffff:127.0.0.1]:{port}/page",
    ],
)
def test_internal_servers_are_not_connected_to(pages: Pages, link: str) -> None:
    before = len(pages.paths)
    with pytest.raises(PageError, match="not public"):
        page_title(link.format(port=pages.server_port), ["127.0.0.1:1"])
    assert len(pages.paths) == before


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        *(("93.184.216.34", True), ("2606:4700::1111", True)),
        *(("::ffff:93.184.216.34", True), ("127.0.0.1", False)),
        *(("0.0.0.1", False), ("10.1.2.3", False)),
        *(("100.64.0.1", False), ("169.254.169.254", False)),
        *(("172.16.0.1", False), ("192.168.1.1", False)),
        *(("224.0.0.1", False), ("240.0.0.1", False)),
        *(("255.255.255.255", False), ("::1", False), ("::", False)),
        *(("fc00::1", False), ("fe80::1%eth0", False), ("ff02::1", False)),
        *(("::ffff:10.1.2.3", False), ("64:ff9b::7f00:1", False)),
        *(("2002:7f00:1::1", False), ("2001:0:1::1", False)),
        *(("fec0::1", False), ("feff::1", False), ("5f00::1", False)),
        *(("3fff::1", False), ("192.88.99.1", False), ("192.0.0.8", False)),
        *(("64:ff9b:1::1", False), ("::7f00:1", False)),
    ],
)
def test_public_addresses(address: str, expected: bool) -> None:
    assert is_public(address) is expected
