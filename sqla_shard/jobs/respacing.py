"""Re-spacing of ordered lists by a job, before a gap has no room left.

A move into a gap without room re-spaces the rows around it itself, under the
lock of the move.  A job does it earlier: it is enqueued by the transaction of
a move that leaves a narrow gap, one at a time for each list.
"""

from __future__ import annotations

from typing import Any

from sqla_shard.exc import MissingTargetError
from sqla_shard.jobs.tasks import Task, task
from sqla_shard.models import MappingMixin, NarrowGap
from sqla_shard.planning import spec_of
from sqla_shard.session import ShardSession


def respace_by_job(mapping: type[MappingMixin], *, queue: str = "default") -> Task:
    """Let jobs re-space the lists of a mapping class.

    ::

        class BoardHasPins(MappingMixin, Base, source=Board, target=Pin):
            pass

        respace_by_job(BoardHasPins)

    Call it where the class is defined, so that workers have the task, too.
    A job re-spaces the rows around the row that was moved; of several narrow
    gaps of a list, the others follow with the next move there.

    :param queue: the queue of the jobs.
    :returns: the task, ``sqla_shard.respace.`` with the name of the table.
    :raises JobOptionError: if the name of the queue is not valid.
    """
    cls: Any = mapping

    @task(f"sqla_shard.respace.{cls.__tablename__}", queue=queue, priority=3)
    def respace(session: ShardSession, source_id: int, target_id: int) -> None:
        try:
            cls.respace(session, source_id, around=target_id)
        except MissingTargetError:
            return  # It was removed from the list, and the gap with it.

    @cls.on_narrow_gap  # type: ignore[untyped-decorator]
    def enqueue(session: ShardSession, gap: NarrowGap) -> None:
        # A list is in the keyspace of its source, which may be known after
        # the task is created: the source can be given by name.
        respace.keyspace = spec_of(cls.__table__).keyspace
        respace.enqueue(
            session,
            gap.source_id,
            gap.target_id,
            near=gap.source_id,
            unique_key=f"{respace.name} {gap.source_id}",
        )

    return respace
