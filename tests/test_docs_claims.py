"""Statements of the pages that the code has made untrue.

Each was true when it was written, and stayed long after it was not.  Features
that a page calls missing are looked for in the package.
"""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sqla_shard
from sqla_shard import Cluster
from sqla_shard.schema import verify

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.rst"))]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))

Fact = Callable[[], Any]


def parameters(function: Any) -> Any:
    return inspect.signature(function).parameters


#: Statements that no page may contain, and the code that makes them untrue.
UNTRUE: dict[str, Fact] = {
    r"(finding|find) an? (row|object)[^.]* (is|are) not there yet": (
        lambda: sqla_shard.LookupMixin.resolve
    ),
    r"(and|so) restart (them|everything|all processes)": (
        lambda: parameters(Cluster.from_file)["watch"].default
    ),
    r"reads the (topology )?file when it starts, so": (
        lambda: parameters(Cluster.from_file)["watch"].default
    ),
    r"never connects to (it|a standby|the standby|standbys)": (
        lambda: parameters(verify)["standby"].default
    ),
    r"only PyMySQL is tested": (
        lambda: PYPROJECT["project"]["optional-dependencies"]["asyncmy"]
    ),
    r"not there yet:[^.]*writes to several shards": (lambda: sqla_shard.operation),
    r"many-to-many[^.]* (is|are) (refused|not there yet)": (
        lambda: ROOT.joinpath("docs/howto/many-to-many.rst").stat()
    ),
    r"OFFSET (is|and [^.]* are) (always )?refused\.": (
        lambda: parameters(sqla_shard.scatter)["max_offset"]
    ),
}


def sentences(path: Path) -> str:
    """Return a page without the ends of its lines."""
    return " ".join(path.read_text("utf-8").split())


@pytest.mark.parametrize("pattern", UNTRUE)
def test_exceptions_to_a_statement_exist(pattern: str) -> None:
    assert UNTRUE[pattern]()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_says_what_is_untrue(page: Path) -> None:
    text = sentences(page)
    for pattern in UNTRUE:
        found = re.search(pattern, text, re.IGNORECASE)
        assert found is None, f"{found and found[0]!r} is not true any more"


def test_the_statements_would_be_found() -> None:
    """Those that stood on the pages."""
    for statement in (
        "Finding an object by another key on sharded tables is not there yet.",
        "finding a row in them by its key is not there yet.",
        "A process reads the file when it starts, so restart them all:",
        "give all processes the new file and restart them.",
        "the library never connects to it.",
        "Only PyMySQL is tested.",
        "**Not there yet:** writes to several shards that complete after a",
    ):
        assert any(
            re.search(pattern, statement, re.IGNORECASE) for pattern in UNTRUE
        ), statement


def test_the_tests_of_the_promises_exist() -> None:
    page = ROOT.joinpath("docs/howto/fleet-promises.rst")
    named = re.findall(r"(test_\w+\.py)::(test_\w+)", page.read_text("utf-8"))
    assert named
    for module, name in named:
        (path,) = ROOT.joinpath("tests").rglob(module)
        text = path.read_text("utf-8")
        assert re.search(rf"def {name}\(", text), f"{module}::{name}"


def test_every_extra_is_listed() -> None:
    page = (ROOT / "docs" / "quickstart.rst").read_text("utf-8")
    _, _, table = page.partition("Extras\n------")
    listed = set(re.findall(r"^``(\w+)``", table, re.MULTILINE))
    assert listed == set(PYPROJECT["project"]["optional-dependencies"])


@pytest.mark.parametrize("page", ["README.md", "docs/reference/versions.rst"])
def test_supported_versions_are_those_of_the_package(page: str) -> None:
    project = PYPROJECT["project"]
    minors = [
        one.rpartition(" ")[2] for one in project["classifiers"] if ":: 3." in one
    ]
    (needed,) = (one for one in project["dependencies"] if one.startswith("SQLAlchemy"))
    oldest = re.search(r">=([\d.]+)", needed)
    assert oldest is not None
    text = sentences(ROOT / page)
    assert f"{minors[0]} to {minors[-1]}" in text
    assert f"{oldest[1]} and later, and 2.1" in text
    assert needed.endswith("<2.2")


