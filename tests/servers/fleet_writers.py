"""Writers that use the product, for :class:`tests.servers.writing_load.Load`.

Each has a cluster of its own.  Of the tokens that it writes, one in four is a
transfer between two virtual shards of one server; the others are a pin and
its note.  Before one in four it reads a pin that it has written before, which
must be there.

=====================  ======================================================
:class:`RunWriter`     ``cluster.run(..., key=token)``
:class:`SessionWriter` ``cluster.begin()``; a token whose COMMIT has an unknown
                       outcome is not written again, as nothing would keep it
                       from being there twice
=====================  ======================================================
"""

from __future__ import annotations

import contextlib
import random
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from sqla_shard import Cluster, pack
from sqla_shard.exc import KeyUsedError, ShardError
from tests.models.load_models import Pin, write_pin, write_transfer
from tests.servers.load_log import Outcome
from tests.servers.load_writers import Failed, outcome_of, Write


@dataclass(frozen=True, kw_only=True)
class _Writer(ABC):
    """Writes with a cluster.

    :ivar opening: returns a cluster of the process' own; picklable.
    """

    opening: Callable[[], Cluster]

    @contextlib.contextmanager
    def opened(self) -> Iterator[Write]:
        with self.opening() as cluster:
            written: list[int] = []

            def write(token: str, shard: int) -> int:
                number = zlib.crc32(token.encode())
                try:
                    if written and number % 4 == 1:
                        _look(cluster, random.Random(number).choice(written))
                    local_id = self._write(cluster, token, shard, number)
                except KeyUsedError as error:
                    raise Failed("already", error) from error
                except (SQLAlchemyError, ShardError) as error:
                    raise Failed(self._outcome(error), error) from error
                written.append(pack(shard, 1, local_id))
                return local_id

            yield write

    def _write(self, cluster: Cluster, token: str, shard: int, number: int) -> int:
        if number % 4:
            fn = partial(write_pin, shard=shard, token=token)
            return self._call(cluster, fn, token)
        fn = partial(write_transfer, shard=shard, token=token, amount=number % 100 + 1)
        return self._call(cluster, fn, token, cross_shard="ordered")

    @abstractmethod
    def _call(
        self, cluster: Cluster, fn: Callable[[Any], int], token: str, **options: Any
    ) -> int: ...

    @abstractmethod
    def _outcome(self, error: BaseException) -> Outcome: ...


@dataclass(frozen=True, kw_only=True)
class RunWriter(_Writer):
    """Writes with ``cluster.run(..., key=token)``."""

    def _call(
        self, cluster: Cluster, fn: Callable[[Any], int], token: str, **options: Any
    ) -> int:
        return cluster.run(fn, key=token, **options)

    def _outcome(self, error: BaseException) -> Outcome:
        return outcome_of(error)


@dataclass(frozen=True, kw_only=True)
class SessionWriter(_Writer):
    """Writes with ``cluster.begin()``."""

    def _call(
        self, cluster: Cluster, fn: Callable[[Any], int], token: str, **options: Any
    ) -> int:
        with cluster.begin(**options) as session:
            return fn(session)

    def _outcome(self, error: BaseException) -> Outcome:
        found = outcome_of(error)
        return "abandoned" if found == "unknown" else found


def _look(cluster: Cluster, pin_id: int) -> None:
    with cluster.session() as session:
        if session.get(Pin, pin_id) is None:
            raise Failed("missing", LookupError(f"{pin_id} is not found"))
