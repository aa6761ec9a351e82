"""The messages of refusals, read from the source.

A message is found where it is written: as an argument of an error or of a
function that makes one, or as a text that is assigned to such an argument.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "sqla_shard"

#: Where statements, flushes and definitions of classes are refused.
FOLDERS = ("dialects", "engine", "exc", "planning", "models", "session", "types")

#: Callables that take a message, and the positions of its arguments.
_CALLS: dict[str, tuple[int, ...]] = {
    "BlobError": (0,),
    "BlobValueError": (0,),
    "ClassDefinitionError": (0,),
    "ColocationError": (0,),
    "NoShardKeyError": (0,),
    "PlacementError": (0,),
    "Problem": (1,),
    "ScatterDisabledError": (0,),
    "ScatterUnsupportedError": (0,),
    "UnsupportedStatementError": (0,),
    "_refuse": (1,),
    "_refusal": (0, 1),
    "_refused": (0, 1),
    "refuse": (0,),
}

#: Errors whose message is in their class, and what it begins with.
_IN_CLASS = (
    "CachedWriteError",
    "CrossShardWriteError",
    "DuplicateTypeError",
    "KeptMappingError",
    "KeyspaceMismatchError",
    "ReferenceWriteError",
    "ScatterLimitError",
    "StaleDataError",
)


@dataclass(frozen=True)
class Site:
    """A message as it is written.

    :ivar module: where, such as ``planning/router.py``.
    :ivar text: the message, with ``{}`` for each value in it.
    """

    module: str
    text: str

    def __str__(self) -> str:
        return f"{self.module}: {self.text}"

    def wrote(self, message: str) -> bool:
        """Tell whether a message may have been written here."""
        parts = map(re.escape, self.text.split("{}"))
        return re.search(".*?".join(parts), message, re.DOTALL) is not None


def sites() -> list[Site]:
    """Return all of them, in the order of the source."""
    found: dict[Site, None] = {}
    for path in (p for f in FOLDERS for p in sorted((PACKAGE / f).rglob("*.py"))):
        module = str(path.relative_to(PACKAGE))
        tree = ast.parse(path.read_text("utf-8"))
        for text in _texts(module, tree):
            # A blank, or a name with nothing around it, tells nothing.
            if len(text.replace("{}", "").strip()) > 3:
                found[Site(module, text)] = None
    return list(found)


def _texts(module: str, tree: ast.Module) -> Iterator[str]:
    if module.startswith("exc/"):
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name in _IN_CLASS:
                yield from _of_class(node)
        return
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _of_function(node)


def _of_class(node: ast.ClassDef) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Assign) and ast.unparse(part).startswith("_text ="):
            for text in _shown(part.value):
                yield re.sub(r"\{[^}]*\}", "{}", text)
        if isinstance(part, ast.Return) and part.value is not None:
            yield from _shown(part.value)


def _of_function(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    names = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Yield) and function.name == "_faults":
            assert node.value is not None
            yield from _shown(node.value)
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "id", None) or getattr(node.func, "attr", None)
        for number in _CALLS.get(str(name), ()):
            if number < len(node.args):
                argument = node.args[number]
                if isinstance(argument, ast.Name):
                    names.add(argument.id)
                else:
                    yield from _shown(argument)
    for node in ast.walk(function):
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.For)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(t, ast.Name) and t.id in names for t in targets):
                value = node.iter if isinstance(node, ast.For) else node.value
                yield from _shown(value)


def _shown(node: ast.expr) -> Iterator[str]:
    """Yield the texts that an expression may be."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(
            str(part.value) if isinstance(part, ast.Constant) else "{}"
            for part in node.values
        )
    elif isinstance(node, ast.IfExp):
        yield from _shown(node.body)
        yield from _shown(node.orelse)
    elif isinstance(node, ast.BinOp):
        for left in _shown(node.left):
            for right in [*_shown(node.right)] or ["{}"]:
                yield left + right


