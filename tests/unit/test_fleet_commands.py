"""``sqla-shard fleet``: status, history, apply, resume and undo."""

from __future__ import annotations

import inspect
import json
from dataclasses import fields, replace
from functools import partial

import pytest

import sqla_shard.fleet
from sqla_shard.cli.output import FAILED
from sqla_shard.exc import FleetServerError, FleetSetupError, OperationFailedError
from sqla_shard.fleet import apply, compare
from sqla_shard.fleet.differences import DataReport, UnreadPlace
from sqla_shard.fleet.runner import kinds
from sqla_shard.testing import sqlite_topology
from sqla_shard.testing.topology_documents import topology_document
from tests.servers.command_line import invoke, write
from tests.servers.toy_operation import Toy, toy_fleet

ACCOUNTS = {
    "SQLA_SHARD_OPERATOR_USER": "operator",
    "SQLA_SHARD_OPERATOR_PASSWORD": "secret",
}
USAGE = 2


@pytest.fixture
def location(tmp_path):
    document = topology_document({"server1": "mysql+pymysql://127.0.0.1:1"}, 8)
    return str(write(tmp_path, document))


@pytest.fixture
def fleet(location):
    return toy_fleet(location)


@pytest.fixture
def run(location):
    return partial(invoke, "-t", location, "fleet", env=ACCOUNTS)


@pytest.fixture
def interrupted(fleet, tmp_path):
    """A toy that failed after it was published."""
    plan = Toy.plan(fleet, tmp_path, fails="open")
    with pytest.raises(OperationFailedError):
        apply(fleet, plan)


def plan_file(fleet, folder, **changes):
    plan = replace(Toy.plan(fleet, folder), **changes)
    return write(folder, plan.as_dict(), "plan.json")


def test_nothing_is_pending(run):
    done = run("status")
    assert done.exit_code == 0
    assert "epoch 1, no operation is pending" in done.output
    found = json.loads(run("status", "--json").output)
    assert found["operation"] is None
    assert found["commands"] == []
    assert found["watchers"] is None
    assert json.loads(run("history", "--json").output) == []


@pytest.mark.parametrize("command", ["doctor", "orphans list", "capacity"])
def test_folders_of_sqlite_have_no_operations(tmp_path, command):
    path = write(tmp_path, sqlite_topology(tmp_path / "data", 2, 4))
    done = invoke("-t", str(path), "fleet", *command.split(), env=ACCOUNTS)
    assert done.exit_code
    assert "it is a folder of SQLite files" in done.output
    assert "SQLAlchemy" not in done.output


@pytest.mark.usefixtures("interrupted")
def test_an_interrupted_operation_is_shown(run):
    done = run("status")
    assert done.exit_code == FAILED
    assert "operation: toy (" in done.output
    assert "published: yes" in done.output
    assert "problem: toy: no (error 1)" in done.output
    assert "run: sqla-shard fleet resume" in done.output
    done = run("status", "--json")
    assert done.exit_code == FAILED
    found = json.loads(done.output)
    assert found["commands"] == ["sqla-shard fleet resume"]
    assert found["operation"]["published"]
    assert not found["operation"]["running"]


@pytest.mark.usefixtures("interrupted")
def test_it_is_not_resumed_without_confirmation(run):
    done = run("resume")
    assert done.exit_code == USAGE
    assert "add --yes" in done.output


@pytest.mark.usefixtures("interrupted")
def test_it_is_not_undone_after_publish(run):
    done = run("undo", "--yes")
    assert done.exit_code == FAILED
    assert "cannot be undone" in done.output


@pytest.mark.usefixtures("interrupted")
def test_it_is_resumed(run, monkeypatch):
    monkeypatch.setattr(Toy, "run", lambda self, name: None)
    done = run("resume", "--yes")
    assert done.exit_code == 0, done.output
    assert "ms  open: open it" in done.output
    assert "ms  open: done" in done.output
    assert "toy: finished, epoch 2" in done.output
    assert "finished" in run("history").output


@pytest.mark.usefixtures("interrupted")
def test_a_dry_run_shows_what_is_pending(run):
    status = run("status", "--json").output
    # It is published.
    for name, code in (("resume", 0), ("undo", FAILED)):
        done = run(name, "--dry-run", "--json")
        assert (done.exit_code, done.output) == (code, status)


