"""A process that forks a child while it uses its connections.

Run as a program: ``forked_master.py KIND DOCUMENT ID``.  It says a line
when its connections are open, forks at the next line of its input, and waits
to be killed.  The child never collects garbage.  It says how many sockets to
the servers it has, and lives until the input ends.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
import threading
from typing import Any

from sqlalchemy import text

from sqla_shard import Cluster
from tests.servers.faults import Pin
from tests.servers.processes import count_sockets_to

IDLE = 2


def say(word: object) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def fork(port: int) -> None:
    say("open")
    sys.stdin.readline()
    # As with gunicorn: objects of the parent are not traversed again.
    gc.disable()
    gc.freeze()
    if os.fork() == 0:
        try:
            say(count_sockets_to(port))
            sys.stdin.read()
        finally:
            os._exit(0)
    signal.pause()


def lock(session: Any, pin_id: int) -> None:
    session.get(Pin, pin_id, with_for_update=True)


def in_threads(cluster: Cluster, pin_id: int, port: int) -> None:
    place = {"shard_id": 0}
    sent = threading.Event()

    def wait() -> None:
        with cluster.session() as session:
            connection = session.connection(place)
            sent.set()
            connection.execute(text("SELECT SLEEP(600)"))

    held = [cluster.session() for _ in range(IDLE)]
    for session in held:
        session.connection(place)
    with cluster.session() as session:
        lock(session, pin_id)
        threading.Thread(target=wait, daemon=True).start()
        sent.wait()
        for one in held:
            one.close()
        # The thread has its answer to wait for, or soon will.
        until_asleep(cluster)
        fork(port)


def until_asleep(cluster: Cluster) -> None:
    statement = text(
        "SELECT COUNT(*) FROM information_schema.processlist "
        "WHERE info = 'SELECT SLEEP(600)'"
    )
    with cluster.session() as session:
        while not session.scalar(statement, bind_arguments={"shard_id": 0}):
            pass


async def in_a_loop(cluster: Cluster, pin_id: int, port: int) -> None:
    place = {"shard_id": 0}
    held = [cluster.async_session() for _ in range(IDLE)]
    for session in held:
        await session.connection(place)
    async with cluster.async_session() as session:
        await session.run_sync(lock, pin_id)
        for one in held:
            await one.close()
        fork(port)


def main() -> None:
    kind, path, pin_id = sys.argv[1:]
    with open(path) as file:
        document, port, driver, options = json.load(file)
    cluster = Cluster.from_topology(document, driver=driver, engine_options=options)
    if kind == "loop":
        asyncio.run(in_a_loop(cluster, int(pin_id), port))
    else:
        in_threads(cluster, int(pin_id), port)


if __name__ == "__main__":
    main()
