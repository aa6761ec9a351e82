"""The documentation is correct: its code runs, and it is complete.

Every code block of Python in README.md and docs/ is executed, in order, in
one namespace per page, in an empty directory, on SQLite.  The blocks around
it are not decoration either:

* a block with a file name (``:caption:`` in docs, ``<!-- file: name -->`` in
  the README) becomes that file; one of Python is imported or started later;
* a block of class ``output`` has to be what was printed since the last one,
  with ``...`` for what is different each time; what is printed must be shown;
* ``console`` blocks are executed too: ``$ python file.py``, ``$ sqla-shard``
  and ``$ alembic``;
* TOML and JSON blocks without a file name have to be valid topologies.

Blocks of class ``live`` need servers: pages show those of MySQL, such as
``MySQLFleet``, and run a second time with MariaDB's of the same names.  Blocks
of class ``not-run`` are not executed; a comment ``.. not-run: why`` stands
before each.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib
import importlib.util
import inspect
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
import tomllib
import types
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

import sqla_shard
from sqla_shard import Cluster, exc
from sqla_shard.jobs import tasks
from sqla_shard.outbox import apply
from sqla_shard.topology import Topology
from tests.servers.command_line import without_progress
from tests.servers.kinds import Kind
from tests.workers.warm import WarmPython

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
TUTORIAL = DOCS / "tutorial.rst"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.rst"))]

#: Values for the placeholders of topologies that are shown.
ENVIRON = {"MYSQL_USER": "app", "MYSQL_PASSWORD": "secret"}
MOST_NOT_RUN = 12

#: Test servers by the names that differ between MySQL and MariaDB.
_OF_MYSQL = re.compile(r"\b(?:MySQL(?=[FPS]\w)|mysql(?=_(?:fleet|proxies)\b))")
_OF_MARIADB = re.compile(r"\b(?:MariaDB[FPS]\w|mariadb_(?:fleet|proxies)\b)")


# -- from a page to its blocks ---------------------------------------------


@dataclass(frozen=True)
class Block:
    """One code block of a page.

    :ivar line: number of its first line of code.
    :ivar file: the file that it is, if it has a name.
    :ivar reason: why it is not run, as its comment states.
    """

    page: Path
    line: int
    language: str
    code: str
    file: str | None
    classes: frozenset[str]
    reason: str | None

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


_DIRECTIVE = re.compile(r"( *)\.\. code-block::[ ]*(\S*)")
_OPTION = re.compile(r" +:([\w-]+):[ ]*(.*)")
_FENCE = re.compile(r"```(\S*)")


def blocks_of(page: Path) -> list[Block]:
    lines = page.read_text("utf-8").splitlines()
    read = _markdown if page.suffix == ".md" else _rest
    return list(read(page, lines))


def _rest(page: Path, lines: list[str]) -> Iterator[Block]:
    for number, line in enumerate(lines):
        match = _DIRECTIVE.fullmatch(line)
        if not match:
            continue
        indent = len(match[1])
        options: dict[str, str] = {}
        first = number + 1
        while option := _OPTION.fullmatch(lines[first]):
            options[option[1]] = option[2]
            first += 1
        last = first
        while last < len(lines) and (
            not lines[last].strip()
            or len(lines[last]) - len(lines[last].lstrip()) > indent
        ):
            last += 1
        code = textwrap.dedent("\n".join(lines[first:last])).strip("\n")
        while not lines[first].strip():
            first += 1
        yield Block(
            page=page,
            line=first + 1,
            language=match[2],
            code=code,
            file=options.get("caption"),
            classes=frozenset(options.get("class", "").split()),
            reason=_comment(lines, number, r" *\.\. not-run: (.*)"),
        )


def _markdown(page: Path, lines: list[str]) -> Iterator[Block]:
    number = 0
    while number < len(lines):
        match = _FENCE.fullmatch(lines[number])
        number += 1
        if not match:
            continue
        last = lines.index("```", number)
        start = number - 1
        shown = _comment(lines, start, "<!-- (output) -->")
        reason = _comment(lines, start, "<!-- not-run: (.*) -->")
        yield Block(
            page=page,
            line=number + 1,
            language=match[1],
            code="\n".join(lines[number:last]),
            file=_comment(lines, start, "<!-- file: (.*) -->"),
            classes=frozenset(["output"] * bool(shown) + ["not-run"] * bool(reason)),
            reason=reason,
        )
        number = last + 1


def _comment(lines: list[str], number: int, pattern: str) -> str | None:
    """Return the text of the comment before a line."""
    before = [line for line in lines[:number] if line.strip()][-1:]
    match = re.fullmatch(pattern, before[0]) if before else None
    return match[1] if match else None


# -- running them ----------------------------------------------------------


class Runner:
    """Executes the blocks of one page in the current directory."""

    def __init__(
        self, page: Path, *, live: bool, python: WarmPython, output: Path
    ) -> None:
        self.live = live
        self.python = python
        self.output = output
        self.printed = ""
        self.clusters: set[Cluster] = set()
        self.module = types.ModuleType(f"docs_{page.stem.replace('-', '_')}")
        # Annotations are resolved in the module of their class.
        sys.modules[self.module.__name__] = self.module

    def run(self, block: Block) -> None:
        if "not-run" in block.classes:
            return
        if "live" in block.classes and not self.live:
            return
        if "output" in block.classes:
            self.compare(block)
        elif block.file:
            path = Path(block.file)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.code + "\n", "utf-8")
        elif block.language == "python":
            self.execute(block)
        elif block.language == "console":
            self.console(block)
        elif block.language in ("toml", "json"):
            check_topology(block)
        else:
            pytest.fail(f"{block.where}: what is a {block.language!r} block?")

    def execute(self, block: Block) -> None:
        # Leading newlines, so that a traceback shows the line of the page.
        source = "\n" * (block.line - 1) + block.code
        code = compile(source, str(block.page), "exec", dont_inherit=True)
        stdout = io.StringIO()
        with contextlib.redirect_stdout(stdout):
            exec(code, self.module.__dict__)  # noqa: S102  # pages of ours
        self.printed += stdout.getvalue()
        self.clusters |= {
            value for value in vars(self.module).values() if isinstance(value, Cluster)
        }

    def console(self, block: Block) -> None:
        """Run the commands of a block; the rest of it is their output."""
        wanted = ""
        printed = ""
        for line in block.code.splitlines():
            if not line.startswith("$ "):
                wanted += f"{line}\n"
                continue
            self._same(block, wanted, printed)
            program, *arguments = shlex.split(line[2:])
            if program == "cd":
                os.chdir(*arguments)
                wanted = printed = ""
                continue
            if program == "python":
                program = sys.executable
            elif program == "sqla-shard":
                program = sys.executable
                arguments = ["-m", "sqla_shard.cli", *arguments]
            elif program == "alembic":
                program = sys.executable
                arguments = ["-m", "alembic", *arguments]
            else:
                pytest.fail(f"{block.where}: {program} is not run in tests")
            environ = {**os.environ, "PYTHONWARNINGS": "error"}
            # As readers see it: where it is set, pytest prints some lines
            # twice.
            environ.pop("CI", None)
            wanted, printed = "", self._printed(program, arguments, environ)
        self._same(block, wanted, printed)

    def _printed(
        self, program: str, arguments: list[str], environ: dict[str, str]
    ) -> str:
        # pytest has to load the plugin itself, to rewrite its assertions.
        if program == sys.executable and "pytest" not in arguments:
            return self.python.run(arguments, environ, self.output)
        done = subprocess.run(
            [program, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            env=environ,
        )
        return done.stdout

    def compare(self, block: Block) -> None:
        self._same(block, f"{block.code}\n", self.printed)
        self.printed = ""

    def end(self) -> None:
        if self.printed:
            pytest.fail(f"the page does not show: {self.printed}")

    def _same(self, block: Block, wanted: str, printed: str) -> None:
        printed = without_progress(printed)
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        if not doctest.OutputChecker().check_output(wanted, printed, flags):
            pytest.fail(
                f"{block.where} shows\n\n{wanted}\nand prints\n\n{printed}",
                pytrace=False,
            )

    def close(self) -> None:
        for cluster in self.clusters:
            cluster.close(timeout=1)
        del sys.modules[self.module.__name__]


@pytest.fixture(scope="module")
def python():
    """Return the interpreter that runs the programs of all pages."""
    with WarmPython() as warm:
        yield warm


@pytest.fixture
def output(tmp_path_factory):
    """A file that is not where the pages are."""
    return tmp_path_factory.mktemp("output") / "output"


def check_topology(block: Block) -> None:
    loads: Any = tomllib.loads if block.language == "toml" else json.loads
    Topology.from_mapping(loads(block.code), source=block.where, environ=ENVIRON)


def graphs_of(registry: dict[str, Any]) -> dict[str, Any]:
    """Return the operations or tasks of follow graphs and feeds."""
    return {
        name: one
        for name, one in registry.items()
        if inspect.ismethod(getattr(one, "function", one))
    }


@contextlib.contextmanager
def without_other_graphs() -> Iterator[None]:
    """Let a page define a graph with the name of another one."""
    registries = (apply._functions, tasks._tasks)
    before = [graphs_of(registry) for registry in registries]
    for registry, own in zip(registries, before, strict=True):
        for name in own:
            del registry[name]
    try:
        yield
    finally:
        for registry, own in zip(registries, before, strict=True):
            for name in graphs_of(registry):
                del registry[name]
            registry.update(own)


@pytest.fixture
def directory(tmp_path, monkeypatch):
    """Be in an empty directory from which modules can be imported."""
    known = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in set(sys.modules) - known:
        found = getattr(sys.modules[name], "__file__", None)
        if found and Path(found).is_relative_to(tmp_path):
            del sys.modules[name]


def on_servers(block: Block, kind: Kind) -> Block:
    """Return a block of a page, which shows MySQL, with servers of a kind."""
    assert not _OF_MARIADB.search(block.code), f"{block.where}: not MySQL's"
    if kind.is_mysql:
        return block
    return replace(block, code=_OF_MYSQL.sub(_as_mariadb, block.code))


def _as_mariadb(match: re.Match[str]) -> str:
    return "MariaDB" if match[0] == "MySQL" else "mariadb"


def run_page(
    page: Path, *, python: WarmPython, output: Path, live: Kind | None = None
) -> None:
    blocks = blocks_of(page)
    if live:
        blocks = [on_servers(block, live) for block in blocks]
    if page != TUTORIAL and any("from models" in b.code for b in blocks):
        # Later pages go on with the files of the tutorial.
        for block in blocks_of(TUTORIAL):
            if block.file and not Path(block.file).exists():
                Path(block.file).parent.mkdir(parents=True, exist_ok=True)
                Path(block.file).write_text(block.code + "\n", "utf-8")
    runner = Runner(page, live=bool(live), python=python, output=output)
    has_graph = "sqla_shard.contrib" in page.read_text("utf-8")
    with without_other_graphs() if has_graph else contextlib.nullcontext():
        try:
            for block in blocks:
                runner.run(block)
            runner.end()
        finally:
            runner.close()


def ids_of(pages: list[Path]) -> list[str]:
    return [str(page.relative_to(ROOT)) for page in pages]


WITH_CODE = [page for page in PAGES if blocks_of(page)]
LIVE = [
    page
    for page in WITH_CODE
    if any("live" in block.classes for block in blocks_of(page))
]


#: Pages of many commands, each of which is a program.
LONG = {
    DOCS / "explanation" / "configuration.rst",
    DOCS / "howto" / "cache.rst",
    DOCS / "howto" / "compress.rst",
    DOCS / "howto" / "cross-shard.rst",
    DOCS / "howto" / "flask.rst",
    DOCS / "howto" / "id-layouts.rst",
    DOCS / "howto" / "jobs.rst",
    DOCS / "howto" / "migrations.rst",
    DOCS / "howto" / "move.rst",
    DOCS / "howto" / "provision.rst",
    DOCS / "howto" / "testing.rst",
    DOCS / "reference" / "cli.rst",
    DOCS / "tutorial-port.rst",
}


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.thorough] * (page in LONG))
        for page in WITH_CODE
    ],
    ids=ids_of(WITH_CODE),
)
def test_code_runs(page, directory, python, output, caplog):
    run_page(page, python=python, output=output)
    # A cluster that is closed before its sessions waits for them for 10 s.
    assert "close() waits" not in caplog.text


@pytest.mark.live
@pytest.mark.thorough
@pytest.mark.parametrize("page", LIVE, ids=ids_of(LIVE))
def test_code_runs_on_real_servers(
    page, directory, python, output, request, server_kind
):
    if "ZooKeeperServer" in page.read_text("utf-8"):
        request.getfixturevalue("zookeeper_installed")
    run_page(page, live=server_kind, python=python, output=output)


# -- completeness ----------------------------------------------------------

_AUTO = re.compile(
    r"^( *)\.\. (?:auto)?(?:class|function|exception|data):: "
    r"([\w.]+)"
)


def documented(path: Path) -> set[str]:
    """Return the full names that a page of the reference describes."""
    names = set()
    current = ""
    for line in path.read_text("utf-8").splitlines():
        if line.startswith(".. currentmodule:: "):
            current = line.split()[-1]
        match = _AUTO.match(line)
        if match:
            name = match[2]
            names.add(name if name.startswith("sqla_") else f"{current}.{name}")
    return names


REFERENCE = {
    name for page in (DOCS / "reference").glob("*.rst") for name in documented(page)
}


@pytest.mark.parametrize("name", sqla_shard.__all__)
def test_every_public_name_is_in_the_reference(name):
    homes = {f"sqla_shard.{name}", f"sqla_shard.topology.{name}"}
    assert homes & REFERENCE


@pytest.mark.parametrize(
    "module",
    [
        "fleet",
        "models.deletion",
        "topology",
        "testing",
        "ext.fastapi",
        "ext.flask",
        "ext.horizontal_shard",
        "ext.opentelemetry",
    ],
)
def test_every_name_of_a_public_module_is_in_the_reference(module):
    imported = importlib.import_module(f"sqla_shard.{module}")
    missing = {
        name
        for name in imported.__all__
        if not name.startswith("DEFAULT_")
        and f"sqla_shard.{module}.{name}" not in REFERENCE
    }
    assert not missing


def test_every_error_is_on_its_page():
    assert documented(DOCS / "errors.rst") == {
        f"sqla_shard.exc.{name}" for name in exc.__all__
    }


def test_every_error_says_what_to_do():
    text = (DOCS / "errors.rst").read_text("utf-8")
    for part in text.split(".. autoexception:: ")[2:]:
        name, *lines = part.split(".. autoclass")[0].splitlines()
        advice = [line for line in lines if not line.strip().startswith(":")]
        assert any(line.startswith("   ") for line in advice), name


def test_the_code_of_the_readme_is_that_of_the_front_page():
    def code(page: Path) -> str:
        return next(b.code for b in blocks_of(page) if b.language == "python")

    assert code(ROOT / "README.md") == code(DOCS / "index.rst")


def test_code_that_is_not_run_is_rare_and_has_a_reason():
    skipped = [
        block
        for page in PAGES
        for block in blocks_of(page)
        if "not-run" in block.classes
    ]
    assert [b.where for b in skipped if not b.reason] == []
    assert sum(b.language == "python" for b in skipped) <= MOST_NOT_RUN


@pytest.mark.parametrize("page", PAGES, ids=ids_of(PAGES))
def test_code_is_in_blocks_that_are_found(page):
    # Other ways to show code would go past the tests.
    text = page.read_text("utf-8")
    assert not re.search(r"^ *(>>> |\.\. (code|sourcecode|doctest)::)", text, re.M)
    assert not re.search(r"^(?! *\.\. ).*::$", text, re.M)
    for block in blocks_of(page):
        assert max(map(len, block.code.splitlines())) <= 79 or (
            "output" in block.classes or block.language == "toml"
        ), block.where


def cut_rows(text: str) -> Iterator[str]:
    """Yield lines of simple tables that begin a row without its columns.

    The first column cannot go on in a second line: that is a new row.
    """
    second = None
    lines = text.splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        rule = re.fullmatch(r" *=+ +(?==)[= ]+", line)
        if rule and second is None:
            second = re.match(r" *=+ +", line).end()
        elif rule and not following.strip():
            second = None
        elif second and line[:second].strip() and not line[second:].strip():
            yield line


@pytest.mark.parametrize("page", PAGES, ids=ids_of(PAGES))
def test_rows_of_tables_are_whole(page):
    assert list(cut_rows(page.read_text("utf-8"))) == []


@pytest.mark.parametrize("page", PAGES, ids=ids_of(PAGES))
def test_page_is_about_the_project_alone(page):
    text = page.read_text("utf-8")
    assert str(ROOT) not in text
    assert not re.search(r"/(home|root|tmp|work|usr/local)/", text)
    assert not re.search(r"(?<![&\w])#\d+", text), "a number of an issue"


@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ["sphinx", "furo", "towncrier"])),
    reason="the packages of the group 'docs' are not installed",
)
@pytest.mark.thorough
@pytest.mark.timeout(3600)  # a minute of processor time, on a busy machine
def test_sphinx_builds_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "sphinx", "-q", "-n", "-W", "-E"]
    command += ["--keep-going", "-d", str(tmp_path / "trees")]
    done = subprocess.run(
        [*command, str(DOCS), str(tmp_path / "html")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    built = (tmp_path / "html" / "changelog.html").read_text("utf-8")
    assert "Object ids of 64 bits" in built


@pytest.mark.parametrize("path", sorted((ROOT / "changelog.d").glob("*.rst")))
def test_changelog_fragments_have_names_that_towncrier_finds(path):
    if path.name != "README.rst":
        kinds = "feature|bugfix|breaking|doc"
        assert re.fullmatch(rf"\+[a-z-]+\.({kinds})\.rst", path.name)


WITH_DOCTESTS = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in sorted((ROOT / "sqla_shard").rglob("*.py"))
    if ">>> " in path.read_text("utf-8")
]


@pytest.mark.parametrize("name", WITH_DOCTESTS)
def test_examples_in_docstrings_are_true(name):
    # Examples leave out the imports that anybody would guess.
    obvious = {"datetime": datetime, "timezone": timezone}
    module = importlib.import_module(name)
    found = doctest.testmod(module, extraglobs=obvious)
    assert found.attempted
    assert not found.failed


# -- the page on TLS -------------------------------------------------------


@pytest.fixture(scope="module")
def certificates():
    """Make an authority, another one, and a server for localhost only."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("openssl is not installed")
    # A server that root starts runs as another user, for whom pytest keeps
    # its own directories closed.
    with tempfile.TemporaryDirectory(prefix="sqla-shard-tls-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        _make_certificates(program, directory)
        yield directory


def _make_certificates(program, directory):

    def openssl(command: str) -> None:
        subprocess.run(
            [program, *shlex.split(command)],
            cwd=directory,
            check=True,
            capture_output=True,
        )

    new = "-newkey rsa:2048 -nodes -days 2"
    for name in ("ca", "other"):
        openssl(
            f"req -x509 {new} -keyout {name}.key -out {name}.pem -subj '/CN={name}'"
        )
    openssl(f"req {new} -keyout server.key -out server.csr -subj /CN=db")
    (directory / "names").write_text("subjectAltName=DNS:localhost")
    openssl(
        "x509 -req -days 2 -in server.csr -CA ca.pem -CAkey ca.key "
        "-CAcreateserial -extfile names -out server.pem"
    )
    for path in directory.iterdir():
        path.chmod(0o644)


def cipher(server: Any, host: str, query: str = "", **arguments: Any) -> str:
    """Connect as the page says; return the version of TLS that is used."""
    url = f"mysql://app:{server.password}@{host}:{server.port}{query}"
    document = {
        "epoch": 1,
        "keyspaces": {
            "main": {
                "kind": "global",
                "database": "main",
                "servers": [{"name": "main", "primary": url}],
            }
        },
    }
    options = {"connect_args": arguments}
    cluster = Cluster.from_topology(document, engine_options=options)
    with cluster, cluster.session() as session:
        status = text("SHOW STATUS LIKE 'Ssl_version'")
        return session.execute(status).one()[1]


@pytest.mark.live
def test_tls_settings_do_what_their_page_says(certificates, server_kind):
    pymysql = pytest.importorskip("pymysql")
    if pymysql.VERSION[:2] < (1, 2):
        pytest.skip("the page is about PyMySQL 1.2")
    ca, other = certificates / "ca.pem", certificates / "other.pem"
    if not server_kind.is_mysql:  # which has a certificate of its own
        with server_kind.server(fast=True) as server:
            server.root_execute("CREATE DATABASE main")
            assert cipher(server, "localhost") == ""
            for refused in (f"?ssl_ca={ca}", "?ssl_check_hostname=1"):
                with pytest.raises(OperationalError, match="SSL is required"):
                    cipher(server, "localhost", refused)
    options = [
        f"--ssl-{key}={certificates / name}"
        for key, name in (
            ("ca", "ca.pem"),
            ("cert", "server.pem"),
            ("key", "server.key"),
        )
    ]
    with server_kind.server(fast=True, options=options) as server:
        server.root_execute("CREATE DATABASE main")
        assert cipher(server, "127.0.0.1")
        assert cipher(server, "localhost", f"?ssl_ca={ca}")
        for host, query in (
            ("127.0.0.1", f"?ssl_ca={ca}"),
            ("localhost", f"?ssl_ca={other}"),
        ):
            with pytest.raises(OperationalError, match="CERTIFICATE_VERIFY"):
                cipher(server, host, query)
        unnamed = f"?ssl_ca={ca}&ssl_check_hostname=0"
        assert cipher(server, "127.0.0.1", unnamed)
        assert cipher(server, "127.0.0.1", "?ssl_check_hostname=1")
        assert cipher(server, "localhost", ssl_disabled=True) == ""
        # Arguments of PyMySQL's own.
        assert cipher(server, "localhost", ssl_ca=str(other))
        with pytest.raises(OperationalError, match="CERTIFICATE_VERIFY"):
            cipher(server, "localhost", ssl_ca=str(other), ssl_verify_identity=True)


def drawings(name: str = "drawings") -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("source", ["drawings", "charts"])
def test_the_diagrams_are_those_of_their_source(source: str) -> None:
    for name, drawn in drawings(source).drawings().items():
        path = ROOT / "docs" / name
        run = f"run: python docs/{source}.py"
        assert path.read_text("utf-8") == drawn, run


def test_each_chart_stands_below_its_table() -> None:
    source = drawings("charts")
    text = source.PAGE.read_text("utf-8")
    assert source.tables(text).keys() == source.CHARTS.keys()
    for name in source.CHARTS:
        table = rf"   :name: {name}\n(?:(?:   .*)?\n)+"
        image = rf"\.\. image:: chart-{name}\.svg\n   :alt: \w"
        assert re.search(table + image, text), name


def test_the_page_of_the_package_names_what_is_there() -> None:
    page = (ROOT / "docs" / "explanation" / "package.rst").read_text("utf-8")
    modules = re.findall(r"``([\w/]+\.py)``", page)
    assert len(modules) > 40
    package = ROOT / "sqla_shard"
    assert [m for m in modules if not (package / m).exists()] == [
        "tests/test_layers.py",
        "tests/unit/test_fleet_journal.py",
    ]
    source = drawings()
    rooms = [room for row in (*source.SYSTEMS, *source.CORE) for room in row]
    folders = {path.parent.name for path in package.glob("*/__init__.py")}
    assert sorted(rooms) == sorted(folders)


def test_the_modules_in_the_diagrams_exist() -> None:
    source = drawings()
    named = 0
    for steps in source.DIAGRAMS.values():
        for start, end, label in steps:
            for module in re.findall(r"\w+\.py", label):
                rooms = re.findall(r"\w+(?=/)", source.LANES[start] + source.LANES[end])
                assert any(
                    (ROOT / "sqla_shard" / room / module).exists() for room in rooms
                ), f"{module} in {label!r}"
                named += 1
    assert named > 15
