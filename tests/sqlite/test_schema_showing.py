"""Output of runs, and the command line of schema changes."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sqla_shard import schema
from sqla_shard.cli.program import program
from sqla_shard.schema import Outcome, RunReport, State
from tests.servers.command_line import environment, on_a_terminal, without_progress

TOPOLOGY = """\
epoch = 1

[keyspaces.objects]
kind = "objects"
shards = 8
database = "db{shard:05d}"

[[keyspaces.objects.servers]]
name = "server1"
primary = "sqlite:///data"
shards = [0, 3]

[[keyspaces.objects.servers]]
name = "server2"
primary = "sqlite:///more"
shards = [4, 7]
"""


def outcome(shard_id: int, state: State, **more: object) -> Outcome:
    return Outcome(
        shard_id=shard_id,
        server="server1",
        database=f"db{shard_id:05d}",
        state=state,
        **more,
    )


def test_failures_with_other_statements_done_are_separate() -> None:
    report = RunReport(
        command="upgrade",
        target="head",
        keyspace="objects",
        outcomes=tuple(
            outcome(n, State.FAILED, error="no", step="upgrade of a", done=done)
            for n, done in enumerate([("CREATE 1",), (), ("CREATE 1",)])
        ),
        seconds=0.1,
    )
    assert str(report).splitlines()[2:] == [
        "failed: db00000 on server1, db00002 on server1",
        "    no",
        (
            "    1 statement(s) of the upgrade of a have already taken "
            "effect; the next run resumes after them:"
        ),
        "      1. CREATE 1",
        "failed: db00001 on server1",
        "    no",
        "    no statement of the upgrade of a has taken effect",
    ]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("topology.toml").write_text(TOPOLOGY)
    schema.init("m", topology="topology.toml")
    for name, after in (("a", None), ("b", "a")):
        Path(f"m/versions/{name}.py").write_text(
            "from alembic import op\n"
            f"revision = {name!r}\ndown_revision = {after!r}\n"
            "def upgrade():\n"
            f"    op.execute('CREATE TABLE {name} (id INT)')\n"
            "def downgrade():\n"
            f"    op.execute('DROP TABLE {name}')\n"
        )
    for n in range(8):
        folder = Path("data" if n < 4 else "more")
        folder.mkdir(exist_ok=True)
        with closing(sqlite3.connect(f"{folder}/db{n:05d}.sqlite")) as shard:
            shard.execute("VACUUM")  # SQLite makes the file
    return tmp_path


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(program, ["schema", *arguments])


def bars(shown: str) -> list[str]:
    """Return the last lines of the bars, without the bars themselves."""
    lines = [
        re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).rstrip()
        for line in shown.replace("\r", "\n").splitlines()
    ]
    last = max(
        n for n, line in enumerate(lines) if line.startswith("upg") and "━" in line
    )
    return [
        " ".join(re.sub(r"[━╸╺]|\d+/s|\S:\S\S:\S\S", " ", line).split())
        for line in lines[last : last + 3]
    ]


def test_a_terminal_has_bars_and_anything_else_lines(project: Path) -> None:
    def upgrade(target: str, status: int = 0, **environ: str) -> str:
        words = ("schema", "upgrade", target, "--continue-on-error")
        return on_a_terminal(100, *words, status=status, **environ)

    shown = upgrade("a", keep="1")
    assert bars(shown) == ["upgrade to a 8/8", "server1 4/4", "server2 4/4"]
    # The last drawing is green.
    assert shown.rindex("\x1b[36m━") < shown.rindex("\x1b[32m━")
    assert "\x1b[31m" not in shown
    # The cursor is shown again, and the report follows.
    assert shown.rindex("\x1b[?25h") < shown.index("8 changed: 0-7")
    with closing(sqlite3.connect("more/db00005.sqlite")) as shard:
        shard.execute("CREATE TABLE b (id INT)")
    shown = upgrade("b", status=1, keep="1", NO_COLOR="1")
    assert bars(shown) == [
        "upgrade to b 8/8 1 failed",
        "server1 4/4",
        "server2 4/4 1 failed",
    ]
    assert "\x1b[3" not in shown.partition("7 changed")[0]
    shown = upgrade("b", status=1, TERM="dumb")
    assert without_progress(shown).splitlines()[0] == (
        "upgrade to b: 1 of 8 virtual shards to do"
    )
    assert "━" not in shown
    with closing(sqlite3.connect("more/db00005.sqlite")) as shard:
        shard.execute("DROP TABLE b")
    shown = upgrade("b")
    assert bars(shown)[:2] == ["upgrade to b 8/8", "server1 4/4"]
    # Nothing to do, and so nothing to wait for.
    assert "━" not in upgrade("b")


def test_a_section_that_is_not_there(project: Path) -> None:
    done = invoke("-n", "nosuch", "status")
    assert done.exit_code == 2
    assert done.stderr.startswith(
        "sqla-shard: error: alembic.ini has no section [nosuch] with a "
        "script_location, and none with this keyspace; "
        "specify a section, or its keyspace, with --name: alembic (objects)\n"
    )
    # It is [alembic], for the first keyspace.
    assert invoke("-n", "objects", "status").exit_code == 0


def test_a_keyspace_of_two_sections_is_refused(project: Path) -> None:
    ini = Path("alembic.ini").read_text()
    section = "[prod]\nscript_location = migrations\nkeyspace = objects\n"
    Path("alembic.ini").write_text(f"{ini}\n{section}topology = prod.toml\n")
    done = invoke("-n", "objects", "status")
    assert done.exit_code == 2
    assert "has keyspace objects in the sections alembic, prod;" in done.stderr
    assert invoke("-n", "alembic", "status").exit_code == 0


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("[alembic\nurl = secret", "line 1 belongs to no section"),
        ("url = secret\n[alembic]", "line 1 belongs to no section"),
        ("[alembic]\nsecret", "line 2 is neither"),
        ("[a]\nurl = secret\n[a]", "line 3 has section [a] a second time"),
        ("[a]\nb = 1\nb = secret", "line 3 has option b of section [a]"),
        (
            "[alembic]\nscript_location = x\nurl = m://a:secret%@h",
            "option url of section [alembic] has a %",
        ),
        (
            "[alembic]\nscript_location = %(secret)s/x",
            "option script_location of section [alembic] has a %",
        ),
        (b"\xff[alembic]", "it is not text in UTF-8"),
    ],
)
@pytest.mark.parametrize(
    "arguments", ["schema status", "dashboard --port 0 --config alembic.ini"]
)
def test_a_damaged_configuration_is_one_line(
    project: Path, content: str | bytes, problem: str, arguments: str
) -> None:
    if isinstance(content, str):
        content = content.encode()
    (project / "alembic.ini").write_bytes(content)
    done = CliRunner().invoke(program, ["-t", "topology.toml", *arguments.split()])
    assert done.exit_code == 2, done.output
    assert done.stderr.startswith(
        f"sqla-shard: error: alembic.ini cannot be read: {problem}"
    )
    assert "secret" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        "upgrade --shards 7-2",
        "upgrade --shards 99",
        "upgrade --new 99",
        "upgrade --servers nosuch",
        "upgrade --shards 1 --servers nosuch",
        "upgrade --jobs 0",
        "upgrade --jobs many",
        "upgrade --pause -1",
        "upgrade --nosuch",
        "upgrade nosuch",
        "upgrade base:head",
        "upgrade +9",
        "upgrade --report nosuch/report",
        "downgrade",
        "downgrade nosuch",
        "status --shards 99",
        "verify --reference 99",
        "verify --keyspace nosuch",
        "provision",
        "resolve 99 revision-done",
        "resolve 0 nosuch",
        "--config nosuch.ini status",
        "nosuch",
    ],
)
def test_wrong_uses_end_alike(project: Path, arguments: str) -> None:
    done = invoke(*arguments.split())
    assert done.exit_code == 2, done.output
    assert "error: " in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [("-1", "--shards", "7"), ("--shards", "7", "-1"), ("--shards=7", "--", "-1")],
)
def test_one_revision_back(project: Path, arguments: tuple[str, ...]) -> None:
    assert invoke("upgrade").exit_code == 0
    done = invoke("downgrade", *arguments)
    assert done.exit_code == 0, done.output
    assert "1 changed: 7" in done.stdout
    assert "1 at a: 7" in invoke("status").stdout


def test_sql_names_the_databases_that_it_is_for(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from alembic.config import main

    main(["-x", "shards=0,3-5,7", "upgrade", "a:b", "--sql"])
    output = capfd.readouterr().out
    assert output.startswith(
        "-- The same for each of 5 databases: db00000, db00003 to db00005, db00007\n"
    )


def test_errors_do_not_control_the_terminal_of_alembic(project: Path) -> None:
    with Path("m/versions/b.py").open("a") as file:
        file.write("def upgrade():\n    raise ValueError('\\x1b[31mred')\n")
    done = subprocess.run(
        [sys.executable, "-m", "alembic", "upgrade", "head"],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    # As it happens, and in the report.
    for shown in (done.stderr, done.stdout):
        assert "\x1b" not in shown
        assert "ValueError: \\x1b[31mred" in shown


ENV_OF_ONE_DATABASE = """\
from alembic import context
from sqlalchemy import create_engine

