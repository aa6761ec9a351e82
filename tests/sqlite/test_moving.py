"""A move of an application: its sessions, copies in both directions."""

from __future__ import annotations

import gc
import inspect
import json
import sqlite3
import sys
from collections import Counter
from contextlib import closing, suppress
from datetime import UTC
from functools import partial
from itertools import cycle
from types import SimpleNamespace

import pytest
from click import Context
from click.testing import CliRunner
from sqlalchemy import create_engine, delete, event, insert, select, text, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import DeclarativeBase, Session

from sqla_shard import Cluster, LookupMixin, MappingMixin, SCHEMA
from sqla_shard.cli.program import program
from sqla_shard.dialects import backend_for
from sqla_shard.exc import (
    DeclarationError,
    MigrateSetupError,
    ServerUnreachableError,
    SideClosedError,
    StageRefusedError,
    StageUnavailableError,
    UnsupportedStatementError,
    VerifyPositionError,
)
from sqla_shard.migrate import Declaration, Lookup, Move, Moved, Owner
from sqla_shard.migrate.copier import Copier
from sqla_shard.migrate.copies import read_images
from sqla_shard.migrate.marks import KeyPart
from sqla_shard.migrate.passes import backfill, Pass, reconcile, replicas, verify
from sqla_shard.migrate.stage_changes import copy_waiting, plan, status, Switch
from sqla_shard.migrate.tables import COPYING, ShardPart
from sqla_shard.models import normalization
from sqla_shard.testing.topology_documents import sqlite_topology
from sqla_shard.upkeep import verify_lookups
from sqla_shard.upkeep.run import PositionFile
from sqla_shard.util.pace import Throttle
from tests.models.moving_app import (
    Base,
    CLASSES,
    FOLLOWS,
    open_move,
    Post,
    Posts,
    Sharded,
    ShardedPost,
    ShardedUser,
    User,
    UserFollowsUser,
    WRITTEN_AT,
)


class Other(DeclarativeBase):
    pass


class SpreadFollows(
    MappingMixin, Other, source=ShardedUser, target=ShardedPost, spread=4, spread_over=4
):
    pass


class UserName(
    LookupMixin, Other, target=ShardedUser, field="name", normalize=normalization.exact
):
    pass


@pytest.fixture
def move(tmp_path):
    """Return the move of an application with two users and four posts."""
    topology = tmp_path / "topology.json"
    topology.write_text(json.dumps(sqlite_topology(tmp_path, 2, 2, lookup=2)))
    move = open_move(f"sqlite:///{tmp_path / 'before.sqlite'}", str(topology))
    shards = cycle([0, 1])
    move.cluster.placement = lambda **_: next(shards)
    Base.metadata.create_all(move.engine)
    move.cluster.create_all(Sharded.metadata)
    with move._sessions.begin() as session:
        Switch(move).prepare()
        for name in ("a", "b"):
            user = User(name=name)
            session.add(user)
            session.flush()
            for title in ("first", "second"):
                session.add(post_of(user.id, f"{title} of {name}"))
    yield move
    move.close()
    move.cluster.close()
    move.engine.dispose()


def post_of(user_id, title, **values):
    return Post(
        user_id=user_id, title=title, changes=0, written_at=WRITTEN_AT, **values
    )


def copied(move):
    Switch(move).go("copying")
    assert backfill(move, jobs=1) == 0
    assert reconcile(move).is_equal


def switched(move):
    copied(move)
    Switch(move).go("switched")
    move.progress(now=True)


def titles(move):
    """Return the titles on the shards by primary key in the database."""
    found = {}
    with move.engine.connect() as connection:
        ids = move.tables["posts"].marks.marked(connection)
    with move.cluster.session() as session:
        for object_id, (key,) in ids.items():
            post = session.get(ShardedPost, object_id)
            if post is not None:
                found[key] = post.title
    return found


def test_sessions_copy_what_they_write(move):
    copied(move)
    with move._sessions.begin() as session:
        session.get(Post, 1).title = "changed"
        session.delete(session.get(Post, 2))
        session.execute(update(Post).where(Post.user_id == 2).values(title="both"))
        session.add(post_of(1, "new", reply_to=1))
    assert titles(move) == {1: "changed", 3: "both", 4: "both", 5: "new"}
    with move._sessions.begin() as session:
        session.execute(delete(Post).where(Post.id == 4))
        posts = Post.__table__
        session.execute(delete(posts).where(posts.c.id == 5))
        session.execute(
            insert(Post),
            [
                {
                    "id": 9,
                    "user_id": 1,
                    "title": "bulk",
                    "changes": 0,
                    "written_at": WRITTEN_AT,
                }
            ],
        )
        session.execute(update(Post), [{"id": 3, "title": "by key"}])
    assert titles(move) == {1: "changed", 3: "by key", 9: "bulk"}
    assert verify(move).is_equal
    with move._sessions() as session, pytest.raises(UnsupportedStatementError):
        session.execute(
            insert(Post),
            [{"user_id": 1, "title": "?", "changes": 0, "written_at": WRITTEN_AT}],
        )


