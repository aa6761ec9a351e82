"""The page for newcomers: its commands, while the pinboard is used.

Servers are started with the files of ``examples/fleet``; then every command
of ``docs/howto/fleet-start.rst`` that names this file runs, in the order of
the page.  The pinboard is a process of its own, and visitors send requests.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import build_opener, HTTPCookieProcessor, Request

import pytest

from examples.fleet import local_servers
from examples.pinboard.samples import add_user, email_of
from sqla_shard import Cluster
from sqla_shard.testing.local_server import wait_until
from tests.servers.command_line import environment, ROOT
from tests.servers.kinds import Kind

pytestmark = pytest.mark.live

PAGE = ROOT / "docs" / "howto" / "fleet-start.rst"
#: A virtual shard that stays, one that is split off, one that fails over.
SHARDS = (1, 5, 9)
#: Requests that fail with status 503 during one operation, for one visitor.
MOST_RETRIES = 3
#: Generous: the machine may be busy.
PATIENCE = 60
#: Seconds between two visits of a visitor.
REST = 0.2
_BLOCK = re.compile(
    rf"\.\. not-run: tests/live/{Path(__file__).name} runs it\n\n"
    r"\.\. code-block:: (\w+)\n   :class: not-run\n\n((?:   .*\n|\n)+)"
)
#: A command, with the lines that continue it; the others are its output.
_COMMAND = re.compile(r"(?m)^   \$ ((?:.*\\\n)*.*)$")


def blocks() -> list[tuple[str, str]]:
    """Return language and code of the blocks of the page, in order."""
    return [
        (language, "\n".join(_COMMAND.findall(code)) or code.strip())
        for language, code in _BLOCK.findall(PAGE.read_text("utf-8"))
    ]


class Visitor(threading.Thread):
    """A user who adds pins to a board, and looks at it, until stopped."""

    def __init__(self, address: str, name: str) -> None:
        super().__init__(name=name)
        self.address = address
        self.acknowledged: dict[str, str] = {}
        self.refused: list[str] = []
        self.error: BaseException | None = None
        self._opener = build_opener(HTTPCookieProcessor(CookieJar()))
        self._stopped = threading.Event()
        page = self._get("")
        (token,) = set(re.findall(r'name="csrf_token" value="([^"]+)"', page))
        form = urlencode({"email": email_of(name), "csrf_token": token})
        page = self._get("session", form.encode())
        found = re.search(r'name="csrf-token" content="([^"]+)"', page)
        assert found
        self._token = found[1]
        self.board = self._post("api/boards", {"title": "Boats"})["id"]

    def run(self) -> None:
        """Send requests; an answer other than success or 503 is an error."""
        try:
            # Without a rest visitors take the processor from the commands.
            while not self._stopped.wait(REST):
                self.visit()
        except BaseException as error:
            self.error = error

    def stop(self) -> None:
        self._stopped.set()
        self.join(PATIENCE)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error

    def visit(self) -> None:
        title = f"{self.name} {len(self.acknowledged)}"
        pin = {"link": "https://a.example/", "title": title}
        made = self.retried(self._post, f"api/boards/{self.board}/pins", pin)
        self.acknowledged[made["id"]] = title
        page = self.retried(self._get, f"boards/{self.board}")
        assert f'data-pin-id="{made["id"]}"' in page

    def retried(self, send: Any, *arguments: Any) -> Any:
        """Send a request again after each 503, as a client would."""
        while True:
            try:
                return send(*arguments)
            except HTTPError as error:
                if error.code != 503:
                    raise AssertionError(error.read().decode()) from error
                self.refused.append(f"{send.__name__} {arguments[0]}")

    def pins(self) -> dict[str, str]:
        """Return the titles of all pins of the board, by their ids."""
        found: dict[str, str] = {}
        query = ""
        while True:
            path = f"api/boards/{self.board}/pins{query}"
            page = json.loads(self._get(path))
            found |= {pin["id"]: pin["title"] for pin in page["pins"]}
            if page["next"] is None:
                return found
            query = f"?after={page['next']}"

    def _get(self, path: str, form: bytes | None = None) -> str:
        with self._opener.open(
            f"{self.address}{path}", form, timeout=PATIENCE
        ) as answer:
            return str(answer.read().decode())

    def _post(self, path: str, body: Any) -> Any:
        request = Request(  # noqa: S310 - our own server
            f"{self.address}{path}",
            json.dumps(body).encode(),
            {"X-CSRF-Token": self._token, "Content-Type": "application/json"},
        )
        with self._opener.open(request, timeout=PATIENCE) as answer:
            return json.loads(answer.read())


@contextmanager
def pinboard(folder: Path, environ: dict[str, str]) -> Iterator[str]:
    """Run the pinboard; return its address."""
    topology = environ["SQLA_SHARD_TOPOLOGY"]
    with (folder / "pinboard.log").open("w+") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "examples.pinboard", "--port", "0"),
                *("--no-browser", "--topology", topology),
            ],
            cwd=folder,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line.startswith("http://127.0.0.1:"):
                    yield line.split()[0]
                    break
            else:
                raise AssertionError((folder / "pinboard.log").read_text())
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE)


# It runs all commands of the page, some of them for seconds each.
@pytest.mark.timeout(1800)
def test_the_page_works_while_the_pinboard_is_used(
    server_kind: Kind, tmp_path: Path, say: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = server_kind.name
    with local_servers(tmp_path, kind=kind, fast=True) as servers:
        lines = (tmp_path / "environment").read_text().splitlines()
        environ = environment(
            PATH=os.pathsep.join(
                [str(Path(sys.executable).parent), os.environ["PATH"]]
            ),
            **dict(re.findall(r"^export (\w+)='(.*)'$", line)[0] for line in lines),
        )
        for name in ("MYSQL_USER", "MYSQL_PASSWORD"):
            monkeypatch.setenv(name, environ[name])

        def run(language: str, code: str) -> str:
            if language == "sql":
                if server_kind.is_mysql:
                    code = code.replace("_sync_master_", "_sync_source_")
                for name in ("mysql001a", "mysql002a"):
                    servers[name].root_execute(code)
                return ""
            for name, server in servers.items():
                code = code.replace(f"{name}:3306", f"{server.host}:{server.port}")
            done = subprocess.run(
                ["/bin/sh", "-ec", code],
                cwd=ROOT,
                env=environ,
                capture_output=True,
                text=True,
                check=False,
            )
            say(f"$ {code}\n{done.stdout}{done.stderr}")
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout

        *setup, failover, split, after = blocks()
        printed = [run(*block) for block in setup]
        summary = printed[-1].splitlines()[-1]
        assert re.fullmatch(r"4 servers, epoch 3: \d+ info", summary)
        # One line a second, not one for each table.
        reports = re.findall(r"verify: \d+ rows compared", printed[-3])
        ends = re.findall(r"(\d+) ms  verify: done", printed[-3])
        assert len(reports) <= sum(int(end) / 1000 + 1 for end in ends)

        names = {f"visitor {shard}": shard for shard in SHARDS}
        with Cluster.from_file(environ["SQLA_SHARD_TOPOLOGY"]) as cluster:
            for name, shard in names.items():
                add_user(cluster, name, shard_id=shard)
        with pinboard(tmp_path, environ) as address:
            visitors = [Visitor(address, name) for name in names]
            for visitor in visitors:
                visitor.start()
            try:
                for block in (failover, split, after):
                    before = [len(v.refused) for v in visitors]
                    run(*block)
                    goes_on(visitors)
                    for visitor, count in zip(visitors, before, strict=True):
                        refused = visitor.refused[count:]
                        say(f"{visitor.name}: repeated {refused}")
                        assert len(refused) <= MOST_RETRIES
            finally:
                for visitor in visitors:
                    visitor.stop()
            for visitor in visitors:
                assert visitor.acknowledged.items() <= visitor.pins().items()
                say(f"{visitor.name}: {len(visitor.acknowledged)} pins")


def goes_on(visitors: list[Visitor]) -> None:
    """Wait until every visitor has added two pins from now on."""
    wanted = [len(visitor.acknowledged) + 2 for visitor in visitors]

    def has_gone_on() -> bool:
        return any(visitor.error for visitor in visitors) or all(
            len(visitor.acknowledged) >= count
            for visitor, count in zip(visitors, wanted, strict=True)
        )

    assert wait_until(has_gone_on, seconds=PATIENCE)
    for visitor in visitors:
        assert visitor.error is None, visitor.error