with create_engine("sqlite:///one.sqlite").connect() as connection:
    context.configure(connection=connection)
    with context.begin_transaction():
        context.run_migrations()
"""


@pytest.mark.parametrize("env", [ENV_OF_ONE_DATABASE, "pass"])
@pytest.mark.parametrize(
    "arguments",
    [
        ("status",),
        ("upgrade",),
        ("downgrade", "base"),
        ("provision", "--initial"),
        ("resolve", "0", "statement-done"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_an_env_py_of_alembic_itself_is_refused(
    project: Path, arguments: tuple[str, ...], env: str
) -> None:
    Path("m/env.py").write_text(env)
    done = invoke(*arguments)
    assert done.exit_code == 1
    assert "env.py does not call run_env()" in done.stderr
    with closing(sqlite3.connect("one.sqlite")) as database:
        assert not database.execute("SELECT * FROM sqlite_master").fetchall()


def test_a_range_is_for_sql(project: Path) -> None:
    done = invoke("upgrade", "a:b")
    assert done.exit_code == 2
    assert "'a:b' is a range, which is for: alembic" in done.stderr
    assert "8 at no revision" in invoke("status").stdout


def test_help_has_a_line_for_each_answer() -> None:
    lines = invoke("resolve", "--help").stdout.splitlines()
    assert lines[0].endswith("resolve [OPTIONS] SHARD ANSWER")
    first = next(n for n, line in enumerate(lines) if "-done" in line)
    assert [line.split()[0] for line in lines[first : first + 4]] == [
        answer.value for answer in schema.Answer
    ]