def test_rolled_back_writes_are_not_copied(move):
    copied(move)
    with move._sessions.begin() as session:
        session.get(Post, 1).title = "kept"
        savepoint = session.begin_nested()
        session.get(Post, 2).title = "not kept"
        session.add(post_of(1, "not there"))
        session.flush()
        savepoint.rollback()
    with move._sessions() as session:
        session.get(Post, 3).title = "not kept"
        session.flush()
    assert titles(move) == {
        1: "kept",
        2: "second of a",
        3: "first of b",
        4: "second of b",
    }


def test_a_failed_copy_is_no_error_and_waits(move, monkeypatch, caplog):
    copied(move)

    def fails(*_, **options):
        raise OperationalError("", {}, Exception("the shard is down"))

    with monkeypatch.context() as patch:
        patch.setattr(move.copier, "forward", fails)
        with move._sessions.begin() as session:
            session.get(Post, 1).title = "changed"
    assert "posts 1 was not copied and waits: " in caplog.text
    assert titles(move)[1] == "first of a"
    assert status(move).waiting["posts"] == 1
    assert verify(move).waiting == 1
    assert copy_waiting(move, move.progress()) == 0
    assert titles(move)[1] == "changed"


def test_a_first_copy_that_was_not_recorded_is_made_again(move):
    copied(move)
    marks = move.tables["posts"].marks.table
    with move.engine.begin() as connection:
        # As by a process that was killed after the COMMIT on the shard.
        connection.execute(update(marks).values(copied=0))
    assert status(move).waiting["posts"] == 4
    with move._sessions.begin() as session:
        session.get(Post, 1).title = "changed"
        session.delete(session.get(Post, 2))
    assert status(move).waiting["posts"] == 2
    assert copy_waiting(move, move.progress()) == 0
    assert titles(move) == {1: "changed", 3: "first of b", 4: "second of b"}
    found = verify(move)
    assert found.is_equal
    assert not found.waiting


def test_first_copies_replace_what_other_programs_have_inserted(move):
    with move._sessions.begin() as session:
        session.get(User, 1).following = [session.get(User, 2)]
    Switch(move).go("copying")
    ids = {key: move.object_id("posts", key) for key in (1, 2)}
    users = [move.object_id("users", key) for key in (1, 2)]
    with move.cluster.begin(info={"sqla_shard_copying": True}) as session:
        for key, object_id in ids.items():
            post = {
                "id": object_id,
                "user_id": users[0],
                "title": f"{key} of no row",
                "changes": 0,
                "written_at": WRITTEN_AT.replace(tzinfo=UTC),
            }
            session.execute(insert(ShardedPost), [post])
        UserFollowsUser.put(session, *users, 7)
    # One transaction has a row that is gone, and one that is there.
    with move._sessions.begin() as session:
        session.delete(session.get(Post, 2))
        session.get(Post, 1).title = "first of a"
    assert titles(move) == {1: "first of a"}
    assert backfill(move, jobs=1) == 0
    assert titles(move).keys() == {1, 3, 4}
    found = verify(move)
    assert found.is_equal
    assert not found.waiting


def test_a_backfill_that_is_repeated_writes_nothing(move):
    Switch(move).go("copying")
    assert backfill(move, jobs=1) == 0
    written = []

    @event.listens_for(move.engine, "before_cursor_execute")
    def see(connection, cursor, statement, *_):
        if not statement.startswith("SELECT"):
            written.append(statement)

    assert backfill(move, jobs=1) == 0
    assert written == []
    # A row of a mark of this round, and one without a mark.
    with move.engine.begin() as connection:
        connection.execute(
            insert(User.__table__), [{"id": 9, "name": "without a session"}]
        )
    assert backfill(move, jobs=1) == 0
    assert written
    assert verify(move).is_equal


def test_all_rows_without_an_id_are_copied(move, monkeypatch):
    Switch(move).go("copying")
    move.progress(now=True)
    # As with Move(copies=False): more rows than a page has.
    monkeypatch.setattr(move, "_copies", False)
    with move._sessions.begin() as session:
        session.add_all(User(name=f"user {number}") for number in range(1100))
    assert backfill(move, jobs=1) == 0
    assert not any(move.waiting.count("legacy").values())
    assert verify(move).is_equal


def test_parts_of_a_backfill(move):
    Switch(move).go("copying")
    with move._sessions.begin() as session:
        first, second = session.scalars(select(User).order_by(User.id))
        first.following.append(second)
    for number, keys in ((1, {3}), (2, {1, 3, 4}), (3, {1, 2, 3, 4})):
        part = KeyPart(number, 3)
        assert backfill(move, jobs=1, part=part) == 0
        assert titles(move).keys() == keys
    assert status(move).unclaimed == 0
    assert verify(move).is_equal


