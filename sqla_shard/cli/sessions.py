"""Python on one virtual shard: a cluster, and a session that is bound.

A statement that tells its shards goes where it says, as in any session; one
that does not, such as ``select(Pin)`` or a text, goes to the bound shard in
place of being refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection
from sqlalchemy import Engine
from sqlalchemy import event
from sqlalchemy import Table
from sqlalchemy.ext.horizontal_shard import set_shard_id
from sqlalchemy.orm import ORMExecuteState
from sqlalchemy.sql import visitors
from sqlalchemy.sql.lambdas import LambdaElement

from sqla_shard.cluster import Cluster
from sqla_shard.exc import NoShardKeyError
from sqla_shard.scattering import Scatter
from sqla_shard.session import ShardSession
from sqla_shard.topology import Keyspace
from sqla_shard.topology import Location
from sqla_shard.topology import Server
from sqla_shard.topology import ShardRange
from sqla_shard.topology import Topology

__all__ = ["BoundSession", "opened", "standby_alone"]


class BoundSession(ShardSession):
    """A session whose statements go to one shard unless they tell others.

    New roots go to it, too.  Nothing is committed but by ``commit()``.

    :param cluster: the cluster.
    :param location: the shard.
    """

    def __init__(self, *, cluster: Cluster, location: Location) -> None:
        sharded = location.keyspace.kind == "objects"
        super().__init__(
            cluster=cluster,
            shard_id=location.shard_id if sharded else None,
        )
        self._bound = {
            "shard_id": location.shard_id,
            "keyspace": location.keyspace.name,
        }

    def connection(
        self, bind_arguments: Any = None, execution_options: Any = None
    ) -> Connection:
        """Return the connection to the bound shard, unless told another."""
        return super().connection(
            bind_arguments or self._bound, execution_options
        )

    def tell(self, context: ORMExecuteState) -> None:
        """Handle ``do_orm_execute``: tell the shard where nothing does."""
        if not self._is_told(context) and self._needs_shard(context):
            context.bind_arguments.update(self._bound)

    def _is_told(self, context: ORMExecuteState) -> bool:
        given = context.bind_arguments
        return (
            any(given.get(key) is not None for key in (*self._bound, "place"))
            # Rows with ids, each of which goes to its shard.
            or context.is_insert
            or isinstance(context.parameters, list)
            or isinstance(context.statement, LambdaElement)
            or any(
                isinstance(option, (Scatter, set_shard_id))
                for option in getattr(context.statement, "_with_options", ())
            )
        )

    def _needs_shard(self, context: ORMExecuteState) -> bool:
        statement: Any = context.statement
        if not any(
            isinstance(part, Table) for part in visitors.iterate(statement)
        ):
            return True
        try:
            self.execute_chooser(context)
        except NoShardKeyError:
            return True
        return False


# Before the listener of every session, which would refuse the statement.
event.listen(
    BoundSession,
    "do_orm_execute",
    lambda context: context.session.tell(context),
    insert=True,
)


def standby_alone(location: Location) -> Topology:
    """Return a topology of one server: the standby of a shard.

    It names all shards of the keyspace; those of other servers are not on
    it, and asking for them is an error of the server.

    :param location: a shard whose server has a standby.
    """
    keyspace, server = location.keyspace, location.server
    alone = Keyspace(
        name=keyspace.name,
        kind=keyspace.kind,
        shards=keyspace.shards,
        database=keyspace.database,
        servers=(
            Server(
                name=server.name,
                primary=str(server.standby),
                shards=(ShardRange(0, keyspace.shards - 1),),
            ),
        ),
    )
    return Topology(epoch=0, keyspaces={keyspace.name: alone})


@contextlib.contextmanager
def opened(
    topology: Topology,
    location: Location,
    *,
    environ: Mapping[str, str] | None = None,
    read_only: bool = False,
) -> Iterator[tuple[Cluster, BoundSession]]:
    """Open a cluster, and a session on one of its shards.

    :param topology: of the cluster.
    :param location: the shard.
    :param environ: values of the placeholders; the environment by default.
    :param read_only: whether that server refuses to write.
    """
    with Cluster(topology, environ=environ) as cluster:
        if read_only:
            places = cluster.places
            keyspace = places.keyspace(location.keyspace.name, "")
            _refuse_writes(places.place(keyspace, location.shard_id).engine)
        with BoundSession(cluster=cluster, location=location) as session:
            yield cluster, session


def _refuse_writes(engine: Engine) -> None:
    statement = "SET SESSION TRANSACTION READ ONLY"
    if engine.dialect.name == "sqlite":
        statement = "PRAGMA query_only=ON"

    def connected(connection: Any, record: Any) -> None:
        cursor = connection.cursor()
        cursor.execute(statement)
        cursor.close()

    event.listen(engine, "connect", connected)
