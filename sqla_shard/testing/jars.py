"""Where ZooKeeper and Java are on this machine, and what to do without.

Standard library only: the pytest plugin asks where a test wants a server.

Environment variables:

``SQLA_SHARD_ZOOKEEPER``
    Directory of an unpacked ZooKeeper, or of its jars, to use in place of
    the one of the system, such as ``/opt/apache-zookeeper-3.8.4-bin``.
``JAVA_HOME``
    Directory of the Java to use in place of the one on the path.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MISSING_ZOOKEEPER", "Jars", "find_zookeeper"]

MISSING_ZOOKEEPER = (
    "ZooKeeper is not installed: apt-get install libzookeeper-java "
    "default-jre-headless"
)
"""What to tell somebody whose machine has no ZooKeeper or no Java."""

# The package zookeeper would add a user, and zookeeperd a service; this is
# where the jars are that both depend on.
_SYSTEM = Path("/usr/share/java")
_NEEDED = ("zookeeper", "zookeeper-jute", "slf4j-api")
# Netty is for TLS alone, but some of its classes are loaded without.
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
class Jars:
    """What a ZooKeeper server for tests is made of."""

    java: str
    """Path of ``java``."""

    classpath: str
    """Where Java finds ZooKeeper, and all that it needs."""


def find_zookeeper(environ: Mapping[str, str] = os.environ) -> Jars | None:
    """Look for ZooKeeper and Java; nothing is started.

    :param environ: the environment to read.
    :return: what was found, or None where any of it is missing.
    """
    home = environ.get("JAVA_HOME")
    path = environ.get("PATH", os.defpath)
    java = shutil.which("java", path=f"{home}/bin" if home else path)
    base = environ.get("SQLA_SHARD_ZOOKEEPER")
    found = _unpacked(Path(base)) if base else _installed(_SYSTEM)
    if java is None or not found:
        return None
    return Jars(java=java, classpath=os.pathsep.join(map(str, found)))


def _installed(folder: Path) -> list[Path]:
    """Choose among the jars of all packages: only those of ZooKeeper."""
    if not all((folder / f"{name}.jar").is_file() for name in _NEEDED):
        return []
    jars = [folder / f"{name}.jar" for name in (*_NEEDED, *_USEFUL)]
    return [jar for jar in jars if jar.is_file()]


def _unpacked(base: Path) -> list[Path]:
    """Take all jars of a directory and of its ``lib``."""
    jars = sorted([*base.glob("*.jar"), *base.glob("lib/*.jar")])
    names = [jar.name for jar in jars]
    if not any(name.startswith("zookeeper-jute") for name in names):
        return []
    return jars
