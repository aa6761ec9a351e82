"""Claims that are open: keys that nobody has yet, and nobody else can have."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import asdict
from dataclasses import dataclass
from dataclasses import field
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.cluster import Cluster
from sqla_shard.engines import by_server
from sqla_shard.engines.troubles import Trouble
from sqla_shard.exc import ServerUnreachableError
from sqla_shard.lookup import LookupMixin
from sqla_shard.lookup.definition import link
from sqla_shard.rendering import Place
from sqla_shard.verifying.classes import classes_of
from sqla_shard.verifying.lookups.rows import ClaimCheck
from sqla_shard.verifying.lookups.running import KEEP

__all__ = ["OpenClaim", "claims_on_all", "open_claims"]

_PARALLEL = 8


@dataclass(frozen=True, kw_only=True)
class OpenClaim:
    """A claim that was neither confirmed nor released.

    :ivar lookup: name of the lookup class.
    :ivar key: the key, normalised.
    :ivar keyspace: of its row.
    :ivar shard_id: the shard of its row.
    :ivar server: where that is.
    :ivar expires_at: when the key is free for others, by the clock of the
        server.
    :ivar has_ended: whether that is over; the claim can still be confirmed
        until another one takes the key.
    """

    lookup: str
    key: str
    keyspace: str
    shard_id: int
    server: str
    expires_at: datetime
    has_ended: bool

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {**asdict(self), "expires_at": self.expires_at.isoformat()}

    def __str__(self) -> str:
        ends = "ended" if self.has_ended else "ends"
        return (
            f"{self.lookup} {self.key!r}, on shard {self.shard_id} of "
            f"{self.keyspace}, {ends} at {self.expires_at:%Y-%m-%d %H:%M:%S} "
            "UTC"
        )


def open_claims(
    cluster: Cluster,
    classes: Iterable[type[Any]] | None = None,
    *,
    batch: int = 500,
) -> list[OpenClaim]:
    """Return the claims that were neither confirmed nor released.

    A healthy cluster has those of people who are just signing up.  It reads
    the whole tables, one server at the same time as others, and locks
    nothing.

    :param classes: the lookup classes with unique keys; by default all that
        there are in this process.
    :param batch: how many one transaction reads at most.
    :returns: by class, then by shard and key.
    :raises ValueError: when an argument makes no sense.
    :raises SQLAlchemyError: when a server cannot be asked.
    """
    found, troubles = claims_on_all(cluster, classes, batch=batch)
    for trouble in troubles:
        raise trouble.error
    return found


def claims_on_all(
    cluster: Cluster,
    classes: Iterable[type[Any]] | None = None,
    *,
    batch: int = 500,
) -> tuple[list[OpenClaim], list[Trouble]]:
    """Return the claims that are open, and the shards that were not read."""
    if type(batch) is not int or batch < 1:
        raise ValueError(f"batch={batch!r}; it is a number, from 1")
    found: list[OpenClaim] = []
    troubles: list[Trouble] = []
    for cls in classes_of(LookupMixin, classes):
        if link(cls).unique:
            its = _Claims()
            _read_class(cluster, cls, batch, its)
            found += sorted(its.found, key=lambda one: (one.shard_id, one.key))
            troubles += its.troubles
    return found, troubles


@dataclass
class _Claims:
    """Those of one class, and what could not be read of it."""

    found: list[OpenClaim] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)


def _read_class(cluster: Cluster, cls: Any, batch: int, its: _Claims) -> None:
    check = ClaimCheck(cls, KEEP)
    places = cluster.places
    jobs = [
        partial(_on_server, cluster, check, group, batch, its)
        for group in by_server(places.all_places(check.keyspace(places)))
    ]
    places.engines.at_once(jobs, "claims", _PARALLEL)


def _on_server(
    cluster: Cluster,
    check: ClaimCheck,
    places: Sequence[Place],
    batch: int,
    its: _Claims,
) -> None:
    for number, place in enumerate(places):
        try:
            its.found += [
                OpenClaim(
                    lookup=check.subject,
                    key=row.key,
                    keyspace=place.keyspace,
                    shard_id=place.shard_id,
                    server=place.server,
                    expires_at=row.expires_at,
                    has_ended=row.expired,
                )
                for row in _rows(cluster, check, place.shard_id, batch)
            ]
        except ServerUnreachableError as error:
            left = len(places) - number
            its.troubles.append(Trouble(place.server, error, left))
            return
        except SQLAlchemyError as error:
            its.troubles.append(Trouble(place.server, error, 1))


def _rows(
    cluster: Cluster, check: ClaimCheck, shard_id: int, batch: int
) -> Iterator[Any]:
    after = None
    while True:
        # A new transaction: one that reads for long keeps old rows alive.
        with cluster.session() as session:
            page = check.page(session, shard_id, after, batch)
        yield from page
        if len(page) < batch:
            return
        after = check.position(page[-1])
