"""Shadow mode in pytest runs, and the commands that read its reports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

# Here, since pytester forgets what is first imported by the runs inside.
import sqla_shard.migrate  # noqa: F401  # see above
from tests.servers.command_line import invoke

pytest_plugins = ["pytester"]

APPLICATION = """
    from sqlalchemy import create_engine
    from sqlalchemy import ForeignKey
    from sqlalchemy import select
    from sqlalchemy.orm import DeclarativeBase
    from sqlalchemy.orm import Mapped
    from sqlalchemy.orm import mapped_column
    from sqlalchemy.orm import Session
    from sqlalchemy.pool import NullPool


    class Base(DeclarativeBase):
        pass


    class User(Base):
        __tablename__ = "users"
        id: Mapped[int] = mapped_column(primary_key=True)


    class Post(Base):
        __tablename__ = "posts"
        id: Mapped[int] = mapped_column(primary_key=True)
        user_id: Mapped[int] = mapped_column(ForeignKey("users.id"))


    # No test disposes of it.
    engine = create_engine("sqlite:///blog", poolclass=NullPool)
    Base.metadata.create_all(engine)


    def posts_of(user_id):
        with Session(engine) as session:
            query = select(Post).where(Post.user_id == user_id)
            return session.scalars(query).all()


    def all_posts():
        with Session(engine) as session:
            return session.scalars(select(Post)).all()
"""

TESTS = """
    import blog_under_shadow as blog
    import pytest


    @pytest.mark.parametrize("number", range(3))
    def test_one(number):
        assert blog.posts_of(1) == []


    def test_all():
        assert blog.all_posts() == []
"""

DECLARATION = """\
[owners.users]
id = "id"

[owned.posts]
colocate_with = "user_id"
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(blog_under_shadow=APPLICATION, test_blog=TESTS)
    pytester.makefile(".toml", declaration=DECLARATION)
    pytester.makeini(
        "[pytest]\n"
        "sqla_shard_shadow = declaration.toml\n"
        "sqla_shard_shadow_metadata = blog_under_shadow:Base\n"
        "sqla_shard_shadow_reports = reports\n"
    )
    pytester.syspathinsert()
    return pytester


def test_a_summary_and_reports(project: pytest.Pytester) -> None:
    old = project.mkdir("reports") / "shadow-old-1.json"
    old.write_text("of another run")
    result = project.runpytest("-p", "no:xdist")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(
        [
            "*sqla_shard shadow mode*",
            "4 statements of 4 transactions*",
            "  single shard * 3 * 75.0 %*",
            "  all shards (scatter) * 1 * 25.0 %*",
            "Refused as they are: 1 (25.0 %).",
            "*sqla-shard migrate shadow *reports*",
        ]
    )
    assert not old.exists()
    shown = invoke("migrate", "shadow", str(project.path / "reports"))
    assert shown.exit_code == 0, shown.output
    assert "in all_posts: all shards (scatter)" in shown.output


def test_it_is_off_by_default(project: pytest.Pytester) -> None:
    result = project.runpytest("-p", "no:xdist", "--sqla-shard-shadow", "")
    result.assert_outcomes(passed=4)
    result.stdout.no_fnmatch_line("*shadow mode*")
    assert not (project.path / "reports").exists()


def test_a_declaration_needs_the_tables(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest(
        "-p", "no:xdist", "--sqla-shard-shadow", "declaration.toml"
    )
    result.stderr.fnmatch_lines(["*needs sqla_shard_shadow_metadata*"])


@pytest.fixture
def reports(project: pytest.Pytester) -> Path:
    project.runpytest("-p", "no:xdist").assert_outcomes(passed=4)
    return project.path / "reports"


def test_shadow_command(reports: Path) -> None:
    # Two processes have done the same.
    (only,) = reports.iterdir()
    (reports / "shadow-other-1.json").write_bytes(only.read_bytes())
    shown = invoke("migrate", "shadow", str(reports), "--json")
    document = json.loads(shown.output)
    assert document["processes"] == 2
    assert document["outcomes"]["single_shard"]["statements"] == 6
    # Its output is a report itself.
    merged = reports / "merged.json"
    merged.write_text(shown.output)
    again = invoke("migrate", "shadow", str(merged), "--json")
    assert json.loads(again.output) == document


@pytest.mark.parametrize(("percent", "status"), [("75", 0), ("75.1", 1)])
def test_fail_under(reports: Path, percent: str, status: int) -> None:
    shown = invoke("migrate", "shadow", str(reports), "--fail-under", percent)
    assert shown.exit_code == status


def test_a_directory_without_reports(tmp_path: Path) -> None:
    shown = invoke("migrate", "shadow", str(tmp_path))
    assert shown.exit_code == 2
    assert "there is no report" in shown.output


def test_suggest_command(reports: Path, tmp_path: Path) -> None:
    arguments = ("migrate", "suggest", "blog_under_shadow", str(reports))
    shown = invoke(*arguments)
    assert shown.exit_code == 0, shown.output
    assert "users: one shard for 75.0% of statements" in shown.output
    assert "posts is owned by user_id" in shown.output
    assert invoke(*arguments, "--toml").output == DECLARATION
    (best,) = json.loads(invoke(*arguments, "--json").output)
    assert best["score"] == 0.75
    assert best["declaration"]["owned"] == {"posts": {"colocate_with": "user_id"}}
    without = invoke("migrate", "suggest", "blog_under_shadow:Base")
    assert "no traffic recorded" in without.output


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no.such.module:Base", "cannot be imported"),
        ("blog_under_shadow:nothing", "cannot be imported"),
        ("blog_under_shadow:posts_of", "neither a declarative base nor"),
    ],
)
def test_a_module_without_tables(
    project: pytest.Pytester, name: str, message: str
) -> None:
    shown = invoke("migrate", "suggest", name)
    assert shown.exit_code == 2
    assert message in shown.output


def test_tables_that_nothing_refers_to(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        lonely_tables="import sqlalchemy\nBase = sqlalchemy.MetaData()\n"
    )
    pytester.syspathinsert()
    shown = invoke("migrate", "suggest", "lonely_tables")
    assert shown.exit_code == 1
    assert "no table is referred to" in shown.output
