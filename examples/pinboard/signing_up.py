"""Signing up with a mail address and a name that nobody else has.

Three steps, since address, name and user are on three shards:

1. Claim the address, then the name.  Of many who want one of them, all but
   one are refused here, before there is a user to undo.
2. Create the user, on a shard that the cluster chooses.
3. Confirm the address.  The same transaction leaves an intent to confirm the
   name, so that whoever can sign in has a name as well.

Each is a transaction of its own.  Whoever is killed between two of them
leaves claims, which expire, and perhaps a user whom no address leads to.
There are no passwords, and no mail is sent: this is a demonstration.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

from examples.pinboard.accounts import add_user
from examples.pinboard.accounts import delete_user
from examples.pinboard.errors import TakenError
from examples.pinboard.inputs import UserInput
from examples.pinboard.models import UserEmail
from examples.pinboard.models import UserName
from sqla_shard import Cluster
from sqla_shard import operation
from sqla_shard import ShardSession
from sqla_shard.exc import ClaimLostError
from sqla_shard.exc import KeyTakenError
from sqla_shard.lookup import Claim

__all__ = ["LIFETIME", "confirm", "confirm_name", "sign_up"]

LIFETIME = timedelta(minutes=15)
"""How long a claim is kept for somebody who does not come back."""
_FIELDS = {UserEmail.__name__: "email", UserName.__name__: "name"}
_log = logging.getLogger(__name__)


def sign_up(
    cluster: Cluster,
    entered: UserInput,
    create: Callable[..., int] = add_user,
    *args: Any,
) -> int:
    """Make a user who can sign in, and return its id.

    :param create: called with a session, ``entered`` and ``args``.
    :raises TakenError: when somebody has the address or the name.
    """
    try:
        with ExitStack() as undo:
            email = cluster.run(
                UserEmail.claim, entered.email, lifetime=LIFETIME
            )
            undo.callback(cluster.run, email.release)
            name = cluster.run(UserName.claim, entered.name, lifetime=LIFETIME)
            undo.callback(cluster.run, name.release)
            user_id = cluster.run(create, entered, *args)
            undo.pop_all()
        cluster.run(confirm, email, name, user_id, cross_shard="logged")
    except KeyTakenError as error:
        raise TakenError(_FIELDS[error.lookup]) from error
    except ClaimLostError as error:
        # It took so long that the claim has expired, and somebody else has
        # the address now.
        cluster.run(delete_user, user_id)
        raise TakenError(_FIELDS[error.lookup]) from error
    return user_id


def confirm(
    session: ShardSession, email: Claim, name: Claim, user_id: int
) -> None:
    """Let a user have what was claimed.

    :raises ClaimLostError: when somebody else has the address now.
    """
    email.confirm(session, user_id)
    token = (name.token or b"").hex()
    confirm_name.intend(session, name.key, token, user_id)


def _place_of(session: ShardSession, name: str, **_: Any) -> dict[str, Any]:
    shard_id = UserName.shard_of(session, name)
    return {"mapper": UserName, "shard_id": shard_id}


@operation("pinboard.confirm_name", on=_place_of)
def confirm_name(
    session: ShardSession, name: str, token: str, user_id: int
) -> None:
    """Give a claimed name to a user: done by whoever comes, once."""
    claim = Claim(
        lookup=UserName, key=name, token=bytes.fromhex(token), expires_at=None
    )
    try:
        claim.confirm(session, user_id)
    except ClaimLostError:
        # Nobody has come until the claim expired, and another has the name
        # now.  The user can sign in all the same.
        _log.warning("user %s was too late for a name", user_id)
