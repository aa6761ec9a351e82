"""Users: finding one by a mail address, and creating one.

There are no passwords: an address is enough to sign in with.  It is shown to
nobody but the user.
"""

from __future__ import annotations

from examples.pinboard.errors import InvalidInputError
from examples.pinboard.inputs import read_email, UserInput
from examples.pinboard.models import User, UserEmail
from sqla_shard import ShardSession


def sign_in(session: ShardSession, email: str) -> User:
    """Return the user of an address.

    :raises InvalidInputError: when no user has it.
    """
    user_id = UserEmail.resolve(session, read_email(email))
    user = None if user_id is None else session.get(User, user_id)
    if user is None:
        raise InvalidInputError("No user has this address.", field="email")
    return user


def add_user(
    session: ShardSession, entered: UserInput, shard_id: int | None = None
) -> int:
    """Write a user, and return its id.

    :param shard_id: virtual shard; by default the cluster chooses.
    """
    user = User(name=entered.name, about=entered.about, email=entered.email)
    user.shard_id = shard_id
    session.add(user)
    session.flush()  # assigns its id
    return user.id
