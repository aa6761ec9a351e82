"""The imports that each module may have.

Imports inside functions count.  Imports under ``if TYPE_CHECKING:``, which are
never executed, may also name what the front door of a higher layer has: the
type of ``session.cluster`` is the public ``Cluster``.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = "sqla_shard"

# The rooms of the package in the order of reading, with the third parties of
# each.  A room imports those above it.
LAYERS = {
    "util": "greenlet orjson sqlalchemy",
    "exc": "sqlalchemy",
    "ids": "",
    "types": "backports sqlalchemy",
    "topology": "kazoo",
    "dialects": "greenlet sqlalchemy",
    "engine": "greenlet sqlalchemy",
    "planning": "sqlalchemy",
    "session": "greenlet sqlalchemy",
    "outbox": "sqlalchemy",
    "cache": "dogpile pymemcache redis sqlalchemy",
    "cluster": "sqlalchemy",
    "models": "sqlalchemy",
    "lookup": "",
    "schema": "alembic rich sqlalchemy",
    "upkeep": "sqlalchemy",
    "jobs": "redis sqlalchemy",
    "contrib": "redis sqlalchemy",
    "fleet": "fsspec kazoo sqlalchemy",
    "monitor": "alembic flask prometheus_client sqlalchemy werkzeug",
    "migrate": "sqlalchemy",
    "ext": (
        "click fastapi flask opentelemetry pydantic pydantic_core sqlalchemy "
        "starlette werkzeug"
    ),
    "testing": "greenlet pymysql pytest sqlalchemy",
    # The front door: everything except for optional modules.
    "api": "",
    "__init__": "",
    # It uses the front door.
    "cli": "alembic click kazoo rich sqlalchemy",
}

#: The rooms that work without the others, which are systems on top of them.
CORE = (
    *("util", "exc", "ids", "types", "topology", "dialects", "engine", "planning"),
    *("session", "outbox", "cache", "cluster", "models", "lookup"),
    *("schema", "api", "__init__"),
)

# Rooms that a room must not import, although they are above it.
APART = {
    "ext": {"schema", "upkeep", "contrib", "fleet", "migrate"},
    "contrib": {"schema", "upkeep"},
    "fleet": {"jobs", "contrib"},
    "monitor": {"upkeep", "contrib"},
    "migrate": {"schema", "jobs", "contrib", "monitor"},
    "testing": {*("schema", "upkeep", "contrib", "fleet", "monitor", "ext")},
    "api": {
        *("cache", "schema", "upkeep", "jobs", "contrib", "fleet"),
        *("monitor", "migrate", "ext", "testing"),
    },
    # It loads the names of the front door on first use.
    "__init__": {*LAYERS} - {"util"},
    "cli": {"contrib", "ext"},
}

# The only places that import a third party.
PLACES = {
    "backports": "sqla_shard.types.compression",
    "fastapi": "sqla_shard.ext.fastapi",
    "fsspec": "sqla_shard.fleet.files",
    # A shell waits for completion, and the package of topologies takes long.
    "kazoo": ("sqla_shard.topology.zookeeper.", "sqla_shard.cli.completion"),
    "orjson": "sqla_shard.util.json_values",
    "prometheus_client": "sqla_shard.monitor.",
}

# Optional modules, never loaded by `import sqla_shard`.
OPTIONAL = (
    "aiosqlite",
    "alembic",
    "asyncmy",
    "backports",
    "click",
    "dogpile",
    "fastapi",
    "flask",
    "fsspec",
    "kazoo",
    "opentelemetry",
    "prometheus_client",
    "pydantic",
    "pymemcache",
    "pymysql",
    "pytest",
    "redis",
    "rich",
    "sqla_shard.cache",
    "sqla_shard.cli",
    "sqla_shard.contrib",
    "sqla_shard.ext",
    "sqla_shard.fleet",
    "sqla_shard.jobs",
    "sqla_shard.monitor",
    "sqla_shard.migrate",
    "sqla_shard.schema",
    "sqla_shard.testing",
    "sqla_shard.upkeep",
    "starlette",
)

# Python 3.11 lacks one that is imported by version.
STDLIB = sys.stdlib_module_names | {"compression"}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


# `sqla-shard init` copies the others.
MODULES = {
    module_name(path): path
    for path in sorted((ROOT / PACKAGE).rglob("*.py"))
    if "project" not in path.parts
}


def layer_of(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def executed(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all below it but what ``TYPE_CHECKING`` guards."""
    yield node
    children = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.If) and (
        ast.unparse(node.test).rpartition(".")[2] == "TYPE_CHECKING"
    ):
        children = list(node.orelse)
    for child in children:
        yield from executed(child)


@cache
def imports_of(module: str) -> tuple[str, ...]:
    """Return the modules that a module imports when it runs."""
    return tuple(_imports_of(module))


@cache
def types_of(module: str) -> frozenset[str]:
    """Return the modules that a module imports for annotations alone."""
    nodes = ast.walk(ast.parse(MODULES[module].read_text("utf-8")))
    return frozenset(_imported(module, nodes)) - {*imports_of(module)}


def _imports_of(module: str) -> Iterator[str]:
    nodes = executed(ast.parse(MODULES[module].read_text("utf-8")))
    yield from _imported(module, nodes)


