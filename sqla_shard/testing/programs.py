"""The programs of the servers: their paths, and how to install them.

Standard library only: the pytest plugin imports it on every run.

Environment variables:

``SQLA_SHARD_MARIADB``
    Directory of an unpacked MariaDB to use instead of the one on the
    path, such as ``/opt/mariadb-11.4``.
``SQLA_SHARD_MYSQL``
    Directory of an unpacked MySQL to use instead of the ``mysqld`` on the
    path, such as ``/opt/mysql-8.4.3``.
``SQLA_SHARD_MEMCACHED``
    Program to use instead of the ``memcached`` on the path, such as
    ``/opt/memcached-1.6.21/memcached``.
``SQLA_SHARD_REDIS``
    Program to use instead of the ``redis-server`` on the path.
``SQLA_SHARD_ZOOKEEPER``
    Directory of an unpacked ZooKeeper, or of its jars, to use instead of
    the one of the system, such as ``/opt/apache-zookeeper-3.8.4-bin``.
``JAVA_HOME``
    Directory of the Java to use instead of the one on the path.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

MISSING_MARIADB = "MariaDB is not installed: apt-get install mariadb-server"

"""Reason of a test that is skipped without MariaDB."""

MISSING_MYSQL = (
    "MySQL 8.4 or later is not installed: name its directory in SQLA_SHARD_MYSQL"
)

"""Reason of a test that is skipped without MySQL."""

MISSING_MEMCACHED = "memcached is not installed: apt-get install memcached"

"""Reason of a test that is skipped without memcached."""

MISSING_REDIS = "Redis is not installed: apt-get install redis-server"

"""Reason of a test that is skipped without Redis."""

# Debian installs mariadbd in /usr/sbin, which ordinary users lack in PATH.
_ALSO = ("/usr/sbin", "/usr/local/sbin", "/usr/local/bin")


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabasePrograms:
    """The programs of a database server."""

    server: str
    """Path of ``mariadbd`` or ``mysqld``."""

    install: str
    """Path of the program that creates a data directory."""

    base: str | None
    """Directory of an unpacked server; None for the one of the system."""

    @property
    def options(self) -> list[str]:
        """First arguments of both programs, which disable option files."""
        base = [] if self.base is None else [f"--basedir={self.base}"]
        return ["--no-defaults", *base]

    def find(self, name: str) -> str | None:
        """Return the path of a client program of the same version.

        :param name: such as ``mysqlbinlog``.
        """
        folder = os.path.dirname(self.server)
        # A system has servers in /usr/sbin and clients in /usr/bin.
        folders = [folder, os.path.join(folder, os.pardir, "bin")]
        return shutil.which(name, path=os.pathsep.join(folders))


def find_mariadb(environ: Mapping[str, str] = os.environ) -> DatabasePrograms | None:
    """Return the programs of MariaDB.

    :param environ: the environment to read.
    :return: the programs; None if one of them is not installed.
    """
    base = environ.get("SQLA_SHARD_MARIADB") or None
    path = _path_of_servers(base, environ)
    server = shutil.which("mariadbd", path=path)
    install = shutil.which("mariadb-install-db", path=path)
    if server is None or install is None:
        return None
    return DatabasePrograms(server=server, install=install, base=base)


def find_mysql(environ: Mapping[str, str] = os.environ) -> DatabasePrograms | None:
    """Return the programs of MySQL.

    :param environ: the environment to read.
    :return: the programs; None if MySQL is not installed, or is older than
        8.4.
    """
    base = environ.get("SQLA_SHARD_MYSQL") or None
    server = shutil.which("mysqld", path=_path_of_servers(base, environ))
    # MariaDB installs its server by this name, too, as a link.
    if (
        server is None
        or os.path.basename(os.path.realpath(server)) != "mysqld"
        or _is_old(server)
    ):
        return None
    return DatabasePrograms(server=server, install=server, base=base)


@cache
def _is_old(server: str) -> bool:
    """Return whether a server says that it is a MySQL before 8.4."""
    # The one of Ubuntu 24.04 is 8.0, which refuses options and statements.
    try:
        done = subprocess.run(
            [server, "--no-defaults", "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
        )
    except (OSError, subprocess.SubprocessError):
        return False  # a start will tell
    found = re.search(r" Ver (\d+)\.(\d+)", done.stdout)
    return found is not None and (int(found[1]), int(found[2])) < (8, 4)


def _path_of_servers(base: str | None, environ: Mapping[str, str]) -> str:
    if base:
        folders = [os.path.join(base, f) for f in ("bin", "sbin", "scripts")]
    else:
        folders = [environ.get("PATH", os.defpath), *_ALSO]
    return os.pathsep.join(folders)


def find_memcached(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the path of memcached, or None if it is not installed.

    :param environ: the environment to read.
    """
    program = environ.get("SQLA_SHARD_MEMCACHED") or "memcached"
    return _find(program, environ)


