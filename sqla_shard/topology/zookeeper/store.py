"""Nodes in ZooKeeper, written in transactions, and their ACLs.

A node does not inherit the ACL of its parent: without its own ACL, anyone
can change it.  So new nodes get the ACL of a sibling, or of the parent, if
that is protected.  A user who can write the topology can get the passwords of
the databases by redirecting processes to another server.
"""

from __future__ import annotations

# Import this first: it raises MissingExtraError if kazoo is not installed.
from sqla_shard.topology.zookeeper.source import OWN_ACL  # isort: skip
from sqla_shard.topology.zookeeper.source import ZooKeeperConnection  # isort: skip

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import methodcaller
from typing import Any, TYPE_CHECKING, TypeAlias

from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.security import ACL, make_acl, OPEN_ACL_UNSAFE, Permissions

from sqla_shard.exc import Problem, TopologyError, TopologyUnavailableError
from sqla_shard.topology.follow.locations import AUTH_VARIABLE

if TYPE_CHECKING:
    from kazoo.client import KazooClient

_FORM = re.compile(r"(?P<scheme>[a-z0-9]+):(?P<id>.*):(?P<perms>[cdrwa]+)")
_PERMISSIONS = {"c": "create", "d": "delete", "r": "read", "w": "write", "a": "admin"}
#: Replaces a digest for users who cannot change the ACL.
_HIDDEN = re.compile(r"[^:]*:x")


def parse_acls(texts: Sequence[str]) -> list[ACL]:
    """Return the ACL of strings such as ``"world:anyone:r"``.

    :param texts: ``scheme:id:permissions`` each, as in zkCli; permissions are
        letters of ``cdrwa``.
    :raises TopologyError: if a string has another form.
    """
    acls = []
    for text in texts:
        match = _FORM.fullmatch(text)
        if match is None:
            raise TopologyError(
                [
                    Problem(
                        "acl",
                        f"{text!r} is not scheme:id:permissions; write it as "
                        "auth::cdrwa, world:anyone:r or digest:USER:HASH:r",
                    )
                ],
                source="zookeeper",
            )
        allowed = {_PERMISSIONS[letter]: True for letter in match["perms"]}
        acls.append(make_acl(match["scheme"], match["id"], **allowed))
    return acls


def acl_of_first(
    connection: ZooKeeperConnection, paths: Sequence[str]
) -> list[ACL] | None:
    """Return the ACL for a new node; None if it needs none.

    :param paths: paths of nodes; the ACL of the first existing one is
        returned.
    :raises TopologyUnavailableError: if the ACL of the node cannot be read
        completely.
    """
    for path in paths:
        try:
            acls: list[ACL]
            acls, _ = connection.ask(methodcaller("get_acls_async", path))
        except NoNodeError:
            continue
        except NoAuthError:
            raise connection.unavailable(_unseen(path)) from None
        if set(acls) == set(OPEN_ACL_UNSAFE):
            return None
        if any(
            one.id.scheme == "digest" and _HIDDEN.fullmatch(one.id.id) for one in acls
        ):
            raise connection.unavailable(_unseen(path))
        return acls
    return None


def is_open(acl: Sequence[ACL]) -> bool:
    """Return whether anyone can do more with a node than read it."""
    return any(
        (one.id.scheme, one.id.id) == ("world", "anyone")
        and one.perms & ~Permissions.READ
        for one in acl
    )


def acl_text(acl: Sequence[ACL]) -> str:
    """Return an ACL in the form of zkCli, with digests masked."""
    return ", ".join(sorted(map(_entry_text, acl)))


def _entry_text(one: ACL) -> str:
    name = one.id.id
    if one.id.scheme == "digest":
        name = f"{name.partition(':')[0]}:***"
    letters = "".join(
        letter
        for letter, word in _PERMISSIONS.items()
        if one.perms & getattr(Permissions, word.upper())
    )
    return f"{one.id.scheme}:{name}:{letters}"


def _unseen(path: str) -> str:
    return (
        f"the ACL of {path} cannot be read completely, so it cannot be "
        f"copied to new nodes; set {AUTH_VARIABLE} to credentials with the "
        "permission ADMIN, or pass --acl (Publisher(acl=...))"
    )