#: Messages that have no case with a remedy, and why; each is named by its
#: module and what it begins with.
ELSEWHERE: dict[str, tuple[str, ...]] = {
    "collations are those of MariaDB: tests/suites/texts.py": (
        "dialects/coding.py: a {} of a text field and a text column",
        "dialects/coding.py: GROUP BY of a text field and a text column",
        "dialects/sorting.py: ORDER BY {} over several shards: MariaDB",
        "dialects/sorting.py: {} has its own collation",
        "engine/hooks.py: a string that is made of two collations",
        "engine/merge.py: DISTINCT with LIMIT over several shards",
        "engine/merge.py: {}... and another text are equal",
        "engine/values.py: ",
        "session/scatter_pages.py: scatter_page() by {}: a string",
    ),
    "the values in the rows decide: tests/suites/merged_numbers.py": (
        "planning/groups.py: a computation with aggregates",
        "planning/having.py: HAVING over several shards compares",
        "engine/merge.py: ORDER BY, GROUP BY, min() or max()",
        "engine/merge.py: {} in coalesce() over several shards is one",
        "engine/merge.py: the values of an ORDER BY cannot be compared",
    ),
    "a field with a format of its own: tests/suites/objects_beside.py": (
        "dialects/coding.py: a {} beside {} has a column or a value",
        "dialects/coding.py: {} beside a column of {}: their texts differ",
        "dialects/coding.py: {} stands behind a column of another format",
        "dialects/coding.py: {} stores another format than {}",
    ),
    "MySQL alone": (
        "dialects/mysql/new_keys.py: MySQL has no RETURNING",
        "dialects/mysql/new_keys.py: MySQL does not tell the ids",
        "planning/groups.py: a computation with avg() over several shards",
        "types/vectors.py: {}(): MySQL has no distance",
    ),
    "a type of its own: tests/sqlite/test_vectors.py": (
        "types/vectors.py: {} is not",
        "types/vectors.py: {}: a vector has no such operator",
        "types/vectors.py: , and is stored: give Vector()",
    ),
    "not every server has such numbers": (
        "models/field_types.py: {} is not a finite float",
        "models/field_types.py: SQLite returns an integer",
        "models/field_types.py: MySQL returns an integer",
        "models/field_types.py: the server has an integer beyond",
        "models/field_types.py: the server has a decimal beyond",
    ),
    "what works is another topology, or another cluster": (
        "engine/plans.py: a statement over servers of MySQL and of",
        "planning/router.py: the statement names no table",
        "session/placement.py: no server of keyspace",
        "session/placement.py: server {} has no shard",
    ),
    "a cache is needed: tests/suites/cached_writes.py": (
        "exc/definitions.py: rows of {} are cached",
    ),
    "the bookmark of a page decides: tests/suites/scatter_pages.py": (
        "session/scatter_pages.py: scatter_page(): a bookmark",
        "session/scatter_pages.py: ORDER BY {}, whose value",
        "session/scatter_pages.py: order by func.left() of the strings",
    ),
    "another refusal comes first, but for a caller of the function": (
        "planning/groups.py: a subquery or window function",
        "planning/merge_plan.py: DISTINCT or GROUP BY over several shards can",
        "planning/reader.py: the same subquery object",
        "planning/router.py: an INSERT inside another statement",
        "engine/merge.py: a count or group over several shards has",
        "engine/plans.py: joinedload() of a collection",
        "engine/plans.py: this connection has no shard",
        "engine/plans.py: {} is not an object of type {} on shard",
        "models/many_to_many.py: a row of {} would link objects",
        "session/flush.py: {} is an id of type {}; this column",
    ),
    "what is in the table is wrong, and not the statement": (
        "types/blob.py: the stored JSON is not an object",
        "types/blob.py: the stored text is not valid JSON",
    ),
    "when an object is forgotten is up to the garbage collector": (
        "types/blob.py: the change would not be written: the object of",
    ),
    "a table without primary key has no class": (
        "session/scatter_pages.py: {}, a table without primary key",
        "session/scatter_pages.py: add a primary key",
    ),
    "the reason is that of Python": (
        "models/container_codecs.py: {} cannot be tracked: {}",
    ),
    "the extra zstd is needed: tests/suites/compressed_blobs.py": (
        "models/blob_fields.py: {} is part of a compressed blob",
        "models/blob_writes.py: the column {} cannot be compressed",
    ),
    "another layout is of the base: tests/suites/two_layouts.py": (
        "models/id_sources.py: id_layout is {}",
        "models/id_sources.py: colocate_with={} holds {}",
        "models/id_sources.py: it has {}, and follow graphs",
    ),
    "pieces increase in several steps: tests/suites/spread_stages.py": (
        "exc/definitions.py: rows of {} are being copied to more pieces",
        "models/mapping_definition.py: spread_over={}, but the list of {}",
        "models/list_positions.py: spread_from={} and spread_to={} are two steps",
        "models/list_positions.py: {} pieces cannot become {}",
    ),
    "the source of ids is of the base: tests/sqlite/test_id_sources.py": (
        "models/id_sources.py: id_source is {}",
        "session/insert.py: INSERT INTO {} .. FROM SELECT does not select {}",
    ),
    "delete_object() has tests of its own: tests/suites/deleting.py": (
        "models/deletion.py: ",
    ),
}