def test_commands_keep_imports_out_of_garbage_collection(move, monkeypatch):
    module = SimpleNamespace(move=move)
    monkeypatch.setitem(sys.modules, "of_the_application", module)
    counts = []

    def verified(move, **options):
        counts.append(gc.get_freeze_count())
        return Pass()

    # Not by the name of the module: what another test has loaded may have been
    # imported again since.
    group = program.get_command(Context(program), "migrate")
    command = group.get_command(Context(group), "verify")
    names = inspect.unwrap(command.callback).__globals__
    monkeypatch.setitem(names, "verify", verified)
    before = gc.get_freeze_count()
    done = CliRunner().invoke(program, ["migrate", "verify", "of_the_application"])
    assert done.exit_code == 0, done.output
    assert counts[0] > before >= gc.get_freeze_count()


@pytest.mark.parametrize("part", ["0/2", "3/2", "1", "a/b", "-1/2", "1/0"])
def test_parts_that_do_not_exist(part):
    done = CliRunner().invoke(
        program, ["migrate", "backfill", "nowhere", "--part", part]
    )
    assert done.exit_code == 2
    assert f"'{part}' must be K/N, such as 1/4" in done.output


@pytest.mark.parametrize(
    "option", [("--rate", "5"), ("--max-lag", "5"), ("--part", "1/2")]
)
def test_following_has_no_limits(option):
    done = CliRunner().invoke(
        program, ["migrate", "backfill", "nowhere", "--follow", *option]
    )
    assert done.exit_code == 2
    assert "--follow has none of --rate, --max-lag and" in done.output


def test_a_rate_limits_claims_and_copies(move, monkeypatch):
    Switch(move).go("copying")
    taken = []
    monkeypatch.setattr(Throttle, "take", lambda throttle, rows: taken.append(rows))
    assert backfill(move, rate=1000.0, jobs=1) == 0
    # Two users and four posts.
    assert taken == [2, 4, 2, 4]


def test_a_rate_limits_all_repairs(move, monkeypatch):
    Switch(move).go("copying")
    taken = []
    monkeypatch.setattr(Throttle, "take", lambda _, rows: taken.append(rows))
    with move.cluster.begin(info={COPYING: True}) as session:
        session.add(ShardedUser(name="of no row"))
    verify(move, rate=1000)
    assert taken == []
    reconcile(move, rate=1000, passes=1)
    # Users and posts, which no backfill has copied: repaired, and compared on
    # two shards; and the object that is deleted.
    assert taken == [2, 1, 1, 1, 4, 2, 2]


def test_long_values_are_named_by_where_they_differ(move):
    copied(move)
    text = "x" * 5000
    with move._sessions.begin() as session:
        session.get(Post, 1).title = f"{text}-old-{text}"
    with move.engine.begin() as connection:
        connection.execute(
            update(Post.__table__)
            .where(Post.id == 1)
            .values(title=f"{text}-new-{text}")
        )
    (found,) = verify(move).found
    assert len(found.reason) < 500
    assert "x-new-x" in found.reason
    assert "x-old-x" in found.reason


def test_a_backfill_after_the_write_switch_names_the_way(move):
    switched(move)
    with pytest.raises(StageRefusedError, match=r"from the shards; run: .* --follow"):
        backfill(move)


def _resumed(work, file, monkeypatch):
    """Interrupt a pass after each page; return its result, and the pages."""

    class Killed(BaseException):
        pass

    save = PositionFile.save

    def save_and_die(self, state):
        save(self, state)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(PositionFile, "save", save_and_die)
        for pages in range(1000):
            with suppress(Killed):
                return work(position=file), pages
    pytest.fail("it does not end")


@pytest.mark.parametrize("source", ["legacy", "shards"])
def test_a_pass_that_dies_after_a_repair_reports_what_it_has_found(
    move, tmp_path, monkeypatch, source
):
    """Also what it has found on the other shards of the page."""

    class Killed(BaseException):
        pass

    copied(move)
    if source == "shards":
        switched(move)
    with move.engine.begin() as connection:
        connection.execute(update(User.__table__).values(name="changed"))
        connection.execute(insert(User.__table__), [{"id": 9, "name": "new"}])
    for _ in range(2):
        with move.cluster.begin(info={COPYING: True}) as session:
            session.add(ShardedUser(name="of no row"))
    expected = verify(move)
    assert expected.differences == 5

    died = []

    def dying(repair):
        def repair_and_die(*args, **options):
            repair(*args, **options)
            died.append(repair)
            raise Killed

        return repair_and_die

    file = tmp_path / "position.json"
    with monkeypatch.context() as patch:
        for owner, name in ((Copier, "copy_or_log"), (ShardPart, "delete")):
            patch.setattr(owner, name, dying(getattr(owner, name)))
        for _ in range(10):
            with suppress(Killed):
                found = reconcile(move, passes=1, position=file)
                break
    assert len(died) > 1
    assert found.found == expected.found
    reconcile(move)
    # A row of the database is not deleted.
    assert verify(move).differences == (0 if source == "legacy" else 1)


def test_a_row_that_appears_while_a_pass_deletes_it_stays(move, monkeypatch):
    copied(move)
    users = [move.object_id("users", key) for key in (1, 2)]
    with move.cluster.begin(info={COPYING: True}) as session:
        UserFollowsUser.put(session, *users, 7)
    add = Pass.add

    def follow(result, found):
        add(result, found)
        with move._sessions.begin() as session:
            session.get(User, 1).following = [session.get(User, 2)]

    with monkeypatch.context() as patch:
        patch.setattr(Pass, "add", follow)
        assert reconcile(move, passes=1).differences == 1
    assert verify(move).is_equal


