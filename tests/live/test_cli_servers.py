"""sqla-shard shell with the real client, on real servers."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from sqla_shard.testing.topology_documents import topology_document
from tests.servers.command_line import COMMAND, environment, run, write
from tests.servers.kinds import own_fleet
from tests.test_docs import certificates  # noqa: F401  # a fixture

pytestmark = pytest.mark.live

# Whatever means something in an option file, in a URL, or to a shell.
PASSWORD = "p'\"\\ #;%=x@:/?\t[y]\\n $ \\"
WHERE = "SELECT DATABASE(), @@port, CURRENT_USER()"


@pytest.fixture(scope="module", autouse=True)
def _client():
    if shutil.which("mariadb") is None and os.environ.get("CI") != "true":
        pytest.skip("the client of MariaDB is not installed")


fleet = own_fleet(2, 4, password=PASSWORD)


@pytest.fixture(scope="module")
def directory(fleet, tmp_path_factory):
    """A topology of the first server, with the second as its standby."""
    whole = fleet.topology_mapping(placeholders=True)["keyspaces"]["objects"]
    urls = [server["primary"] for server in whole["servers"]]
    documents = [
        topology_document(
            {f"server{number}": url}, 4, database="db_cli{shard:05d}", main="main_cli"
        )
        for number, url in enumerate(urls[:2], 1)
    ]
    for document in documents:
        fleet.drop_databases(document)
        fleet.create_databases(document)
    keyspace = documents[0]["keyspaces"]["objects"]
    keyspace["servers"][0]["standby"] = urls[1]
    path = tmp_path_factory.mktemp("cli")
    write(path, documents[0])
    yield path
    for document in documents:
        fleet.drop_databases(document)


@pytest.fixture
def shell(fleet, directory):
    """Run ``sqla-shard shell``."""
    names = [part for name in fleet.environ for part in ("--placeholder", name)]

    def shell(*arguments, stdin="", **environ):
        return run(
            directory,
            *(*names, "-t", "topology.json", "shell", *arguments),
            stdin=stdin,
            **{**fleet.environ, **environ},
        )

    return shell


def row(server, database):
    account = f"{server.user}@{server.host}"
    return [database, str(server.port), account]


def test_the_right_database_of_the_right_server(shell, fleet):
    first, second = fleet.servers[:2]
    for arguments, expected in [
        (["--shard", 3], row(first, "db_cli00003")),
        ([(2 << 46) + 7], row(first, "db_cli00002")),
        (["--keyspace", "main"], row(first, "main_cli")),
        (["--shard", 3, "--standby"], row(second, "db_cli00003")),
    ]:
        done = shell(*arguments, "-e", WHERE)
        assert (done.returncode, done.stderr) == (0, "")
        found = done.stdout.splitlines()[1].split("\t")
        assert found[:2] == expected[:2]
        if fleet.local:
            assert found == expected


def test_settings_of_the_user_do_not_change_the_server(shell, fleet, tmp_path):
    (tmp_path / ".my.cnf").write_text(
        "[client]\nhost=192.0.2.1\nport=1\nuser=nobody\npassword=wrong\n"
        "socket=/nowhere\n[mysql]\nskip-column-names\ndatabase=mysql\n"
    )
    elsewhere = {
        "HOME": str(tmp_path),
        "MYSQL_PWD": "wrong",
        "MYSQL_HOST": "192.0.2.1",
        "MYSQL_TCP_PORT": "1",
    }
    done = shell("--shard", 1, "-e", WHERE, **elsewhere)
    assert (done.returncode, done.stderr) == (0, "")
    # One line only: that it has no column names has been read.
    (line,) = done.stdout.splitlines()
    assert line.split("\t")[:2] == row(fleet.servers[0], "db_cli00001")[:2]


def test_the_status_of_the_client(shell):
    done = shell("--shard", 1, "-e", "SELECT nope")
    assert done.returncode == 1
    assert "Unknown column 'nope'" in done.stderr


def test_sql_from_standard_input(shell):
    done = shell("--shard", 1, stdin="SELECT 6 * 7;\n")
    assert (done.returncode, done.stdout) == (0, "6 * 7\n42\n")


def test_a_standby_is_not_written(shell, fleet):
    create = "CREATE TABLE t (a INT)"
    for options in (["-e", create], ["-c", f"session.execute(text('{create}'))"]):
        done = shell("--shard", 0, "--standby", *options)
        assert done.returncode == 1
        assert "READ ONLY transaction" in done.stderr
    assert shell("--shard", 0, "-e", create).returncode == 0
    count = "SELECT count(*) FROM information_schema.tables WHERE table_schema"
    done = shell("--shard", 0, "--standby", "-e", f"{count}='db_cli00000'")
    assert done.stdout.split() == ["count(*)", "0"]


def test_python_on_a_shard(shell, fleet):
    done = shell("--shard", 2, "-c", f"print(session.execute(text('{WHERE}')).all())")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"('db_cli00002', {fleet.servers[0].port}, " in done.stdout


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_no_secret_can_be_seen_from_outside(fleet, directory):
    names = [f"--placeholder={name}" for name in fleet.environ]
    arguments = [*names, "-t", "topology.json", "shell", "--shard", "1"]
    sql = "SELECT 'ready' UNION SELECT SLEEP(60)"
    process = subprocess.Popen(
        [*COMMAND, *arguments, "-e", f"system echo ready; {sql}"],
        cwd=directory,
        env=environment(**fleet.environ),
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        # It is the same process: our program has executed the client.
        command = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        process.send_signal(signal.SIGKILL)
    program, first, *_ = command.decode().split("\0")
    assert program.endswith("mariadb")
    assert first.startswith("--defaults-file=/dev/fd/")
    for secret in fleet.environ.values():
        assert secret.encode() not in command
    assert sorted(path.name for path in directory.iterdir()) == ["topology.json"]


def test_a_server_that_refuses(shell, fleet):
    name = next(iter(fleet.environ))
    done = shell("--shard", 1, "-e", WHERE, **{name: "hush"})
    assert done.returncode == 1
    assert "Access denied" in done.stderr
    assert "hush" not in done.stderr
    done = shell("--shard", 1, "-c", "session.connection()", **{name: "hush"})
    assert done.returncode == 1
    assert done.stderr.startswith("sqla-shard: error: ")
    assert "Access denied" in done.stderr
    assert "hush" not in done.stderr


def tls_version(directory, server, query=""):
    """Return the version of TLS that the client uses, or its error."""
    url = f"mysql://app:${{MYSQL_PASSWORD}}@localhost:{server.port}{query}"
    document = topology_document({"one": url}, 1, main="main_cli")
    path = write(directory, document)
    status = "SHOW STATUS LIKE 'Ssl_version'"
    arguments = ("-t", path, "shell", "--keyspace", "main", "-e", status)
    done = run(directory, *arguments, MYSQL_PASSWORD=server.password)
    if done.returncode:
        return done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()[1].partition("\t")[2]


def test_tls_is_as_the_url_says(
    server_kind,
    certificates,  # noqa: F811  # the fixture
    tmp_path,
):
    options = [
        f"--ssl-{key}={certificates / name}"
        for key, name in (("cert", "server.pem"), ("key", "server.key"))
    ]
    ca, other = certificates / "ca.pem", certificates / "other.pem"
    with server_kind.server(fast=True, options=options) as server:
        server.root_execute("CREATE DATABASE main_cli")
        assert tls_version(tmp_path, server).startswith("TLSv")
        trusted = tls_version(tmp_path, server, f"?ssl_ca={ca}")
        assert trusted.startswith("TLSv")
        refused = tls_version(tmp_path, server, f"?ssl_ca={other}")
        assert "certificate" in refused


@pytest.mark.only_on("mariadb")  # MySQL offers TLS by itself
def test_requested_tls_is_used(
    fleet,
    directory,
    certificates,  # noqa: F811  # the fixture
    tmp_path,
):
    if not fleet.local:
        pytest.skip("the servers of others may offer TLS")
    server = fleet.servers[0]
    assert tls_version(tmp_path, server) == ""
    for query in (f"?ssl_ca={certificates / 'ca.pem'}", "?ssl_check_hostname=1"):
        refused = tls_version(tmp_path, server, query)
        assert "SSL is required" in refused
