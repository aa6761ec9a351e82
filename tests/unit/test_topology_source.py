"""Files."""

from __future__ import annotations

import json
import traceback
from pathlib import Path

import pytest

from sqla_shard.exc import TopologyError
from sqla_shard.topology import FileSource, ShardRange, Topology, TopologySource

ENVIRON = {"MYSQL_USER": "app", "MYSQL_PASSWORD": "hunter2"}
TOML = """\
epoch = 7
[keyspaces.objects]
kind = "objects"
shards = 4096
database = "db{shard:05d}"
[[keyspaces.objects.servers]]
name = "sharddb001"
primary = "mysql://app:${MYSQL_PASSWORD}@mysql001a:3306"
standby = "mysql://app:${MYSQL_PASSWORD}@mysql001b:3306"
shards = [0, 511]
weight = 1.0
[[keyspaces.objects.servers]]
name = "sharddb002"
primary = "mysql://app:${MYSQL_PASSWORD}@mysql002a:3306"
shards = [[512, 1023], [1024, 4095]]
weight = 0
[keyspaces.lookups]
kind = "mod"
shards = 16
database = "lookup{shard:03d}"
[[keyspaces.lookups.servers]]
name = "lookup001"
primary = "mysql://lookup001"
shards = [0, 15]
[keyspaces.main]
kind = "global"
database = "main"
[[keyspaces.main.servers]]
name = "main"
primary = "mysql://main"
"""


def source(path: Path) -> TopologySource:
    return FileSource(path, environ=ENVIRON)


def refused(path: Path) -> TopologyError:
    with pytest.raises(TopologyError) as caught:
        source(path).load()
    assert caught.value.source == str(path)
    return caught.value


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_toml(tmp_path: Path) -> None:
    topology = source(write(tmp_path / "topology.toml", TOML)).load()
    assert topology.epoch == 7
    assert list(topology.keyspaces) == ["objects", "lookups", "main"]
    objects = topology.keyspace("objects")
    assert (objects.kind, objects.shards) == ("objects", 4096)
    first, second = objects.servers
    assert first.standby == "mysql://app:${MYSQL_PASSWORD}@mysql001b:3306"
    assert second.shards == (ShardRange(512, 4095),)
    assert (first.weight, second.weight) == (1.0, 0.0)
    assert topology.sole("mod").database_for(15) == "lookup015"
    main = topology.sole("global")
    assert (main.shards, main.server_for(0).name) == (1, "main")
    assert main.database_for(0) == "main"


def test_json_is_equal(tmp_path: Path) -> None:
    topology = source(write(tmp_path / "topology.toml", TOML)).load()
    text = json.dumps(topology.to_mapping())
    assert source(write(tmp_path / "t.json", text)).load() == topology


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.json", '{"s": {"range": [0, 511], "master": "h"}}'),
        ("t.toml", '[s]\nrange = [0, 511]\nmaster = "h"\n'),
        ("T.TOML", 's = {range = [0, 511], master = "h"}'),
    ],
)
def test_the_short_form(tmp_path: Path, name: str, text: str) -> None:
    topology = source(write(tmp_path / name, text)).load()
    assert topology.keyspace("objects").shards == 512


def test_options_reach_the_topology(tmp_path: Path) -> None:
    text = '{"s": {"range": [0, 511], "master": "h"}}'
    path = write(tmp_path / "t.json", text)
    topology = FileSource(
        str(path),
        placeholders=["PW"],
        environ={"PW": "x"},
        url="mysql://u:${PW}@{host}",
    ).load()
    (server,) = topology.keyspace("objects").servers
    assert server.primary == "mysql://u:${PW}@h"


def test_each_load_reads_the_file_and_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MYSQL_PASSWORD", "x")
    reader = FileSource(write(tmp_path / "t.toml", TOML))
    assert reader.load().epoch == 7
    write(tmp_path / "t.toml", TOML.replace("epoch = 7", "epoch = 8"))
    assert reader.load().epoch == 8
    monkeypatch.delenv("MYSQL_PASSWORD")
    with pytest.raises(TopologyError, match="variable MYSQL_PASSWORD"):
        reader.load()


