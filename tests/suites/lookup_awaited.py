"""Lookups in asynchronous sessions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sqla_shard import AsyncShardSession, Cluster
from sqla_shard.exc import KeyTakenError
from tests.models.lookup_models import LOOKUPS, new_user, Suite, UserEmail


class Awaited(Suite):
    """The test module has a fixture ``cluster``."""

    def test_sign_up(self, cluster: Cluster, mark: str) -> None:
        key = f"Me{mark}@x.org"

        def call(fn: Any, *given: Any) -> Any:
            async def run(session: AsyncShardSession) -> Any:
                return await session.run_sync(fn, *given)

            return cluster.async_run(run)

        async def main() -> None:
            claim = await call(UserEmail.claim, key)
            with pytest.raises(KeyTakenError):
                await call(UserEmail.claim, key)
            user = await call(new_user)
            await call(claim.confirm, user)
            keys = [key, *(f"{i}{mark}@x.org" for i in range(200))]
            async with cluster.async_session() as session:
                assert user == await session.run_sync(UserEmail.resolve, key)
                found = await session.run_sync(UserEmail.resolve_many, keys)
            assert found == {key: user}
            assert await call(UserEmail.release, key, user)

        asyncio.run(main())


cluster = LOOKUPS.on_backend()
