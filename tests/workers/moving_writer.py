"""A process of the application that moves; it is killed at random.

Usage: ``moving_writer.py writer NUMBER SEED`` or ``moving_writer.py tool``.
A writer appends a line to its journal before each write and after it was
acknowledged.  It ends when the file ``stop`` exists.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from random import Random

from sqla_shard.migrate.passes import backfill
from sqla_shard.migrate.passes import reconcile
from sqla_shard.migrate.switching import Switch
from tests.models.moving_app import open_move
from tests.models.moving_app import Posts

#: Primary keys of the posts that all processes change.
SHARED = range(1, 7)


def write(folder: Path, number: str, seed: int) -> None:
    move = open_move(
        os.environ["MOVING_URL"],
        os.environ["MOVING_TOPOLOGY"],
        refresh=0.1,
        compare=0.2,
    )
    posts, random = Posts(move), Random(seed)
    journal = os.open(
        folder / f"journal-{number}",
        os.O_WRONLY | os.O_APPEND | os.O_CREAT,
        0o600,
    )

    def log(*words: object) -> None:
        os.write(journal, (" ".join(map(str, words)) + "\n").encode())

    own: dict[int, str] = {}
    user_id = posts.add_user(f"writer {number}")
    count = 0
    while not (folder / "stop").exists():
        count += 1
        name = f"{number}-{seed}-{count}"
        what = random.choice(
            ["add", "change", "change", "delete", "read", "follow", "unfollow"]
        )
        if what == "add" or not own:
            log("begin", "add", name)
            own[posts.add(user_id, name)] = name
            log("done", "add", name)
        elif what == "change":
            post_id = random.choice(SHARED)
            log("begin", "change", post_id)
            posts.change(post_id)
            log("done", "change", post_id)
        elif what in ("follow", "unfollow"):
            # Each process follows with its own user, so the last one counts.
            other = random.choice(SHARED)
            log("begin", what, f"{user_id}-{other}")
            getattr(posts, what)(user_id, other)
            log("done", what, f"{user_id}-{other}")
        elif what == "delete" and len(own) > 3:
            post_id, gone = own.popitem()
            log("begin", "delete", gone)
            posts.delete(post_id)
            log("done", "delete", gone)
        else:
            post_id = random.choice(list(own))
            assert posts.title(post_id) == own[post_id]
    log("counts:", "of", dict(move.counts))
    move.close()


def go_through(folder: Path) -> None:
    """Go through all stages; what is done follows from the stage."""
    move = open_move(os.environ["MOVING_URL"], os.environ["MOVING_TOPOLOGY"])
    switch = Switch(move)
    returned = folder / "returned"
    while True:
        now = switch.begin()
        if now.stage in ("legacy", "marking"):
            switch.go("copying")
        elif now.stage == "copying":
            assert backfill(move) == 0
            assert reconcile(move).is_equal
            switch.go("reading")
        elif now.stage == "reading" and "posts" not in now.shares:
            switch.share({"posts": 50})
        elif now.stage in ("reading", "closing"):
            if now.number > 5 and now.former == "returning":
                returned.touch()
            switch.go("switched")
        elif now.stage == "returning" or not returned.exists():
            switch.back()
            returned.touch()
        else:
            break
    move.close()


if __name__ == "__main__":
    here = Path(os.environ["MOVING_TOPOLOGY"]).parent
    if sys.argv[1] == "tool":
        go_through(here)
    else:
        write(here, sys.argv[2], int(sys.argv[3]))
