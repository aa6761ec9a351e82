"""Locations: paths and URLs that name a topology source.

A location that begins with ``zookeeper://`` or ``zookeeper+tls://`` is a
ZooKeeper, any other one a file::

    topology.toml
    zookeeper://zk1:2181,zk2:2181/prod
    zookeeper+tls://zk1:2281/prod?ca=/etc/ssl/zk.pem

Credentials are not part of a location, since messages show it.  They are read
from the environment variable ``SQLA_SHARD_ZOOKEEPER_AUTH``, such as
``digest:user:password``.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any, cast, Literal
from urllib.parse import parse_qsl

from sqla_shard.exc import Problem, TopologyError
from sqla_shard.topology import (
    DEFAULT_PLACEHOLDERS,
    FileSource,
    Topology,
    TopologySource,
)
from sqla_shard.topology.follow.follower import (
    default_path,
    FollowedSource,
    Follower,
    Snapshot,
    SourceReport,
)
from sqla_shard.util.masking import masked, redact

#: Identifies a version of a file.  The time is not sufficient: two writes
#: within one tick of the clock have the same time.
_Signature = tuple[int, int, int, int] | None


class PolledSource:
    """A source that only has ``load()``, called at intervals.

    :param source: an object with a method ``load()``.
    :param interval: seconds between two calls.
    """

    def __init__(self, source: TopologySource, interval: float) -> None:
        self._source = source
        self.interval: float | None = interval

    @property
    def name(self) -> str:
        """The ``repr()`` of the source."""
        return repr(self._source)

    def start(self, notify: Callable[[], None]) -> None:
        """Do nothing: the source is polled."""

    def load(self) -> Topology:
        """Return the current topology."""
        return self._source.load()

    def look(self) -> bool:
        """Return True: the source is loaded each time."""
        return True

    def stop(self) -> None:
        """Do nothing."""

    def forked(self) -> None:
        """Do nothing."""


class FollowedFile(PolledSource):
    """A file, which is read again after a change.

    :param source: the file that is polled.
    :param interval: seconds between two checks of its directory entry.
    """

    def __init__(self, source: FileSource, interval: float = 1.0) -> None:
        super().__init__(source, interval)
        self._path = source.path
        self._seen: _Signature = None

    @property
    def name(self) -> str:
        """The path."""
        return str(self._path)

    def load(self) -> Topology:
        """Read the file."""
        # Stored before reading, so that the next check finds a concurrent
        # change.
        self._seen = self._signature()
        return super().load()

    def look(self) -> bool:
        """Return whether the file has changed since the last read."""
        return self._signature() != self._seen

    def _signature(self) -> _Signature:
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class Fixed:
    """A topology without a source, instead of a :class:`.Follower`.

    It can be replaced by :meth:`.Cluster.update_topology`.

    :param topology: the first topology.
    """

    is_live = False
    is_running = True
    has_read = True

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._changed = threading.Condition()

    @property
    def epoch(self) -> int:
        """The epoch of the topology in use."""
        return self._topology.epoch

    def replace(self, topology: Topology) -> None:
        """Record another topology, which is already in use."""
        with self._changed:
            self._topology = topology
            self._changed.notify_all()

    def start(self) -> None:
        """Do nothing."""

    def refresh(self) -> None:
        """Do nothing: there is no source."""

    def wait(self, epoch: int, timeout: float) -> bool:
        """Wait for a newer topology; see :meth:`.Follower.wait`."""
        with self._changed:
            return self._changed.wait_for(lambda: self.epoch != epoch, timeout)

    def wait_read(self, timeout: float) -> None:
        """Do nothing: there is no source."""

    def report(self) -> SourceReport:
        """Return the state: fixed."""
        return SourceReport(
            source="the application", state="fixed", epoch=self.epoch, age=0.0
        )

    def after_fork(self) -> None:
        """Replace the lock, which a thread of the parent may hold."""
        self._changed = threading.Condition()

    def close_soon(self) -> None:
        """Do nothing."""

    def close(self, timeout: float) -> bool:
        """Do nothing."""
        return True


AUTH_VARIABLE = "SQLA_SHARD_ZOOKEEPER_AUTH"

"""Environment variable with the credentials for ZooKeeper."""

_SCHEME = "zookeeper://"

_TLS_SCHEME = "zookeeper+tls://"

#: A host, or an IPv6 address in brackets, and a port.
_HOST = re.compile(r"(?:[^\s:\[\]]+|\[[0-9A-Fa-f:.%]+\])(?::[0-9]{1,5})?")

_TLS_OPTIONS = frozenset({"ca", "certfile", "keyfile"})


def is_zookeeper(location: object) -> bool:
    """Return whether a location is the URL of a ZooKeeper."""
    return isinstance(location, str) and location.startswith((_SCHEME, _TLS_SCHEME))


def source_at(
    location: str | os.PathLike[str],
    *,
    placeholders: Collection[str] = DEFAULT_PLACEHOLDERS,
    environ: Mapping[str, str] | None = None,
    register: Mapping[str, str] | None = None,
) -> FollowedSource:
    """Return the source of a location, without opening it.

    :param location: a path, or the URL of a ZooKeeper.
    :param placeholders: see :meth:`Topology.from_mapping`.
    :param environ: see :meth:`Topology.from_mapping`.
    :param register: see
        :class:`~sqla_shard.topology.zookeeper.source.ZooKeeperSource`; a file
        has no such nodes.
    :raises TopologyError: if the location is not valid.
    :raises MissingExtraError: if the location is a ZooKeeper, and kazoo is not
        installed.
    """
    if not is_zookeeper(location):
        file = FileSource(location, placeholders=placeholders, environ=environ)
        return FollowedFile(file)
    hosts, options = zookeeper_options(str(location))
    from sqla_shard.topology.zookeeper.source import ZooKeeperSource

    return ZooKeeperSource(
        hosts,
        options=options,
        placeholders=placeholders,
        environ=environ,
        register=register,
    )


def load_location(
    location: str | os.PathLike[str],
    *,
    placeholders: Collection[str] = DEFAULT_PLACEHOLDERS,
    environ: Mapping[str, str] | None = None,
) -> Topology:
    """Return the topology of a location; see :func:`source_at`.

    :raises TopologyUnavailableError: if a ZooKeeper does not respond, or has
        no topology.
    """
    source = source_at(location, placeholders=placeholders, environ=environ)
    try:
        return source.load()
    finally:
        source.stop()


def followed(source: TopologySource, interval: float = 5.0) -> FollowedSource:
    """Return a source that can be followed.

    :param source: returned unchanged if it can be followed; else it is
        polled.
    :param interval: seconds between two polls.
    """
    if isinstance(source, FileSource):
        return FollowedFile(source)
    if hasattr(source, "start") and hasattr(source, "look"):
        return cast(FollowedSource, source)
    return PolledSource(source, interval)


def zookeeper_options(location: str) -> tuple[str, dict[str, Any]]:
    """Return the connection string of a location, and options of kazoo.

    :param location: begins with ``zookeeper://`` or ``zookeeper+tls://``.
        :raises TopologyError: if the location is not valid.
    """
    tls = location.startswith(_TLS_SCHEME)
    rest = location[len(_TLS_SCHEME if tls else _SCHEME) :]
    hosts, _, query = rest.partition("?")
    check_hosts(
        # A password may contain a question mark.
        rest if "@" in rest else hosts,
        credentials=f"put them into the environment, {AUTH_VARIABLE}",
    )
    options: dict[str, Any] = {"use_ssl": True} if tls else {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if not tls or name not in _TLS_OPTIONS:
            known = ", ".join(sorted(_TLS_OPTIONS))
            raise _refusal(
                "query",
                f"{masked(name)} is not a valid option; {_TLS_SCHEME} has {known}",
            )
        options[name] = value
    credentials = os.environ.get(AUTH_VARIABLE)
    if credentials:
        scheme, at, secret = credentials.partition(":")
        if not at:
            raise _refusal(
                AUTH_VARIABLE, "must be scheme:credentials, as digest:me:pass"
            )
        options["auth_data"] = [(scheme, secret)]
    return hosts.rstrip("/"), options


def check_hosts(hosts: str, *, credentials: str) -> None:
    """Check a connection string without connecting.

    :param hosts: ``host:port,host:port/path``.
    :param credentials: advice for credentials in it, for the message.
    :raises TopologyError: if ``hosts`` contains credentials, or an invalid
        host or port.
    """
    # Check the path too: a password may contain a slash.
    if "@" in hosts:
        raise _refusal("hosts", f"must not contain credentials; {credentials}")
    if "?" in hosts:
        raise _refusal("hosts", "must not contain options; remove the '?'")
    address, _, _ = hosts.partition("/")
    for part in address.split(","):
        if not _HOST.fullmatch(part.strip()):
            raise _refusal(
                "hosts",
                f"{redact(_SCHEME + address)!r} has an invalid host or port; "
                "write host:port,host:port/path",
            )


def _refusal(place: str, message: str) -> TopologyError:
    return TopologyError([Problem(place, message)], source="zookeeper URL")


#: File of the last good topology: a path, None for the default path, False
#: for no file.
SnapshotPath = str | os.PathLike[str] | Literal[False] | None


def open_follower(
    source: FollowedSource,
    *,
    snapshot: SnapshotPath,
    placeholders: Collection[str],
    environ: Mapping[str, str] | None,
    reread: float = 60.0,
) -> Follower:
    """Return a follower with its first topology.

    :param snapshot: see :data:`SnapshotPath`.
    :param placeholders: see :meth:`Topology.from_mapping`.
    :param environ: see :meth:`Topology.from_mapping`.
    :param reread: see :class:`Follower`.
    :raises TopologyUnavailableError: if there is no topology.
    :raises TopologyError: if it is not valid.
    """
    file = None
    if snapshot is not False:
        path = default_path(source.name) if snapshot is None else snapshot
        file = Snapshot(path, placeholders=placeholders, environ=environ)
    follower = Follower(source, snapshot=file, reread=reread)
    try:
        follower.begin()
    except BaseException:
        # Otherwise the session of the source would stay open.
        follower.close_soon()
        raise
    return follower
