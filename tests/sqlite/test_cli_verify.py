"""sqla-shard verify, and runs that are killed."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any

import pytest

from sqla_shard import Cluster
from sqla_shard.testing import sqlite_topology
from sqla_shard.upkeep import verify_lookups
from tests.models.verify_models import (
    Account,
    AccountEmail,
    AccountName,
    add_account,
    Base,
    LONG_AGO,
    missing_account,
    MODULUS,
    plant,
    SHARDS,
)
from tests.servers.command_line import COMMAND, environment, invoke, write
from tests.suites import verify_relations

MODELS = "tests.models.verify_models"
_PATIENCE = 60


@pytest.fixture
def topology(tmp_path: Any) -> Any:
    document = sqlite_topology(tmp_path, 2, SHARDS, lookup=MODULUS)
    return write(tmp_path, document)


@pytest.fixture
def cluster(topology: Any) -> Any:
    with Cluster.from_file(topology) as cluster:
        cluster.create_all(Base.metadata)
        yield cluster


def verify(topology: Any, *options: str) -> Any:
    return invoke(
        *("-t", topology, "verify", "lookups", "--models", MODELS),
        *("--grace", "0", *options),
    )


def test_dry_first_and_then_for_real(cluster, topology):
    assert verify(topology).exit_code == 0
    user = cluster.run(add_account, email="me@x.org")
    plant(cluster, AccountName, "gone", missing_account())
    done = verify(topology)
    assert done.exit_code == 1
    assert "1 dangling: the object does not exist" in done.stdout
    assert "nothing was changed" in done.stdout
    done = verify(topology, "--class", "AccountEmail", "--json")
    assert done.exit_code == 1
    document = json.loads(done.stdout)
    assert document["classes"]["AccountEmail"]["found"] == {"missing": 1}
    assert set(document["classes"]) == {"AccountEmail"}
    done = verify(topology, "--repair", "--rate", "1000")
    assert done.exit_code == 0
    assert "1 dangling, 1 repaired" in done.stdout
    assert "no findings" in verify(topology).stdout
    with cluster.session() as session:
        assert AccountEmail.resolve(session, "me@x.org") == user


@pytest.mark.thorough
def test_a_server_that_is_replaced_meanwhile(cluster, topology, tmp_path):
    document = json.loads(topology.read_text())
    server = document["keyspaces"]["objects"]["servers"][0]
    _, old = server["primary"].split("///")
    server["primary"] = f"sqlite:///{tmp_path / 'new'}"
    document["epoch"] += 1
    shutil.copytree(old, tmp_path / "new")
    with Cluster.from_topology(document) as newer, newer.begin() as session:
        user = Account(email="new@x.org", shard_id=0)
        session.add(user)
        session.flush()
        user_id = user.id
    plant(cluster, AccountEmail, "new@x.org", user_id)
    position = tmp_path / "position.json"
    # The file is looked at once in a second, before the second look at the
    # row: on a busy machine, too.
    options = ("--repair", "--grace", "8", "--resume", str(position))
    with ThreadPoolExecutor(1) as executor:
        going = executor.submit(verify, topology, *options)
        until = monotonic() + _PATIENCE
        while monotonic() < until and "dangling" not in read(position):
            threading.Event().wait(0.01)
        # At once: half a file is no topology, and would be read later again.
        write(tmp_path, document, "newer.json").replace(topology)
        done = going.result(_PATIENCE)
    assert done.exit_code == 0
    assert "dangling" not in done.stdout
    with Cluster.from_topology(document) as newer, newer.session() as session:
        assert AccountEmail.resolve(session, "new@x.org") == user_id


def read(path: Any) -> str:
    with contextlib.suppress(FileNotFoundError):
        return str(path.read_text())
    return ""


def test_rekey(cluster, topology):
    user = cluster.run(add_account)
    plant(cluster, AccountName, "odd", user, policy="none/1")
    assert verify(topology, "--rekey").exit_code == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--class", "Nothing"), "LookupMixin 'Nothing' not found"),
        (("--rate", "0"), "--rate"),
        (("--grace", "-1"), "--grace"),
    ],
)
def test_usage_errors(topology, options, message):
    done = verify(topology, *options)
    assert done.exit_code == 2
    assert message in done.stderr


def test_no_classes(topology):
    for what in ("lookups", "relations"):
        done = invoke("-t", topology, "verify", what, "--models", "json")
        assert done.exit_code == 2
        assert "no subclass of" in done.stderr


def test_relations(tmp_path):
    document = sqlite_topology(tmp_path, 2, verify_relations.SHARDS)
    topology = write(tmp_path, document)
    command = ["-t", topology, "verify", "relations", "--grace", "0"]
    command += ["--models", "tests.suites.verify_relations"]
    with Cluster.from_file(topology) as cluster:
        cluster.create_all(verify_relations.Base.metadata)
        verify_relations.no_reverse(cluster, near=False)
        done = invoke(*command)
        assert done.exit_code == 1
        assert "1 one-sided: only the mapping or only its inverse" in done.stdout
        done = invoke(*command, "--repair", "--json")
        assert done.exit_code == 0
        found = json.loads(done.stdout)["classes"]["BoardHasPins"]
        assert found["repaired"] == {"one-sided": 1}
        assert "one-sided" not in invoke(*command).stdout


def test_classes_of_imported_modules_are_checked(
    cluster, topology, tmp_path, monkeypatch
):
    """A module of the application may name one class, and import the rest."""
    text = "from tests.models.verify_models import Account\n"
    (tmp_path / "imports_models.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    command = "-t", topology, "verify", "lookups", "--grace", "0", "--json"
    found = [
        json.loads(invoke(*command, "--models", module).stdout)["classes"]
        for module in (MODELS, "imports_models")
    ]
    assert len(found[0]) > 1
    assert set(found[1]) == set(found[0])


def test_killed_and_resumed(cluster, topology, tmp_path):
    for i in range(60):
        plant(cluster, AccountName, f"{i:03}", missing_account(i))
    whole = verify_lookups(cluster, [AccountName], grace=0.0)
    file = tmp_path / "position.json"
    options = ("--class", "AccountName", "--resume", file)
    program = subprocess.Popen(
        [
            *COMMAND,
            *("-t", topology, "verify", "lookups", "--models", MODELS),
            *("--grace", "0", "--rate", "4", *options),
        ],
        env=environment(),
        stdout=subprocess.DEVNULL,
    )
    try:
        looked = _wait_for(program, file)
    finally:
        program.kill()
        program.wait(_PATIENCE)
    assert 0 < looked < 60
    done = verify(topology, *map(str, options), "--json")
    assert not file.exists()
    found = json.loads(done.stdout)["classes"]["AccountName"]
    assert found == whole.as_dict()["classes"]["AccountName"]
    assert (found["looked"], found["found"]) == ({"rows": 60}, {"dangling": 60})


def _wait_for(program: Any, file: Any) -> int:
    """Wait until a run has looked at some rows; return how many."""
    deadline = monotonic() + _PATIENCE
    while monotonic() < deadline:
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.wait(0.02)
            pytest.fail("it has ended before it was killed")
        try:
            state = json.loads(file.read_bytes())["state"]
        except FileNotFoundError:
            continue
        looked: int = state["tallies"]["AccountName"]["looked"].get("rows", 0)
        if looked >= 4:
            return looked
    raise AssertionError("it has not begun")


def test_open_claims(cluster, topology):
    claims = "-t", topology, "verify", "claims", "--models", MODELS
    done = invoke(*claims)
    assert (done.exit_code, done.stdout) == (0, "0 open, 0 of them expired\n")
    cluster.run(AccountEmail.claim, "new@x.org")
    plant(cluster, AccountEmail, "old@x.org", None, ended=LONG_AGO)
    done = invoke(*claims)
    *lines, last = done.stdout.splitlines()
    assert (done.exit_code, last) == (0, "2 open, 1 of them expired")
    (old,) = [line for line in lines if "old@x.org" in line]
    assert old.endswith(", expired at 2020-01-01 00:00:00 UTC")
    done = invoke(*claims, "--class", "AccountEmail", "--json")
    found = json.loads(done.stdout)["claims"]
    assert {(one["key"], one["has_ended"]) for one in found} == {
        ("new@x.org", False),
        ("old@x.org", True),
    }
    done = invoke(*claims, "--class", "AccountName", "--json")
    assert json.loads(done.stdout) == {"claims": [], "unreachable": []}
