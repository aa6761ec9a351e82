"""A whole move under load: its rows, its processes, and what must be true.

The application is that of :mod:`tests.models.moving_app`, its processes are
those of :mod:`tests.workers.moving_writer`.  Everything has a name of its own,
so both sides are compared by names, without the map of ids.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any

from sqlalchemy import Engine, insert, select

from sqla_shard import Cluster, scatter
from sqla_shard.migrate import Move
from tests.models.moving_app import (
    FOLLOWS,
    Message,
    Post,
    ShardedMessage,
    ShardedPost,
    ShardedUser,
    User,
    UserFollowsUser,
    WRITTEN_AT,
)
from tests.workers import moving_writer

_SOAK = os.environ.get("SQLA_SHARD_SOAK") == "1"


@dataclass(frozen=True, kw_only=True)
class Size:
    """The size of a trial.

    :ivar rows: rows before the move: six of ten are posts, three messages, one
        says who follows whom; there is a user for each hundred.
    :ivar shards: virtual shards, on all servers of the fleet.
    :ivar writers: processes of the application.
    :ivar rest: mean seconds that each of them rests after a call, so that
        they leave processor time to the tool; 0 for none.
    :ivar pause: maximum seconds between two of them that are killed.
    :ivar kills: maximum number of them that are killed.
    :ivar tool_pause: maximum seconds before the tool is killed; most are far
        shorter, since a pass that dies begins again.  It also dies after
        changes of the stage.
    :ivar tool_kills: maximum number of times that it is killed.
    :ivar step_kills: by how many times that number rises with each step, so
        that it does not die in the first ones alone.
    :ivar steps: the stages that the tool goes to, and its verifications.
    :ivar deadline: seconds for everything.
    """

    rows: int
    shards: int
    writers: int
    rest: float
    pause: float
    kills: int
    tool_pause: float
    tool_kills: int
    step_kills: int
    steps: str
    deadline: float

    @property
    def users(self) -> int:
        return max(self.rows // 100, 6)

    @property
    def posts(self) -> int:
        return self.rows * 6 // 10

    @property
    def messages(self) -> int:
        return self.rows * 3 // 10

    @property
    def follows(self) -> int:
        return self.rows // 10


SHORT = Size(
    rows=300,
    shards=8,
    writers=3,
    rest=0.0,
    pause=2.0,
    kills=3,
    tool_pause=5.0,
    tool_kills=2,
    step_kills=2,
    steps="copying reading switched reading switched",
    deadline=800.0,
)
LONG = Size(
    rows=int(os.environ.get("SQLA_SHARD_MOVED_ROWS", "1_000_000")),
    shards=256,
    writers=8,
    rest=0.12,
    pause=60.0,
    kills=1000,
    tool_pause=180.0,
    tool_kills=20,
    step_kills=2,
    # Before it goes to reading, the tool compares all rows, and the test
    # does it at the end.
    steps="copying legacy copying reading copying reading "
    "switched verify reading switched",
    deadline=7000.0,
)
SIZE = LONG if _SOAK else SHORT


# -- rows before the move


def _users(size: Size) -> Iterator[dict[str, Any]]:
    for n in range(1, size.users + 1):
        yield {"id": n, "name": f"user {n}"}


def _posts(size: Size) -> Iterator[dict[str, Any]]:
    for n in range(1, size.posts + 1):
        yield {
            "id": n,
            "user_id": 1 + n % size.users,
            "reply_to": 1 if n % 7 == 6 else None,
            "title": f"old {n}",
            "changes": 0,
            "written_at": WRITTEN_AT,
        }


def _messages(size: Size) -> Iterator[dict[str, Any]]:
    for n in range(1, size.messages + 1):
        yield {
            "id": n,
            "sender_id": 1 + n % size.users,
            "recipient_id": 1 + n * 7 % size.users,
            "content": f"old {n}",
        }


def _follows(size: Size) -> Iterator[dict[str, Any]]:
    for n in range(size.follows):
        follower, distance = n % size.users, 1 + n // size.users
        yield {
            "follower_id": 1 + follower,
            "user_id": 1 + (follower + distance) % size.users,
            "since": WRITTEN_AT,
        }


def fill(engine: Engine, size: Size) -> None:
    """Insert the rows."""
    tables = {
        User.__table__: _users(size),
        Post.__table__: _posts(size),
        Message.__table__: _messages(size),
        FOLLOWS: _follows(size),
    }
    for table, rows in tables.items():
        for page in _pages(rows, 10_000):
            with engine.begin() as connection:
                connection.execute(insert(table), page)


def _pages(
    rows: Iterator[dict[str, Any]], count: int
) -> Iterator[list[dict[str, Any]]]:
    page = []
    for row in rows:
        page.append(row)
        if len(page) == count:
            yield page
            page = []
    if page:
        yield page


# -- processes


class Processes:
    """Processes that are started again when they were killed.

    :param folder: directory of their journals.
    :param environ: where the move is.
    """

    def __init__(self, folder: Path, environ: dict[str, str], size: Size) -> None:
        self.killed: Counter[str] = Counter()
        self._folder = folder
        self._environ = {
            **os.environ,
            **environ,
            "MOVING_REST": str(size.rest),
            "MOVING_STEPS": size.steps,
        }
        # The seed of the run, see tests/conftest.py.
        self._random = random.Random(random.randrange(10**9))
        self._size = size
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._pause = Event()
        #: The sizes of what they write when the processes were started.
        self._sizes: dict[str, int] = {}
        for number in range(size.writers):
            self._start(str(number))
        self._start("tool")

    def _start(self, name: str) -> None:
        arguments = [name]
        if name != "tool":
            unique = self._random.randrange(10**9)
            arguments = ["writer", name, str(unique)]
        self._sizes[name] = self._written(name)
        command = [sys.executable, moving_writer.__file__, *arguments]
        with (self._folder / f"log-{name}").open("ab") as log:
            self._running[name] = subprocess.Popen(
                command, env=self._environ, stdout=log, stderr=log
            )

    def _kill(self, name: str) -> None:
        process = self._running[name]
        process.kill()
        assert process.wait() in (-9, 0), self.logs()
        if process.returncode:
            self.killed["tool" if name == "tool" else "writer"] += 1
            self._start(name)

    def _written(self, name: str) -> int:
        """Return the size of a journal, or of the log of the tool."""
        kind = "log" if name == "tool" else "journal"
        path = self._folder / f"{kind}-{name}"
        return path.stat().st_size if path.exists() else 0

    def _works(self, name: str) -> bool:
        """Return whether a process has written since it was started.

        On a slow machine one that dies earlier would do nothing.
        """
        return self._written(name) > self._sizes[name]

    def run(self, move: Move) -> None:
        """Kill processes until the tool has gone through all stages."""
        size, uniform = self._size, self._random.uniform
        begin = monotonic()
        writer = begin + uniform(0.2, size.pause)
        tool = begin + self._tool_pause()
        number = 0
        while (code := self._running["tool"].poll()) is None:
            now = monotonic()
            assert now < begin + size.deadline, self.logs()
            changed = move.store.read().number
            if changed != number:
                number = changed
                if self._random.random() < 0.5:
                    tool = now + uniform(0, 0.2)
            if now >= writer and self.killed["writer"] < size.kills:
                names = map(str, range(size.writers))
                working = [name for name in names if self._works(name)]
                if working:
                    self._kill(self._random.choice(working))
                    writer = now + uniform(0.2, size.pause)
            steps = moving_writer.steps_done(self._folder) + 1
            most = min(size.tool_kills, size.step_kills * steps)
            if now >= tool and self.killed["tool"] < most and self._works("tool"):
                self._kill("tool")
                tool = now + self._tool_pause()
            self._pause.wait(0.05)
        assert code == 0, self.logs()

    def _tool_pause(self) -> float:
        """Return the seconds before the tool is killed, from 1."""
        pause: float = self._size.tool_pause ** self._random.random()
        return pause

    def stop(self) -> None:
        """End all processes; none may have had an error."""
        (self._folder / "stop").touch()
        for process in self._running.values():
            assert process.wait(120) == 0, self.logs()

    def logs(self) -> str:
        """Return the ends of all logs."""
        return "\n".join(
            f"{path.name}: {path.read_text()[-3000:]}"
            for path in sorted(self._folder.glob("log-*"))
        )

    def close(self) -> None:
        """Kill all processes."""
        for process in self._running.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()


# -- what both sides have


@dataclass(kw_only=True)
class Rows:
    """All rows of a side, by their names.

    :ivar users: the names.
    :ivar posts: by title: name of the author, changes, title of the post that
        it replies to, and time.
    :ivar messages: by content: names of the sender and the recipient.
    :ivar follows: pairs of a follower and a followed user.
    :ivar doubled: names that several rows have.
    """

    users: set[str] = field(default_factory=set)
    posts: dict[str, tuple[str, int, str | None, datetime]] = field(
        default_factory=dict
    )
    messages: dict[str, tuple[str, str]] = field(default_factory=dict)
    follows: set[tuple[str, str]] = field(default_factory=set)
    doubled: list[str] = field(default_factory=list)


def rows_of_database(engine: Engine) -> Rows:
    """Return the rows of the database."""
    with engine.connect() as connection:
        return _named(
            connection.execute(select(User.id, User.name)),
            connection.execute(
                select(
                    Post.id,
                    Post.title,
                    Post.user_id,
                    Post.changes,
                    Post.reply_to,
                    Post.written_at,
                )
            ),
            connection.execute(
                select(Message.content, Message.sender_id, Message.recipient_id)
            ),
            connection.execute(select(FOLLOWS.c.follower_id, FOLLOWS.c.user_id)),
        )


def rows_of_shards(cluster: Cluster) -> Rows:
    """Return the rows of all shards."""
    with cluster.session(cache=False) as session:

        def found(*attributes: Any) -> Any:
            return session.execute(select(*attributes).options(scatter()))

        return _named(
            found(ShardedUser.id, ShardedUser.name),
            [
                (*row[:5], row[5].replace(tzinfo=None))
                for row in found(
                    ShardedPost.id,
                    ShardedPost.title,
                    ShardedPost.user_id,
                    ShardedPost.changes,
                    ShardedPost.reply_to,
                    ShardedPost.written_at,
                )
            ],
            found(
                ShardedMessage.content,
                ShardedMessage.sender_id,
                ShardedMessage.recipient_id,
            ),
            found(UserFollowsUser.follower_id, UserFollowsUser.followee_id),
        )


def _named(users: Any, posts: Any, messages: Any, follows: Any) -> Rows:
    found = Rows()
    names: dict[int, str] = dict(map(tuple, users))
    found.users = set(names.values())
    found.doubled += [
        name for name, count in Counter(names.values()).items() if count > 1
    ]
    posts = list(posts)
    titles = {row[0]: row[1] for row in posts}
    for _, title, user_id, changes, reply_to, written_at in posts:
        if title in found.posts:
            found.doubled.append(title)
        found.posts[title] = (
            names[user_id],
            changes,
            None if reply_to is None else titles[reply_to],
            written_at,
        )
    for content, sender_id, recipient_id in messages:
        if content in found.messages:
            found.doubled.append(content)
        found.messages[content] = names[sender_id], names[recipient_id]
    found.follows = {(names[row[0]], names[row[1]]) for row in follows}
    return found


# -- acknowledged writes


def journals(folder: Path) -> dict[str, Counter[str]]:
    """Return the numbers of writes that were started and acknowledged."""
    found: dict[str, Counter[str]] = {}
    for path in folder.glob("journal-*"):
        for line in path.read_text().splitlines():
            state, what, *rest = line.split(" ")
            if not state.endswith(":"):
                found.setdefault(f"{state} {what}", Counter())[rest[0]] += 1
    return found


def check(rows: Rows, folder: Path, size: Size) -> None:
    """Compare the rows of a side with initial rows and acknowledged writes."""
    written = journals(folder)
    assert not rows.doubled
    _check_old(rows, size)
    done, begun = written["done change"], written["begin change"]
    assert done.total() > 0
    for key in moving_writer.SHARED:
        changes = rows.posts[f"old {key}"][1]
        assert done[str(key)] <= changes <= begun[str(key)]
    gone = written.get("done delete", Counter())
    going = written.get("begin delete", Counter())
    for title in written["done add"]:
        if title in gone:
            assert title not in rows.posts, title
        elif title not in going:
            assert title in rows.posts, title
    new = {title for title in rows.posts if not title.startswith("old ")}
    assert new <= written["begin add"].keys()
    for content in written["done send"]:
        assert content in rows.messages, content
    sent = {name for name in rows.messages if not name.startswith("old ")}
    assert sent <= written["begin send"].keys()
    _check_follows(rows, folder)


def _check_old(rows: Rows, size: Size) -> None:
    """Check that nothing of before was lost or changed."""
    for user in _users(size):
        assert user["name"] in rows.users
    for post in _posts(size):
        author, changes, reply_to, written_at = rows.posts[post["title"]]
        assert author == f"user {post['user_id']}"
        assert changes == 0 or post["id"] in moving_writer.SHARED
        assert reply_to == (None if post["reply_to"] is None else "old 1")
        assert written_at == post["written_at"]
    for message in _messages(size):
        assert rows.messages[message["content"]] == (
            f"user {message['sender_id']}",
            f"user {message['recipient_id']}",
        )
    for pair in _follows(size):
        one, other = f"user {pair['follower_id']}", f"user {pair['user_id']}"
        assert (one, other) in rows.follows


def _check_follows(rows: Rows, folder: Path) -> None:
    """Compare the follows with the last writes of each process."""
    last: dict[str, list[str]] = {}
    for path in folder.glob("journal-*"):
        for line in path.read_text().splitlines():
            state, what, pair = line.split(" ", 2)
            if what.endswith("follow"):
                last[pair] = [state, what]
    assert last
    for pair, (state, what) in last.items():
        writer, _, user_id = pair.partition("/")
        found = (f"writer {writer}", f"user {user_id}") in rows.follows
        # The last one may have died before it was acknowledged.
        if state == "done":
            assert found is (what == "follow"), pair


def report(folder: Path, result: str) -> None:
    """Print what happened; no read may have differed between the sides."""
    lines = [
        line.split(" ", 2)
        for path in folder.glob("journal-*")
        for line in path.read_text().splitlines()
    ]
    counts = [rest for name, _, rest in lines if name == "counts:"]
    assert not any("different" in line for line in counts), counts
    slowest = max(rest for name, _, rest in lines if name == "slowest:")
    writes = sum(name == "done" for name, _, _ in lines)
    text = f"{result}\n{writes:,} writes, none failed; slowest {slowest} s\n"
    text += (folder / "log-tool").read_text()
    print(text)  # noqa: T201  # with -s
