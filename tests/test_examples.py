"""The examples run, on SQLite, as their users run them."""

from __future__ import annotations

import io
import os
import re
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from examples.quickstart.__main__ import store
from examples.quickstart.bookmarks import Folder, Link
from examples.quickstart.models import User
from examples.quickstart.pinboard import Deal
from examples.quickstart.progress import Progress
from sqla_shard import Cluster, FileSource, Topology, unpack
from sqla_shard.exc import BlobTooLargeError
from sqla_shard.testing import sqlite_topology
from sqla_shard.testing.topology_documents import topology_document

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
# An example that prints at most three boards of a user prints all these six.
OBJECT = re.compile(
    r" (user|board|pin) .* (\d+) = shard (\d+), type (\d+), local (\d+)"
)
LINK = '<DT><A HREF="https://example.com">Grüße, \u20ac\u202e</A>'
TABLES = {1: "pins", 2: "boards", 3: "users"}


def quickstart(
    directory: Path, *arguments: object, **environ: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-W",
            "error",
            "-m",
            "examples.quickstart",
            *map(str, arguments),
        ],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )


def succeeds(directory: Path, *arguments: object, **environ: str) -> str:
    done = quickstart(directory, *arguments, **environ)
    assert done.returncode == 0, done.stderr
    return done.stdout


def export(directory: Path, text: str) -> Path:
    path = directory / "export.html"
    path.write_text(f"<!DOCTYPE NETSCAPE-Bookmark-file-1>\n{text}", "utf-8")
    return path


