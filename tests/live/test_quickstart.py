"""The quickstart on four servers: every object is where its id says."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.quickstart.bookmarks import Folder, read_folders
from examples.quickstart.models import Base
from examples.quickstart.pinboard import check, Deal, import_folders
from sqla_shard import Cluster, unpack

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]
REAL = ROOT.parent / "shared" / "data" / "bookmarks.html"
NAMES = [f"user {n}" for n in range(40)]
TABLES = {1: "pins", 2: "boards", 3: "users"}


def generated() -> bytes:
    """Return an export of 501 links in 73 folders, and 5 of neither."""
    lines = ["<!DOCTYPE NETSCAPE-Bookmark-file-1>", "<DL><p>"]
    for n in range(501):
        if n % 7 == 0:
            lines.append("</DL><p>" if n else "")
            lines.append(f"<DT><H3>Folder {n} \U0001f600</H3><DL><p>")
        lines.append(
            f'<DT><A HREF="https://example.com/{n}?a=1&b=2" '
            f'ADD_DATE="{1_700_000_000 + n}" TAGS="a,b{n}">'
            f"Größe {n} &amp; mehr</A><DD>It's {n}%\n\\ \U0001f600"
        )
        if n % 100 == 0:
            lines.append('<DT><A HREF="javascript:0">skipped</A>')
    lines += ["</DL><p>", "<DT><H3>Empty</H3><DL><p></DL><p>", "</DL><p>"]
    return "\n".join(lines).encode()


@pytest.fixture(params=["generated", "real"])
def folders(request: pytest.FixtureRequest) -> list[Folder]:
    if request.param == "real" and not REAL.exists():
        pytest.skip("the larger file is not part of a checkout")
    data = generated() if request.param == "generated" else REAL.read_bytes()
    found = [f for f in read_folders(io.BytesIO(data)) if f.links]
    assert sum(len(folder.links) for folder in found) == 501
    return found


@pytest.fixture
def document(fleet: Any) -> Iterator[Any]:
    found = fleet.topology_mapping(
        database="db_quickstart{shard:05d}", placeholders=True
    )
    fleet.drop_databases(found)
    yield found
    fleet.drop_databases(found)


def rows(fleet: Any, document: Any) -> dict[tuple[str, str], dict[int, Any]]:
    """Return the blobs of all rows by database and table, and local id.

    Read with the plain driver: nothing of ours decides what is where.
    """
    found: dict[tuple[str, str], dict[int, Any]] = {}
    for server in document["keyspaces"]["objects"]["servers"]:
        first, last = server["shards"]
        with fleet.server(server["name"]).connect() as connection:
            cursor = connection.cursor()
            for shard in range(first, last + 1):
                database = f"db_quickstart{shard:05d}"
                for table in TABLES.values():
                    cursor.execute(f"SELECT local_id, data FROM `{database}`.`{table}`")
                    blobs = {i: json.loads(text) for i, text in cursor}
                    if blobs:
                        found[database, table] = blobs
    return found


def test_every_object_is_on_its_shard_and_nowhere_else(
    fleet: Any, document: Any, folders: list[Folder]
) -> None:
    with Cluster.from_topology(
        document, environ=fleet.environ, placement=Deal()
    ) as cluster:
        cluster.create_all(Base.metadata)
        imported = list(import_folders(cluster, folders, NAMES))
    with Cluster.from_topology(document, environ=fleet.environ) as cluster:
        check(cluster, imported)
        servers = {
            server
            for stored in imported
            for server in cluster.explain(stored.user_id).servers
        }
        assert len(servers) == len(fleet.servers)

    expected: dict[tuple[str, str], dict[int, Any]] = {}

    def expect(object_id: int, **blob: Any) -> None:
        shard_id, type_id, local_id = unpack(object_id)
        place = f"db_quickstart{shard_id:05d}", TABLES[type_id]
        assert expected.setdefault(place, {}).setdefault(local_id, blob) == (blob)

    names = iter(NAMES)
    users: dict[int, str] = {}
    for stored in imported:
        if stored.user_id not in users:
            users[stored.user_id] = next(names)
        expect(stored.user_id, name=users[stored.user_id])
        expect(
            stored.board_id,
            user_id=stored.user_id,
            title=" / ".join(stored.folder.path),
            details=stored.folder.details,
        )
        for pin_id, link in zip(stored.pin_ids, stored.folder.links, strict=True):
            expect(
                pin_id,
                board_id=stored.board_id,
                link=link.url,
                title=link.title,
                details=link.details,
                tags=list(link.tags),
            )
    found = rows(fleet, document)
    for blobs in found.values():
        for blob in blobs.values():
            blob.pop("added", None)  # how times are written is not ours
    assert found == expected
    total = Counter[str]()
    for (_, table), blobs in found.items():
        total[table] += len(blobs)
    assert total == {"pins": 501, "boards": len(folders), "users": len(users)}


def test_the_command_on_servers(fleet: Any, document: Any, tmp_path: Path) -> None:
    topology = tmp_path / "topology.json"
    topology.write_text(json.dumps(document))
    export = tmp_path / "export.html"
    export.write_bytes(generated())
    command = [sys.executable, "-m", "examples.quickstart", str(export)]
    done = subprocess.run(
        [*command, "--topology", str(topology)],
        cwd=tmp_path,
        env={
            **os.environ,
            **fleet.environ,
            "PYTHONPATH": str(ROOT),
            "PYTHONIOENCODING": "utf-8",
        },
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "501 links in 72 folders" in done.stdout
    assert "skipped: 1 more" in done.stdout
    assert "USE db_quickstart" in done.stdout
    for secret in fleet.environ.values():
        assert secret not in done.stdout + done.stderr
    found = rows(fleet, document)
    pins = [blobs for (_, table), blobs in found.items() if table == "pins"]
    assert sum(map(len, pins)) == 501
    # Four users, of whom two may share a shard if they share a server.
    assert len({database for database, _ in found}) in range(1, 5)
