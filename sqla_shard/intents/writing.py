"""Leaving intents in a transaction."""

from __future__ import annotations

import json
from collections.abc import Iterable
from secrets import token_bytes
from typing import Any

from sqlalchemy import BigInteger
from sqlalchemy import bindparam
from sqlalchemy import insert

from sqla_shard.dialects.sql import Moment
from sqla_shard.intents.applying import apply_at_once
from sqla_shard.intents.intent import Intent
from sqla_shard.intents.intent import microseconds
from sqla_shard.intents.intent import refuse_autocommit
from sqla_shard.internal import INTENT_BYTES
from sqla_shard.internal import INTENTS
from sqla_shard.rendering import Place
from sqla_shard.session import ShardSession

__all__ = ["leave"]

#: Seconds for which workers leave an intent to the process that wrote it.
_LEASE = 30.0

_INSERT = insert(INTENTS).values(
    token=bindparam("token"),
    operation=bindparam("operation"),
    arguments=bindparam("arguments"),
    home_shard=bindparam("home_shard"),
    keyspace=bindparam("keyspace"),
    shard_id=bindparam("shard_id"),
    created_at=Moment(),
    due_at=Moment(bindparam("lease", type_=BigInteger())),
    attempts=0,
)


def leave(
    session: ShardSession,
    home: Place,
    operation: str,
    calls: Iterable[tuple[Place, dict[str, Any]]],
) -> None:
    """Write intents, to be applied when the transaction has committed.

    :param home: a shard that the transaction writes.
    :param operation: name of the operation.
    :param calls: the shards that it writes, and the arguments.
    """
    rows = []
    intents = []
    for place, arguments in calls:
        text = json.dumps(arguments)
        intent = Intent(
            token=token_bytes(INTENT_BYTES),
            operation=operation,
            # Not the caller's lists, which may be other ones at COMMIT.
            arguments=json.loads(text),
            home=home.address,
            target=place.address,
        )
        rows.append(
            {
                "token": intent.token,
                "operation": operation,
                "arguments": text,
                "home_shard": home.shard_id,
                "keyspace": place.keyspace,
                "shard_id": place.shard_id,
                "lease": microseconds(_LEASE),
            }
        )
        intents.append(intent)
    if rows:
        refuse_autocommit(session, home, operation)
        session.execute(_INSERT, rows, bind_arguments={"place": home})
    # Not before: who catches an error of that has left nothing.
    for intent in intents:
        session.log.leave(apply_at_once, intent)
