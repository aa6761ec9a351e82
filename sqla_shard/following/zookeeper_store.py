"""Nodes in ZooKeeper that are written, through kazoo.

Two nodes at a time, in a transaction; nothing here knows what they hold.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from typing import TYPE_CHECKING

# First, for it tells what to do where kazoo is not installed.
from sqla_shard.following.zookeeper import ZooKeeperConnection  # isort: skip

from kazoo.exceptions import BadVersionError
from kazoo.exceptions import KazooException
from kazoo.exceptions import NoAuthError
from kazoo.exceptions import NodeExistsError
from kazoo.exceptions import NoNodeError
from kazoo.exceptions import RolledBackError
from kazoo.exceptions import RuntimeInconsistency
from kazoo.security import ACL
from kazoo.security import make_acl
from kazoo.security import READ_ACL_UNSAFE

from sqla_shard.exc import TopologyUnavailableError
from sqla_shard.following.locations import AUTH_VARIABLE
from sqla_shard.following.publications import ProtectedNode
from sqla_shard.following.zookeeper_acls import acl_of_first
from sqla_shard.following.zookeeper_acls import is_open
from sqla_shard.following.zookeeper_acls import parse_acls
from sqla_shard.following.zookeeper_acls import shown

if TYPE_CHECKING:
    from kazoo.client import KazooClient

__all__ = ["NodeStat", "StoredNode", "ZooKeeperStore"]


@dataclass(frozen=True, kw_only=True)
class StoredNode:
    """A node, as it was read.

    :ivar data: its bytes.
    :ivar version: how often it was changed.
    """

    data: bytes
    version: int


@dataclass(frozen=True, kw_only=True)
class NodeStat:
    """What is known of a node without reading it.

    :ivar created: when, by the clock of the server, in seconds.
    :ivar size: of its bytes.
    """

    created: float
    size: int


class ZooKeeperStore:
    """Nodes below a path, to be written.

    Paths that are missing are made.  Nodes that are made have the ACL that is
    given, or ``default_acl`` of kazoo's options.  Without one they have that
    of the node that they are a copy of, or of what is above them, where it
    is protected.  Else, where there is ``auth_data``, all may read and who
    has those credentials may write; without it everybody may write.

    :param hosts: ``host:port,host:port/path``.
    :param timeout: seconds to wait for an answer.
    :param options: further arguments of :class:`kazoo.client.KazooClient`.
    :param acl: of nodes that are made, as
        :func:`~sqla_shard.following.zookeeper_acls.parse_acls` reads it.
    :raises TopologyError: when that is none.
    """

    def __init__(
        self,
        hosts: str,
        *,
        timeout: float = 5.0,
        options: Mapping[str, Any] | None = None,
        acl: Sequence[str] = (),
    ) -> None:
        options = dict(options or {})
        if acl:
            options["default_acl"] = parse_acls(acl)
        #: Whether the caller has given an ACL.
        self._is_given = bool(options.get("default_acl"))
        #: The ACL of what is written, None for the default of the client.
        self._of_new: list[ACL] | None = None
        if options.get("auth_data") and not options.get("default_acl"):
            mine = make_acl("auth", "", all=True)
            options["default_acl"] = [mine, *READ_ACL_UNSAFE]
        # Not as kazoo's own path, of which it makes the last part only.
        servers, _, path = hosts.partition("/")
        self._path = f"/{path}".rstrip("/")
        self._connection = ZooKeeperConnection(
            servers,
            timeout=timeout,
            options=options,
            name=f"zookeeper://{hosts}",
        )

    @property
    def name(self) -> str:
        """The connection string, which has no password."""
        return self._connection.name

    def read(self, node: str) -> StoredNode | None:
        """Return a node, or None where there is none.

        :raises TopologyUnavailableError: when it cannot be read.
        """
        try:
            data, stat = self._ask(
                lambda client: client.get_async(self._path + node)
            )
        except NoNodeError:
            return None
        return StoredNode(data=data, version=stat.version)

    def names(self, node: str) -> list[str]:
        """Return the names of the nodes below one; none where it is missing.

        :raises TopologyUnavailableError: when it cannot be read.
        """
        try:
            found: list[str] = self._ask(
                lambda client: client.get_children_async(self._path + node)
            )
        except NoNodeError:
            return []
        return found

    def stats(self, nodes: Iterable[str]) -> list[NodeStat | None]:
        """Return what is known of nodes, with one wait for all.

        :raises TopologyUnavailableError: when no server answers.
        """
        client = self._connection.client()
        asked = [client.exists_async(self._path + node) for node in nodes]
        found = [self._answer(one) for one in asked]
        return [
            None
            if stat is None
            else NodeStat(created=stat.created, size=stat.data_length)
            for stat in found
        ]

    def sync(self) -> None:
        """Have the next read see all that was written before.

        :raises TopologyUnavailableError: when no server answers.
        """
        self._ask(lambda client: client.sync_async(self._path or "/"))

    def prepare(self, folder: str, *, like: str) -> None:
        """Make a folder, and those above it, where they are missing.

        What is written into it from now on gets the ACL of a node, or of
        the folder where there is no such node.

        :param like: that node.
        :raises TopologyUnavailableError: when they cannot be made, or it is
            not known who may read what is written.
        """
        path = self._path + folder
        if self._ask(lambda client: client.exists_async(path)) is None:
            acl = self._acl(*_upwards(path))
            self._ask(lambda client: client.ensure_path_async(path, acl=acl))
        self._of_new = self._acl(self._path + like, path)

    def open_nodes(self, nodes: Iterable[str]) -> list[str]:
        """Return the paths of those that everybody may change.

        :param nodes: those that are missing are left out, and those whose
            ACL these credentials may not read.
        :raises TopologyUnavailableError: when no server answers.
        """
        found = self._acls(nodes)
        return [path for path, acl in found.items() if is_open(acl)]

    def _acls(self, nodes: Iterable[str]) -> dict[str, list[ACL]]:
        client = self._connection.client()
        paths = [self._path + node or "/" for node in nodes]
        asked = [client.get_acls_async(path) for path in paths]
        found = {}
        for path, one in zip(paths, asked, strict=True):
            with suppress(NoNodeError, NoAuthError):
                found[path], _ = self._connection.ask(lambda client: one)  # noqa: B023 # called at once
        return found

    def protect(
        self, node: str, others: Iterable[str], *, folder: str, dry_run: bool
    ) -> list[ProtectedNode]:
        """Give nodes the ACL of one, which is protected first if need be.

        :param node: it gets the ACL that was given, or, where everybody may
            change it, that of nodes which are made with these credentials.
        :param others: they get that of the node.
        :param folder: likewise, where everybody may change it, unless it is
            the root of the ZooKeeper, which belongs to others, too.
        :param dry_run: write nothing.
        :returns: the nodes that were changed, or would be.
        :raises TopologyUnavailableError: when the node is missing, the ACLs
            may not be changed, or neither an ACL nor credentials were given.
        """
        path = self._path + node
        held = self._acls([node, *others, folder])
        if path not in held:
            raise self.unavailable(
                "nothing was published there, or its ACL may not be read"
            )
        done = []
        target = held[path]
        if self._is_given or is_open(target):
            wanted = self._connection.default_acl
            if not wanted:
                raise self.unavailable(
                    f"nobody is known who may write: set {AUTH_VARIABLE}, or "
                    "say who may do what with --acl (Publisher(acl=...))"
                )
            done.append(self._protected(path, target, wanted, dry_run))
            if not dry_run:
                # What ZooKeeper makes of "auth" is known to it alone.
                target = self._acls([node])[path]
        unknown = dry_run and bool(done)
        above = self._path + folder or "/"
        for other, acl in held.items():
            if other == path or (other == above and not is_open(acl)):
                continue
            if other != "/" and (unknown or set(acl) != set(target)):
                done.append(self._protected(other, acl, target, dry_run))
        return done

    def _protected(
        self, path: str, old: list[ACL], new: list[ACL], dry_run: bool
    ) -> ProtectedNode:
        if dry_run:
            return ProtectedNode(path=path, old=shown(old), new=None)
        # Somebody may have removed it, as too old for the history.
        with suppress(NoNodeError):
            self._ask(lambda client: client.set_acls_async(path, new))
        return ProtectedNode(path=path, old=shown(old), new=shown(new))

    def _acl(self, *paths: str) -> list[ACL] | None:
        """Return the ACL for a new node; None for the default."""
        if self._is_given:
            return None
        try:
            return acl_of_first(self._connection, paths)
        except KazooException as error:
            raise self._refused(error) from error

    def connect(self) -> None:
        """Wait for a connection.

        :raises TopologyUnavailableError: when there is none.
        """
        self._connection.client()

    def write(
        self, data: bytes, *, node: str, version: int | None, copy: str
    ) -> int | None:
        """Change a node and make a copy of it, both or neither.

        :meth:`prepare` comes first.

        :param node: what to change.
        :param version: that it must have; None makes it.
        :param copy: a node that is made.
        :returns: its new version; None where it has another one by now, or
            one of the two that are to be made is there.
        :raises TopologyUnavailableError: when it may not be written, or the
            connection was lost, and nobody knows whether it was written.
        """
        path, acl = self._path + node, self._of_new

        def commit(client: KazooClient) -> Any:
            transaction = client.transaction()
            if version is None:
                transaction.create(path, data, acl=acl)
            else:
                transaction.set_data(path, data, version)
            transaction.create(self._path + copy, data, acl=acl)
            return transaction.commit_async()

        results = self._ask(commit)
        failed = [one for one in results if isinstance(one, Exception)]
        if not failed:
            return 0 if version is None else int(results[0].version)
        for one in failed:
            if isinstance(one, (BadVersionError, NodeExistsError)):
                return None
            if isinstance(one, NoNodeError) and version is not None:
                return None
        reasons = [
            one
            for one in failed
            if not isinstance(one, (RolledBackError, RuntimeInconsistency))
        ]
        raise self._refused((reasons or failed)[0])

    def remove(self, nodes: Iterable[str]) -> None:
        """Remove nodes, where they are there.

        :raises TopologyUnavailableError: when one cannot be removed.
        """
        for node in nodes:
            self._remove(self._path + node)

    def _remove(self, path: str) -> None:
        try:
            self._ask(lambda client: client.delete_async(path))
        except NoNodeError:
            # Somebody else has removed it, which is as good.
            return

    def unavailable(self, reason: str) -> TopologyUnavailableError:
        """Return the error for a reason."""
        return self._connection.unavailable(reason)

    def close(self) -> None:
        """End the session."""
        self._connection.close()

    def _ask(self, call: Callable[[KazooClient], Any]) -> Any:
        try:
            return self._connection.ask(call)
        except NoNodeError:
            raise
        except KazooException as error:
            raise self._refused(error) from error

    def _answer(self, asked: Any) -> Any:
        return self._ask(lambda client: asked)

    def _refused(self, error: Exception) -> TopologyUnavailableError:
        if isinstance(error, NoAuthError):
            return self.unavailable(
                "NoAuthError: these credentials may not do it, or none were "
                f"given; set {AUTH_VARIABLE} to some that may"
            )
        what = f"{type(error).__name__}: {error}".removesuffix(": ")
        return self.unavailable(f"ZooKeeper has refused it ({what})")


def _upwards(path: str) -> Iterator[str]:
    """Yield a path and all above it."""
    while path:
        yield path
        path = path.rpartition("/")[0]
    yield "/"
