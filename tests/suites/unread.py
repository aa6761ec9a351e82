"""Every command of sqla-shard where a part of the cluster cannot be read.

A suite for a kind of outage has the fixture ``scene``: a cluster of two
servers, of which the second one cannot be read.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from sqla_shard import Cluster, schema
from sqla_shard.cli.output import FAILED, NOT_READ
from sqla_shard.cli.program import program
from sqla_shard.upkeep import lists, run
from tests.models import spread_stages
from tests.models.schema import Project
from tests.models.unread_models import Base, fill
from tests.servers.cache_files import write_regions
from tests.servers.command_line import commands, fleet_commands, invoke, MOVE_COMMANDS

MODELS = ("--models", "tests.models.unread_models")
NOTES = f"--class Note {' '.join(MODELS)}"
DOWN = "server2"
#: Of what was left on the server that answers, and on the other one.
OBJECT, LOST = 0, 7


@dataclass(frozen=True)
class Scene:
    """A cluster that was used, before one of its servers was lost.

    :ivar project: with its topology and alembic's files.
    :ivar ids: of an object on each shard.
    :ivar reasons: parts of a line about the outage.
    :ivar environ: the environment of programs.
    :ivar options: of the program.
    """

    project: Project
    ids: Sequence[int]
    reasons: Sequence[str]
    environ: Mapping[str, str] = field(default_factory=dict)
    options: Sequence[str] = ()

    @property
    def directory(self) -> Path:
        return self.project.directory

    @property
    def files(self) -> list[str]:
        """All files, but those in which SQLite has what is not merged."""
        return sorted(
            str(path.relative_to(self.directory))
            for path in self.directory.rglob("*")
            if not path.name.endswith(("-wal", "-shm", ".pyc"))
            and path.name != "__pycache__"
        )


def prepared(directory: Path, document: Any, runner: Any = None) -> Any:
    """Return a project whose shards have a revision, tables and rows."""
    project = Project(directory, document, runner=runner)
    project.add("first")
    schema.provision(project.config(), initial=True)
    write_regions(directory / "cache.toml", {"rows": ["127.0.0.1:1"]})
    # In another directory, for the new one of `topology diff` and such.
    shutil.copy(directory / "topology.json", directory / "same.json")
    with Cluster.from_file(directory / "topology.json", watch=False) as one:
        one.create_all(Base.metadata)
        one.create_all(spread_stages.Base.metadata)
        ids = fill(one)
    return project, ids


@dataclass(frozen=True)
class Case:
    """A command, its exit status and its output.

    :ivar arguments: ``{}`` is an object on the server that answers, ``{lost}``
        one on the other, ``{dir}`` the directory.
    :ivar status: at the end.
    :ivar most: lines about the outage at most.
    :ivar says: part of the output.
    :ivar makes: whether it makes files.
    """

    arguments: str
    status: int = NOT_READ
    most: int = 1
    says: str = DOWN
    makes: bool = False


def _quiet(arguments: str, says: str = "", status: int = 0) -> Case:
    """Return the case of a command that connects to no server."""
    return Case(arguments, status=status, most=0, says=says)


#: A port without a server.
_ZOOKEEPER = "zookeeper://127.0.0.1:1/x"

#: By name; each that the program has is among them.
CASES: dict[str, list[Case]] = {
    "sqla-shard": [_quiet("--version")],
    "sqla-shard id": [_quiet("id {lost}")],
    "sqla-shard where": [_quiet("where {lost}", DOWN)],
    "sqla-shard explain": [
        _quiet("explain {lost}", DOWN),
        Case(
            f"explain --analyze {' '.join(MODELS)} "
            "'select(func.count(Note.id)).options(scatter())'"
        ),
    ],
    "sqla-shard topology show": [_quiet("topology show", DOWN)],
    "sqla-shard topology validate": [_quiet("topology validate {dir}/topology.json")],
    "sqla-shard topology diff": [
        _quiet("topology diff {dir}/topology.json {dir}/same.json")
    ],
    "sqla-shard topology push": [
        _quiet(
            f"-t {_ZOOKEEPER} topology push {{dir}}/same.json --yes",
            "127.0.0.1:1",
            FAILED,
        )
    ],
    "sqla-shard topology history": [
        _quiet(f"-t {_ZOOKEEPER} topology history", "127.0.0.1:1", FAILED)
    ],
    "sqla-shard topology rollback": [
        _quiet(f"-t {_ZOOKEEPER} topology rollback --to 1 --yes", "127.0.0.1:1", FAILED)
    ],
    "sqla-shard topology reset": [
        _quiet(
            f"-t {_ZOOKEEPER} topology reset --yes {{dir}}/same.json",
            "127.0.0.1:1",
            FAILED,
        )
    ],
    "sqla-shard topology protect": [
        _quiet(f"-t {_ZOOKEEPER} topology protect --dry-run", "127.0.0.1:1", FAILED)
    ],
    "sqla-shard topology watch": [
        _quiet(f"-t {_ZOOKEEPER} topology watch", "127.0.0.1:1", FAILED)
    ],
    # It goes on until SIGTERM, and asks ZooKeeper alone.
    "sqla-shard topology agent": [_quiet("topology agent --help", "ZooKeeper")],
    "sqla-shard schema": [_quiet("schema --help")],
    "sqla-shard schema template": [_quiet("schema template")],
    "sqla-shard schema init": [
        # It asks no server, and does not write over what is there.
        _quiet("schema -c {dir}/alembic.ini init {dir}/migrations", "", 1)
    ],
    "sqla-shard schema upgrade": [Case("schema -c {dir}/alembic.ini upgrade", most=3)],
    "sqla-shard schema downgrade": [
        Case("schema -c {dir}/alembic.ini downgrade base", most=3)
    ],
    "sqla-shard schema provision": [
        Case("schema -c {dir}/alembic.ini provision --topology {dir}/new.json")
    ],
    "sqla-shard schema status": [
        Case("schema -c {dir}/alembic.ini status", most=2),
        Case("schema -c {dir}/alembic.ini status --exit-code", most=2),
        Case(f"schema -c {{dir}}/alembic.ini status --servers {DOWN}", most=2),
    ],
    "sqla-shard schema resolve": [
        Case("schema -c {dir}/alembic.ini resolve 7 statement-done")
    ],
    "sqla-shard schema verify": [Case("schema verify")],
    "sqla-shard repair": [
        Case(f"repair --dry-run {' '.join(MODELS)}"),
        Case(f"repair --once {' '.join(MODELS)}"),
        Case("repair --count"),
        Case(f"repair --discard {'0' * 32}"),
    ],
    "sqla-shard key": [Case("key 'user 0'"), Case("key 'user 7'")],
    "sqla-shard halves": [Case("halves")],
    "sqla-shard queue list": [Case("queue list")],
    "sqla-shard queue stats": [Case("queue stats titles")],
    "sqla-shard queue scan": [
        Case("queue scan titles"),
        Case("queue scan --unique-key k"),
    ],
    # The limits are on shard 0, which can be read.
    "sqla-shard queue pause": [_quiet("queue pause titles", "paused")],
    "sqla-shard queue resume": [_quiet("queue resume titles", "open")],
    "sqla-shard queue limit": [_quiet("queue limit titles 5", "5 jobs")],
    "sqla-shard queue show": [
        Case("queue show objects/7/1", says=""),
        Case("queue show objects/0/1", status=FAILED, most=0, says="not found"),
    ],
    "sqla-shard queue retry": [
        Case("queue retry --queue titles"),
        Case("queue retry objects/7/1", says="shard 7"),
    ],
    "sqla-shard queue delete": [
        Case("queue delete --queue titles --state done"),
        Case("queue delete objects/7/1 --dry-run", says="shard 7"),
    ],
    "sqla-shard dashboard": [
        # Its pages are tested in the tests of the dashboard.
        _quiet("dashboard --host 192.0.2.1", "without a login", status=2)
    ],
    "sqla-shard worker": [Case(f"worker --until-empty {' '.join(MODELS)}", most=6)],
    "sqla-shard cache repair": [Case("cache repair --once --cache {dir}/cache.toml")],
    "sqla-shard cache stats": [Case("cache stats --cache {dir}/cache.toml")],
    "sqla-shard verify lookups": [
        Case(f"verify lookups --grace 0 {' '.join(MODELS)}"),
        Case(f"verify lookups --grace 0 --repair {' '.join(MODELS)}"),
    ],
    "sqla-shard verify claims": [Case(f"verify claims {' '.join(MODELS)}")],
    "sqla-shard verify relations": [
        Case(f"verify relations --grace 0 {' '.join(MODELS)}"),
        Case(f"verify relations --grace 0 --repair {' '.join(MODELS)}"),
    ],
    "sqla-shard verify sizes": [Case(f"verify sizes {' '.join(MODELS)}")],
    "sqla-shard spread": [Case(f"spread --grace 0 {' '.join(spread_stages.MODELS)}")],
    "sqla-shard verify references": [
        Case(f"verify references {' '.join(MODELS)}"),
        Case(f"verify references --repair {' '.join(MODELS)}"),
    ],
    "sqla-shard blobs train": [Case(f"blobs train {NOTES}", status=FAILED)],
    "sqla-shard blobs activate": [Case(f"blobs activate {NOTES}", status=FAILED)],
    "sqla-shard blobs deactivate": [Case(f"blobs deactivate {NOTES}")],
    "sqla-shard blobs rewrite": [Case(f"blobs rewrite {NOTES}")],
    "sqla-shard blobs check": [Case(f"blobs check {NOTES}")],
    "sqla-shard blobs status": [
        Case(f"blobs status {NOTES}"),
        Case(f"blobs status --rows {NOTES}"),
    ],
    "sqla-shard shell": [
        Case(
            f"shell {{lost}} {' '.join(MODELS)} -c 'print(session.get(User, {{lost}}))'"
        ),
        Case(
            f"shell {{}} {' '.join(MODELS)} -c 'print(session.get(User, {{}}))'",
            status=0,
            most=0,
            says="User",
        ),
    ],
    "sqla-shard fleet status": [_quiet("fleet status", "no operation")],
    "sqla-shard fleet history": [_quiet("fleet history")],
    # The accounts are missing.
    "sqla-shard fleet apply": [
        _quiet("fleet apply {dir}/same.json", "SQLA_SHARD_OPERATOR", FAILED)
    ],
    "sqla-shard fleet backup list": [_quiet("fleet backup list {dir}/none")],
    "sqla-shard fleet backup prune": [
        _quiet("fleet backup prune {dir}/none --keep-last 7")
    ],
    "sqla-shard fleet backup verify": [
        _quiet("fleet backup verify {dir}/none", "0 backups")
    ],
    "sqla-shard fleet restore": [
        _quiet("fleet restore {dir}/none objects 7", "SQLA_SHARD_OPERATOR", FAILED)
    ],
    **{
        f"sqla-shard {path}": [_quiet(given, "SQLA_SHARD_OPERATOR", FAILED)]
        for path, given in fleet_commands().items()
    },
    "sqla-shard fleet resume": [_quiet("fleet resume", "SQLA_SHARD_OPERATOR", FAILED)],
    "sqla-shard fleet undo": [_quiet("fleet undo", "SQLA_SHARD_OPERATOR", FAILED)],
    # It has neither store nor server of its own.
    # It serves until SIGTERM: see tests/live/test_frozen_commands.py.
    "sqla-shard exporter": [_quiet("exporter --help", "--timeout")],
    "sqla-shard status": [Case("status")],
    "sqla-shard check": [Case("check")],
    "sqla-shard load": [_quiet("load --help", "--directory")],
    "sqla-shard dev up": [
        # Its servers are those of tests/live/test_dev_up.py.
        _quiet("dev up --file {dir}/topology.json", "exists", status=2)
    ],
    "sqla-shard migrate shadow": [
        _quiet("migrate shadow {dir}/same.json", "not a report", FAILED)
    ],
    "sqla-shard migrate suggest": [
        _quiet("migrate suggest examples.microblog.single.models:Base", "users")
    ],
    # Moves of clusters with a server that is down: test_moving_servers.py.
    **{
        f"sqla-shard migrate {name}": [
            _quiet(f"migrate {name} {more}", "is not a", status=2)
        ]
        for name, more in MOVE_COMMANDS.items()
    },
    "sqla-shard init": [Case("init project", status=0, most=0, says="", makes=True)],
    "sqla-shard completion": [_quiet("completion bash")],
}


def _each() -> Iterator[Any]:
    for path, cases in CASES.items():
        for case in cases:
            yield pytest.param(case, id=f"{path}: {case.arguments}"[:80])


def check(scene: Scene, case: Case, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a command, and check that it reports what it has not read.

    :returns: its standard output.
    """
    before = scene.files
    monkeypatch.chdir(scene.directory)
    # The half minute for which a failover is waited for.
    monkeypatch.setattr(run, "PATIENCE", 0.2)
    monkeypatch.setattr(lists, "PATIENCE", 0.2)
    # And that for which a transaction is repeated.
    monkeypatch.setitem(Cluster.run.__kwdefaults__, "timeout", 1.0)
    arguments = [
        part.format(scene.ids[OBJECT], lost=scene.ids[LOST], dir=scene.directory)
        for part in shlex.split(case.arguments)
    ]
    done = invoke(
        *scene.options,
        *arguments,
        env={"SQLA_SHARD_TOPOLOGY": "topology.json", **scene.environ},
    )
    shown = done.output
    assert done.exit_code == case.status, shown
    assert case.says in shown
    reasons = [
        line
        for line in shown.splitlines()
        if any(reason in line for reason in scene.reasons)
    ]
    assert len(reasons) <= case.most, shown
    assert bool(reasons) == bool(case.most), shown
    assert "Traceback" not in shown
    assert case.makes or scene.files == before
    return done.stdout


class Unread:
    """All of them, on the kind of server of ``scene``."""

    #: Cases that this kind of outage changes, by their arguments.
    OTHERWISE: ClassVar[dict[str, dict[str, Any]]] = {}

    def test_every_command_is_among_them(self):
        """One that is new fails here until it is."""
        assert CASES.keys() == dict(commands(program, "sqla-shard")).keys()

    @pytest.mark.parametrize("case", list(_each()))
    def test_unread_servers_are_reported(self, scene, case, monkeypatch):
        changed = self.OTHERWISE.get(case.arguments, {})
        check(scene, replace(case, **changed), monkeypatch)