@pytest.mark.parametrize("mark", [True, False])
def test_a_pass_that_is_interrupted_while_it_waits_has_repaired_nothing(
    move, tmp_path, monkeypatch, mark
):
    Switch(move).go("copying")
    if mark:
        assert backfill(move) == 0
        with move.engine.begin() as connection:
            connection.execute(update(User.__table__).values(name="changed"))

    def fails(throttle, rows):
        raise KeyboardInterrupt

    file = tmp_path / "position.json"
    with monkeypatch.context() as patch:
        patch.setattr(Throttle, "take", fails)
        with pytest.raises(KeyboardInterrupt):
            reconcile(move, rate=1, passes=1, position=file)
    # Both users; without a mark the posts, too.
    found = reconcile(move, passes=1, position=file)
    assert found.differences == (2 if mark else 6)
    assert verify(move).is_equal


def test_rows_that_change_while_a_pass_waits_are_compared(move, monkeypatch):
    copied(move)

    def change(throttle, rows):
        with move.engine.begin() as connection:
            connection.execute(update(User.__table__).values(name="changed"))

    monkeypatch.setattr(Throttle, "take", change)
    assert verify(move, rate=1000).differences == 2


@pytest.mark.parametrize("source", ["legacy", "shards"])
def test_a_pass_is_resumed_after_each_page(move, tmp_path, monkeypatch, source):
    monkeypatch.setattr("sqla_shard.migrate.passes._PAGE", 1)
    file = tmp_path / "position.json"
    with move._sessions.begin() as session:
        first, second = session.scalars(select(User).order_by(User.id))
        first.following.append(second)
    copied(move)
    if source == "shards":
        switched(move)
    # Changed, without a mark, and only on the shards.
    with move.engine.begin() as connection:
        connection.execute(
            update(Post.__table__).where(Post.id == 2).values(title="changed")
        )
        connection.execute(insert(User.__table__), [{"id": 9, "name": "new"}])
    with move.cluster.begin(info={COPYING: True}) as session:
        session.add(ShardedUser(name="of no row"))
    expected = verify(move)
    assert expected.differences == 3
    found, pages = _resumed(partial(verify, move), file, monkeypatch)
    assert found == expected
    # Users, posts and a follow, by three steps.
    assert pages >= 3 * (2 + 4 + 1)
    repaired, _ = _resumed(partial(reconcile, move, passes=1), file, monkeypatch)
    assert repaired.found == expected.found
    assert not file.exists()
    # It died after each page, before it was repaired.
    reconcile(move)
    # A row of the database is not deleted.
    left = 0 if source == "legacy" else 1
    assert verify(move).differences == left


def test_a_pass_reads_rows_of_several_shards_together_and_lists_what_it_cannot_count(
    move, monkeypatch
):
    copied(move)
    listed, statements = [], []
    page = ShardPart.page

    def spied(part, after, limit):
        if after is None:
            listed.append(part._one.name)
        return page(part, after, limit)

    monkeypatch.setattr(ShardPart, "page", spied)
    event.listen(
        move.engine, "before_cursor_execute", lambda *given: statements.append(given[2])
    )
    assert verify(move).is_equal
    for name in ("users", "posts"):
        # Two shards have some of them.
        assert len([one for one in statements if f"OUTER JOIN {name} ON" in one]) == 1
    assert {*listed} == {"messages", "follows"}
    with move.cluster.begin(info={COPYING: True}) as session:
        session.add(ShardedUser(name="of no row"))
    assert verify(move).differences == 1


def test_a_position_of_another_pass(move, tmp_path, monkeypatch):
    file = tmp_path / "position.json"
    copied(move)

    def fails(table, rows):
        if table == "posts":
            raise OSError("the terminal is gone")

    with pytest.raises(OSError, match="is gone"):
        verify(move, position=file, on_progress=fails)
    left = file.read_text()
    with pytest.raises(VerifyPositionError, match="command was 'verify'"):
        reconcile(move, position=file)
    rehearsal = left.replace("before.sqlite", "rehearsal.sqlite")
    assert rehearsal != left
    file.write_text(rehearsal)
    with pytest.raises(VerifyPositionError, match="database was"):
        verify(move, position=file)
    file.write_text(left)
    Switch(move).go("reading")
    with pytest.raises(VerifyPositionError, match="change of the stage was"):
        verify(move, position=file)
    for wrong in ("[]", "{", left.replace('"step": ', '"step": 0.')):
        file.write_text(wrong)
        with pytest.raises(VerifyPositionError, match="not the position"):
            verify(move, position=file)
        assert file.read_text() == wrong


