"""``sqla-shard init``: docs/quickstart.rst runs what it writes."""

from __future__ import annotations

import json

import pytest

from tests.servers.command_line import invoke

URL = "mysql://app:${MYSQL_PASSWORD}@mysql%03d:3306"


def test_servers_share_the_shards(tmp_path):
    urls = [URL % 1, URL % 2]
    done = invoke(
        "init", tmp_path / "shop", "--shards", 5, *(f"--url={url}" for url in urls)
    )
    assert done.exit_code == 0, done.output
    topology = json.loads((tmp_path / "shop" / "topology.json").read_bytes())
    assert topology["keyspaces"]["objects"]["servers"] == [
        {"name": "server1", "primary": urls[0], "shards": [0, 2]},
        {"name": "server2", "primary": urls[1], "shards": [3, 4]},
    ]


@pytest.mark.parametrize("name", ["models.py", "topology.json", "migrations/env.py"])
def test_no_file_is_overwritten(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    (tmp_path / "README").write_text("no file of a project")
    done = invoke("init", tmp_path)
    assert done.exit_code == 1
    assert f"{tmp_path / name.partition('/')[0]} already exists" in done.output
    kept = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert kept == {name.rpartition("/")[2], "README"}
    assert (tmp_path / name).read_text() == "mine"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--shards", "1"], "--shards 1 is less than 2 servers"),
        (["--url", "postgresql://app@host"], "postgresql"),
    ],
)
def test_invalid_options_write_nothing(tmp_path, given, message):
    done = invoke("init", tmp_path / "shop", *given)
    assert done.exit_code in (1, 2)
    assert message in done.output
    assert not (tmp_path / "shop").exists()