def test_a_dry_run_without_an_operation_is_refused(run):
    assert run("resume", "--dry-run").exit_code == FAILED


def test_an_interrupted_undo_goes_on(run, fleet, tmp_path):
    (tmp_path / "undo_fails").touch()
    with pytest.raises(OperationFailedError):
        apply(fleet, Toy.plan(fleet, tmp_path, fails="fence"))
    assert "run: sqla-shard fleet undo" in run("status").output
    assert run("undo", "--yes").exit_code == FAILED
    assert run("undo", "--dry-run").exit_code == 0
    assert run("resume", "--dry-run").exit_code == 0
    (tmp_path / "undo_fails").unlink()
    done = run("undo", "--yes", "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["state"] == "undone"


def test_a_plan_is_applied(run, fleet, tmp_path):
    path = plan_file(fleet, tmp_path)
    for option in ("--plan-only", "--dry-run"):
        done = run("apply", path, option, "--json")
        assert done.exit_code == 0
        assert json.loads(done.output) == json.loads(path.read_text())
    assert fleet.topology().epoch == 1
    assert run("apply", path).exit_code == USAGE
    done = run("apply", path, "--yes", "--json")
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert (found["state"], found["epoch"]) == ("finished", 2)
    assert found["pause"] > 0
    (record,) = json.loads(run("history", "--json").output)
    assert record["state"] == "finished"
    again = run("apply", path, "--yes")
    assert again.exit_code == FAILED
    assert "made for epoch 1, but epoch 2 is published" in again.output


def test_a_problem_that_is_left_is_printed(run, fleet, tmp_path):
    text = "problem: tidy has left something"
    plan = Toy.plan(fleet, tmp_path, leaves="tidy")
    done = run("apply", write(tmp_path, plan.as_dict(), "plan.json"), "--yes")
    assert done.exit_code == FAILED
    assert "toy: finished, epoch 2" in done.output
    assert text in done.output


@pytest.mark.usefixtures("interrupted")
def test_a_problem_that_a_resume_leaves_is_printed(run, monkeypatch):
    monkeypatch.setattr(Toy, "run", lambda self, name: {"problem": name})
    done = run("resume", "--yes")
    assert done.exit_code == FAILED
    assert "problem: tidy" in done.output


def test_drain_timeout_is_for_dead_primaries(run):
    for seconds in ("5", "0"):
        done = run("failover", "server1", "--drain-timeout", seconds)
        assert done.exit_code == USAGE
    done = run("failover", "server1", "--drain-timeout", "5")
    assert "--drain-timeout needs --dead" in done.output


def test_a_plan_with_problems_is_refused(run, fleet, tmp_path):
    plan = Toy.plan(fleet, tmp_path, problems=["this", "that"])
    problems = tuple(Toy(fleet, plan).check())
    path = write(tmp_path, replace(plan, problems=problems).as_dict(), "plan.json")
    for options in (["--yes"], ["--plan-only"], ["--yes", "--json"]):
        done = run("apply", path, *options)
        assert done.exit_code == FAILED
        assert "this" in done.output
        assert "that" in done.output
    assert fleet.topology().epoch == 1
    assert run("history", "--json").output.strip() == "[]"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"plan": 9}'])
def test_another_file_is_not_a_plan(run, tmp_path, text):
    path = tmp_path / "plan.json"
    path.write_text(text)
    done = run("apply", path, "--yes")
    assert done.exit_code == FAILED
    assert "--plan-only --json" in done.output


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        ("SQLA_SHARD_OPERATOR_USER", "SQLA_SHARD_OPERATOR_USER is not set"),
        ("SQLA_SHARD_OPERATOR_PASSWORD", "SQLA_SHARD_OPERATOR_PASSWORD is not"),
    ],
)
def test_a_missing_account_is_named(location, missing, named):
    done = invoke("-t", location, "fleet", "undo", env={**ACCOUNTS, missing: None})
    assert done.exit_code == FAILED
    assert named in done.output
    assert "secret" not in done.output