def test_a_limit_of_lag_needs_replicas(move):
    Switch(move).go("copying")
    for work in (backfill, reconcile):
        with pytest.raises(MigrateSetupError, match=r"name .* Move\(replicas="):
            work(move, max_lag=5)
    assert titles(move) == {}


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqlite:///other.sqlite", "must be the URL of a MySQL or MariaDB"),
        ("mysql://user:s3cret@/", "must be the URL of a MySQL or MariaDB"),
        ("not a URL", "Could not parse"),
        ("mysql://user:${NO_SUCH_VARIABLE}@host/", "NO_SUCH_VARIABLE"),
    ],
)
def test_a_replica_is_a_server(move, tmp_path, url, says):
    with pytest.raises(MigrateSetupError, match=says) as info:
        open_move("sqlite://", str(tmp_path / "topology.json"), replicas=[url])
    assert "s3cret" not in str(info.value)


def test_replicas_have_the_placeholders_of_the_cluster(move, tmp_path):
    document = json.loads((tmp_path / "topology.json").read_text())
    (first, *_) = document["keyspaces"]["objects"]["servers"]
    first["standby"] = "mysql://app:${PASSWORD}@[::2]:3307"
    for space in document["keyspaces"].values():
        for number, server in enumerate(space["servers"]):
            server["primary"] = f"mysql://app:${{PASSWORD}}@db{number}"
    topology = tmp_path / "servers.json"
    topology.write_text(json.dumps(document))
    cluster = Cluster.from_file(
        topology, placeholders=["PASSWORD"], environ={"PASSWORD": "s3cret"}
    )
    with cluster:
        other = Move(
            move.declaration,
            Base.metadata,
            move.engine,
            cluster,
            CLASSES,
            stage=topology,
            replicas=["mysql://app:${PASSWORD}@[::1]/"],
        )
        with closing(other):
            found = replicas(other)
    assert {url.password for url, _ in found.values()} == {"s3cret"}
    assert {url.host for url, _ in found.values()} == {"::1", "::2"}
    assert "replica [::1]:3306" in found


def test_a_server_that_hangs_costs_one_attempt(move, monkeypatch, caplog):
    copied(move)
    clock = [100.0]
    attempts = []

    def hangs(waiting, *, number):
        attempts.append(waiting[2])
        clock[0] += 5.0
        raise ServerUnreachableError(server="server1", error=OSError("it"))

    monkeypatch.setattr("sqla_shard.migrate.move.monotonic", lambda: clock[0])
    monkeypatch.setattr(move.copier, "copy", hangs)
    for title in ("first", "second"):
        with move._sessions.begin() as session:
            session.execute(update(Post).values(title=title))
    assert [len(keys) for keys in attempts] == [4]
    assert "posts (4 rows) was not copied and waits" in caplog.text
    monkeypatch.undo()
    assert status(move).waiting["posts"] == 4
    assert copy_waiting(move, move.progress()) == 0
    assert set(titles(move).values()) == {"second"}


def test_a_copy_that_loses_a_deadlock_is_repeated(move, monkeypatch):
    copied(move)
    errors = [OperationalError("", {}, sqlite3.OperationalError(1213, "x"))] * 3
    copy = move.copier.copy
    mysql = backend_for("mysql", driver="pymysql")

    def loses(waiting, *, number):
        if errors:
            raise errors.pop()
        return copy(waiting, number=number)

    monkeypatch.setattr(move.copier, "copy", loses)
    monkeypatch.setattr(move.copier, "_backends", lambda: {mysql})
    with move._sessions.begin() as session:
        session.get(Post, 1).title = "changed"
    assert titles(move)[1] == "changed"


def test_a_row_that_cannot_be_copied_is_named_and_holds_up_no_other(move, caplog):
    copied(move)
    with move._sessions.begin() as session:
        # Its object is on the shard of the first user.
        session.get(Post, 1).user_id = 2
        session.get(Post, 3).title = "changed"
    assert titles(move)[3] == "changed"
    assert "posts 1 was not copied and waits: ShardedPost" in caplog.text
    assert copy_waiting(move, move.progress()) == 1
    steps = []
    switch = Switch(move, steps.append)
    switch.go("reading")
    with pytest.raises(StageRefusedError, match="1 rows were not copied"):
        switch.go("switched")
    # Writes did not wait for it.
    assert not any("closing" in step for step in steps)
    assert move.progress(now=True).stage == "reading"


def test_keys_that_fit_no_id_are_named_and_hold_up_no_other(move, caplog):
    keys = [-1, 0, 2**36]
    with move.engine.begin() as connection:
        connection.execute(
            insert(User.__table__), [{"id": key, "name": "?"} for key in keys]
        )
        connection.execute(
            insert(Post.__table__),
            {
                "user_id": 0,
                "title": "of no object",
                "changes": 0,
                "written_at": WRITTEN_AT,
            },
        )
        connection.execute(insert(FOLLOWS), {"follower_id": 1, "user_id": 0})
    (problem,) = plan(move).problems
    progress = Counter()
    assert f"users.id: keys from -1 to {2**36}; an object" in problem
    Switch(move).go("copying")
    assert (
        backfill(
            move, jobs=1, on_progress=lambda name, rows: progress.update({name: rows})
        )
        == 5
    )
    # Each row is counted once.
    assert progress == {"users": 5, "posts": 5, "follows": 1}
    for name in (*(f"users {key}" for key in keys), "posts 5", "follows 1, 0"):
        assert f"{name} was not copied and waits: " in caplog.text
    assert titles(move).keys() == {1, 2, 3, 4}
    assert reconcile(move).waiting == 5
    with move.engine.begin() as connection:
        for table in (FOLLOWS, Post.__table__, User.__table__):
            user_id = table.c.get("user_id", table.c.get("id"))
            connection.execute(delete(table).where(user_id.in_(keys)))
    assert copy_waiting(move, move.progress()) == 0
    assert verify(move).is_equal


