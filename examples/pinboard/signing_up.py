"""Sign up with a unique mail address and a unique name.

Address, name and user are on three shards, so it takes several transactions;
:func:`sqla_shard.lookup.sign_up` is correct whichever of them fails.  There
are no passwords, and no mail is sent: this is a demonstration.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from examples.pinboard.accounts import add_user
from examples.pinboard.errors import TakenError
from examples.pinboard.inputs import UserInput
from examples.pinboard.models import UserEmail, UserName
from sqla_shard import Cluster, models
from sqla_shard.exc import ClaimLostError, KeyTakenError

LIFETIME = timedelta(minutes=15)
"""Time that a key stays claimed after an interrupted sign-up."""
_FIELDS = {UserEmail.__name__: "email", UserName.__name__: "name"}


def sign_up(
    cluster: Cluster,
    entered: UserInput,
    create: Callable[..., int] = add_user,
    *args: Any,
) -> int:
    """Create a user who can sign in, and return its id.

    :param create: called with a session, ``entered`` and ``args``.
    :raises TakenError: when the address or the name is taken.
    """
    keys = {UserEmail: entered.email, UserName: entered.name}
    try:
        return models.sign_up(cluster, keys, create, entered, *args, lifetime=LIFETIME)
    except (KeyTakenError, ClaimLostError) as error:
        raise TakenError(_FIELDS[error.lookup]) from error
