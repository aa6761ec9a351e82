"""Files that run the project of ``sqla-shard init``: docker compose, systemd."""

from __future__ import annotations

import getpass
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

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


def compose_urls(servers: int) -> tuple[str, ...]:
    """Return the URLs of the servers of :func:`compose_files`."""
    return tuple(
        f"mysql://app:${{MYSQL_PASSWORD}}@127.0.0.1:{_FIRST_PORT + number}"
        for number in range(servers)
    )


def compose_files(project: str, servers: Sequence[str]) -> dict[str, str]:
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


class Unit(NamedTuple):
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


def systemd_units(
    project: str,
    directory: Path,
    variables: Sequence[str],
    *,
    has_cache: bool,
    has_standbys: bool,
) -> list[Unit]:
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

    def unit(name: str, values: str, settings: Sequence[str], **texts: str) -> Unit:
        file = f"/etc/{project}/{name}.env" if values else ""
        # Without "-", which would hide that there is no such file.
        own = [f"# {values}", f"EnvironmentFile={file}"] if values else []
        text = _UNIT.format(settings="\n".join([*own, *settings]), **texts, **shared)
        return Unit(f"systemd/{project}-{name}.service", text, file, values)

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
