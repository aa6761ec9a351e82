"""Where MariaDB is on this machine, and what to do where it is not.

Standard library only: the pytest plugin asks on every run.

Environment variables:

``SQLA_SHARD_MARIADB``
    Directory of an unpacked MariaDB to use in place of the one on the
    path, such as ``/opt/mariadb-11.4``.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["MISSING", "Binaries", "find_binaries"]

MISSING = "MariaDB is not installed: apt-get install mariadb-server"
"""What to tell somebody whose machine has no MariaDB."""

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