@dataclass(frozen=True, kw_only=True)
class StoredNode:
    """Content of a node.

    :ivar data: content of the node.
    :ivar version: number of changes of the node.
    """

    data: bytes
    version: int


@dataclass(frozen=True)
class Create:
    """A change: create a node, which must not exist.

    :ivar node: path of the node.
    :ivar data: its content.
    :ivar is_ephemeral: whether it ends with the session.
    """

    node: str
    data: bytes
    is_ephemeral: bool = False


@dataclass(frozen=True)
class Replace:
    """A change: replace the content of a node.

    :ivar node: path of the node.
    :ivar data: its new content.
    :ivar version: version that it must have.
    """

    node: str
    data: bytes
    version: int


@dataclass(frozen=True)
class VersionCheck:
    """A condition: a node has a version.

    :ivar node: path of the node.
    :ivar version: version that it must have.
    """

    node: str
    version: int


#: A part of a transaction.
Change: TypeAlias = Create | Replace | VersionCheck


@dataclass(frozen=True, kw_only=True)
class NodeStat:
    """The creation time and size of a node.

    :ivar created: seconds since the epoch, by the clock of the server.
    :ivar size: size of the content in bytes.
    """

    created: float
    size: int


class ZooKeeperStore:
    """Reads and writes nodes below a path.

    Missing paths are created.  New nodes have the given ACL, or the
    ``default_acl`` in the options of kazoo.  Without these they have the ACL
    of the node that they are a copy of, or of the nearest parent, if it is
    protected.  Otherwise, with ``auth_data``, anyone can read them and
    only these credentials can write them; without, anyone can write them.

    :param hosts: ``host:port,host:port/path``.
    :param timeout: seconds to wait for a response.
    :param options: further arguments of :class:`kazoo.client.KazooClient`.
    :param acl: ACL of new nodes, see :func:`parse_acls`.
    :raises TopologyError: if the ACL is not valid.
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
        #: Whether the caller gave an ACL.
        self._is_given = bool(options.get("default_acl"))
        #: The ACL of nodes that write() creates; None for the default.
        self._of_new: list[ACL] | None = None
        if options.get("auth_data") and not options.get("default_acl"):
            options["default_acl"] = OWN_ACL
        # The path is not passed to kazoo, which creates only the last part of
        # it.
        servers, _, path = hosts.partition("/")
        self._path = f"/{path}".rstrip("/")
        self._connection = ZooKeeperConnection(
            servers, timeout=timeout, options=options, name=f"zookeeper://{hosts}"
        )

    @property
    def name(self) -> str:
        """The connection string, without credentials."""
        return self._connection.name

    def read(self, node: str) -> StoredNode | None:
        """Return a node, or None if it does not exist.

        :raises TopologyUnavailableError: if the node cannot be read.
        """
        try:
            data, stat = self._ask(lambda client: client.get_async(self._path + node))
        except NoNodeError:
            return None
        return StoredNode(data=data, version=stat.version)

    def read_all(self, nodes: Iterable[str]) -> list[StoredNode | None]:
        """Return nodes that others have written, with pipelined requests.

        :returns: None for each that does not exist; no content for one that
            these credentials may not read.
        :raises TopologyUnavailableError: if no server responds.
        """
        client = self._connection.client()
        asked = [client.get_async(self._path + node) for node in nodes]
        stored: list[StoredNode | None] = []
        for one in asked:
            try:
                data, stat = self._connection.ask(lambda client: one)  # noqa: B023 # called immediately
            except NoNodeError:
                stored.append(None)
            except NoAuthError:
                stored.append(StoredNode(data=b"", version=0))
            else:
                stored.append(StoredNode(data=data, version=stat.version))
        return stored

    def names(self, node: str) -> list[str]:
        """Return the names of the children of a node, if it exists.

        :raises TopologyUnavailableError: if the node cannot be read.
        """
        try:
            names: list[str] = self._ask(
                lambda client: client.get_children_async(self._path + node)
            )
        except NoNodeError:
            return []
        return names

    def listen(self, notify: Callable[[], None]) -> None:
        """Call ``notify()`` when a connection is lost or opened.

        Either may have lost a watch.
        """
        self._connection.listen(notify)

    def watched_names(self, node: str, notify: Callable[[object], None]) -> list[str]:
        """Return the names of the children of a node, and watch them once.

        :param notify: called by a thread of kazoo when the names may have
            changed, unless the connection is lost before.
        :raises TopologyUnavailableError: if the node cannot be read.
        """
        path = self._path + node
        while True:
            try:
                names: list[str] = self._ask(
                    lambda client: client.get_children_async(path, watch=notify)
                )
            except NoNodeError:
                if self._ask(lambda client: client.exists_async(path, watch=notify)):
                    # It was created between the two requests.
                    continue
                return []
            return names

    def stats(self, nodes: Iterable[str]) -> list[NodeStat | None]:
        """Return the stats of nodes, with pipelined requests.

        :raises TopologyUnavailableError: if no server responds.
        """
        client = self._connection.client()
        asked = [client.exists_async(self._path + node) for node in nodes]
        statuses = [self._ask(lambda client: one) for one in asked]  # noqa: B023 # called immediately
        return [
            None
            if stat is None
            else NodeStat(created=stat.created, size=stat.data_length)
            for stat in statuses
        ]

    def sync(self) -> None:
        """Make the next read see all earlier writes.

        :raises TopologyUnavailableError: if no server responds.
        """
        self._ask(lambda client: client.sync_async(self._path or "/"))

    def prepare(self, folder: str, *, like: str) -> None:
        """Create a parent node, and its parents, if they do not exist.

        It also determines the ACL of nodes that :meth:`write` creates.

        :param like: node whose ACL these get, if it exists; otherwise that of
            the parent node.
        :raises TopologyUnavailableError: if they cannot be created, or the
            ACL cannot be read.
        """
        path = self._path + folder
        if self._ask(lambda client: client.exists_async(path)) is None:
            acl = self._acl(*_upwards(path))
            self._ask(lambda client: client.ensure_path_async(path, acl=acl))
        self._of_new = self._acl(self._path + like, path)

    def open_nodes(self, nodes: Iterable[str]) -> list[str]:
        """Return the paths of nodes that anyone can change.

        :param nodes: paths; nodes that do not exist, or whose ACL cannot be
            read, are skipped.
        :raises TopologyUnavailableError: if no server responds.
        """
        acls = self._acls(nodes)
        return [path for path, acl in acls.items() if is_open(acl)]

    def _acls(self, nodes: Iterable[str]) -> dict[str, list[ACL]]:
        client = self._connection.client()
        paths = [self._path + node or "/" for node in nodes]
        asked = [client.get_acls_async(path) for path in paths]
        acls = {}
        for path, one in zip(paths, asked, strict=True):
            with suppress(NoNodeError, NoAuthError):
                acls[path], _ = self._connection.ask(lambda client: one)  # noqa: B023 # called immediately
        return acls

    def protect(
        self, node: str, others: Iterable[str], *, folder: str, dry_run: bool
    ) -> list[ProtectedNode]:
        """Protect a node, and give other nodes the same ACL.

        :param node: node that gets the given ACL; if none was given and anyone
            can change the node, it gets the ACL of new nodes.
        :param others: nodes that get the ACL of the node.
        :param folder: node that also gets it if anyone can change the folder;
            but not the root of ZooKeeper, which other applications use.
        :param dry_run: write nothing.
        :returns: the nodes that were changed, or would be.
        :raises TopologyUnavailableError: if the node does not exist, the ACLs
            cannot be changed, or neither an ACL nor credentials were given.
        """
        path = self._path + node
        held = self._acls([node, *others, folder])
        if path not in held:
            raise self.unavailable(
                "nothing was published there, or its ACL cannot be read"
            )
        done = []
        target = held[path]
        if self._is_given or is_open(target):
            wanted = self._connection.default_acl
            if not wanted:
                raise self.unavailable(
                    "neither an ACL nor credentials were given: set "
                    f"{AUTH_VARIABLE}, or pass --acl (Publisher(acl=...))"
                )
            done.append(self._protected(path, target, wanted, dry_run))
            if not dry_run:
                # ZooKeeper replaces "auth" by the identity of the client.
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
            return ProtectedNode(path=path, old=acl_text(old), new=None)
        # The node may have been deleted from the history.
        with suppress(NoNodeError):
            self._ask(lambda client: client.set_acls_async(path, new))
        return ProtectedNode(path=path, old=acl_text(old), new=acl_text(new))

    def _acl(self, *paths: str) -> list[ACL] | None:
        """Return the ACL for a new node; None for the default."""
        if self._is_given:
            return None
        try:
            return acl_of_first(self._connection, paths)
        except KazooException as error:
            raise self._refused(error) from error

    def write(
        self,
        data: bytes,
        *,
        node: str,
        version: int | None,
        copy: str,
        more: Sequence[Change] = (),
    ) -> int | None:
        """Write a node and a copy of it in one transaction.

        :meth:`prepare` must be called before.

        :param version: expected version of the node; None creates the node.
        :param copy: a node to create.
        :param more: further changes and conditions of the transaction.
        :returns: the new version of the node; None if its version differs, a
            node to create already exists, or a condition is not met.
        :raises TopologyUnavailableError: if permission is denied, or the
            outcome is unknown.
        """
        first: Change = (
            Create(node, data) if version is None else Replace(node, data, version)
        )
        committed = self.commit(first, Create(copy, data), *more)
        return None if committed is None else committed[0]

    def commit(self, *changes: Change) -> list[int] | None:
        """Make all changes in one transaction, or none.

        :meth:`prepare` must be called before nodes are created.

        :returns: for each change the new version of its node, 0 if it is
            new; None if a node does not have the given version, or
            a node to create already exists.
        :raises TopologyUnavailableError: if permission is denied, or the
            outcome is unknown.
        """

        def commit(client: KazooClient) -> Any:
            transaction = client.transaction()
            for change in changes:
                path = self._path + change.node
                match change:
                    case Create(data=data, is_ephemeral=is_ephemeral):
                        transaction.create(
                            path, data, acl=self._of_new, ephemeral=is_ephemeral
                        )
                    case Replace(data=data, version=version):
                        transaction.set_data(path, data, version)
                    case VersionCheck(version=version):
                        transaction.check(path, version)
            return transaction.commit_async()

        results = self._ask(commit)
        failed = [
            (change, one)
            for change, one in zip(changes, results, strict=True)
            if isinstance(one, Exception)
        ]
        if not failed:
            return [getattr(one, "version", 0) for one in results]
        for change, one in failed:
            if isinstance(one, (BadVersionError, NodeExistsError)):
                return None
            if isinstance(one, NoNodeError) and not isinstance(change, Create):
                return None
        reasons = [
            one
            for _, one in failed
            if not isinstance(one, (RolledBackError, RuntimeInconsistency))
        ]
        raise self._refused((reasons or [failed[0][1]])[0])

    def remove(self, nodes: Iterable[str]) -> None:
        """Delete nodes, if they exist.

        :raises TopologyUnavailableError: if a node cannot be deleted.
        """
        for node in nodes:
            path = self._path + node
            # Another process may have deleted it.
            with suppress(NoNodeError):
                self._ask(methodcaller("delete_async", path))

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

    def _refused(self, error: Exception) -> TopologyUnavailableError:
        if isinstance(error, NoAuthError):
            return self.unavailable(
                "NoAuthError: permission denied; set "
                f"{AUTH_VARIABLE} to credentials that have it"
            )
        what = f"{type(error).__name__}: {error}".removesuffix(": ")
        return self.unavailable(f"ZooKeeper rejected the request ({what})")


def _upwards(path: str) -> Iterator[str]:
    """Yield a path and all of its parents."""
    while path:
        yield path
        path = path.rpartition("/")[0]
    yield "/"


@dataclass(frozen=True, kw_only=True)
class ProtectedNode:
    """A node whose ACL was changed, or would be.

    :ivar path: path of the node.
    :ivar old: the former ACL, such as ``world:anyone:cdrwa``; digests are
        ``***``.
    :ivar new: the new ACL; None in a dry run, since ZooKeeper determines it.
    """

    path: str
    old: str
    new: str | None