def test_errors_of_functions_that_convert_are_not_raised_to_the_application(
    move, caplog
):
    copied(move)
    conversion = move.tables["posts"].conversion
    conversion._convert["title"] = int
    with move._sessions.begin() as session:
        session.get(Post, 1).title = "changed"
    assert (
        "posts 1 was not copied and waits: posts.title cannot be converted "
        "from 'changed': ValueError: invalid literal"
    ) in caplog.text
    conversion._convert["title"] = str.upper
    assert copy_waiting(move, move.progress()) == 0
    assert titles(move)[1] == "CHANGED"


def test_objects_get_primary_keys_and_references(move):
    switched(move)
    posts = Posts(move)
    user_id = posts.add_user("c")
    post_id = posts.add(user_id, "on a shard")
    posts.change(1)
    assert (move.key("users", user_id), move.key("posts", post_id)) == (3, 5)
    with move._sessions() as session:
        post = session.get(Post, 5)
        assert (post.user_id, post.title) == (3, "on a shard")
        assert post.written_at == WRITTEN_AT
        assert session.get(Post, 1).changes == 1
        session.get(Post, 1).title = "?"
        with pytest.raises(SideClosedError, match="the move is switched"):
            session.flush()
    posts.delete(post_id)
    with move._sessions() as session:
        assert session.get(Post, 5) is None
    assert verify(move).is_equal


def test_rows_that_came_from_the_shards_need_no_backfill(move):
    switched(move)
    Posts(move).add_user("c")
    assert Switch(move).back().stage == "reading"
    assert status(move).unclaimed == 0


def test_copies_of_deleted_objects_are_late_in_both_directions(move):
    switched(move)
    move._copies = False
    posts, one = Posts(move), move.tables["posts"]
    post_id = posts.add(1, "short")
    place = one.layout.unpack(post_id).shard_id
    images = read_images(one.on(move.cluster, place), [(post_id,)])
    references = {(1, move.object_id("users", 1)): 1}
    posts.delete(post_id)
    assert copy_waiting(move, move.progress()) == 0
    assert move.copier._apply_back(one, images, references, 1) == 0
    with move._sessions() as session:
        assert session.scalars(select(Post.title)).all().count("short") == 0
    assert verify(move).is_equal


def test_a_local_id_that_an_object_has_is_not_given_twice(move):
    switched(move)
    user_id = move.object_id("users", 1)
    with move.cluster.begin() as session:
        # Its local id is the next primary key.
        layout = move.tables["posts"].layout
        shard_id = layout.unpack(user_id).shard_id
        other = layout.pack(shard_id, 2, 6)
        session.add(
            ShardedPost(
                id=other,
                user_id=user_id,
                title="with key 5",
                changes=0,
                written_at=WRITTEN_AT.replace(tzinfo=UTC),
            )
        )
    assert move.key("posts", other) == 5
    Switch(move).back()
    move.progress(now=True)
    post_id = Posts(move).add(1, "with key 6")
    assert post_id == 6
    found = move.object_id("posts", 6)
    assert layout.unpack(found).local_id == 6 + 2**35
    assert verify(move).is_equal
    assert titles(move)[5] == "with key 5"
    assert titles(move)[6] == "with key 6"


def following(move):
    """Return the lists of users on the shards, newest first, by name."""
    with move.engine.connect() as connection:
        ids = move.tables["users"].marks.marked(connection)
    with move.cluster.session() as session:
        names = {
            object_id: session.get(ShardedUser, object_id).name for object_id in ids
        }
        return {
            names[i]: [
                names[row.followee_id]
                for row in UserFollowsUser.page(session, i, limit=50).items
            ]
            for i in ids
        }


