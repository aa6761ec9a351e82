"""``sqla-shard init``: a project that runs, to change into one's own."""

from __future__ import annotations

import getpass
import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple, TYPE_CHECKING

import click

from sqla_shard.cli.options import VARIABLE
from sqla_shard.cli.output import command, echo, option

if TYPE_CHECKING:
    from sqla_shard.topology import Topology

#: What is copied: models, a program, and its tests.
_PROJECT = Path(__file__).with_name("project")
_TOPOLOGY = "topology.json"
_CONFIG = "alembic.ini"
_REVISIONS = "migrations"
#: Ports of this machine; a server of its own may have 3306, and 33060 is that
#: of another protocol of MySQL.
_FIRST_PORT = 3307
_CACHE_PORT = 11211

_GRANTS = """\
-- The image runs this once, after it has created the user.
GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, DROP, INDEX, REFERENCES
  ON `db%`.* TO 'app'@'%';
"""

_CACHE = """\
# The cache of every program that writes to the shards: SQLA_SHARD_CACHE.
prefix = {prefix}

[regions.objects]
backend = "sqla_shard.memcached"
expiration_time = 86400

[regions.objects.arguments]
servers = ["127.0.0.1:{port}"]

[classes]
"models:User" = "objects"
"models:Board" = "objects"
"""

