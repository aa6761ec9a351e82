"""Where MariaDB, memcached and Redis are, and what to do where they are not.

Standard library only: the pytest plugin asks on every run.

Environment variables:

``SQLA_SHARD_MARIADB``
    Directory of an unpacked MariaDB to use in place of the one on the
    path, such as ``/opt/mariadb-11.4``.
``SQLA_SHARD_MEMCACHED``
    Program to use in place of the ``memcached`` on the path, such as
    ``/opt/memcached-1.6.21/memcached``.
``SQLA_SHARD_REDIS``
    Program to use in place of the ``redis-server`` on the path.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = [
    "MISSING",
    "MISSING_MEMCACHED",
    "MISSING_REDIS",
    "Binaries",
    "find_binaries",
    "find_memcached",
    "find_redis",
]

MISSING = "MariaDB is not installed: apt-get install mariadb-server"
"""What to tell somebody whose machine has no MariaDB."""

MISSING_MEMCACHED = "memcached is not installed: apt-get install memcached"
"""What to tell somebody whose machine has no memcached."""

MISSING_REDIS = "Redis is not installed: apt-get install redis-server"
"""What to tell somebody whose machine has no Redis."""

# Debian keeps mariadbd in /usr/sbin, which ordinary users lack in PATH: they
# would be told to install what they have.
_ALSO = ("/usr/sbin", "/usr/local/sbin", "/usr/local/bin")


@dataclass(frozen=True, slots=True, kw_only=True)
class Binaries:
    """The two programs that a server for tests needs."""

    server: str
    """Path of ``mariadbd``."""

    install: str
    """Path of ``mariadb-install-db``."""

    base: str | None
    """Directory of an unpacked MariaDB; None for one of the system."""

    @property
    def options(self) -> list[str]:
        """First arguments of both: no option files of this machine."""
        base = [] if self.base is None else [f"--basedir={self.base}"]
        return ["--no-defaults", *base]


def find_binaries(environ: Mapping[str, str] = os.environ) -> Binaries | None:
    """Look for MariaDB; nothing is started.

    :param environ: the environment to read.
    :return: the programs, or None where one of them is missing.
    """
    base = environ.get("SQLA_SHARD_MARIADB")
    if base:
        folders = [os.path.join(base, f) for f in ("bin", "sbin", "scripts")]
    else:
        folders = [environ.get("PATH", os.defpath), *_ALSO]
    path = os.pathsep.join(folders)
    server = shutil.which("mariadbd", path=path)
    install = shutil.which("mariadb-install-db", path=path)
    if server is None or install is None:
        return None
    return Binaries(server=server, install=install, base=base or None)


def find_memcached(environ: Mapping[str, str] = os.environ) -> str | None:
    """Look for memcached; nothing is started.

    :param environ: the environment to read.
    :return: the program, or None where it is missing.
    """
    program = environ.get("SQLA_SHARD_MEMCACHED") or "memcached"
    return _find(program, environ)


def find_redis(environ: Mapping[str, str] = os.environ) -> str | None:
    """Look for Redis; nothing is started.

    :param environ: the environment to read.
    :return: the program, or None where it is missing.
    """
    program = environ.get("SQLA_SHARD_REDIS") or "redis-server"
    return _find(program, environ)


def _find(program: str, environ: Mapping[str, str]) -> str | None:
    folders = [environ.get("PATH", os.defpath), *_ALSO, "/usr/bin"]
    return shutil.which(program, path=os.pathsep.join(folders))