def _imported(module: str, nodes: Iterator[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: a relative import"
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                yield submodule if submodule in MODULES else str(node.module)


ORDER = list(LAYERS)
RULES = {
    name: ({*ORDER[: index + 1]} - APART.get(name, set()), set(third_parties.split()))
    for index, (name, third_parties) in enumerate(LAYERS.items())
}


def test_imports_for_annotations_are_not_checked():
    source = (
        "if TYPE_CHECKING:\n    import a\nelse:\n    import b\n"
        "if typing.TYPE_CHECKING:\n    import c\n"
        "if not TYPE_CHECKING:\n    import d\n"
        "def function():\n    import e\n"
    )
    names = [
        alias.name
        for node in executed(ast.parse(source))
        if isinstance(node, ast.Import)
        for alias in node.names
    ]
    assert names == ["b", "d", "e"]


def is_front_door(module: str) -> bool:
    return MODULES[module].name == "__init__.py"


@pytest.mark.parametrize("module", MODULES)
def test_annotations_name_what_is_below_or_public(module):
    ours, _ = RULES.get(layer_of(module), (set(), set()))
    public = {*CORE} if layer_of(module) in CORE else {*LAYERS}
    wrong = {
        name
        for name in types_of(module) & MODULES.keys()
        if layer_of(name) not in {*ours, "api"}
        and not (is_front_door(name) and layer_of(name) in public)
    }
    assert not wrong, f"{module} must not name {', '.join(sorted(wrong))}"


def test_every_module_has_a_layer():
    unknown = {layer_of(module) for module in MODULES} - set(RULES)
    assert not unknown, f"add to LAYERS in {Path(__file__).name}: {unknown}"


@pytest.mark.parametrize("module", MODULES)
def test_imports_only_what_its_layer_may(module):
    ours, third_parties = RULES.get(layer_of(module), (set(), set()))
    wrong = set()
    for name in imports_of(module):
        top = name.partition(".")[0]
        if top == PACKAGE:
            if layer_of(name) not in ours:
                wrong.add(name)
        elif top not in third_parties | STDLIB or not module.startswith(
            PLACES.get(top, "")
        ):
            wrong.add(name)
    assert not wrong, f"{module} must not import {', '.join(sorted(wrong))}"


def test_modules_do_not_import_each_other_in_a_circle():
    graph = {
        module: {
            name
            for name in {*imports_of(module), *types_of(module)}
            if name in MODULES
            and name != module
            and (name in imports_of(module) or not is_front_door(name))
        }
        for module in MODULES
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_importing_the_package_loads_nothing_optional():
    program = (
        "import sys, sqla_shard.api\n"
        f"names = {OPTIONAL!r}\n"
        "print([n for n in names if n in sys.modules])\n"
    )
    assert _printed(program) == "[]"


def test_importing_the_package_loads_no_name_of_it():
    program = (
        "import sys, sqla_shard\n"
        "print('sqlalchemy' in sys.modules)\n"
        "sqla_shard.Cluster\n"
        "print('sqlalchemy' in sys.modules)\n"
    )
    assert _printed(program).split() == ["False", "True"]


def test_status_loads_no_operation_of_a_fleet():
    program = (
        "import sys, sqla_shard.cli.monitor_commands\n"
        "print('sqla_shard.fleet.runner' in sys.modules)\n"
        "from sqla_shard.fleet import apply\n"
        "print('sqla_shard.fleet.runner' in sys.modules)\n"
    )
    assert _printed(program).split() == ["False", "True"]


def test_the_room_of_classes_registers_their_deletion():
    # Without it, pending operations of a deletion were not applied by a
    # process that imports the classes from here.
    program = (
        "from sqlalchemy.orm import DeclarativeBase\n"
        "from sqla_shard.models import MappingMixin, ObjectMixin\n"
        "from sqla_shard.outbox.apply import function_named\n"
        "class Base(DeclarativeBase): pass\n"
        "class User(ObjectMixin, Base, type_id=1):\n"
        "    __tablename__ = 'users'\n"
        "class Pin(ObjectMixin, Base, type_id=2):\n"
        "    __tablename__ = 'pins'\n"
        "class UserHasPins(MappingMixin, Base, source=User, target=Pin):\n"
        "    pass\n"
        "function_named('remove:__main__.UserHasPins')\n"
    )
    _printed(program)


@pytest.mark.thorough
def test_each_room_can_be_imported_first():
    # No other import has loaded its requirements.
    program = (
        "import os, sys, sqlalchemy.orm\n"
        f"for room in {sorted(set(LAYERS) - {'__init__'})!r}:\n"
        "    if not os.fork():\n"
        "        __import__(f'sqla_shard.{room}')\n"
        "        os._exit(0)\n"
        "    if os.wait()[1]:\n"
        "        print(room)\n"
    )
    assert _printed(program) == ""


def _printed(program):
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


#: A line of the list of modules in the docstring of a package.
_LISTED = re.compile(r"^((?:``\w+/?``(?:, )?)+)(?:  |$)", re.MULTILINE)

#: The packages whose docstrings name commands, and the rooms are in LAYERS.
_WITHOUT_LIST = ("cli", PACKAGE)


@pytest.mark.parametrize(
    "path",
    [
        path
        for path in sorted((ROOT / PACKAGE).rglob("__init__.py"))
        if path.parent.name not in _WITHOUT_LIST
    ],
    ids=lambda path: path.parent.name,
)
def test_packages_list_their_modules(path):
    docstring = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    listed = [
        name
        for found in _LISTED.finditer(docstring)
        for name in re.findall(r"``(\w+)/?``", found[1])
    ]
    folders = (found.parent for found in path.parent.glob("*/__init__.py"))
    modules = {found.stem for found in (*path.parent.glob("*.py"), *folders)}
    assert sorted(listed) == sorted(modules - {"__init__"})