def test_supported_drivers_are_those_of_the_extras() -> None:
    extras = PYPROJECT["project"]["optional-dependencies"]
    text = sentences(ROOT / "docs" / "reference" / "versions.rst")
    for name in ("mysql", "mysqlclient", "asyncmy"):
        assert extras[name][0].replace(">=", " ") in text


#: Features that the pages call missing, by the words of the README's table and
#: of the landing page; each with the name that it would have.
MISSING = {"online schema changes": "schema/online"}


def test_features_that_are_called_missing_are_missing() -> None:
    text = sentences(ROOT / "docs" / "index.rst")
    said = re.search(r"\*\*Not there yet:\*\* (.*?)\.", text)
    assert said is not None
    for words, name in MISSING.items():
        assert words in said[1]
        package = ROOT / "sqla_shard" / name
        assert not package.exists(), f"{words}: there is sqla_shard.{name}"


def test_times_of_the_readme_are_those_of_the_figures() -> None:
    figures = sentences(ROOT / "docs" / "explanation" / "figures.rst")
    said = re.search(
        r"`get` takes ([\d.]+) times .* take ([\d.]+ ms), ([\d.]+) times a UNION ALL"
        r" by hand; SQLAlchemy's own `ShardedSession` takes (\d+ ms)",
        sentences(ROOT / "README.md"),
    )
    assert said is not None
    get, many, ratio, sharded = said.groups()
    first, _, rest = figures.partition("More of the same run")
    assert re.search(rf"``session.get`` by id, [^-]* - [\d.]+ ms - {get} - ", first)
    assert f"50 objects, 50 shards, 4 servers - {many} - {ratio} - " in first
    assert f"``ShardedSession``, session open - {sharded} - " in rest


#: Words about the future.  What is not there has one place, the comparison.
FUTURE = re.compile(
    r"\b(?:not (?:there |supported |implemented )?yet|planned"
    r"|(?:in|of) (?:a|the) (?:future|later|next) (?:version|release)"
    r"|in (?:a|the)? ?future"
    r"|upcoming|coming soon|for now|so far|to do later|will (?:be"
    r" (?:added|supported|possible|there)|support|come)|not implemented)\b",
    re.IGNORECASE,
)

#: Sentences with these words that are about something else, and those that
#: say what is missing; by page.
ALLOWED = {
    "docs/index.rst": ("**Not there yet:** online schema changes.",),
    "docs/explanation/comparison.rst": ("What is not there yet",),
    "docs/explanation/figures.rst": ("every transaction planned",),
    "docs/howto/dashboard.rst": ("Statements are planned, never run",),
    "docs/howto/fleet-operations.rst": ("planned, checked, applied",),
    "docs/howto/fleet-promises.rst": (
        "lost by a planned failover",
        "refuse a planned failover",
    ),
    "docs/explanation/servers.rst": ("then a planned failover",),
    "docs/howto/reference-tables.rst": ("shards that are not yet written",),
    "docs/howto/topology-file.rst": ("# opened so far, of 65,536",),
    "docs/howto/shadow.rst": (
        "counted and not planned",
        "transactions that are planned",
        "that is not planned costs one call",
    ),
}


def about_the_future(page: str, text: str) -> list[str]:
    """Return the words about the future that are not allowed on a page."""
    for sentence in ALLOWED.get(page, ()):
        text = text.replace(sentence, "")
    text = re.sub(r"[\w.]+\.planned\b", "", text)  # names of methods
    return [text[max(0, m.start() - 40) : m.end() + 20] for m in FUTURE.finditer(text)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_missing_features_are_named_in_one_place(page: Path) -> None:
    name = str(page.relative_to(ROOT))
    assert about_the_future(name, sentences(page)) == []


def test_words_about_the_future_would_be_found() -> None:
    for statement in (
        "Window functions are not supported yet.",
        "Streaming will be added.",
        "It is planned for a later version.",
        "For now, use SQL.",
    ):
        assert about_the_future("docs/other.rst", statement), statement


@pytest.mark.parametrize("page", ALLOWED)
def test_allowances_are_on_their_page(page: str) -> None:
    text = sentences(ROOT / page)
    assert [one for one in ALLOWED[page] if one not in text] == []
