"""Who may read and write the nodes that are made in a ZooKeeper.

A node does not inherit the ACL of its parent: one that is made without any
is open to everybody.  So those that are made here take the ACL of a sibling,
or of the parent, where it is protected.  Who may write the topology has the
passwords of the databases: he has processes connect to a server of his own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import methodcaller

# First, for it tells what to do where kazoo is not installed.
from sqla_shard.following.zookeeper import ZooKeeperConnection  # isort: skip

from kazoo.exceptions import NoAuthError
from kazoo.exceptions import NoNodeError
from kazoo.security import ACL
from kazoo.security import make_acl
from kazoo.security import OPEN_ACL_UNSAFE
from kazoo.security import Permissions

from sqla_shard.exc import Problem
from sqla_shard.exc import TopologyError
from sqla_shard.following.locations import AUTH_VARIABLE

__all__ = ["acl_of_first", "is_open", "parse_acls", "shown"]

_FORM = re.compile(r"(?P<scheme>[a-z0-9]+):(?P<id>.*):(?P<perms>[cdrwa]+)")
_PERMISSIONS = {
    "c": "create",
    "d": "delete",
    "r": "read",
    "w": "write",
    "a": "admin",
}
#: In the place of a digest, where an ACL is shown to those who may not
#: change it.
_HIDDEN = re.compile(r"[^:]*:x")


def parse_acls(texts: Sequence[str]) -> list[ACL]:
    """Return the ACL that texts such as ``"world:anyone:r"`` say.

    :param texts: ``scheme:id:permissions`` each, as zkCli has them;
        permissions are letters of ``cdrwa``.
    :raises TopologyError: when one is not of that form.
    """
    found = []
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
        found.append(make_acl(match["scheme"], match["id"], **allowed))
    return found


def acl_of_first(
    connection: ZooKeeperConnection, paths: Sequence[str]
) -> list[ACL] | None:
    """Return the ACL for a new node, or None where it may be open.

    :param paths: of nodes; the first one that is there counts.
    :raises TopologyUnavailableError: when its ACL cannot be read in full.
    """
    for path in paths:
        try:
            found: list[ACL]
            found, _ = connection.ask(methodcaller("get_acls_async", path))
        except NoNodeError:
            continue
        except NoAuthError:
            raise connection.unavailable(_unseen(path)) from None
        if set(found) == set(OPEN_ACL_UNSAFE):
            return None
        if any(
            one.id.scheme == "digest" and _HIDDEN.fullmatch(one.id.id)
            for one in found
        ):
            raise connection.unavailable(_unseen(path))
        return found
    return None


def is_open(acl: Sequence[ACL]) -> bool:
    """Whether everybody may do more with a node than read it."""
    return any(
        (one.id.scheme, one.id.id) == ("world", "anyone")
        and one.perms & ~Permissions.READ
        for one in acl
    )


def shown(acl: Sequence[ACL]) -> str:
    """Return an ACL as zkCli has it, without the digests of passwords."""
    return ", ".join(sorted(map(_shown, acl)))


def _shown(one: ACL) -> str:
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
        f"the ACL of {path} may not be read in full, so a new node near it "
        "could be open to others, or closed to those who need it; set "
        f"{AUTH_VARIABLE} to credentials with the permission ADMIN, or say "
        "who may do what with --acl (Publisher(acl=...))"
    )
