"""A process that reads boards of all shards, and one board far more often.

Run as a program with a topology file, the directory in which it publishes its
load, and the ids of boards, of which the first is the popular one.  It reads
all alike until a line comes on standard input, then the popular one in two of
three turns, until standard input ends; then it prints how many statements
it has sent since the line.
"""

from __future__ import annotations

import random
import sys
import threading

from sqla_shard import Cluster
from sqla_shard.monitor import measure_load, publish_load
from tests.models.mapping_models import Board, BoardHasPins


def main(topology: str, directory: str, *ids: str) -> None:
    boards = [int(one) for one in ids]
    is_hot, is_over = threading.Event(), threading.Event()

    def listen() -> None:
        sys.stdin.readline()
        is_hot.set()
        sys.stdin.read()
        is_over.set()

    threading.Thread(target=listen, daemon=True).start()
    chance = random.Random()
    with Cluster.from_file(topology) as cluster:
        publisher = publish_load(measure_load(cluster), directory)
        with cluster.session() as session:
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            sent = 0
            while not is_over.is_set():
                sent += 2 * is_hot.is_set()
                board = chance.choice(boards)
                if is_hot.is_set() and chance.random() < 2 / 3:
                    board = boards[0]
                session.get(Board, board)
                BoardHasPins.page(session, board, 10)
                session.expunge_all()
        publisher.stop()
    sys.stdout.write(f"{sent}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
