"""What a ZooKeeper server for tests is told: its file and its command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sqla_shard.testing.certificates import Certificates
from sqla_shard.testing.jars import Jars

__all__ = ["Membership", "command", "configuration"]

_HOST = "127.0.0.1"
_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """The place of a server in an ensemble.

    :ivar number: its own, from 1.
    :ivar peers: by number, the ports of each for followers and for votes.
    """

    number: int
    peers: Mapping[int, tuple[int, int]]

    @property
    def settings(self) -> dict[str, str]:
        """The part of the file that all members have alike."""
        return {
            f"server.{number}": f"{_HOST}:{followers}:{votes}"
            for number, (followers, votes) in self.peers.items()
        }


def configuration(
    data: Path,
    *,
    port: int,
    tick: int,
    membership: Membership | None,
    certificates: Certificates | None,
    options: Mapping[str, str],
) -> str:
    """Return the text of ``zoo.cfg``.

    :param data: where the server keeps its data.
    :param options: further settings; they win.
    """
    settings = {
        "dataDir": str(data),
        "tickTime": str(tick),
        # In ticks.  The first is patience with a machine that is busy, the
        # second is what a paused leader costs.
        "initLimit": str(max(2, 10_000 // tick)),
        "syncLimit": str(max(2, 2_000 // tick)),
        # As with ticks of two seconds: a client that asks for a long
        # session gets one.
        "maxSessionTimeout": "40000",
        "maxClientCnxns": "0",
        "admin.enableServer": "false",
        "4lw.commands.whitelist": "ruok,srvr,mntr",
        # The data outlives kill(), not a power failure.
        "forceSync": "no",
        "preAllocSize": "1024",
    }
    if certificates is None:
        settings["clientPort"] = str(port)
        settings["clientPortAddress"] = _HOST
    else:
        settings |= {
            "secureClientPort": str(port),
            "secureClientPortAddress": _HOST,
            "serverCnxnFactory": (
                "org.apache.zookeeper.server.NettyServerCnxnFactory"
            ),
            "ssl.keyStore.location": str(certificates.server),
            "ssl.keyStore.type": "PEM",
            "ssl.trustStore.location": str(certificates.ca),
            "ssl.trustStore.type": "PEM",
        }
    if membership is not None:
        settings |= membership.settings
    settings |= options
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def command(jars: Jars, file: Path) -> list[str]:
    """Return the command line that runs a server.

    :param file: its ``zoo.cfg``.
    """
    return [
        jars.java,
        "-Xmx96m",
        # What follows is for a quick start: 0.3 s in place of 0.45 s.
        "-Xshare:auto",
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        # Would leave a file in /tmp after SIGKILL.
        "-XX:-UsePerfData",
        "-Djava.awt.headless=true",
        "-Dzookeeper.jmx.log4j.disable=true",
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
        *("-cp", jars.classpath, _MAIN, str(file)),
    ]