def test_a_toml_file_is_refused_with_the_remedy(tmp_path):
    path = tmp_path / "topology.toml"
    path.touch()
    done = invoke("-t", path, "fleet", "status")
    assert done.exit_code == FAILED
    assert "topology show --json > topology.json" in done.output


@pytest.mark.parametrize(("number", "status"), [(2013, 3), (1227, 1)])
def test_a_server_that_is_silent_is_not_read(
    run, fleet, tmp_path, monkeypatch, number, status
):
    def fail(*arguments, **more):
        raise FleetServerError(server="one", number=number, reason="lost")

    monkeypatch.setattr(sqla_shard.fleet, "apply", fail)
    path = plan_file(fleet, tmp_path)
    assert run("apply", path, "--yes").exit_code == status


def test_ctrl_c_says_what_to_do(run, fleet, tmp_path, monkeypatch):
    def interrupt(*arguments, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr(sqla_shard.fleet, "apply", interrupt)
    done = run("apply", plan_file(fleet, tmp_path), "--yes")
    assert done.exit_code == 130
    assert "what is left: sqla-shard fleet status" in done.output


def test_a_hook_that_cannot_be_run(run):
    pytest.importorskip("kazoo")
    done = run("watch", "--hook", "page 'all")
    assert done.exit_code == USAGE
    assert "No closing quotation" in done.output
    done = run("watch", "--hook", "no-such-program --urgent")
    assert done.exit_code == FAILED
    assert "the hook 'no-such-program' is not a program" in done.output


@pytest.mark.parametrize(
    "line",
    [
        "failover s",
        "failover s --dead --fenced --drain-timeout 5",
        "reopen s",
        "orphans fence s",
        "orphans rename s a b --accept-differences --allow-user u",
        "orphans restore s",
        "orphans drop s --older-than 3",
        "split s --shards 1-2 --to t --primary h:1 --skip-compare",
        "move s --to t --primary h:1 --standby h:2 --weight 1",
        "replica build s t --no-publish",
        "replica rebuild s --discard-errant --way rows",
        "replica replace s t --command x",
        "retire t",
        "restore /b objects 7 --to-gtid 0-1-2 --as x --server s --backup b",
    ],
)
def test_a_command_has_the_options_of_its_operation(run, monkeypatch, line):
    for kind in {*kinds().values()} - {Toy}:
        monkeypatch.setattr(kind, "planned", _planned(kind))
    done = run(*line.split(), "--plan-only")
    assert (done.exit_code, done.exception.args) == (FAILED, (FAILED,))
    assert done.output.endswith("error: it has these arguments\n")


def _planned(kind):
    signature = inspect.signature(kind.planned)

    def planned(*arguments, **named):
        signature.bind(*arguments, **named)
        raise FleetSetupError("it has these arguments")

    return planned


def test_watching_needs_zookeeper(run):
    pytest.importorskip("kazoo")
    done = run("watch")
    assert done.exit_code == FAILED
    assert "topology push FILE" in done.output


@pytest.mark.parametrize(
    ("late", "chosen"),
    [
        (("db00001", "db00002"), "--shards 1-2"),
        (("db00001", "moved_db00012_20260101000000"), "--databases db00001,moved"),
        (("odd 'name'",), """--databases 'odd '"'"'name'"'"''"""),
    ],
)
def test_the_command_that_compares_the_rest(run, monkeypatch, late, chosen):
    report = DataReport(
        **dict.fromkeys([one.name for one in fields(DataReport)], 0)
        | {"points": (), "differences": ()}
    )
    unread = tuple(
        UnreadPlace(database=name, reason="limit", late=True) for name in late
    )
    report = replace(report, unread=unread)
    monkeypatch.setattr(compare, "verify_data", lambda *_, **__: report)
    options = "--against mysql://10.0.0.7 --no-replication --rate 0.5 --limit 1e6"
    given = options.replace("//", "//user:secret@").split()
    done = run("verify", "server1", *given, "--shards", "1-2")
    command = done.stdout.splitlines()[-1].partition("compare them with: ")[2]
    assert command.startswith(f"sqla-shard fleet verify server1 {chosen}")
    assert command.endswith(options.replace("1e6", "1000000"))
