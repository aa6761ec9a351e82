"""``sqla-shard init``: a project that runs, to change into one's own."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from shlex import quote

import click

from sqla_shard.cli.options import VARIABLE
from sqla_shard.cli.output import command, echo, option

#: What is copied: models, a program, and its tests.
_PROJECT = Path(__file__).with_name("project")
_TOPOLOGY = "topology.json"
_CONFIG = "alembic.ini"
_REVISIONS = "migrations"


@command(
    "init",
    "sqla-shard init shop",
    "sqla-shard init shop --url 'mysql://app:${MYSQL_PASSWORD}@mysql001a'",
)
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@option(
    "--url URL",
    "A server, such as mysql://app:${MYSQL_PASSWORD}@mysql001a:3306; repeatable.",
    to="urls",
    multiple=True,
    show_default="two folders of SQLite files",
)
@option("--shards N", "Number of virtual shards.", click.IntRange(1, 65536), default=64)
def init_command(directory: Path, urls: tuple[str, ...], shards: int) -> None:
    """Write a new project into DIRECTORY: topology, models, revisions, tests.

    DIRECTORY must be new or empty.
    """
    from sqlalchemy import make_url

    from sqla_shard import schema
    from sqla_shard.testing.topology_documents import topology_document
    from sqla_shard.topology import DEFAULT_PLACEHOLDERS, to_json, Topology
    from sqla_shard.util.masking import redact

    urls = urls or ("sqlite:///data/server1", "sqlite:///data/server2")
    if len(urls) > shards:
        raise click.UsageError(
            f"--shards {shards} is less than {len(urls)} servers; each needs a shard"
        )
    names = {f"server{number}": url for number, url in enumerate(urls, 1)}
    topology = Topology.from_mapping(
        topology_document(names, shards),
        # The program that is written allows no others.
        environ=dict.fromkeys(DEFAULT_PLACEHOLDERS, ""),
    )
    for url in urls:
        password = make_url(url).password
        if password is not None and "${" not in str(password):
            raise click.UsageError(
                f"--url {redact(url)}: its password would stand in {_TOPOLOGY}; give "
                "the name of a variable, in single quotes: "
                "'mysql://app:${MYSQL_PASSWORD}@host'"
            )
    if directory.exists() and any(directory.iterdir()):
        raise click.ClickException(
            f"{directory} is not empty, and nothing is overwritten; choose another "
            "directory"
        )
    files = {
        directory / path.relative_to(_PROJECT): path.read_bytes()
        for path in sorted(_PROJECT.rglob("*.*"))
        if path.suffix in (".py", ".ini")
    }
    files[directory / _TOPOLOGY] = to_json(topology)
    files[directory / ".gitignore"] = b"__pycache__/\n/data/\n"
    try:
        for path, content in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        made = schema.init(
            directory / _REVISIONS,
            topology=directory / _TOPOLOGY,
            config=directory / _CONFIG,
            models="models:Base",
        )
    except BaseException:
        # A half would be refused by the next run; what is in it is ours.
        shutil.rmtree(directory.resolve(), ignore_errors=True)
        raise
    # The commands would reach the fleet that it names.
    unset = f"  unset {VARIABLE}\n" if VARIABLE in os.environ else ""
    for path in (*files, *made):
        echo(f"created {path}")
    echo(
        f"\nNext:\n  cd {quote(str(directory))}\n{unset}"
        "  sqla-shard schema provision --initial\n"
        '  alembic revision --autogenerate -m "first tables"\n'
        "  sqla-shard schema upgrade\n"
        "  python app.py\n"
        "  python -m pytest"
    )