@pytest.mark.parametrize("name", ["t.yaml", "t", "toml", ".toml", "t.toml~"])
def test_another_suffix(name: str) -> None:
    with pytest.raises(TopologyError) as caught:
        FileSource(name)
    (problem,) = caught.value.problems
    assert caught.value.source == name
    assert problem.place == "file name"
    assert f"{name!r} does not end in .toml or .json" in problem.message


def test_one_text_is_not_a_collection_of_names() -> None:
    with pytest.raises(TopologyError, match="use a collection of names"):
        FileSource("t.toml", placeholders="PW")


def test_repr() -> None:
    assert repr(FileSource("a/t.toml")) == "FileSource('a/t.toml')"


def test_no_file(tmp_path: Path) -> None:
    (problem,) = refused(tmp_path / "t.toml").problems
    assert problem.place == "file"
    assert problem.message == "cannot be read: No such file or directory"


def test_a_directory(tmp_path: Path) -> None:
    (tmp_path / "t.toml").mkdir()
    (problem,) = refused(tmp_path / "t.toml").problems
    assert problem.message == "cannot be read: Is a directory"


def test_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_bytes(b"epoch = 1 # \xff")
    (problem,) = refused(tmp_path / "t.toml").problems
    assert problem.place == "file"
    assert "not UTF-8 at byte 12" in problem.message


@pytest.mark.parametrize(
    ("name", "text", "place", "words"),
    [
        ("t.toml", "epoch = 1\nx = = 2\n", "line 2", "Invalid value"),
        ("t.toml", "epoch = 1\nepoch = 2\n", "line 2", "overwrite"),
        ("t.toml", "epoch = 1\nx = [1,\n", "line 2", "end of document"),
        ("t.json", '{"epoch": 1,\n "x": }', "line 2", "Expecting value"),
        ("t.json", "", "line 1", "Expecting value"),
        (
            "t.json",
            '{"a": 1, "b": {"d": 1, "c": 1, "c": 2}}',
            "file",
            "'c' occurs twice",
        ),
        ("t.json", "[" * 200_000, "file", "nested too deeply"),
        ("t.toml", "a = " + "[" * 100_000, "file", "nested too deeply"),
        ("t.json", "[1, 2]", "document", "[1, 2] is not a table"),
        ("t.json", '"mysql://a:hunter2@b"', "document", "is not a table"),
    ],
)
def test_syntax(tmp_path: Path, name: str, text: str, place: str, words: str) -> None:
    error = refused(write(tmp_path / name, text))
    (problem,) = error.problems
    assert problem.place == place
    assert words in problem.message
    assert "hunter2" not in str(error)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e999"])
def test_numbers_that_only_python_takes_for_json(tmp_path: Path, value: str) -> None:
    document = json.dumps(
        Topology.from_mapping(
            {"s": {"range": [0, 511], "master": "h"}}, environ=ENVIRON
        ).to_mapping()
    ).replace('"name"', f'"weight": {value}, "name"')
    (problem,) = refused(write(tmp_path / "t.json", document)).problems
    assert problem.place == "keyspaces.objects.servers[0].weight"


def test_a_syntax_error_does_not_carry_the_text_along(tmp_path: Path) -> None:
    text = '{"x": "mysql://a:hunter2@b", }'
    error = refused(write(tmp_path / "t.json", text))
    assert error.__cause__ is None
    assert error.__context__ is None
    assert "hunter2" not in "".join(traceback.format_exception(error))


def test_problems_of_the_document(tmp_path: Path) -> None:
    text = TOML.replace("shards = 4096", "shards = 4000")
    (problem,) = refused(write(tmp_path / "t.toml", text)).problems
    assert problem.place == "keyspaces.objects.servers[1].shards[1]"
    assert "exceeds the last open shard, 3999" in problem.message


def test_relative_directories_are_those_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    document = {
        "epoch": 1,
        "keyspaces": {
            "objects": {
                "kind": "objects",
                "shards": 2,
                "database": "db{shard}",
                "servers": [
                    {"name": "a", "primary": "sqlite:///x", "shards": [0, 0]},
                    {
                        "name": "b",
                        "primary": f"sqlite:///{tmp_path}/x",
                        "shards": [1, 1],
                    },
                ],
            }
        },
    }
    (tmp_path / "sub").mkdir()
    path = write(tmp_path / "sub" / "t.json", json.dumps(document))
    (problem,) = refused(path).problems
    assert f"{tmp_path}/x is already the primary of 'a'" in problem.message