_UNIT = """\
# {use}
[Unit]
Description={description}
Wants=network-online.target
After=network-online.target

[Service]
User={user}
WorkingDirectory={directory}
{settings}
ExecStart={program} -m sqla_shard.cli {command}
Restart=always
RestartSec=2

[Install]
WantedBy=multi-user.target
"""


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
    from sqla_shard import schema
    from sqla_shard.topology import DEFAULT_PLACEHOLDERS, to_json

    if compose and urls:
        raise click.UsageError("--compose has servers of its own; leave out --url")
    if len(standbys) not in (0, len(urls)):
        raise click.UsageError(
            f"{len(standbys)} --standby for {len(urls)} --url; give each its standby, "
            "or none"
        )
    if compose:
        urls = _compose_urls(2)
    urls = urls or ("sqlite:///data/server1", "sqlite:///data/server2")
    servers = {f"server{number}": url for number, url in enumerate(urls, 1)}
    topology = _topology(servers, standbys, shards)
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
        services = _compose_files(project, list(servers))
    if systemd:
        given = " ".join((*urls, *standbys))
        units = _systemd_units(
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
        revisions = schema.init(
            directory / _REVISIONS,
            topology=directory / _TOPOLOGY,
            config=directory / _CONFIG,
            models="models:Base",
        )
    except BaseException:
        # A half would be refused by the next run; what is in it is ours.
        shutil.rmtree(place, ignore_errors=True)
        raise
    for path in (*files, *revisions):
        echo(f"created {path}")
    echo(_next_steps(directory, units, has_compose=compose))


def _topology(
    urls: Mapping[str, str], standbys: Sequence[str], shards: int
) -> Topology:
    """Return the topology of servers, in which no password stands.

    :raises click.UsageError: for a password, or more servers than shards.
    """
    from sqlalchemy import make_url

    from sqla_shard.testing.topology_documents import topology_document
    from sqla_shard.topology import DEFAULT_PLACEHOLDERS, Topology
    from sqla_shard.util.masking import redact

    if len(urls) > shards:
        raise click.UsageError(
            f"--shards {shards} is less than {len(urls)} servers; each needs a shard"
        )
    document = topology_document(urls, shards)
    servers = document["keyspaces"]["objects"]["servers"]
    for server, standby in zip(servers, standbys, strict=False):
        server["standby"] = standby
    # The program that is written allows no other placeholders.
    environ = dict.fromkeys(DEFAULT_PLACEHOLDERS, "")
    topology = Topology.from_mapping(document, environ=environ)
    for url in (*urls.values(), *standbys):
        password = make_url(url).password
        if password is not None and "${" not in str(password):
            raise click.UsageError(
                f"{redact(url)}: its password would stand in {_TOPOLOGY}; give "
                "the name of a variable, in single quotes: "
                "'mysql://app:${MYSQL_PASSWORD}@host'"
            )
    return topology


def _next_steps(
    directory: Path, units: Sequence[_SystemdUnit], *, has_compose: bool
) -> str:
    """Return the commands that start the project."""
    # The commands would reach the fleet that it names.
    unset = f"  unset {VARIABLE}\n" if VARIABLE in os.environ else ""
    start = (
        "  export SQLA_SHARD_CACHE=cache.toml MYSQL_PASSWORD=...  # your choice\n"
        "  docker compose up --wait\n"
        if has_compose
        else ""
    )
    ends = "".join(f"\n  {step}" for unit in units for step in unit.steps)
    # Else cd would take it as options.
    dashes = "-- " if str(directory).startswith("-") else ""
    return (
        f"\nNext:\n  cd {dashes}{quote(str(directory))}\n{unset}{start}"
        "  sqla-shard schema provision --initial\n"
        '  alembic revision --autogenerate -m "first tables"\n'
        "  sqla-shard schema upgrade\n"
        "  python app.py\n"
        f"  python -m pytest{ends}"
    )


# -- Files that run the project: docker compose, systemd.


def _compose_urls(servers: int) -> tuple[str, ...]:
    """Return the URLs of the servers of :func:`_compose_files`."""
    return tuple(
        f"mysql://app:${{MYSQL_PASSWORD}}@127.0.0.1:{_FIRST_PORT + number}"
        for number in range(servers)
    )


def _compose_files(project: str, servers: Sequence[str]) -> dict[str, str]:
    """Return the files of a docker compose project, by their paths.

    :param project: name of the project, and the prefix of its cached values.
    :param servers: names of the MySQL servers, in the order of their URLs.
    """
    services: dict[str, dict[str, Any]] = {
        name: {
            "image": "mysql:9.7",
            # As a standby or `fleet split` will need it.
            "command": ["--gtid-mode=ON", "--enforce-gtid-consistency=ON"],
            "environment": {
                "MYSQL_USER": "app",
                "MYSQL_PASSWORD": "${MYSQL_PASSWORD:?set it, as the topology does}",
                "MYSQL_RANDOM_ROOT_PASSWORD": "yes",
            },
            "ports": [f"127.0.0.1:{port}:3306"],
            "volumes": [
                f"{name}:/var/lib/mysql",
                "./compose/grants.sql:/docker-entrypoint-initdb.d/grants.sql:ro",
            ],
            # By TCP: the server that only creates the accounts has none.
            "healthcheck": {
                "test": ["CMD", "mysqladmin", "ping", "--host=127.0.0.1"],
                "interval": "2s",
                "retries": 60,
            },
        }
        for port, name in enumerate(servers, _FIRST_PORT)
    }
    services["memcached"] = {
        "image": "memcached:1.6",
        "ports": [f"127.0.0.1:{_CACHE_PORT}:11211"],
    }
    lines = [
        "# The servers of topology.json: docker compose up --wait",
        # Else that of the folder, which may have no letter that docker allows.
        f"name: {json.dumps(project)}",
        "services:",
    ]
    for name, settings in services.items():
        lines.append(f"  {name}:")
        lines += [f"    {key}: {json.dumps(one)}" for key, one in settings.items()]
    lines += ["volumes:", *(f"  {name}: {{}}" for name in servers)]
    return {
        "compose.yaml": "\n".join(lines) + "\n",
        "compose/grants.sql": _GRANTS,
        "cache.toml": _CACHE.format(prefix=json.dumps(project), port=_CACHE_PORT),
    }


class _SystemdUnit(NamedTuple):
    """A unit of systemd.

    :ivar path: in the directory of the project.
    :ivar environment: file with its variables; empty if it needs none.
    :ivar values: the variables, for whoever writes that file.
    """

    path: str
    text: str
    environment: str
    values: str

    @property
    def steps(self) -> list[str]:
        """The commands that start it."""
        steps = [f'sudo systemctl enable --now "$PWD"/{self.path}']
        if self.environment:
            folder = os.path.dirname(self.environment)
            edit = f"sudoedit {self.environment}  # {self.values}"
            steps.insert(0, f"sudo mkdir -pm 700 {folder} && {edit}")
        return steps


def _systemd_units(
    project: str,
    directory: Path,
    variables: Sequence[str],
    *,
    has_cache: bool,
    has_standbys: bool,
) -> list[_SystemdUnit]:
    """Return the units of a worker, and of a watcher if there are standbys.

    They have the paths and the user of this process.

    :param project: name of the project, the prefix of the units.
    :param directory: the directory of the project, resolved.
    :param variables: names of the variables in the URLs of its topology.
    :param has_cache: whether there is a ``cache.toml``.
    :param has_standbys: whether the topology has standbys, to be promoted.
    """
    # systemd replaces %h and the like.  The script need not be beside Python.
    program = sys.executable.replace("%", "%%")
    shared = {
        "user": getpass.getuser(),
        "directory": str(directory).replace("%", "%%"),
        "program": json.dumps(program, ensure_ascii=False),
    }

    def unit(
        name: str, values: str, settings: Sequence[str], **texts: str
    ) -> _SystemdUnit:
        file = f"/etc/{project}/{name}.env" if values else ""
        # Without "-", which would hide that there is no such file.
        own = [f"# {values}", f"EnvironmentFile={file}"] if values else []
        text = _UNIT.format(settings="\n".join([*own, *settings]), **texts, **shared)
        return _SystemdUnit(f"systemd/{project}-{name}.service", text, file, values)

    # After a failover the file in the directory is not what is in ZooKeeper.
    place = "SQLA_SHARD_TOPOLOGY=zookeeper://..."
    cache = ["Environment=SQLA_SHARD_CACHE=cache.toml"] if has_cache else []
    units = [
        unit(
            "worker",
            " and ".join([place] * has_standbys + [f"{v}=..." for v in variables]),
            # Longer than the 25 seconds that its tasks have to end.
            [*cache, "TimeoutStopSec=35"],
            use="Runs jobs, and what transactions left to do; two machines run it.",
            description=f"Jobs of {project}",
            command="worker --models models --deliver",
        )
    ]
    if has_standbys:
        units.append(
            unit(
                "watcher",
                f"{place} and the accounts of the fleet",
                [],
                use="Promotes the standby of a lost primary; three machines run it.",
                description=f"Failover of {project}",
                command="fleet watch --watchers 3",
            )
        )
    return units
