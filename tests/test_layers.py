"""Who may import whom.

Imports inside functions and under ``TYPE_CHECKING`` count: a name that is
needed only for an annotation is still one that the layer knows.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = "sqla_shard"

# One line for each module or folder of the package, in the order of reading:
# its name, what it may import of ours, and third parties.  "*" is all of the
# lines above it, "-name" takes one away.
LAYERS = [
    ("masking", "", ""),
    ("exc", "masking", "sqlalchemy"),
    ("_typing", "exc", "sqlalchemy"),
    ("ids", "exc _typing", ""),
    ("paging", "exc _typing", ""),
    ("files", "", ""),
    ("forking", "", ""),
    ("jitter", "", ""),
    ("topology", "masking exc _typing ids", "tomli"),
    (
        "following",
        "masking exc _typing files forking jitter topology",
        "kazoo",
    ),
    ("types", "exc _typing ids", "sqlalchemy"),
    ("dialects", "exc _typing ids topology types", "sqlalchemy"),
    ("rendering", "exc _typing ids types dialects", "sqlalchemy"),
    (
        "scattering",
        "exc _typing ids forking types dialects rendering",
        "sqlalchemy greenlet",
    ),
    ("branching", "", "sqlalchemy"),
    ("internal", "", "sqlalchemy"),
    ("engines", "*", "sqlalchemy"),
    ("routing", "*", "sqlalchemy"),
    ("merging", "*", "sqlalchemy"),
    ("session", "*", "sqlalchemy greenlet"),
    ("tokens", "*", "sqlalchemy"),
    ("committed", "*", "sqlalchemy"),
    ("intents", "* -tokens", "sqlalchemy"),
    ("cache", "* -tokens", "sqlalchemy dogpile pymemcache redis tomli"),
    ("retrying", "exc _typing jitter dialects", "sqlalchemy"),
    ("creating", "* -session -tokens -intents -retrying", "sqlalchemy"),
    ("rehearsing", "* -intents -retrying -creating", "sqlalchemy"),
    ("explaining", "* -intents -retrying -creating", "sqlalchemy"),
    (
        "loops",
        "* -intents -retrying -creating -rehearsing -explaining",
        "sqlalchemy",
    ),
    (
        "async_session",
        "* -intents -retrying -creating -rehearsing -explaining -loops",
        "sqlalchemy",
    ),
    (
        "current",
        "exc _typing forking topology following engines loops",
        "",
    ),
    ("health", "following", ""),
    ("sourcing", "exc _typing topology following current", ""),
    (
        "running",
        "* -intents -creating -rehearsing -explaining -loops",
        "sqlalchemy",
    ),
    ("upkeep", "tokens committed intents", ""),
    ("keeping", "exc cache", ""),
    ("cluster", "*", "sqlalchemy"),
    ("cluster_events", "cluster scattering topology", "sqlalchemy"),
    ("orm", "* -cluster -cluster_events -sourcing", "sqlalchemy"),
    ("mappings", "* -cluster -cluster_events -sourcing", "sqlalchemy"),
    ("lookup", "* -cluster_events -sourcing -mappings", "sqlalchemy"),
    (
        "reference",
        "* -cluster_events -sourcing -mappings -lookup",
        "sqlalchemy",
    ),
    ("deleting", "* -cluster_events -sourcing", "sqlalchemy"),
    ("verifying", "* -deleting", "sqlalchemy"),
    ("schema", "* -verifying", "sqlalchemy alembic rich"),
    ("ext", "*", "sqlalchemy flask werkzeug click opentelemetry"),
    ("testing", "* -ext", "sqlalchemy greenlet pymysql pytest"),
    # The front door: everything but what is loaded by those who use it.
    ("__init__", "* -verifying -schema -ext -testing", ""),
    # It uses the front door.
    ("cli", "* -testing", "sqlalchemy alembic click rich"),
]

# Loaded by those who use them, never by `import sqla_shard`.
OPTIONAL = (
    "aiosqlite",
    "alembic",
    "asyncmy",
    "click",
    "dogpile",
    "flask",
    "kazoo",
    "opentelemetry",
    "pymemcache",
    "pymysql",
    "pytest",
    "redis",
    "rich",
    "sqla_shard.cache",
    "sqla_shard.cli",
    "sqla_shard.ext",
    "sqla_shard.schema",
    "sqla_shard.testing",
    "sqla_shard.verifying",
)

# What Python 3.10 does not have yet is imported by version.
STDLIB = sys.stdlib_module_names | {"tomllib"}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {
    module_name(path): path for path in sorted((ROOT / PACKAGE).rglob("*.py"))
}


def layer_of(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def imports_of(module: str) -> Iterator[str]:
    """Yield the modules that a module names in its imports."""
    for node in ast.walk(ast.parse(MODULES[module].read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, (
                f"{module}:{node.lineno}: a relative import"
            )
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                yield submodule if submodule in MODULES else str(node.module)


def allowed(rule: str, above: list[str]) -> set[str]:
    words = rule.split()
    names = set(above) if "*" in words else set()
    for word in words:
        if word.startswith("-"):
            assert word[1:] in above, f"{word}: no such layer above"
            names.remove(word[1:])
        elif word != "*":
            assert word in above, f"{word}: no such layer above"
            names.add(word)
    return names


RULES = {
    name: (
        allowed(rule, [line[0] for line in LAYERS[:index]]) | {name},
        set(third_parties.split()),
    )
    for index, (name, rule, third_parties) in enumerate(LAYERS)
}


def test_every_module_has_a_layer():
    unknown = {layer_of(module) for module in MODULES} - set(RULES)
    assert not unknown, f"add to LAYERS of {Path(__file__).name}: {unknown}"


@pytest.mark.parametrize("module", MODULES)
def test_imports_only_what_its_layer_may(module):
    ours, third_parties = RULES.get(layer_of(module), (set(), set()))
    wrong = set()
    for name in imports_of(module):
        top = name.partition(".")[0]
        if top == PACKAGE:
            if layer_of(name) not in ours:
                wrong.add(name)
        elif top not in third_parties | STDLIB:
            wrong.add(name)
    assert not wrong, f"{module} must not import {', '.join(sorted(wrong))}"


def test_modules_do_not_import_each_other_in_a_circle():
    graph = {
        module: {
            name
            for name in imports_of(module)
            if name in MODULES and name != module
        }
        for module in MODULES
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_importing_the_package_loads_nothing_optional():
    program = (
        "import sys, sqla_shard\n"
        f"names = {OPTIONAL!r}\n"
        "print([n for n in names if n in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
