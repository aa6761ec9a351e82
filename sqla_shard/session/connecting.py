"""The connections of a session to the servers of one statement."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from sqlalchemy import Connection
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.exc import ScatterFailedError
from sqla_shard.exc import ScatterTimeoutError
from sqla_shard.rendering import Place
from sqla_shard.scattering import Merge
from sqla_shard.scattering import Plan
from sqla_shard.scattering import Scatter
from sqla_shard.session.contract import Scope
from sqla_shard.session.transactions import lost

__all__ = ["connect"]


def connect(
    scope: Scope,
    places: Sequence[Place],
    merge: Merge | None,
    limits: Scatter | None,
    *,
    scattered: bool = False,
) -> Plan:
    """Return the plan of a statement, with a connection to each server.

    :param scattered: whether ``scatter()`` alone has told the shards.

    :raises ServerUnreachableError: when one cannot be connected to.
    :raises ScatterTimeoutError: when that takes longer than it may.
    :raises ScatterFailedError: when a partial answer would be empty.
    """
    started = monotonic()
    timeout = None if limits is None else limits.timeout
    partial = limits is not None and limits.on_error == "partial"
    # In the same order for all sessions: of two that wait for the last
    # connections of two pools, each could have what the other needs.
    servers: dict[Engine, Place] = {}
    for place in sorted(places, key=lambda place: id(place.engine)):
        servers.setdefault(place.engine, place)
    found: dict[Engine, Connection] = {}
    errors: dict[Engine, Exception] = {}
    late = scope.places.engines.connect_together(
        [
            engine
            for engine, place in servers.items()
            if place.backend.waits and not scope.is_connected(place)
        ],
        # One that hangs would else leave no time to those that answer.
        timeout / 2 if timeout is not None and partial else timeout,
    )
    for engine, place in servers.items():
        try:
            if engine in late:
                raise late[engine] or ScatterTimeoutError(
                    servers=[place.server], timeout=timeout or 0.0
                )
            connection = scope.root_connection(place)
            if partial and connection.invalidated:
                # Asked, it would raise an error that is not this server's.
                raise lost(place.server)
            found[engine] = connection
        except SQLAlchemyError as error:
            if not partial:
                raise
            errors[engine] = error
    kept = [place for place in places if place.engine in found]
    going = Plan(
        kept,
        [found[place.engine] for place in kept],
        scope.log.wrote,
        merge=merge,
        limits=limits,
        started=started,
        scattered=scattered,
        watch=scope.watch,
    )
    for place in places:
        if place.engine in errors:
            going.errors[place.shard_id] = errors[place.engine]
    if not kept:
        raise ScatterFailedError(going.errors)
    return going