def counts(data: Path) -> Counter[str]:
    """Return the rows of each table over all files."""
    found: Counter[str] = Counter()
    for path in sorted(data.glob("server*/db*.sqlite")):
        connection = sqlite3.connect(path)
        for table in TABLES.values():
            query = f"SELECT COUNT(*) FROM {table}"
            found[table] += connection.execute(query).fetchone()[0]
        connection.close()
    return found


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("colocation", ["CrossShardWriteError", "ColocationError"]),
        ("ordering", ["83 moves into this gap", "Move 84 finds no room"]),
        ("adopting", ["40 customers copied", "KeyspaceMismatchError"]),
        ("transfers", ["It has left 'examples.give_points'", "nothing is done"]),
        ("starlette_app", ["30 pins were saved at once", "No connection"]),
    ],
)
def test_small_examples(tmp_path: Path, name: str, said: list[str]) -> None:
    """They contain assertions; this test runs them to the end."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", f"examples.{name}"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for part in said:
        assert part in done.stdout
    assert list(tmp_path.iterdir()) == []


def files(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("name", "servers", "shards"), [("sqlite", 2, 64), ("mariadb", 4, 256)]
)
def test_topologies_are_valid(name: str, servers: int, shards: int) -> None:
    source = FileSource(
        EXAMPLES / f"topology.{name}.toml",
        environ={"MYSQL_USER": "app", "MYSQL_PASSWORD": "a/secret"},
    )
    topology = source.load()
    objects = topology.keyspace("objects")
    assert (len(objects.servers), objects.shards) == (servers, shards)
    assert topology.keyspace("main").kind == "global"
    assert {sum(map(len, s.shards)) for s in objects.servers} == {64, 32} & {
        shards // servers
    }
    if name == "mariadb":
        logins = "mysql://${MYSQL_USER}:${MYSQL_PASSWORD}@"
        assert all(s.primary.startswith(logins) for s in objects.servers)


def test_quickstart(tmp_path: Path) -> None:
    output = succeeds(tmp_path)
    assert "25 links in 6 folders" in output
    assert "line 11, place: is no web page" in output
    assert "line 35, javascript: is no web page" in output
    found = OBJECT.findall(output)
    assert Counter(kind for kind, *_ in found) == {"user": 4, "board": 6, "pin": 12}
    # The boards are dealt in the order of the file.
    ada = output[output.index(" user ada") :].split("\n\n")[0]
    assert re.findall(r"board (\S+)", ada) == ["Unsorted", "Sky"]
    headings = re.findall(r"^shard (\d+), on (\w+), in (\S+)$", output, re.M)
    assert {server for _, server, _ in headings} == {"server1", "server2"}
    paths = {int(shard): tmp_path / path for shard, _, path in headings}
    for kind, object_id, *parts in found:
        assert unpack(int(object_id)) == tuple(map(int, parts))
        shard_id, type_id, local_id = map(int, parts)
        assert TABLES[type_id] == f"{kind}s"
        # It is in the file that is named, under its local id.
        connection = sqlite3.connect(paths[shard_id])
        query = f"SELECT COUNT(*) FROM {kind}s WHERE local_id = ?"
        assert connection.execute(query, [local_id]).fetchone() == (1,)
        connection.close()
    assert counts(tmp_path / "data") == {"users": 4, "boards": 6, "pins": 25}
    assert len(list(tmp_path.glob("data/*/db*.sqlite"))) == 64


def test_the_command_that_is_printed_works(tmp_path: Path) -> None:
    output = succeeds(tmp_path)
    match = re.search(r'sqlite3 (\S+) "(SELECT .*)"', output)
    assert match
    connection = sqlite3.connect(tmp_path / match[1])
    (row,) = connection.execute(match[2])
    connection.close()
    assert "https://www.openstreetmap.org/" in row[1]


def test_second_run_adds_an_import(tmp_path: Path) -> None:
    first = succeeds(tmp_path, "--data", "elsewhere")
    second = succeeds(tmp_path, "--data", tmp_path / "elsewhere")
    assert not (tmp_path / "data").exists()
    assert counts(tmp_path / "elsewhere") == {"users": 8, "boards": 12, "pins": 50}
    ids = [
        object_id
        for output in (first, second)
        for _, object_id, *_ in OBJECT.findall(output)
    ]
    assert len(set(ids)) == len(ids) == 44


def test_progress_and_results_do_not_mix(tmp_path: Path) -> None:
    done = quickstart(tmp_path)
    assert done.stderr.splitlines()[-1] == "importing 25/25"
    assert "importing" not in done.stdout
    assert "\r" not in done.stderr + done.stdout


def test_a_terminal_without_the_letters(tmp_path: Path) -> None:
    path = export(tmp_path, f"<DL>{LINK}<DT><H3>Empty</H3></DL>")
    output = succeeds(tmp_path, path, PYTHONIOENCODING="ascii")
    assert "pin Gr??e, ?" in output


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"<DL>{LINK}\n</DL>\n</DL>\n", "line 4: </DL> closes a list"),
        (f"<DL>{LINK}\n<A>none</A></DL>", "line 3: a link without HREF"),
        (f"<DL>{LINK}\n<DT><H3>cut", "line 2: the list <DL> that begins"),
        ("<DL></DL>", "has no links"),
    ],
)
def test_a_refused_file_changes_nothing(
    tmp_path: Path, text: str, message: str
) -> None:
    path = export(tmp_path, text)
    done = quickstart(tmp_path, path)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Nothing was written" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == [path]

    succeeds(tmp_path)
    before = files(tmp_path)
    assert quickstart(tmp_path, path).returncode == 1
    assert files(tmp_path) == before


@pytest.mark.thorough
def test_other_errors_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").touch()
    for arguments, message in [
        (["missing.html"], "missing.html"),
        (["--topology", "missing.toml"], "cannot be read"),
        (["--data", "photos"], "photos holds 'cat.jpg'"),
        (["--data", "100%"], "'%'"),
    ]:
        done = quickstart(tmp_path, *arguments)
        assert done.returncode == 1
        assert message in done.stderr
        assert "Traceback" not in done.stderr
    assert len(files(tmp_path)) == 1


def test_a_server_that_does_not_answer(tmp_path: Path) -> None:
    pytest.importorskip("pymysql")
    path = tmp_path / "topology.toml"
    text = (EXAMPLES / "topology.mariadb.toml").read_text("utf-8")
    path.write_text(re.sub(r"@mysql(\d+)(\w):3306", r"@127.0.0.1:1", text))
    done = quickstart(
        tmp_path, "--topology", path, MYSQL_USER="app", MYSQL_PASSWORD="secret"
    )
    assert done.returncode == 1
    assert "secret" not in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


def test_a_board_is_stored_whole_or_not_at_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pages = [Link(line=n, url=f"https://{n}.example") for n in range(5)]
    huge = Link(line=6, url="https://6.example", details="x" * 17_000_000)
    folders = [
        Folder(line=1, path=("good",), links=pages),
        Folder(line=2, path=("bad",), links=[*pages, huge]),
        Folder(line=3, path=("never",), links=pages),
    ]
    document = sqlite_topology(tmp_path, 2, 4)
    with Cluster.from_topology(document) as cluster:
        with pytest.raises(BlobTooLargeError):
            store(cluster, folders)
        assert counts(tmp_path) == {"users": 3, "boards": 1, "pins": 5}
    stopped = "stopped: 1 of 3 boards are stored, each with all its pins\n"
    assert capsys.readouterr().err.endswith(stopped)


def test_users_are_dealt_to_the_servers_that_take_some() -> None:
    document = topology_document(
        {name: f"sqlite:///{name}" for name in "abc"}, 9, weights=[1, 0, 2]
    )
    keyspace = Topology.from_mapping(document).keyspace("objects")
    deal = Deal()
    shards = [deal(keyspace=keyspace, cls=User) for _ in range(100)]
    assert set(shards[::2]) == {0, 1, 2}
    assert set(shards[1::2]) == {6, 7, 8}


def test_own_topology(tmp_path: Path) -> None:
    path = tmp_path / "one.toml"
    path.write_text(
        """
        epoch = 1
        [keyspaces.objects]
        kind = "objects"
        shards = 2
        database = "db{shard:05d}"
        [[keyspaces.objects.servers]]
        name = "only"
        primary = "sqlite:///here/only"
        shards = [0, 1]
        """
    )
    output = succeeds(tmp_path, "--topology", path)
    assert "only has shards 0-1" in output
    assert len(files(tmp_path / "here")) >= 2


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal_and_in_a_log() -> None:
    terminal = Terminal()
    log = io.StringIO()
    streams: list[Any] = [terminal, log]
    for stream in streams:
        with Progress("working", 8, stream) as progress:
            for _ in range(8):
                progress.advance(1)
    bars = terminal.getvalue().split("\r")
    assert len(bars) == 10
    assert bars[1] == f"working [{'.' * 30}] 0/8"
    assert bars[-1] == f"working [{'#' * 30}] 8/8\n"
    assert log.getvalue().splitlines() == [
        "working 2/8",
        "working 4/8",
        "working 6/8",
        "working 8/8",
    ]
