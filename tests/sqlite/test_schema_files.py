"""The files that revisions need: written by us, and by ``alembic init``."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError

from examples.pinboard import models as pinboard
from sqla_shard import Cluster
from sqla_shard.exc import SchemaError, UnknownKeyspaceError
from sqla_shard.schema import init, template_path
from tests.models.sqlite_files import with_files

TOPOLOGY = """\
epoch = 1

[keyspaces.main]
kind = "global"
database = "main"

[[keyspaces.main.servers]]
name = "one"
primary = "sqlite:///data"

[keyspaces.objects]
kind = "objects"
shards = 4
database = "db{shard:05d}"

[[keyspaces.objects.servers]]
name = "two"
primary = "sqlite:///data"
shards = [0, 3]
"""
LOOKUP = """
[keyspaces.lookup]
kind = "mod"
shards = 2
database = "lookup{shard:05d}"

[[keyspaces.lookup.servers]]
name = "one"
primary = "sqlite:///data"
shards = [0, 1]
"""
COPIED = ["README", "env.py", "script.py.mako"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An application's directory, which is the current one."""
    folder = tmp_path / "a project"
    folder.mkdir()
    (folder / "topology.toml").write_text(TOPOLOGY)
    monkeypatch.chdir(folder)
    return folder


def sections(path: Path | str) -> dict[str, dict[str, str]]:
    """Return the keyspaces of a file, as alembic reads it."""
    parser = ConfigParser(interpolation=None)
    parser.read(path)
    found = {}
    for name in parser.sections():
        config = Config(str(path), ini_section=name)
        if config.get_main_option("keyspace") is not None:
            found[name] = {
                key: str(config.get_main_option(key))
                for key in ("script_location", "topology", "keyspace")
            }
    return found


def test_a_section_and_a_folder_for_each_keyspace(project: Path) -> None:
    written = init("migrations", topology="topology.toml")
    assert written == [
        Path("alembic.ini"),
        *(
            Path("migrations", keyspace, name)
            for keyspace in ("objects", "main")
            for name in ("env.py", "script.py.mako", "README")
        ),
    ]
    topology = str(project / "topology.toml")
    assert sections("alembic.ini") == {
        "alembic": {
            "script_location": str(project / "migrations" / "objects"),
            "topology": topology,
            "keyspace": "objects",
        },
        "main": {
            "script_location": str(project / "migrations" / "main"),
            "topology": topology,
            "keyspace": "main",
        },
    }
    for section in ("alembic", "main"):
        config = Config("alembic.ini", ini_section=section)
        script = ScriptDirectory.from_config(config)
        assert Path(script.versions).is_dir()
        command.revision(config, "first")
        assert len(script.get_heads()) == 1


def test_one_keyspace_needs_no_folder_of_its_own(project: Path) -> None:
    init(
        project / "db" / "50% of it",
        topology=project / "topology.toml",
        keyspaces=["main"],
        config=project / "db" / "alembic.ini",
    )
    found = sections(project / "db" / "alembic.ini")
    migrations = project / "db" / "50% of it"
    assert found["alembic"]["script_location"] == str(migrations)
    assert found["alembic"]["keyspace"] == "main"
    assert Path(found["alembic"]["topology"]).samefile("topology.toml")
    assert sorted(os.listdir(migrations)) == [*COPIED, "versions"]


@pytest.mark.parametrize(
    ("models", "imported", "metadata"),
    [
        ("myapp.models:Base", "from myapp.models import Base", "Base.metadata"),
        ("tables:metadata", "from tables import metadata", "metadata"),
        ("a:db.metadata", "from a import db", "db.metadata"),
        ("a:db.Model", "from a import db", "db.Model.metadata"),
    ],
)
def test_models_go_into_env_py(
    project: Path, models: str, imported: str, metadata: str
) -> None:
    init("migrations", topology="topology.toml", models=models)
    text = Path("migrations", "main", "env.py").read_text()
    assert f"\n{imported}\n" in text
    assert f"\ntarget_metadata = {metadata}\n" in text
    assert "#" not in text
    ast.parse(text)


