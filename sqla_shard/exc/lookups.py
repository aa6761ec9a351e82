"""Lookups: objects that are found by something else than their id."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqla_shard.exc.base import ShardError

__all__ = [
    "ClaimLostError",
    "InvalidKeyError",
    "KeyNotHeldError",
    "KeyPendingError",
    "KeyTakenError",
    "KeyspaceKindError",
    "LookupPolicyError",
    "LookupTableError",
]


class LookupTableError(ShardError):
    """Base of the errors of lookups."""


class InvalidKeyError(LookupTableError, ValueError):
    """Raised when a value cannot be a key.

    :ivar key: the value as it was given.
    :ivar reason: what is wrong with it.
    """

    def __init__(self, *, key: object, reason: str) -> None:
        shown = f"{key!r}"
        if len(shown) > 80:
            shown = f"{shown[:80]}..."
        super().__init__(f"{shown} is no key: {reason}")
        self.key = key
        self.reason = reason


class KeyTakenError(LookupTableError):
    """Raised when a key belongs to somebody else, or is claimed.

    :ivar lookup: the lookup class.
    :ivar key: the key, normalised.
    :ivar target_id: whose it is; None where it is claimed only.
    :ivar expires_at: until when it is claimed; None where it is somebody's.
    """

    def __init__(
        self,
        *,
        lookup: str,
        key: str,
        target_id: int | None,
        expires_at: datetime | None,
    ) -> None:
        if target_id is None:
            what = (
                f"is claimed until {expires_at} and may be free after that; "
                "try again then, or take another key"
            )
        else:
            what = f"belongs to {target_id}; take another key"
        super().__init__(f"{key!r} in {lookup} {what}")
        self.lookup = lookup
        self.key = key
        self.target_id = target_id
        self.expires_at = expires_at


class ClaimLostError(LookupTableError):
    """Raised when a claim that is to be confirmed is not there any more.

    It has expired and the key was claimed anew, or it was released.

    :ivar lookup: the lookup class.
    :ivar key: the key, normalised.
    :ivar target_id: whose the key is now; None where it is nobody's yet.
    """

    def __init__(
        self, *, lookup: str, key: str, target_id: int | None
    ) -> None:
        now = "nobody" if target_id is None else str(target_id)
        super().__init__(
            f"the claim of {key!r} in {lookup} was lost before it was "
            f"confirmed, and the key belongs to {now}: it has expired, or was "
            "released. Claim again, and give up what was made for it if the "
            "key is taken; a longer lifetime= leaves more time"
        )
        self.lookup = lookup
        self.key = key
        self.target_id = target_id


class KeyNotHeldError(LookupTableError, LookupError):
    """Raised when a key that is to be renamed is not that of the object.

    :ivar lookup: the lookup class.
    :ivar key: the key, normalised.
    :ivar target_id: the object.
    """

    def __init__(self, *, lookup: str, key: str, target_id: int) -> None:
        super().__init__(
            f"{key!r} in {lookup} does not belong to {target_id}, so it was "
            "not renamed; claim(session, new_key, id) gives the object a key "
            "that it has not had"
        )
        self.lookup = lookup
        self.key = key
        self.target_id = target_id


class KeyPendingError(LookupTableError):
    """Raised when an object is committed and a key may only be claimed yet.

    :ivar lookup: the lookup class.
    :ivar key: the key, normalised.
    :ivar target_id: the object.
    """

    def __init__(self, *, lookup: str, key: str, target_id: int) -> None:
        super().__init__(
            f"{target_id} is committed, but its key {key!r} in {lookup} may "
            "only be claimed yet, because a server did not answer; "
            "cluster.repair(), or the command sqla-shard repair, confirms it "
            "as soon as it does"
        )
        self.lookup = lookup
        self.key = key
        self.target_id = target_id


class LookupPolicyError(LookupTableError):
    """Raised when a row was normalised under a policy that is not known.

    :ivar lookup: the lookup class.
    :ivar key: the key of the row.
    :ivar policy: its policy, as ``name/version``.
    :ivar known: the policies of the class.
    """

    def __init__(
        self, *, lookup: str, key: str, policy: str, known: Sequence[str]
    ) -> None:
        super().__init__(
            f"the row of {key!r} in {lookup} was written under the policy "
            f"{policy!r}, and the class knows {', '.join(map(repr, known))}: "
            "keys may be equal under the one and not under the other. Give "
            "that policy to the class with previous=, until all rows are "
            "rewritten"
        )
        self.lookup = lookup
        self.key = key
        self.policy = policy
        self.known = tuple(known)


class KeyspaceKindError(LookupTableError):
    """Raised when the keyspace of a lookup is not of kind ``mod``.

    :ivar lookup: the lookup class.
    :ivar keyspace: name of the keyspace.
    :ivar kind: its kind.
    """

    def __init__(self, *, lookup: str, keyspace: str, kind: str) -> None:
        super().__init__(
            f"{lookup} is in keyspace {keyspace!r}, which is of kind "
            f"{kind!r}: its number of shards may change, and keys would be "
            'looked for on other shards. Name one of kind "mod"'
        )
        self.lookup = lookup
        self.keyspace = keyspace
        self.kind = kind
