"""Event loops: their connections, their end, their threads, and fork."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text

from sqla_shard import Cluster
from sqla_shard.testing.server_fleet import ServerFleet
from tests.servers.faults import (
    all_work,
    busy,
    opened,
    own_ids,
    Pin,
    SERVERS,
    SHARDS,
    TIMEOUT,
)
from tests.servers.kinds import own_fleet

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]

fleet = own_fleet(SERVERS, SHARDS)
ids = own_ids()


def _sessions_of(server: Any) -> int:
    return len(
        server.root_execute(
            "SELECT 1 FROM information_schema.processlist WHERE user = 'app'"
        )
    )


def _until_no_session(fleet: ServerFleet[Any]) -> None:
    done = threading.Event()
    for server in fleet.servers:
        for _ in range(TIMEOUT * 100):
            if not _sessions_of(server):
                break
            done.wait(0.01)
        else:
            pytest.fail(f"{server.name} has still a session")


def test_connections_end_with_their_loop(
    fleet: ServerFleet[Any], ids: list[int]
) -> None:
    """Several loops one after another, with and without a proper end."""
    cluster = opened(fleet)
    for _ in range(3):
        asyncio.run(all_work(cluster, ids))
        assert cluster.stats() == []
        _until_no_session(fleet)

    assert cluster.close()


# The loops are closed without a message.
_CLOSED_LOOPS = """
import asyncio
import gc
import json
import sys

from sqla_shard import Cluster
from tests.servers.faults import Pin

document, environ, ids = json.loads(sys.stdin.readline())
cluster = Cluster.from_topology(document, environ=environ)


async def read():
    async with cluster.async_session() as session:
        assert None not in await session.get_many(Pin, ids)


gc.disable()  # or it would close the connections
for _ in range(2):
    loop = asyncio.new_event_loop()
    loop.run_until_complete(read())
    loop.close()
assert cluster.stats() == []
cluster.close()
print("closed", flush=True)
sys.stdin.readline()
del loop
gc.collect()
"""


def test_loops_that_are_closed_without_a_word(
    fleet: ServerFleet[Any], ids: list[int]
) -> None:
    """Their connections are closed, and the program hears nothing of it."""
    with subprocess.Popen(
        [sys.executable, "-c", _CLOSED_LOOPS],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": ""},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin
        assert process.stdout
        given = [fleet.topology_mapping(), dict(fleet.environ), ids]
        process.stdin.write(f"{json.dumps(given)}\n")
        process.stdin.flush()
        said = process.stdout.readline()
        if said:
            _until_no_session(fleet)
        _, errors = process.communicate("\n", timeout=TIMEOUT)
    assert (process.returncode, said, errors) == (0, "closed\n", "")


def test_loops_in_threads(fleet: ServerFleet[Any], ids: list[int]) -> None:
    problems: list[BaseException] = []
    barrier = threading.Barrier(3, timeout=TIMEOUT)

    with opened(fleet) as cluster:

        async def main() -> None:
            barrier.wait()
            for _ in range(5):
                await _works_here(cluster, ids)

        def run() -> None:
            try:
                asyncio.run(main())
            except Exception as error:  # it is asserted below
                problems.append(error)

        threads = [threading.Thread(target=run) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT)
        assert not problems
        assert busy(cluster) == 0


async def _works_here(cluster: Cluster, ids: list[int]) -> None:
    async with cluster.async_session() as session:
        assert None not in await session.get_many(Pin, ids)


def test_closing_waits_for_sessions(fleet: ServerFleet[Any], ids: list[int]) -> None:
    async def main(cluster: Cluster) -> None:
        session = cluster.async_session()
        await session.get_many(Pin, ids)
        assert await cluster.aclose(timeout=0.05) is False
        closing = asyncio.ensure_future(cluster.aclose(timeout=TIMEOUT))
        await asyncio.sleep(0)
        # The running session continues to its end.
        session.expunge_all()
        assert None not in await session.get_many(Pin, ids)
        assert not closing.done()
        await session.close()
        assert await closing is True

    asyncio.run(main(opened(fleet)))
    _until_no_session(fleet)


@pytest.mark.parametrize("scheme", ["mysql", "mysql+pymysql"])
def test_urls_are_those_of_synchronous_sessions(
    fleet: ServerFleet[Any], ids: list[int], scheme: str
) -> None:
    document = json.loads(json.dumps(fleet.topology_mapping()))
    for server in document["keyspaces"]["objects"]["servers"]:
        _, _, rest = server["primary"].partition("://")
        server["primary"] = f"{scheme}://{rest}?program_name=shop&read_timeout=9"

    async def main(cluster: Cluster) -> None:
        await all_work(cluster, ids)
        places = cluster.async_session().sync_session.places
        drivers = {engine.dialect.driver for engine in places.engines}
        assert drivers == {"asyncmy"}

    with Cluster.from_topology(document, environ=fleet.environ) as cluster:
        asyncio.run(main(cluster))
        with cluster.session() as session:
            assert None not in session.get_many(Pin, ids)
        assert {e.dialect.driver for e in cluster.places.engines} == {"pymysql"}


def test_fork(fleet: ServerFleet[Any], ids: list[int]) -> None:
    """A child opens connections of its own, and the parent keeps its own."""

    async def main(cluster: Cluster) -> None:
        async with cluster.async_session() as session:
            assert None not in await session.get_many(Pin, ids)
            child = os.fork()
            if child == 0:
                os._exit(_in_child(cluster, ids))
            _, status = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(status) == 0
            # Its transactions are still there.
            await session.execute(text("SELECT 1"), bind_arguments={"shard_id": 0})
            session.expunge_all()
            assert None not in await session.get_many(Pin, ids)
        await all_work(cluster, ids)

    # Otherwise it would wait for events taken by a child process.
    with opened(fleet, connect_args={"read_timeout": 5}) as cluster:
        asyncio.run(main(cluster))


def _in_child(cluster: Cluster, ids: list[int]) -> int:
    try:
        assert cluster.stats() == []
        # Its sessions end with it, without a word of the child's.
        asyncio.run(all_work(cluster, ids))
        cluster.close()
    except BaseException:  # the exit status is what the parent sees
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def test_statements_run_in_the_thread_of_the_loop(
    fleet: ServerFleet[Any], ids: list[int]
) -> None:
    threads: set[int] = set()

    def after(*_: Any) -> None:
        threads.add(threading.get_ident())

    async def main(cluster: Cluster) -> None:
        await all_work(cluster, ids)
        places = cluster.async_session().sync_session.places
        for engine in places.engines:
            event.listen(engine, "after_cursor_execute", after)
        await all_work(cluster, ids)

    with opened(fleet) as cluster:
        asyncio.run(main(cluster))
    assert threads == {threading.get_ident()}
