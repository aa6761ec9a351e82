"""sqla-shard shell on SQLite files, and how clients are called."""

from __future__ import annotations

import shutil
import sqlite3

import click
import pytest
from sqlalchemy import delete, func, insert, select, text
from sqlalchemy.exc import OperationalError

from examples.quickstart.models import Base, Board, User
from sqla_shard import Cluster, scatter, Topology, unpack
from sqla_shard.cli.shells import client_for, opened
from sqla_shard.exc import NoShardKeyError, UnknownShardError
from sqla_shard.testing import sqlite_topology
from sqla_shard.topology import find_shard
from tests.models.sqlite_files import with_files
from tests.servers.command_line import invoke, run, write

MODELS = ("--models", "examples.quickstart.models")


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Two servers with 8 shards, a user in each shard; and a standby."""
    directory = tmp_path_factory.mktemp("shell")
    document = sqlite_topology(directory, 2, 8, main=True)
    servers = document["keyspaces"]["objects"]["servers"]
    servers[1]["standby"] = f"sqlite:///{directory}/standby"
    write(directory, document)
    with Cluster.from_topology(document) as cluster:
        cluster.create_all(Base.metadata)
        with_files(cluster)
        with cluster.begin(cross_shard="unordered") as session:
            for shard in range(8):
                session.add(User(name=f"of {shard}", shard_id=shard))
            session.flush()
            session.execute(
                text("CREATE TABLE settings (name TEXT)"),
                bind_arguments={"keyspace": "main"},
            )
    shutil.copytree(directory / "server2", directory / "standby")
    return directory


@pytest.fixture
def topology(directory):
    return directory / "topology.json"


@pytest.fixture
def bound(topology):
    """A session that is bound to shard 5."""
    known = Topology.from_mapping(sqlite_topology(topology.parent, 2, 8, main=True))
    with opened(known, find_shard(known, 5)) as (_, session):
        yield session


def on_five(topology, program, *options):
    return invoke(
        *("-t", topology, "shell", "--shard", 5, *MODELS, *options), *("-c", program)
    )


# -- which shard


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "specify a shard"),
        (["--keyspace", "objects"], 2, "specify a shard"),
        ([7, "--shard", 5], 2, "specify either an ID or --shard"),
        (["--shard", 5, "-e", "x", "--python"], 2, "--execute cannot be used"),
        (["--shard", 5, "-e", "x", "-c", "y"], 2, "--execute cannot be used"),
        (["--shard", 5, "-e", "x", *MODELS], 2, "--models requires --python"),
        (["--shard", 8], 1, "shard 8 is not open"),
        (["--keyspace", "none"], 1, "there is no keyspace 'none'"),
        (["--keyspace", "main", "7"], 1, "is of kind 'global'"),
        (["--shard", 0, "--standby"], 1, "'server1' of shard 0 has no"),
    ],
)
def test_no_shard(topology, arguments, code, message):
    done = invoke("-t", topology, "shell", *arguments)
    assert (done.exit_code, done.stdout) == (code, "")
    assert message in " ".join(done.stderr.split())


def test_values_of_placeholders_are_needed(tmp_path, monkeypatch):
    monkeypatch.delenv("MYSQL_PASSWORD", raising=False)
    document = sqlite_topology(tmp_path, 1, 8)
    server = document["keyspaces"]["objects"]["servers"][0]
    server["primary"] = "mysql://app:${MYSQL_PASSWORD}@db1"
    done = invoke("-t", write(tmp_path, document), "shell", "--shard", 5)
    assert done.exit_code == 1
    assert "set the environment variable MYSQL_PASSWORD" in done.stderr


# -- the client


needs_sqlite3 = pytest.mark.skipif(
    shutil.which("sqlite3") is None, reason="sqlite3 is not installed"
)
NAMES = "SELECT json_extract(data, '$.name') FROM users"


@needs_sqlite3
def test_sql_on_a_shard(directory, topology):
    arguments = ("-t", topology, "shell")
    done = run(directory, *arguments, "--shard", 5, "-e", NAMES)
    assert (done.returncode, done.stdout) == (0, "of 5\n")
    done = run(directory, *arguments, (6 << 46) + 7, "-e", f"-- x\n{NAMES}")
    assert (done.returncode, done.stdout) == (0, "of 6\n")
    wrong = run(directory, *arguments, "--shard", 5, "-e", "SELECT nope")
    assert wrong.returncode != 0
    assert "no such column: nope" in wrong.stderr


@needs_sqlite3
def test_sql_is_read_from_standard_input(directory, topology):
    arguments = ("-t", topology, "shell", "--keyspace", "main")
    done = run(directory, *arguments, stdin=".tables\n")
    assert (done.returncode, done.stdout.split()) == (0, ["settings"])


@needs_sqlite3
def test_sql_on_a_standby_writes_nothing(directory, topology):
    path = directory / "standby" / "db00005.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS only_here (a INT)")
    connection.close()
    arguments = ("-t", topology, "shell", "--shard", 5, "--standby", "-e")
    done = run(directory, *arguments, "SELECT count(*) FROM only_here")
    assert (done.returncode, done.stdout) == (0, "0\n")
    done = run(directory, *arguments, "INSERT INTO only_here VALUES (1)")
    assert done.returncode != 0
    assert "readonly" in done.stderr


def test_a_missing_file_is_not_created(tmp_path):
    path = write(tmp_path, sqlite_topology(tmp_path, 2, 8))
    done = invoke("-t", path, "shell", "--shard", 5, "-e", "SELECT 1")
    assert done.exit_code == 1
    assert "db00005.sqlite not found; the shard was not created yet" in done.stderr
    assert not (tmp_path / "server2" / "db00005.sqlite").exists()


@pytest.mark.parametrize("kind", ["mysql", "sqlite"])
def test_no_client(directory, topology, kind, monkeypatch):
    monkeypatch.setenv("PATH", "")
    url = f"sqlite:///{directory}/server2"
    if kind == "mysql":
        url = "mysql://app@host"
    with pytest.raises(click.ClickException, match="apt-get install"):
        client_for(url, "db00005", environ={})


# -- the options of the client of MariaDB


@pytest.fixture
def options(monkeypatch, tmp_path):
    """Return the lines of an option file, in a home without one."""
    program = tmp_path / "bin" / "mariadb"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    monkeypatch.setenv("HOME", str(tmp_path))

    def options(url, **kwargs):
        environ = kwargs.pop("environ", {})
        client = client_for(url, "db00005", environ=environ, **kwargs)
        assert client.program == str(program)
        return client.arguments, client.options.splitlines()

    return options


def test_the_password_is_in_no_argument(options):
    environ = {"MYSQL_PASSWORD": 'a"\\b\n#'}
    url = "mysql://app:${MYSQL_PASSWORD}@host:3307"
    arguments, lines = options(url, environ=environ, statement="SELECT 1")
    assert arguments == (
        "--protocol=tcp",
        "--host=host",
        "--port=3307",
        "--execute=SELECT 1",
        "--database=db00005",
    )
    assert lines == [
        "[client]",
        'user="app"',
        'password="a\\"\\\\b\\n#"',
        'default-character-set="utf8mb4"',
    ]
    client = client_for(url, "db00005", environ={"MYSQL_PASSWORD": "hush"})
    assert "hush" not in repr(client)


def test_no_password_is_an_empty_one(options):
    arguments, lines = options("mysql://host")
    assert "--port=3306" in arguments
    assert lines[:2] == ["[client]", 'password=""']


def test_own_options_are_read_first(options, tmp_path):
    (tmp_path / ".my.cnf").write_text("[mysql]\nprompt=x\n")
    _, lines = options("mysql://app@host", read_only=True)
    assert lines[:2] == [f"!include {tmp_path}/.my.cnf", "[client]"]
    assert lines[-2:] == ["[mysql]", 'init-command="SET SESSION TRANSACTION READ ONLY"']


@pytest.mark.parametrize(
    ("query", "both", "mariadb", "mysql"),
    [
        ("connect_timeout=7", ['connect-timeout="7"'], [], []),
        ("charset=latin1", ['default-character-set="latin1"'], [], []),
        ("read_timeout=7", [], [], []),
        (
            "ssl_ca=/ca.pem",
            ['ssl-ca="/ca.pem"'],
            ["ssl-verify-server-cert"],
            ['ssl-mode="VERIFY_IDENTITY"'],
        ),
        (
            "ssl_ca=/ca.pem&ssl_check_hostname=0&ssl_key=/k&ssl_cert=/c",
            ['ssl-ca="/ca.pem"', 'ssl-cert="/c"', 'ssl-key="/k"'],
            ["ssl-verify-server-cert"],
            ['ssl-mode="VERIFY_CA"'],
        ),
        (
            "ssl_check_hostname=1",
            [],
            ["ssl-verify-server-cert"],
            ['ssl-mode="REQUIRED"'],
        ),
        ("ssl_check_hostname=0", [], [], []),
    ],
)
def test_settings_of_the_url(options, tmp_path, query, both, mariadb, mysql):
    url = f"mysql://app@host?{query}"
    program = tmp_path / "bin" / "mariadb"
    for version, more in (("15.1 Distrib 10.11-MariaDB", mariadb), ("8", mysql)):
        program.write_text(f"#!/bin/sh\necho 'Ver {version}'\n")
        _, lines = options(url)
        assert lines[4:] == both + more


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://app:${X}${NUL}@host", "the password contains a NUL"),
        ("mysql://app:${LONG}@host", "exceed 16384 bytes"),
    ],
)
def test_urls_without_a_client(options, url, message):
    environ = {"X": "hush", "NUL": "\0", "LONG": "hush" * 5000}
    with pytest.raises(click.ClickException, match=message) as caught:
        options(url, environ=environ)
    assert "hush" not in caught.value.message


# -- Python


def test_python_of_a_command(topology):
    program = "print(location.shard_id, [u.name for u in users])"
    done = on_five(topology, f"users = session.scalars(select(User)).all()\n{program}")
    assert (done.exit_code, done.output) == (0, "5 ['of 5']\n")


def test_the_status_is_that_of_the_command(topology):
    assert on_five(topology, "raise SystemExit(7)").exit_code == 7
    wrong = on_five(topology, "session.execute(text('SELECT nope'))")
    assert wrong.exit_code == 1
    assert wrong.stderr.startswith("sqla-shard: error: (sqlite3.Operational")
    assert wrong.stderr.count("\n") == 1
    with pytest.raises(ZeroDivisionError):
        on_five(topology, "1 / 0")


def test_nothing_is_committed_by_default(topology):
    add = "session.add(User(name='new')); session.flush()"
    count = "print(session.scalar(select(func.count(User.id))))"
    assert on_five(topology, f"{add}; {count}").output == "2\n"
    assert on_five(topology, count).output == "1\n"


def test_python_on_a_standby_writes_nothing(directory, topology):
    read = "print(cluster, session.scalars(select(User)).one().name)"
    done = on_five(topology, read, "--standby")
    assert done.output == "<Cluster epoch 0: objects (8 shards)> of 5\n"
    done = on_five(
        topology, "session.add(User(name='x')); session.commit()", "--standby"
    )
    assert done.exit_code == 1
    assert "readonly" in done.stderr
    where = "print(session.connection().engine.url.database)"
    assert "/standby/" in on_five(topology, where, "--standby").output


def test_python_with_the_user(directory, topology):
    arguments = ("-t", topology, "shell", "--shard", 5, "--python", *MODELS)
    done = run(
        directory,
        *arguments,
        stdin="print(session.scalars(select(User)).one().name)\n1 / 0\n"
        "print(pack(5, 3, 1) == unpack(pack(5, 3, 1)).__int__())\n",
    )
    assert "shard 5 of objects: database db00005 on server2, prim" in (done.stderr)
    assert "of 5" in done.stdout
    assert "True" in done.stdout
    assert "ZeroDivisionError" in done.stderr
    assert done.returncode == 0


# -- the session of a shard


def test_statements_without_a_shard_go_to_the_bound_one(bound):
    assert bound.scalars(select(User)).one().name == "of 5"
    assert bound.scalar(select(func.count(User.id))) == 1
    assert bound.scalar(text("SELECT count(*) FROM users")) == 1
    assert bound.scalar(select(1)) == 1
    database = str(bound.connection().engine.url.database)
    assert database.endswith("db00005.sqlite")
    everywhere = select(func.count(User.id)).options(scatter())
    assert bound.scalar(everywhere) == 8


def test_statements_that_name_a_shard_go_there(bound):
    there = {"shard_id": 3}
    user = bound.scalars(select(User), bind_arguments=there).one()
    assert unpack(user.id).shard_id == 3
    assert bound.get(User, user.id) is user
    bound.expire(user)
    assert user.name == "of 3"
    named = select(User.name).where(User.id == user.id)
    assert bound.scalar(named) == "of 3"
    settings = text("SELECT count(*) FROM settings")
    main = {"keyspace": "main"}
    assert bound.scalar(settings, bind_arguments=main) == 0
    with pytest.raises(UnknownShardError):
        bound.scalars(select(User), bind_arguments={"shard_id": 9})


def test_writes_go_to_the_bound_shard(bound):
    user = User(name="new")
    bound.add(user)
    bound.flush()
    board = Board(user_id=user.id, title="Boats")
    bound.add(board)
    bound.flush()
    (added,) = bound.scalars(insert(User).returning(User), [{"name": "row"}])
    ids = (user.id, board.id, added.id)
    assert {unpack(one).shard_id for one in ids} == {5}
    renamed = "UPDATE boards SET data = json_set(data, '$.title', 'Cars')"
    assert bound.execute(text(renamed)).rowcount == 1
    bound.refresh(board)
    assert board.title == "Cars"
    bound.execute(delete(Board))
    assert bound.scalar(select(func.count(Board.id))) == 0
    bound.rollback()


def test_other_sessions_still_refuse(topology):
    with (
        Cluster.from_file(topology) as cluster,
        cluster.session() as session,
        pytest.raises(NoShardKeyError),
    ):
        session.scalars(select(User))


def test_a_session_of_a_global_keyspace(topology):
    known = Topology.from_mapping(sqlite_topology(topology.parent, 2, 8, main=True))
    location = find_shard(known, 0, "main")
    with opened(known, location, read_only=True) as (_, session):
        assert session.scalar(text("SELECT count(*) FROM settings")) == 0
        with pytest.raises(OperationalError, match="readonly"):
            session.execute(text("INSERT INTO settings VALUES ('x')"))
