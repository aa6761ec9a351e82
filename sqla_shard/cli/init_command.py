"""``sqla-shard init``: a project that runs, to change into one's own."""

from __future__ import annotations

import os
import re
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
    "sqla-shard init shop --compose",
    "sqla-shard init shop --url 'mysql://app:${MYSQL_PASSWORD}@mysql001a' --systemd",
)
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@option(
    "--url URL",
    "A server, such as mysql://app:${MYSQL_PASSWORD}@mysql001a:3306; repeatable.",
    to="urls",
    multiple=True,
    show_default="two folders of SQLite files",
)
@option(
    "--standby URL",
    "The standby of a server, in the order of --url; repeatable.",
    to="standbys",
    multiple=True,
)
@option(
    "--compose",
    "Also write compose.yaml, with two MySQL servers and memcached, instead of --url.",
)
@option("--systemd", "Also write units for a worker and, with --standby, a watcher.")
@option("--shards N", "Number of virtual shards.", click.IntRange(1, 65536), default=64)
def init_command(
    directory: Path,
    urls: tuple[str, ...],
    standbys: tuple[str, ...],
    compose: bool,
    systemd: bool,
    shards: int,
) -> None:
    """Write a new project into DIRECTORY: topology, models, revisions, tests.

    DIRECTORY must be new or empty.
    """
    from sqlalchemy import make_url

    from sqla_shard import schema
    from sqla_shard.cli.init_services import compose_files, compose_urls, systemd_units
    from sqla_shard.testing.topology_documents import topology_document
    from sqla_shard.topology import DEFAULT_PLACEHOLDERS, to_json, Topology
    from sqla_shard.util.masking import redact

    if compose and urls:
        raise click.UsageError("--compose has servers of its own; leave out --url")
    if len(standbys) not in (0, len(urls)):
        raise click.UsageError(
            f"{len(standbys)} --standby for {len(urls)} --url; give each its standby, "
            "or none"
        )
    if compose:
        urls = compose_urls(2)
    urls = urls or ("sqlite:///data/server1", "sqlite:///data/server2")
    if len(urls) > shards:
        raise click.UsageError(
            f"--shards {shards} is less than {len(urls)} servers; each needs a shard"
        )
    names = {f"server{number}": url for number, url in enumerate(urls, 1)}
    document = topology_document(names, shards)
    servers = document["keyspaces"]["objects"]["servers"]
    for server, standby in zip(servers, standbys, strict=False):
        server["standby"] = standby
    topology = Topology.from_mapping(
        document,
        # The program that is written allows no others.
        environ=dict.fromkeys(DEFAULT_PLACEHOLDERS, ""),
    )
    for url in (*urls, *standbys):
        password = make_url(url).password
        if password is not None and "${" not in str(password):
            raise click.UsageError(
                f"{redact(url)}: its password would stand in {_TOPOLOGY}; give "
                "the name of a variable, in single quotes: "
                "'mysql://app:${MYSQL_PASSWORD}@host'"
            )
    place = directory.resolve()
    # systemd does not unquote WorkingDirectory: its line could end, or go on.
    if systemd and (not str(place).isprintable() or str(place)[-1] in "\\ "):
        raise click.UsageError(
            f"{str(place)!r} cannot be the directory of a unit; use no control "
            "characters, and no blank or backslash at the end"
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
    services, units = {}, []
    # Valid for docker compose, and as a prefix of cached values.
    project = re.sub(r"[^a-z0-9_-]+", "-", place.name.lower()).strip("-_")[:40]
    project = project or "project"
    if compose:
        services = compose_files(project, list(names))
    if systemd:
        given = " ".join((*urls, *standbys))
        units = systemd_units(
            project,
            place,
            [name for name in DEFAULT_PLACEHOLDERS if f"${{{name}}}" in given],
            has_cache=compose,
            has_standbys=bool(standbys),
        )
    services |= {unit.path: unit.text for unit in units}
    files |= {directory / path: text.encode() for path, text in services.items()}
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
        shutil.rmtree(place, ignore_errors=True)
        raise
    # The commands would reach the fleet that it names.
    unset = f"  unset {VARIABLE}\n" if VARIABLE in os.environ else ""
    start = (
        "  export SQLA_SHARD_CACHE=cache.toml MYSQL_PASSWORD=...  # your choice\n"
        "  docker compose up --wait\n"
        if compose
        else ""
    )
    ends = "".join(f"\n  {step}" for unit in units for step in unit.steps)
    # Else cd would take it as options.
    dashes = "-- " if str(directory).startswith("-") else ""
    for path in (*files, *made):
        echo(f"created {path}")
    echo(
        f"\nNext:\n  cd {dashes}{quote(str(directory))}\n{unset}{start}"
        "  sqla-shard schema provision --initial\n"
        '  alembic revision --autogenerate -m "first tables"\n'
        "  sqla-shard schema upgrade\n"
        "  python app.py\n"
        f"  python -m pytest{ends}"
    )