def test_lists_of_association_tables(move):
    with move._sessions.begin() as session:
        a, b = session.get(User, 1), session.get(User, 2)
        session.add(User(name="c"))
        a.following = [b, a]
        session.flush()
        session.execute(
            update(FOLLOWS).where(FOLLOWS.c.user_id == 1).values(since=WRITTEN_AT)
        )
    copied(move)
    assert following(move) == {"a": ["b", "a"], "b": [], "c": []}
    with move._sessions.begin() as session:
        a, b, c = (session.get(User, n) for n in (1, 2, 3))
        a.following.remove(b)
        b.following = [User(name="d"), c]
    assert following(move) == {"a": ["a"], "b": ["d", "c"], "c": [], "d": []}
    with move.engine.begin() as connection:
        connection.execute(delete(FOLLOWS).where(FOLLOWS.c.user_id == 4))
        connection.execute(
            insert(FOLLOWS).values(follower_id=3, user_id=1, since=WRITTEN_AT)
        )
    found = verify(move)
    assert {(one.key, one.reason) for one in found.found} == {
        ((2, 4), "only the shards have it"),
        ((3, 1), "written without a mark"),
    }
    assert reconcile(move).is_equal
    Switch(move).go("switched")
    move.progress(now=True)
    posts = Posts(move)
    new = posts.add_user("e")
    posts.follow(new, 1)
    posts.follow(1, new)
    posts.unfollow(2, 3)
    with move._sessions() as session:
        names = {
            user.name: {one.name for one in user.following}
            for user in session.scalars(select(User))
        }
    expected = {"a": {"a", "e"}, "b": set(), "c": {"a"}, "d": set(), "e": {"a"}}
    assert names == expected
    assert verify(move).is_equal
    Switch(move).back()
    move.progress(now=True)
    posts.unfollow(new, 1)
    posts.follow(2, 1)
    assert {name: set(rows) for name, rows in following(move).items()} == {
        **expected,
        "e": set(),
        "b": {"a"},
    }
    assert verify(move).is_equal


def test_unique_columns_become_lookups(move, caplog):
    move.cluster.create_all(Other.metadata)
    move.close()
    named = Move(
        Declaration(*move.declaration.items, Lookup("users.name")),
        Base.metadata,
        move.engine,
        move.cluster,
        {**CLASSES, "users.name": UserName},
        stage=move.store.name.removesuffix(".moving"),
    )
    with closing(named):
        named.watch(move._sessions)
        assert "users.name -> UserName" in str(plan(named))
        assert not plan(named).problems
        copied(named)
        assert found_by_name(named) == {"a": 1, "b": 2}
        with move._sessions.begin() as session:
            session.get(User, 1).name = "c"
            session.add(User(name="d"))
        # Taken by another one, until that has another name.
        with move._sessions.begin() as session:
            session.add(User(name="b"))
            session.delete(session.get(User, 3))
        assert "users 4 was not copied and waits" in caplog.text
        with move._sessions.begin() as session:
            session.get(User, 2).name = "e"
        assert copy_waiting(named, named.progress()) == 0
        assert found_by_name(named) == {"b": 4, "c": 1, "e": 2}
        assert verify(named).is_equal
        report = verify_lookups(move.cluster, [UserName], grace=0)
        assert not report.findings


def found_by_name(move):
    with move.cluster.session() as session:
        found = UserName.resolve_many(session, [*"abcde"])
    return {name: move.key("users", i) for name, i in found.items()}


def test_marks_of_an_earlier_round_are_claimed_again(move):
    copied(move)
    switch = Switch(move)
    switch.back()
    switch.back()
    assert move.progress(now=True).stage == "legacy"
    with move._sessions.begin() as session:
        session.get(Post, 1).title = "without a mark"
        session.delete(session.get(Post, 2))
    switch.go("copying")
    assert status(move).unclaimed == 5
    assert backfill(move, jobs=1) == 0
    assert status(move).unclaimed == 0
    assert verify(move).is_equal
    assert titles(move)[1] == "without a mark"
    assert 2 not in titles(move)


def test_reconciliation_repairs_objects_of_other_programs(move):
    copied(move)
    with move.cluster.begin() as session:
        user = ShardedUser(name="of no row")
        session.info["sqla_shard_copying"] = True
        session.add(user)
    found = verify(move)
    assert [(one.table, one.key) for one in found.found] == [("users", None)]
    assert reconcile(move).is_equal
    with move.cluster.session() as session:
        assert session.get(ShardedUser, *found.found[0].ids) is None


def test_sessions_of_another_engine_are_refused(move):
    other = create_engine(move.engine.url)
    with Session(other) as session:
        move._legacy_marks.listen(session)
        session.get(Post, 1).title = "changed"
        with pytest.raises(MigrateSetupError, match="not the engine of the"):
            session.flush()
    # Options of an engine do not change its database.
    with Session(move.engine.execution_options(x=1)) as session:
        move._legacy_marks.listen(session)
        session.get(Post, 1).title = "changed"
        session.commit()
    other.dispose()


def test_a_stage_that_cannot_be_read_remains(move, monkeypatch, caplog):
    copied(move)
    now = move.progress(now=True)
    error = StageUnavailableError(store="s", reason="down")

    def fails():
        raise error

    monkeypatch.setattr(move.store, "read", fails)
    move._expires = 0.0
    assert move.progress() == now
    assert "s: down" in caplog.text
    with pytest.raises(StageUnavailableError):
        move.progress(now=True)
    Posts(move).change(1)


def test_a_lost_answer_of_commit_is_not_repeated(move, monkeypatch):
    calls = []

    def add(session):
        calls.append(1)

    def lost(session):
        raise OperationalError(
            "COMMIT", {}, Exception("lost"), connection_invalidated=True
        )

    event.listen(move._sessions, "before_commit", lost)
    with pytest.raises(OperationalError, match="lost"):
        move.write(add, add)
    assert len(calls) == 1


