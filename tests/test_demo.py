"""``make demo``: it starts, answers, ends on Ctrl-C and leaves nothing."""

from __future__ import annotations

import http.cookiejar
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import build_opener, HTTPCookieProcessor, OpenerDirector, Request

import pytest

from sqla_shard.testing.local_server import wait_until
from sqla_shard.testing.programs import find_memcached
from tests.servers.kinds import Kind

ROOT = Path(__file__).parents[1]
BOOKMARKS = ROOT / "examples" / "bookmarks.html"
PROC = Path("/proc")


def make(*arguments: str) -> str:
    program = shutil.which("make")
    if program is None:
        pytest.skip("make is not installed")
    # Those of a `make test` that runs us are not meant for this one.
    ours = ("ARGS", "DB", "MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "PYTHON")
    environ = {k: v for k, v in os.environ.items() if k not in ours}
    done = subprocess.run(
        [program, "-n", "-s", *arguments],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    return " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "module"),
    [
        (["demo"], "examples.pinboard"),
        (["demo", "DB=mariadb"], "examples.pinboard --mariadb"),
        (["demo", "DB=mysql"], "examples.pinboard --mysql"),
        (["demo", "ARGS=--port 8080"], "examples.pinboard --port 8080"),
        (["quickstart"], "examples.quickstart"),
    ],
)
def test_commands_of_make(arguments: list[str], module: str) -> None:
    assert make(*arguments).endswith(f".venv/bin/python -m {module}")


def descendants(pid: int) -> dict[int, str]:
    """Return id and name of all descendants of a process."""
    parents = {}
    names = {}
    for path in PROC.glob("[0-9]*"):
        try:
            text = (path / "stat").read_text()
        except OSError:
            continue  # ended meanwhile
        name, rest = text.partition("(")[2].rsplit(") ", 1)
        parents[int(path.name)] = int(rest.split()[1])
        names[int(path.name)] = name
    found = {pid}
    while True:
        more = {p for p, parent in parents.items() if parent in found} - found
        if not more:
            return {p: names[p] for p in found - {pid}}
        found |= more


@contextmanager
def demo(directory: Path, *arguments: str) -> Iterator[tuple[str, int]]:
    """Run the demo; then press Ctrl-C, and see that it has ended well."""
    with (directory / "stderr").open("w+") as stderr:
        process = subprocess.Popen(
            [
                *(sys.executable, "-W", "error", "-m", "examples.pinboard"),
                *("--port", "0", "--no-browser", *arguments),
            ],
            cwd=directory,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
        assert process.stdout is not None
        try:
            address = ""
            for line in process.stdout:
                if line.startswith("http://127.0.0.1:"):
                    address = line.split()[0]
                    break
            assert address, (directory / "stderr").read_text()
            yield address, process.pid
            process.send_signal(signal.SIGINT)
            rest, _ = process.communicate(timeout=60)
            assert process.returncode == 0, rest
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
    errors = (directory / "stderr").read_text()
    assert "Traceback" not in errors
    assert "Warning" not in errors.replace("WARNING: This is a dev", "")


def browse(address: str) -> OpenerDirector:
    """Choose a sample user, and return what keeps the cookies."""
    opener = build_opener(HTTPCookieProcessor(http.cookiejar.CookieJar()))
    page = opener.open(address, timeout=60).read().decode()
    (email, *_) = re.findall(r'name="email" value="([^"]+)" data-user', page)
    (token, *_) = re.findall(r'name="csrf_token" value="([^"]+)"', page)
    form = urlencode({"email": email, "csrf_token": token}).encode()
    page = opener.open(f"{address}session", form, timeout=60).read().decode()
    boards = re.findall(r'data-board-id="(\d+)"', page)
    assert len(boards) >= 2
    url = f"{address}boards/{boards[0]}"
    page = opener.open(url, timeout=60).read().decode()
    assert page.count("data-pin-id") >= 2
    return opener


def import_bookmarks(opener: OpenerDirector, address: str) -> None:
    """Upload a file, and wait until the worker of the demo has imported it."""
    page = opener.open(f"{address}import", timeout=60).read().decode()
    (token, *_) = re.findall(r'name="csrf_token" value="([^"]+)"', page)
    body = (
        f"--end\r\nContent-Disposition: form-data; name=csrf_token\r\n\r\n"
        f"{token}\r\n--end\r\nContent-Disposition: form-data; name=file; "
        f"filename=b.html\r\n\r\n{BOOKMARKS.read_text()}\r\n--end--\r\n"
    )
    kind = {"Content-Type": "multipart/form-data; boundary=end"}
    upload = Request(f"{address}import", body.encode(), kind)  # noqa: S310  # local
    url = opener.open(upload, timeout=60).geturl()
    assert wait_until(
        lambda: b'data-state="done"' in opener.open(url, timeout=60).read(),
        seconds=120,
        every=0.2,
    )


def test_the_demo_on_sqlite(tmp_path: Path) -> None:
    with demo(tmp_path, "--data", "pins") as (address, pid):
        import_bookmarks(browse(address), address)
        assert descendants(pid) == {}
    files = list(tmp_path.glob("pins/server*/db*.sqlite"))
    assert len(files) == 64
    assert {path.parent.name for path in files} == {"server1", "server2"}

    # Again: all data is there, and the samples are created once.
    size = {path: path.stat().st_size for path in files}
    with demo(tmp_path, "--data", "pins") as (address, _):
        browse(address)
    assert {path: path.stat().st_size for path in files} == size


@pytest.mark.live
@pytest.mark.skipif(not PROC.is_dir(), reason="no /proc to find servers in")
def test_the_demo_on_servers(
    tmp_path: Path, server_kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SQLA_SHARD_TEST_SERVERS", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o755)
    tmp_path.chmod(0o755)
    with demo(tmp_path, f"--{server_kind.name}") as (address, pid):
        import_bookmarks(browse(address), address)
        started = descendants(pid)
        names = sorted(started.values())
        # Started by the loader of its folder, a program has the name of that.
        programs = ("mariadbd", "mysqld", "ld-linux-x86-64")
        assert sum(name.startswith(programs) for name in names) == 2
        assert names.count("memcached") == (find_memcached() is not None)
    assert wait_until(
        lambda: not any((PROC / str(p)).exists() for p in started), seconds=30
    )
    assert list((tmp_path / "tmp").iterdir()) == []
