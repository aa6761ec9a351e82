"""Lists in asynchronous sessions."""

from __future__ import annotations

import asyncio

from sqla_shard import AsyncShardSession, Cluster
from tests.models import mapping_models as lists

cluster = lists.LISTS.on_backend()


class Lists:
    def test_class_level_calls(self, cluster: Cluster) -> None:
        async def main() -> None:
            async with cluster.async_begin() as session:
                board = lists.Board(title="Boats")
                session.add(board)
                await session.flush()
                for pin in pins:
                    await session.run_sync(lists.BoardHasPins.append, board.id, pin)
            async with cluster.async_session() as session:
                page = await session.run_sync(
                    lists.BoardHasPins.page, board.id, limit=2
                )
                assert [row.pin_id for row in page.items] == pins[:2:-1]
                page = await session.run_sync(
                    lists.BoardHasPins.page, board.id, limit=3, after=page.next
                )
                assert [row.pin_id for row in page.items] == pins[2::-1]
                held = await session.run_sync(
                    lists.BoardHasPins.contains, board.id, [pins[1], lists.pins(1)[0]]
                )
                assert held == {pins[1]}
            await cluster.async_run(move, board.id)
            shown = lists.shown(cluster, lists.BoardHasPins, board.id)
            assert shown == [*pins[3:0:-1], pins[4], pins[0]]

        async def move(session: AsyncShardSession, board_id: int) -> None:
            await session.run_sync(
                lists.BoardHasPins.move, board_id, pins[4], after=pins[0]
            )

        pins = lists.pins(5)
        asyncio.run(main())
