"""Settings for alembic that run_env() and alembic.ini pass on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from alembic.operations.ops import CreateTableOp
from sqlalchemy import CHAR, create_engine, MetaData, String
from sqlalchemy.pool import NullPool

from examples.pinboard import models as pinboard
from sqla_shard import Cluster
from sqla_shard.exc import SchemaOptionError
from sqla_shard.schema import init
from tests.models import revision_models
from tests.models.sqlite_files import with_files

SHARDS = 4
TOPOLOGY = f"""\
epoch = 1

[keyspaces.main]
kind = "global"
database = "main"

[[keyspaces.main.servers]]
name = "one"
primary = "sqlite:///data"

[keyspaces.lookup]
kind = "mod"
shards = 2
database = "lookup{{shard:05d}}"

[[keyspaces.lookup.servers]]
name = "one"
primary = "sqlite:///data"
shards = [0, 1]

[keyspaces.objects]
kind = "objects"
shards = {SHARDS}
database = "db{{shard:05d}}"

[[keyspaces.objects.servers]]
name = "two"
primary = "sqlite:///data"
shards = [0, {SHARDS - 1}]
"""
ENV = """\
from alembic import context

from sqla_shard.schema import run_env

attributes = context.config.attributes
run_env(context, attributes["metadata"], **attributes["settings"])
"""

Alembic = Callable[..., Config]


@pytest.fixture
def alembic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Alembic:
    """Return what configures alembic with settings of an application."""
    monkeypatch.chdir(tmp_path)
    Path("topology.toml").write_text(TOPOLOGY)
    for path in init("m", topology="topology.toml", keyspaces=["objects"]):
        if path.name == "env.py":
            path.write_text(ENV)
    with Cluster.from_file("topology.toml") as cluster:
        with_files(cluster)

    def make(metadata: MetaData = pinboard.Base.metadata, **settings: Any) -> Config:
        config = Config("alembic.ini")
        config.attributes.update(metadata=metadata, settings=settings)
        return config

    return make


def generated(config: Config) -> str:
    script: Any = command.revision(config, "change", autogenerate=True)
    return Path(script.path).read_text()


@pytest.mark.parametrize(
    ("named", "differs"),
    [
        ("other.toml", True),
        ("zookeeper://zk1:2181/prod", True),
        ("topology.toml", False),
        ("m/../topology.toml", False),
        ("", False),
    ],
)
def test_another_topology_in_the_environment_is_named(
    alembic: Alembic,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    named: str,
    differs: bool,
) -> None:
    monkeypatch.setenv("SQLA_SHARD_TOPOLOGY", named)
    command.current(alembic())
    said = [one for one in caplog.messages if "of alembic.ini, not" in one]
    assert len(said) == differs
    assert all(f"{named} of SQLA_SHARD_TOPOLOGY" in one for one in said)


def test_include_object_gets_what_is_of_the_keyspace(alembic: Alembic) -> None:
    asked = []

    def include(item: Any, name: str, kind: str, *more: Any) -> bool:
        if kind == "table":
            asked.append(name)
        return name != "pins"

    revision = generated(alembic(include_object=include))
    assert "create_table('users'" in revision
    assert "create_table('pins'" not in revision
    assert "user_email" not in revision
    assert {"users", "pins"} <= set(asked)
    assert "user_email" not in asked
    assert "create_table('pins'" in generated_again(alembic)


def generated_again(alembic: Alembic) -> str:
    command.upgrade(alembic(), "head")
    return generated(alembic(include_object=None))


def test_include_name_gets_what_is_not_of_the_package(alembic: Alembic) -> None:
    generated(alembic())
    command.upgrade(alembic(), "head")
    asked = []

    def include(name: str | None, kind: str, parents: Any) -> bool:
        asked.append((kind, name))
        return (kind, name) != ("table", "users")

    revision = generated(alembic(include_name=include))
    # As one that is not there.
    assert "create_table('users'" in revision
    assert "drop_table" not in revision.partition("def downgrade")[0]
    tables = {name for kind, name in asked if kind == "table"}
    assert {"users", "pins"} <= tables
    assert not {"alembic_version", "sqla_shard_ledger"} & tables


def test_render_item_gets_what_is_not_ours(alembic: Alembic) -> None:
    asked = []

    def render(kind: str, item: Any, context: Any) -> str | bool:
        asked.append(item)
        if kind == "type" and type(item) is String:
            return "sa.CHAR(33)"
        return False

    metadata = revision_models.Base.metadata
    revision = generated(alembic(metadata, render_item=render))
    assert "sa.Column('title', sa.CHAR(33), " in revision
    assert "sa.Column('words', sa.Text(), " in revision
    assert "sqla_shard" not in revision
    assert any(isinstance(item, CHAR) for item in asked)
    assert not any("sqla_shard" in type(item).__module__ for item in asked)


def test_process_revision_directives_gets_what_we_have_made(alembic: Alembic) -> None:
    tables = []

    def process(context: Any, revision: Any, directives: Any) -> None:
        for one in directives[0].upgrade_ops.ops:
            if isinstance(one, CreateTableOp):
                tables.append(one)
                assert not one.info
        directives[:] = []

    config = alembic(process_revision_directives=process)
    command.revision(config, "change", autogenerate=True)
    assert {"users", "pins"} <= {one.table_name for one in tables}
    assert any("listeners" in one.kw for one in tables)
    assert not list(Path("m", "versions").glob("*.py"))


@pytest.mark.parametrize("several", [False, True])
def test_on_version_apply_is_called_for_each_shard(
    alembic: Alembic, several: bool
) -> None:
    def applied(*, ctx: Any, step: Any, **more: Any) -> None:
        # Processes of their own do it, which share files alone.
        shard = ctx.opts["sqla_shard"].shard_id
        with Path("applied.txt").open("a") as file:
            file.write(f"{shard} {step.up_revision_id}\n")

    generated(alembic())
    config = alembic(on_version_apply=[applied] * 2 if several else applied)
    command.upgrade(config, "head")
    lines = Path("applied.txt").read_text().splitlines()
    assert len(lines) == SHARDS * (1 + several)
    assert {int(line.split()[0]) for line in lines} == set(range(SHARDS))
    for shard in range(SHARDS):
        engine = create_engine(
            f"sqlite:///data/db{shard:05d}.sqlite", poolclass=NullPool
        )
        with engine.connect() as connection:
            rows = connection.exec_driver_sql("SELECT * FROM alembic_version")
            assert f"{shard} {rows.scalar()}" in lines


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("target_metadata", MetaData()),
        ("connection", None),
        ("fn", print),
        ("url", "mysql://app:secret@db/x"),
        ("dialect_name", "mysql"),
        ("as_sql", True),
        ("version_table_schema", "db00001"),
        ("sqla_shard", 1),
    ],
)
def test_settings_that_applications_cannot_change(
    alembic: Alembic, name: str, value: Any
) -> None:
    config = alembic(**{name: value})
    for run in (
        lambda: command.upgrade(config, "head"),
        lambda: command.revision(config, "change", autogenerate=True),
        lambda: command.upgrade(config, "head", sql=True),
    ):
        with pytest.raises(SchemaOptionError, match=f"^{name}=") as caught:
            run()
        assert caught.value.option == name
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize("value", ["", "yes", "True", "1", "tru"])
def test_portable_is_true_or_false(alembic: Alembic, value: str) -> None:
    config = alembic()
    config.set_main_option("portable", value)
    with pytest.raises(SchemaOptionError, match="portable") as caught:
        generated(config)
    assert (caught.value.option, caught.value.value) == ("portable", value)
    assert "[alembic]" in str(caught.value)


@pytest.mark.parametrize("value", ["true", "false"])
def test_revisions_of_sqlite_are_portable_anyway(alembic: Alembic, value: str) -> None:
    config = alembic()
    config.set_main_option("portable", value)
    revision = generated(config)
    assert "class UpdatedAt" in revision
    assert "sqlite_autoincrement=True" in revision
    command.upgrade(config, "head")
    command.check(config)