def test_conditions_of_stages(move):
    switch = Switch(move)
    with pytest.raises(StageRefusedError, match="reading has them"):
        switch.share({"posts": 10})
    with pytest.raises(StageRefusedError, match=r"backfill; .*reconcile"):
        switch.go("reading")
    assert move.progress(now=True).stage == "copying"
    for run in (lambda: switch.go("legacy"), lambda: switch.go("marking")):
        with pytest.raises(StageRefusedError):
            run()
    copied(move)
    switch.go("detached")
    with pytest.raises(StageRefusedError, match="no way back"):
        switch.back()
    with pytest.raises(StageRefusedError, match="needs a stage that copies"):
        verify(move)


def test_rows_that_remain_end_the_pause_of_writes(move, monkeypatch):
    copied(move)
    switch = Switch(move)
    switch.go("reading")
    with move._sessions.begin() as session:
        move._copies = False
        session.get(Post, 1).title = "changed"
    monkeypatch.setattr(move.copier, "copy_or_log", lambda *_, **__: 1)
    with pytest.raises(StageRefusedError, match="1 rows were not copied"):
        switch.go("switched", timeout=0.2)
    assert move.progress(now=True).stage == "reading"


def test_shares_of_reads(move, monkeypatch, caplog):
    copied(move)
    switch = Switch(move)
    switch.go("reading")
    seen = []

    def read(share, **shards):
        switch.share({"posts": share})
        move.progress(now=True)
        seen.clear()
        for _ in range(20):
            move.read(
                "posts",
                lambda session: seen.append("legacy"),
                lambda session: shards.get("run", seen.append)("shards"),
            )
        return set(seen)

    assert read(0) == {"legacy"}
    assert read(100) == {"shards"}

    def fails(_):
        raise OperationalError("", {}, Exception("down"))

    assert read(100, run=fails) == {"legacy"}
    assert move.counts["failed"] == 20
    move._compare = 1.0
    monkeypatch.setattr(move._never, "wait", lambda _: None)
    assert move.read("posts", lambda s: 1, lambda s: 1) == 1
    assert move.read("posts", lambda s: 1, lambda s: 2) == 1
    assert move.counts["compared"] == 2
    assert move.counts["different"] == 1
    assert "2 on the shards, 1 in the database" in caplog.text


def test_the_plan_names_what_has_to_be_changed(move):
    found = plan(move)
    assert [one.rows for one in found.tables] == [2, 4, 0, 0]
    assert "follows -> UserFollowsUser: 0 rows, with their sources" in str(found)
    assert not found.problems
    with move.engine.begin() as connection:
        connection.execute(
            text("CREATE TRIGGER counting AFTER UPDATE ON posts BEGIN SELECT 1; END")
        )
    (problem,) = plan(move).problems
    assert problem.startswith("posts has the triggers counting: shards do")

    other = Move(
        Declaration(Owner("users.id", type_id=1), Lookup("users.name")),
        Base.metadata,
        move.engine,
        move.cluster,
        {"users": Moved(cls=ShardedUser, names={"name": None})},
        stage=move.store.name,
    )
    other.close()
    problems = "\n".join(plan(other).problems)
    assert "users: the Lookup has no class in the move" in problems
    assert "users.name is left behind and has no default" in problems
    assert "posts.user_id refers to users, which moves" in problems


def test_the_plan_names_tables_that_shards_lack(move):
    move.close()
    named = Move(
        Declaration(*move.declaration.items, Lookup("users.name")),
        Base.metadata,
        move.engine,
        move.cluster,
        {**CLASSES, "users.name": UserName},
        stage=move.store.name.removesuffix(".moving"),
    )
    with closing(named):
        (lookup,) = plan(named).problems
        with move.cluster.begin() as session:
            session.execute(
                text(f"DROP TABLE {SCHEMA}.posts"), bind_arguments={"shard_id": 1}
            )
        objects, again = plan(named).problems
        with pytest.raises(StageRefusedError, match="from marking to copying"):
            Switch(named).go("copying")
        assert named.progress(now=True).stage == "marking"
    assert lookup == again
    table = UserName.__tablename__
    assert f"{table} is missing on shards 0-1 of lookup; create" in lookup
    assert "posts is missing on shards 1 of objects; create it" in objects


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ({"users": ShardedUser}, "posts: give its object class"),
        ({**CLASSES, "x": ShardedPost}, "x has a class, and is not declared"),
        (
            {**CLASSES, "follows": SpreadFollows},
            r"SpreadFollows maps other classes .*\n.*spread= are not moved",
        ),
        (
            {**CLASSES, "users": ShardedPost},
            "ShardedPost has the type_id 2, and users is declared with 1",
        ),
    ],
)
def test_classes_that_do_not_fit(move, classes, message):
    with pytest.raises(DeclarationError, match=message):
        Move(
            move.declaration,
            Base.metadata,
            move.engine,
            move.cluster,
            classes,
            stage=move.store.name,
        )