def find_redis(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the path of Redis, or None if it is not installed.

    :param environ: the environment to read.
    """
    program = environ.get("SQLA_SHARD_REDIS") or "redis-server"
    return _find(program, environ)


def _find(program: str, environ: Mapping[str, str]) -> str | None:
    folders = [environ.get("PATH", os.defpath), *_ALSO, "/usr/bin"]
    return shutil.which(program, path=os.pathsep.join(folders))


MISSING_ZOOKEEPER = (
    "ZooKeeper is not installed: apt-get install libzookeeper-java default-jre-headless"
)

"""Reason of a test that is skipped without ZooKeeper or Java."""

# The jars of the package libzookeeper-java; the packages zookeeper and
# zookeeperd would add a user and a service.
_SYSTEM = Path("/usr/share/java")

_NEEDED = ("zookeeper", "zookeeper-jute", "slf4j-api")

# Netty is used for TLS only, but some of its classes are always loaded.
_USEFUL = (
    "slf4j-simple",
    "metrics-core",
    "snappy-java",
    "commons-cli",
    "commons-io",
    "netty-buffer",
    "netty-codec",
    "netty-common",
    "netty-handler",
    "netty-resolver",
    "netty-transport",
    "netty-transport-native-epoll",
    "netty-transport-native-unix-common",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeperPrograms:
    """Paths of ``java`` and of the jars of ZooKeeper."""

    java: str
    """Path of ``java``."""

    classpath: str
    """Class path of ZooKeeper and its dependencies."""


def find_zookeeper(environ: Mapping[str, str] = os.environ) -> ZooKeeperPrograms | None:
    """Return the programs of ZooKeeper, or None if one is not installed.

    :param environ: the environment to read.
    """
    home = environ.get("JAVA_HOME")
    path = environ.get("PATH", os.defpath)
    java = shutil.which("java", path=f"{home}/bin" if home else path)
    base = environ.get("SQLA_SHARD_ZOOKEEPER")
    found = _unpacked(Path(base)) if base else _installed(_SYSTEM)
    if java is None or not found:
        return None
    return ZooKeeperPrograms(java=java, classpath=os.pathsep.join(map(str, found)))


def _installed(folder: Path) -> list[Path]:
    """Return the jars of ZooKeeper among those of all packages."""
    if not all((folder / f"{name}.jar").is_file() for name in _NEEDED):
        return []
    jars = [folder / f"{name}.jar" for name in (*_NEEDED, *_USEFUL)]
    return [jar for jar in jars if jar.is_file()]


def _unpacked(base: Path) -> list[Path]:
    """Return all jars of a directory and of its ``lib``."""
    jars = sorted([*base.glob("*.jar"), *base.glob("lib/*.jar")])
    names = [jar.name for jar in jars]
    if not any(name.startswith("zookeeper-jute") for name in names):
        return []
    return jars