@pytest.mark.parametrize("models", ["", "Base", "a:", "a:b c", "a:b\nimport x"])
def test_models_that_make_no_sense_are_refused(project: Path, models: str) -> None:
    with pytest.raises(SchemaError, match="module:name"):
        init("migrations", topology="topology.toml", models=models)
    assert os.listdir() == ["topology.toml"]


@pytest.mark.parametrize("path", ["alembic.ini", "migrations/main/env.py"])
def test_nothing_is_overwritten(project: Path, path: str) -> None:
    there = Path(path)
    there.parent.mkdir(parents=True, exist_ok=True)
    there.write_text("mine")
    before = sorted(project.rglob("*"))
    with pytest.raises(SchemaError, match=path.split("/")[0]):
        init("migrations", topology="topology.toml")
    assert sorted(project.rglob("*")) == before
    assert there.read_text() == "mine"


def test_keyspaces_that_are_not_there_are_refused(project: Path) -> None:
    with pytest.raises(UnknownKeyspaceError, match="'other'"):
        init("migrations", topology="topology.toml", keyspaces=["other"])
    with pytest.raises(SchemaError, match="keyspaces is empty"):
        init("migrations", topology="topology.toml", keyspaces=[])
    assert os.listdir() == ["topology.toml"]


def test_sections_that_alembic_needs_are_not_taken(project: Path) -> None:
    text = TOPOLOGY.replace("main", "logger_root")
    Path("topology.toml").write_text(text)
    with pytest.raises(SchemaError, match="'logger_root'"):
        init("migrations", topology="topology.toml")
    assert os.listdir() == ["topology.toml"]
    init("m", topology="topology.toml", keyspaces=["logger_root"])
    assert sections("alembic.ini")["alembic"]["keyspace"] == "logger_root"


def test_alembic_init_takes_the_template(project: Path) -> None:
    template = str(template_path())
    assert os.path.isabs(template)
    done = subprocess.run(
        [sys.executable, "-m", "alembic", "init", "-t", template, "migrations"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir("migrations")) == [*COPIED, "versions"]
    by_alembic = sections("alembic.ini")
    text = Path("alembic.ini").read_text()
    Path("alembic.ini").unlink()
    init("other", topology="topology.toml", keyspaces=["objects"])
    for name in COPIED:
        assert Path("other", name).read_bytes() == (
            Path("migrations", name).read_bytes()
        )
    (by_us,) = sections("alembic.ini").values()
    by_us["script_location"] = by_us["script_location"].replace("other", "migrations")
    (by_alembic_section,) = by_alembic.values()
    location = by_alembic_section.pop("script_location")
    assert Path(location).absolute() == Path(by_us.pop("script_location"))
    assert by_alembic_section == by_us
    # Everything after the sections of keyspaces is the same.
    rest = Path("alembic.ini").read_text().partition("# Alembic would log")[2]
    assert rest
    assert text.endswith(rest)


def make_databases() -> None:
    with Cluster.from_file("topology.toml") as cluster:
        with_files(cluster)


def test_alembic_works_with_what_was_written(project: Path) -> None:
    with Path("topology.toml").open("a") as file:
        file.write(LOOKUP)
    init("migrations", topology="topology.toml", models="examples.pinboard.models:Base")
    make_databases()
    for section in ("alembic", "lookup"):
        config = Config("alembic.ini", ini_section=section)
        command.revision(config, "first", autogenerate=True)
        command.upgrade(config, "head")
        command.check(config)
    with Cluster.from_file("topology.toml") as cluster:
        with cluster.begin() as session:
            user = pinboard.User(name="maker")
            session.add(user)
            session.flush()
            user_id = user.id
        key = "me@example.com"
        cluster.run(pinboard.UserEmail.claim, key, user_id)
        with cluster.session() as session:
            assert pinboard.UserEmail.resolve(session, key) == user_id
            assert session.get_one(pinboard.User, user_id).name == "maker"


def test_alembic_works_without_models(project: Path) -> None:
    init("migrations", topology="topology.toml", keyspaces=["objects"])
    make_databases()
    config = Config("alembic.ini")
    command.revision(config, "by hand")
    command.upgrade(config, "head")
    with pytest.raises(CommandError, match="autogenerate"):
        command.revision(config, "change", autogenerate=True)
