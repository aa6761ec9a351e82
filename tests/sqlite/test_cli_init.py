"""``sqla-shard init``: docs/quickstart.rst runs what it writes."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from sqla_shard.cache.columns import check_prefix
from tests.servers.command_line import environment, invoke

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


def test_a_linter_with_its_defaults_finds_nothing(tmp_path):
    pytest.importorskip("ruff", reason="the lint group is not installed")
    assert invoke("init", tmp_path / "shop").exit_code == 0
    ruff = [sys.executable, "-m", "ruff"]
    for check in (["check", "--extend-select=I"], ["format", "--check"]):
        subprocess.run(
            [*ruff, *check, "--isolated", "--no-cache", "."],
            cwd=tmp_path / "shop",
            check=True,
        )


def test_a_failed_write_leaves_nothing(tmp_path):
    # The paths of the first files are short enough, that of the last is not.
    project = tmp_path
    while len(bytes(project)) < 3850:
        project /= "x" * 200
    project /= "y" * (4096 - len(bytes(project)) - len("/y/migrations/README"))
    done = invoke("init", project)
    assert done.exit_code == 1
    assert "File name too long" in done.output
    assert not project.exists()


@pytest.mark.parametrize("name", ["models.py", "topology.toml", "models/a.py"])
def test_a_folder_with_files_stays(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    done = invoke("init", tmp_path)
    assert done.exit_code == 1
    assert f"{tmp_path} is not empty" in done.output
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / name]


def test_a_placeholder_that_the_program_would_refuse_is_refused(tmp_path):
    url = "--url=mysql://app:${DB_PW}@host"
    done = invoke("--placeholder", "DB_PW", "init", tmp_path / "shop", url)
    assert done.exit_code == 1
    assert "${DB_PW} is not a placeholder" in done.output
    assert not (tmp_path / "shop").exists()


def test_the_fleet_of_a_variable_is_not_meant(tmp_path):
    there = {"SQLA_SHARD_TOPOLOGY": "zookeeper://elsewhere/fleet"}
    done = invoke("init", tmp_path / "shop", env=there)
    assert done.exit_code == 0, done.output
    assert "\n  unset SQLA_SHARD_TOPOLOGY\n" in done.output


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--shards", "1"], "--shards 1 is less than 2 servers"),
        (["--url", "postgresql://app@host"], "postgresql"),
        (["--url", "mysql://app:secret@host"], "mysql://app:***@host: its password"),
        (["--url", "mysql://app@host", "--compose"], "leave out --url"),
        (["--standby", "mysql://app@host"], "1 --standby for 0 --url"),
        (
            ["--url=mysql://a@h", "--standby=mysql://app:secret@host"],
            "mysql://app:***@host: its password",
        ),
    ],
)
def test_invalid_options_write_nothing(tmp_path, given, message):
    done = invoke("init", tmp_path / "shop", *given)
    assert done.exit_code in (1, 2)
    assert message in done.output
    assert not (tmp_path / "shop").exists()


def settings(text: str) -> dict[str, Any]:
    """Return the services of a compose file, whose values are JSON."""
    services: dict[str, Any] = {}
    for name, key, value in re.findall(r"(?m)^  (\w+):$|^    (\w+): (.+)$", text):
        if name:
            services[name] = {}
        else:
            services[[*services][-1]][key] = json.loads(value)
    return services


def test_a_compose_file_has_the_servers_of_the_topology(tmp_path: Path) -> None:
    project = tmp_path / "shop"
    done = invoke("init", project, "--compose")
    assert done.exit_code == 0, done.output
    assert "\n  docker compose up --wait\n" in done.output
    text = (project / "compose.yaml").read_text()
    services = settings(text)
    cache = services.pop("memcached")
    topology = json.loads((project / "topology.json").read_bytes())
    servers = topology["keyspaces"]["objects"]["servers"]
    assert [one["name"] for one in servers] == list(services)
    for server, service in zip(servers, services.values(), strict=True):
        (port,) = service["ports"]
        assert server["primary"].partition("@")[2] == port.removesuffix(":3306")
        assert server["primary"].startswith("mysql://app:${MYSQL_PASSWORD}@")
        assert service["environment"]["MYSQL_USER"] == "app"
        data, grants = service["volumes"]
        assert f"  {data.partition(':')[0]}: {{}}" in text.splitlines()
        assert (project / grants.partition(":")[0]).is_file()
    regions = tomllib.loads((project / "cache.toml").read_text())["regions"]
    (node,) = regions["objects"]["arguments"]["servers"]
    assert cache["ports"] == [f"{node}:11211"]


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("The Shop!", "the-shop"),
        ("_shop", "shop"),
        ("日本", "project"),
        ("s" * 41, "s" * 40),
    ],
)
def test_docker_and_the_cache_accept_the_name(
    tmp_path: Path, folder: str, name: str
) -> None:
    project = tmp_path / folder
    assert invoke("init", project, "--compose").exit_code == 0
    assert f'\nname: "{name}"\n' in (project / "compose.yaml").read_text()
    cache = tomllib.loads((project / "cache.toml").read_text())
    assert check_prefix(cache["prefix"]) == name


def followed(output: str) -> list[str]:
    """Run the steps of the output as they stand; return what root would touch."""
    steps = re.findall(r"(?m)^  ((?:cd|sudo) .+)$", output)
    # Each has its path after three words.
    root = 'sudo() { shift 3; echo "$1"; }\nsudoedit() { echo "$1"; }\nset -e\n'
    done = subprocess.run(
        ["/bin/sh", "-c", root + "\n".join(steps)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


PAIR = ["--url", URL % 1, "--standby", URL % 2]


@pytest.mark.parametrize(
    ("given", "units"),
    [
        ([], ["worker"]),
        (["--compose"], ["worker"]),
        # It only promotes standbys.
        (PAIR, ["watcher", "worker"]),
    ],
)
def test_units_of_systemd(tmp_path: Path, given: list[str], units: list[str]) -> None:
    # Of its path and its name, some characters mean something to systemd.
    project = tmp_path / "the shop%h"
    done = invoke("init", project, "--systemd", *given)
    assert done.exit_code == 0, done.output
    paths = sorted((project / "systemd").iterdir())
    assert [path.name for path in paths] == [f"the-shop-h-{u}.service" for u in units]
    worker = paths[-1].read_text()
    assert ("SQLA_SHARD_CACHE=cache.toml" in worker) == ("--compose" in given)
    touched = [str(path) for path in paths]
    if given:
        assert "MYSQL_PASSWORD=..." in done.output.partition("Next:")[2]
        folder = "/etc/the-shop-h"
        files = [f"{folder}/{unit}.env" for unit in units]
        touched += [*files, *[folder] * len(files)]
        for path, file in zip(paths, files, strict=True):
            # A "-" would hide that it is missing.
            assert f"\nEnvironmentFile={file}\n" in path.read_text()
    assert sorted(followed(done.output)) == sorted(touched)
    if analyze := shutil.which("systemd-analyze"):
        checked = subprocess.run(
            [analyze, "verify", *paths], capture_output=True, text=True, check=False
        )
        assert (checked.returncode, checked.stderr) == (0, "")


def test_a_unit_needs_no_script_beside_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "a python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    assert invoke("init", tmp_path / "shop", "--systemd").exit_code == 0
    unit = (tmp_path / "shop" / "systemd" / "shop-worker.service").read_text()
    program = shlex.split(unit.partition("ExecStart=")[2].partition("\n")[0])
    subprocess.run([*program, "--help"], env=environment(), check=True)


@pytest.mark.parametrize("name", ["nl\nUser=root", "go on\\", "blank ", "\udcff"])
def test_a_path_that_a_unit_would_misread_is_refused(tmp_path: Path, name: str) -> None:
    done = invoke("init", tmp_path / name, "--systemd")
    assert done.exit_code == 2
    assert repr(str(tmp_path / name)) in done.output
    assert not (tmp_path / name).exists()


def test_a_folder_that_looks_like_an_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = invoke("init", "--systemd", "--", "-dash")
    assert followed(done.output) == [f"{tmp_path}/-dash/systemd/dash-worker.service"]


def test_a_standby_is_in_the_topology(tmp_path: Path) -> None:
    assert invoke("init", tmp_path / "shop", *PAIR).exit_code == 0
    topology = json.loads((tmp_path / "shop" / "topology.json").read_bytes())
    (server,) = topology["keyspaces"]["objects"]["servers"]
    assert (server["primary"], server["standby"]) == (URL % 1, URL % 2)
