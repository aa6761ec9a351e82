"""The command line reports any invalid input, and ends."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sqla_shard import Cluster
from sqla_shard.cli.output import echo
from sqla_shard.testing import sqlite_topology
from tests.models.models import Base
from tests.servers.command_line import environment, run, write

COUNT = 20_000 if os.environ.get("SQLA_SHARD_SOAK") else 120


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    document: Any = sqlite_topology(tmp_path / "data", 2, 8, main=True, lookup=8)
    write(tmp_path, document)
    with Cluster.from_topology(document) as cluster:
        cluster.create_all(Base.metadata)
    done = run(tmp_path, "-t", "topology.json", "schema", "init", "migrations")
    assert done.returncode == 0, done.stderr
    noise = random.Random(1).randbytes(5000)
    (tmp_path / "garbage.bin").write_bytes(noise)
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "empty.toml").write_text("")
    (tmp_path / "cache.toml").write_text('[regions.default]\nbackend = "x"\n')
    return tmp_path


def test_arguments_at_random(directory: Path, rng: random.Random) -> None:
    module = "tests.workers.fuzzed_commands"
    done = subprocess.run(
        [sys.executable, "-m", module, str(rng.random()), str(COUNT)],
        cwd=directory,
        env=environment(SQLA_SHARD_TOPOLOGY="topology.json"),
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["id", "0x" + "f" * 5000], "is not an integer of at most 100 digits"),
        (["explain", "9" * 5000], "is not an integer of at most 100 digits"),
        (["halves", "--older-than", "inf"], "inf is not in the range"),
        (["halves", "--older-than", "nan"], "'nan' is not a number"),
        (["halves", "--older-than", "1e300"], "is not in the range"),
        (["schema", "downgrade", ""], "the revision is empty; give a"),
        (["schema", "upgrade", ""], "the revision is empty; give a"),
        (["id", "\x1b]0;title\x07"], r"'\x1b]0;title\x07' is not an integer"),
        (["id", "--\u202e"], r"No such option '--\u202e'"),
        (["topology", "validate", "\udc80.toml"], r"\udc80.toml: file: "),
        (["migrate", "status", "../passwd"], "'../passwd' cannot be imported"),
    ],
    ids=lambda value: None if isinstance(value, str) else value[0],
)
def test_findings_of_random_runs(
    directory: Path, arguments: list[str], message: str
) -> None:
    done = run(directory, *arguments, SQLA_SHARD_TOPOLOGY="topology.json")
    assert done.returncode in {1, 2}
    assert message in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_values_of_users_do_not_control_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    echo("key \x1b[2J\u202e\x9b é\tof a user\nnext line")
    shown = r"key \x1b[2J\u202e\x9b é" + "\tof a user\nnext line\n"
    assert capsys.readouterr().out == shown
