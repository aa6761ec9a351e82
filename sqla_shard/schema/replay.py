"""Replay of static revisions on a shard, in few round trips.

On its first shard a run executes a command through alembic.  If all revisions
are static, everything that was sent becomes a :class:`Plan`.  On shards that
are at the same revisions the plan is sent in packets of several statements:

1. the lock, the defaults of the database, the open entries of the ledger, the
   revisions, and the definition of the first table;
2. the entry of a statement and the statement itself, or the entries of a new
   table and its indexes and one CREATE TABLE; with the last one of a
   revision, the new version, and the end of the entries;
3. COMMIT, and after the last revision the release of the lock.

Apart from indexes that are created with their table, the server executes the
same statements, in the same order, as without a plan, and stops at the first
that fails.  The definition of a table that exists is
read between two packets, so each ALTER TABLE is in a packet of its own.

If the first packet finds a shard in another state, alembic runs there.

The source of a revision is parsed, not executed, to prove that it sends the
same statements to every shard.  A revision is static if
its function only calls alembic operations that send DDL without querying the
database, with arguments that are literals or calls of known SQLAlchemy
constructors.  Any other revision, for example with a condition or a variable,
is run on each shard.

The module may contain imports of alembic's ``op`` and of SQLAlchemy, constants
and functions, and must bind each name once: then a name has the same value in
a function as at module level.  A call, a computed default argument, a
decorator or a condition could change alembic or SQLAlchemy, so a module with
one of these is not static.  The classes ``UpdatedAt`` and ``BlobText`` of
portable revisions are recognized by their source.

Changes of an application to alembic or SQLAlchemy itself, such as a
``before_create`` listener on all tables, are not detected.
"""

from __future__ import annotations

import ast
import importlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import sqlalchemy
import sqlalchemy as sa
from alembic import op
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.types import TypeEngine

from sqla_shard.dialects.base import Batch, Statement
from sqla_shard.exc import SchemaError
from sqla_shard.outbox.tables import LEDGER
from sqla_shard.schema import ledger
from sqla_shard.schema.effects import Effect, read, StatementProperties
from sqla_shard.schema.journal import Journal
from sqla_shard.schema.ledger import Version
from sqla_shard.schema.revisions.types import BLOB_TEXT, UPDATED_AT

_MODULES = frozenset(
    {
        "sqlalchemy",
        "sqlalchemy.dialects",
        "sqlalchemy.dialects.mariadb",
        "sqlalchemy.dialects.mysql",
        "sqlalchemy.dialects.sqlite",
        "sqlalchemy.schema",
        "sqlalchemy.sql",
        "sqlalchemy.types",
    }
)

# Modules for annotations, whose evaluation has no side effects.
_HARMLESS = frozenset({"__future__", "typing", "collections.abc"})

_ANNOTATION = (
    ast.BinOp,
    ast.BitOr,
    ast.Constant,
    ast.expr_context,
    ast.List,
    ast.Name,
    ast.Subscript,
    ast.Tuple,
)

_COMPILES = ("sqlalchemy.ext.compiler", "compiles", "compiles")

_UNRESOLVED = object()


class _NotStaticError(Exception):
    """Raised if a revision cannot be proven to be static."""


class _Names:
    """The names that the module of a revision binds.

    :param module: the syntax tree of the module.
    :raises _NotStaticError: if a name could be bound to something else.
    """

    def __init__(self, module: ast.Module) -> None:
        self._meanings: dict[str, Any] = {}
        for node in module.body:
            self._read(node)

    def function(self, name: str) -> ast.FunctionDef | None:
        """Return a function of the module, if it takes no arguments."""
        meaning = self._meanings.get(name)
        if isinstance(meaning, ast.FunctionDef) and not ast.unparse(meaning.args):
            return meaning
        return None

    def meaning(self, node: ast.expr) -> Any:
        """Return the object of SQLAlchemy or alembic that a name refers to.

        :returns: the module, class or function; for other expressions
            an object that is identical to none of these.
        """
        if isinstance(node, ast.Name):
            return self._meanings.get(node.id, _UNRESOLVED)
        if isinstance(node, ast.Attribute):
            parent = self.meaning(node.value)
            if _is_module(parent) and not node.attr.startswith("_"):
                return getattr(parent, node.attr, _UNRESOLVED)
        return _UNRESOLVED

    def is_operation(self, func: ast.expr) -> bool:
        """Return whether the called function is ``op.NAME``."""
        return (
            isinstance(func, ast.Attribute)
            and isinstance(func.value, ast.Name)
            and self.meaning(func.value) is op
        )

    def is_type(self, node: ast.expr) -> bool:
        """Return whether a name refers to a column type of SQLAlchemy."""
        meaning = self.meaning(node)
        return (
            isinstance(meaning, type)
            and issubclass(meaning, TypeEngine)
            and meaning.__module__.startswith("sqlalchemy.")
        )

    def own_class(self, node: ast.expr) -> str | None:
        """Return the name of a class of portable revisions, or None."""
        meaning = self.meaning(node)
        return meaning.name if isinstance(meaning, ast.ClassDef) else None

    def _bind(self, name: str, meaning: Any) -> None:
        known = self._meanings.setdefault(name, meaning)
        if known is not meaning or name.startswith("__"):
            raise _NotStaticError(name)

    def _read(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Import):
            self._import(node)
        elif isinstance(node, ast.ImportFrom):
            self._import_from(node)
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            self._define(node)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            self._assign(node)
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            raise _NotStaticError(ast.dump(node))

    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name not in _MODULES:
                raise _NotStaticError(alias.name)
            module = importlib.import_module(alias.name)
            if alias.asname is None:
                self._bind("sqlalchemy", sqlalchemy)
            else:
                self._bind(alias.asname, module)

    def _import_from(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            if node.level or alias.name == "*":
                raise _NotStaticError(alias.name)
            source, name = str(node.module), alias.asname or alias.name
            if source in _HARMLESS:
                self._bind(name, alias)
            elif (source, alias.name, name) == ("alembic", "op", "op"):
                self._bind(name, op)
            elif (source, alias.name, name) == _COMPILES:
                # Only the classes of portable revisions use it.
                self._bind(name, compiles)
            elif source in _MODULES:
                module = importlib.import_module(source)
                self._bind(name, getattr(module, alias.name, alias))
            else:
                raise _NotStaticError(source)

    def _define(self, node: ast.ClassDef | ast.FunctionDef) -> None:
        self._bind(node.name, node)
        if _shape(node) in _KNOWN:
            self._check_known(node)
            return
        if (
            isinstance(node, ast.ClassDef)
            or node.decorator_list
            or getattr(node, "type_params", None)
        ):
            raise _NotStaticError(node.name)
        of = node.args
        given = [*of.posonlyargs, *of.args, *of.kwonlyargs]
        given += [one for one in (of.vararg, of.kwarg) if one is not None]
        for annotation in [node.returns, *(one.annotation for one in given)]:
            _check_annotation(annotation)
        for default in [*of.defaults, *of.kw_defaults]:
            if default is not None and not _is_literal(default):
                raise _NotStaticError(node.name)

    def _check_known(self, node: ast.ClassDef | ast.FunctionDef) -> None:
        get = self._meanings.get
        is_ours = get("sa") is sqlalchemy and get("compiles") is compiles
        if isinstance(node, ast.FunctionDef):
            # It compiles a class of the same revision.
            (decorator,) = node.decorator_list
            assert isinstance(decorator, ast.Call)  # noqa: S101 - of _KNOWN
            is_ours &= self.own_class(decorator.args[0]) is not None
        if not is_ours:
            raise _NotStaticError(node.name)

    def _assign(self, node: ast.Assign | ast.AnnAssign) -> None:
        if isinstance(node, ast.Assign):
            targets = node.targets
        else:
            targets = [node.target]
            _check_annotation(node.annotation)
        for target in targets:
            if not isinstance(target, ast.Name):
                raise _NotStaticError(ast.dump(target))
            self._bind(target.id, node)
        if node.value is None or not _is_literal(node.value):
            raise _NotStaticError(ast.dump(node))


def _is_literal(node: ast.expr) -> bool:
    """Return whether an expression is a literal, without names."""
    if isinstance(node, ast.List | ast.Tuple):
        return all(_is_literal(item) for item in node.elts)
    if isinstance(node, ast.Dict):
        keys = [key for key in node.keys if key is not None]
        return len(keys) == len(node.keys) and all(
            _is_literal(item) for item in [*keys, *node.values]
        )
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.USub | ast.UAdd) and isinstance(
            node.operand, ast.Constant
        )
    return isinstance(node, ast.Constant)


def _check_annotation(node: ast.expr | None) -> None:
    if node is not None and not all(
        isinstance(part, _ANNOTATION) for part in ast.walk(node)
    ):
        raise _NotStaticError(ast.dump(node))


def _is_module(found: object) -> bool:
    return isinstance(found, ModuleType) and found.__name__ in _MODULES


def _shape(node: ast.AST) -> str:
    """Return the dump of a definition without the strings it returns."""
    node = deepcopy(node)
    for part in ast.walk(node):
        if isinstance(part, ast.Return) and isinstance(part.value, ast.Constant):
            part.value = None
    return ast.dump(node)


_KNOWN = frozenset(
    _shape(node)
    for source in (UPDATED_AT, BLOB_TEXT)
    for node in ast.parse(source).body
    if isinstance(node, ast.ClassDef | ast.FunctionDef)
)


_OPERATIONS = frozenset(
    {
        "add_column",
        "alter_column",
        "create_check_constraint",
        "create_foreign_key",
        "create_index",
        "create_primary_key",
        "create_table",
        "create_table_comment",
        "create_unique_constraint",
        "drop_column",
        "drop_constraint",
        "drop_index",
        "drop_table",
        "drop_table_comment",
        "rename_table",
    }
)

#: Column types, and constructors that depend on their arguments only.
_MADE = (
    sa.CheckConstraint,
    sa.Column,
    sa.Computed,
    sa.FetchedValue,
    sa.ForeignKey,
    sa.ForeignKeyConstraint,
    sa.Identity,
    sa.Index,
    sa.PrimaryKeyConstraint,
    sa.UniqueConstraint,
    sa.false,
    sa.literal_column,
    sa.null,
    sa.text,
    sa.true,
)

_PARSING = (OSError, SyntaxError, ValueError, RecursionError, MemoryError)


def is_static(path: str | None, function: str) -> bool:
    """Return whether a revision is proven to be static.

    :param path: path of the file of the revision.
    :param function: ``"upgrade"`` or ``"downgrade"``.
    """
    if path is None or not path.endswith(".py"):
        return False
    try:
        # Parse bytes, since the file may declare its encoding.
        names = _Names(ast.parse(Path(path).read_bytes()))
    except _NotStaticError:
        return False
    except _PARSING:
        return False  # Alembic has loaded another version.
    definition = names.function(function)
    return definition is not None and all(
        _is_static_statement(node, names) for node in definition.body
    )


def _is_static_statement(node: ast.stmt, names: _Names) -> bool:
    """Return whether a statement of the function is one operation."""
    if isinstance(node, ast.Pass):
        return True
    if not isinstance(node, ast.Expr):
        return False
    call = node.value
    if isinstance(call, ast.Constant):
        return True
    if not isinstance(call, ast.Call) or not names.is_operation(call.func):
        return False
    assert isinstance(call.func, ast.Attribute)  # noqa: S101 - is_operation()
    if call.func.attr == "execute":
        return _is_ddl(call)
    return call.func.attr in _OPERATIONS and _has_static_arguments(call, names)


def _is_ddl(call: ast.Call) -> bool:
    text = _sole_text(call)
    return (
        text is not None
        # A name after a colon would be a bind parameter.
        and ":" not in text
        and read(text).effect is Effect.TABLES
    )


def _sole_text(call: ast.Call) -> str | None:
    """Return the only argument of a call if it is a string literal."""
    if len(call.args) == 1 and not call.keywords:
        (text,) = call.args
        if isinstance(text, ast.Constant) and isinstance(text.value, str):
            return text.value
    return None


def _has_static_arguments(call: ast.Call, names: _Names) -> bool:
    """Return whether all arguments of a call are values."""
    arguments = list(call.args)
    last = arguments[-1] if arguments else None
    if isinstance(last, ast.Starred) and isinstance(last.value, ast.List):
        # Alembic writes the columns of very wide tables as *[...].
        arguments[-1:] = last.value.elts
    return _are_values(arguments, names) and all(
        # Keywords with an underscore are private to SQLAlchemy.
        keyword.arg is not None
        and not keyword.arg.startswith("_")
        and _is_value(keyword.value, names)
        for keyword in call.keywords
    )


def _are_values(nodes: Iterable[ast.expr | None], names: _Names) -> bool:
    return all(node is not None and _is_value(node, names) for node in nodes)


def _is_value(node: ast.expr, names: _Names) -> bool:
    """Return whether an argument is a literal or a known constructor."""
    if isinstance(node, ast.List | ast.Tuple):
        return _are_values(node.elts, names)
    if isinstance(node, ast.Dict):
        return _are_values([*node.keys, *node.values], names)
    if isinstance(node, ast.Call):
        return _is_made(node, names)
    return _is_literal(node) or names.is_type(node)


def _is_made(call: ast.Call, names: _Names) -> bool:
    """Return whether the result of a call depends on its arguments only."""
    func = call.func
    if names.is_operation(func):
        assert isinstance(func, ast.Attribute)  # noqa: S101 - is_operation()
        return func.attr == "f" and _sole_text(call) is not None
    own = names.own_class(func)
    if own == "UpdatedAt":
        return not call.args and not call.keywords
    if own is not None:
        return _sole_text(call) is not None
    if not _has_static_arguments(call, names):
        return False
    if isinstance(func, ast.Attribute):
        if isinstance(func.value, ast.Call):
            return _is_method(func.attr, func.value, call, names)
        if names.meaning(func.value) is sa.func:
            return not func.attr.startswith("_")
    origin = names.meaning(func)
    return names.is_type(func) or any(origin is one for one in _MADE)


def _is_method(name: str, made: ast.Call, call: ast.Call, names: _Names) -> bool:
    if name == "with_variant":
        return _is_made(made, names)
    # The trigger that SQLite needs.
    return (
        name == "execute_if"
        and names.meaning(made.func) is sa.DDL
        and _sole_text(made) is not None
        and not call.args
        and [ast.unparse(one) for one in call.keywords] == ["dialect='sqlite'"]
    )


_OPEN = f"SELECT 1 FROM {LEDGER.name} WHERE is_open LIMIT 1"  # noqa: S608 - a constant

_After = Callable[[int, Sequence[Any]], None]


class NotAsPlannedError(Exception):
    """Raised before anything is changed, if a shard is in another state."""


@dataclass(frozen=True, kw_only=True)
class NewTable:
    """Statements that one CREATE TABLE replaces where the table is new.

    :ivar name: name of the table, not quoted.
    :ivar count: number of the statements.
    :ivar creation: the CREATE TABLE.
    """

    name: str
    count: int
    creation: str


@dataclass(frozen=True, kw_only=True)
class PlannedStep:
    """The statements that a static revision sends to every shard.

    :ivar statements: the statements of the revision.
    :ivar tables: the new tables, by the position of their first statement.
    :ivar versions: those of alembic that record its revision.
    :ivar title: its name in the report.
    """

    direction: str
    revision: str
    statements: tuple[str, ...]
    versions: tuple[str, ...]
    title: str
    tables: Mapping[int, NewTable] = field(default_factory=dict)

    @property
    def is_plain(self) -> bool:
        """Whether each of its statements names one table."""
        return all(len(read(one).tables) == 1 for one in self.statements)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The statements that a command sends to all shards at the same revisions.

    :ivar first: the statements that create alembic's table, if it is new.
    :ivar defaults: the row of :meth:`.Batch.defaults` where it was made.
    :ivar own: the statements that create the tables of this package, if the
        process has sent them.
    """

    first: tuple[str, ...]
    defaults: tuple[Any, ...]
    steps: tuple[PlannedStep, ...]
    own: tuple[str, ...] = ()

    @property
    def statements(self) -> list[str]:
        """The statements of all revisions."""
        return [one for step in self.steps for one in step.statements]


def new_tables(
    statements: Sequence[str], creation: Callable[[Sequence[str]], str | None]
) -> dict[int, NewTable]:
    """Return the tables that can be created with the indexes that follow.

    :param statements: the statements of a revision; each names one table.
    :param creation: :meth:`.Batch.creation`.
    """
    tables: dict[int, NewTable] = {}
    first = 0
    while first < len(statements):
        properties = read(statements[first])
        (table,) = properties.tables
        last = first + 1
        while properties.creates_table and last < len(statements):
            after = read(statements[last])
            if after.creates_table or after.tables != (table,):
                break
            last += 1
        # As many of the statements after it as can be joined.
        while last > first + 1:
            text = creation(statements[first:last])
            if text is not None:
                tables[first] = NewTable(
                    name=table.strip("`"), count=last - first, creation=text
                )
                break
            last -= 1
        first = last
    return tables


class Replay:
    """Sends a plan to one shard.

    :param applied: called with each revision whose version was written.
    :ivar is_positioned: whether the shard was found as planned.
    """

    def __init__(
        self,
        plan: Plan,
        connection: Connection,
        batch: Batch,
        journal: Journal,
        applied: Callable[[PlannedStep], None],
    ) -> None:
        self._plan = plan
        self._connection = connection
        self._batch = batch
        self._journal = journal
        self._applied = applied
        self._names: set[str] = set()
        self._trip: list[tuple[Statement, _After | None]] = []
        self.is_positioned: bool = False

    def run(self, version: Version, version_table: str) -> None:
        """Send the plan.

        :param version_table: the name of alembic's table.
        :raises NotAsPlannedError: if alembic has to run instead.
        :raises Interrupted: if the run has to stop.
        """
        self._journal.start([])
        self._position(version, version_table)
        commit, release = self._batch.leave(version.shard.database)
        for step in self._plan.steps:
            self._send(step)
            self._add(commit)
            if step is self._plan.steps[-1]:
                self._add(release)
            # Otherwise a failure of the next revision would roll back the
            # version, and leave two revisions with open entries.
            self._flush()
            self._applied(step)

    def _position(self, version: Version, version_table: str) -> None:
        shard = version.shard
        use, lock = self._batch.enter(shard.schema, 0)
        self._add(use)
        self._add(lock, self._check_lock)
        if version.internal is None:
            self._flush()
            ledger.upgrade_own_tables(
                self._connection, None, self._batch, self._plan.own
            )
        self._add((_OPEN, ()), self._check_open)
        heads = version.heads
        if heads:
            quote = self._connection.dialect.identifier_preparer.quote
            query = f"SELECT version_num FROM {quote(version_table)}"  # noqa: S608 - quoted
            self._add((query, ()), partial(self._check_heads, heads))
        statements = [read(one) for one in self._plan.statements]
        if not heads or any(one.creates_table for one in statements):
            absent = None if heads else version_table
            self._add(self._batch.names(), partial(self._check_names, absent))
        last, check = self._trip.pop()
        self._add(last, partial(self._found, check))
        beginning = self._plan.steps[0].statements[:1]
        if not heads or all(read(one).creates_table for one in beginning):
            self._flush()
        # Otherwise the definition of the first table is read with these.
        for statement in self._plan.first:
            self._add((statement, ()))

    def _check_lock(self, count: int, rows: Sequence[Any]) -> None:
        if tuple(rows[0]) != (1, *self._plan.defaults):
            raise NotAsPlannedError

    def _check_open(self, count: int, rows: Sequence[Any]) -> None:
        if rows:
            raise NotAsPlannedError

    def _check_heads(
        self, heads: tuple[str, ...], count: int, rows: Sequence[Any]
    ) -> None:
        if tuple(sorted(row[0] for row in rows)) != heads:
            raise NotAsPlannedError

    def _check_names(self, absent: str | None, count: int, rows: Sequence[Any]) -> None:
        self._names = {row[0] for row in rows}
        if absent in self._names:
            raise NotAsPlannedError

    def _found(self, check: _After | None, count: int, rows: Sequence[Any]) -> None:
        if check is not None:
            check(count, rows)
        self.is_positioned = True

    def _send(self, step: PlannedStep) -> None:
        """Send a revision, its entries and its version, without COMMIT."""
        journal = self._journal
        journal.begin(step.direction, step.revision)
        journal.mute()
        done = 0
        while done < len(step.statements):
            table = step.tables.get(done)
            if table is not None and table.name not in self._names:
                self._create(table, step.statements[done:])
                done += table.count
                continue
            statement = step.statements[done]
            properties = read(statement)
            before = self._before(properties)
            number = journal.next_entry(statement, properties)
            self._add(
                journal.entry(number, statement, json.dumps(before)),
                partial(self._started, number),
            )
            self._add((statement, ()), partial(self._ended, 1))
            done += 1
        for statement in step.versions:
            self._add((statement, ()), self._check_version)
        if step.statements:
            self._add(journal.closing())
        self._flush()

    def _create(self, table: NewTable, statements: Sequence[str]) -> None:
        """Create a table with its indexes."""
        self._names.add(table.name)
        before = json.dumps(dict.fromkeys(read(statements[0]).tables))
        number, entries = self._journal.joined_entries(
            statements[: table.count], before
        )
        self._add(entries, partial(self._started, number))
        self._add((table.creation, ()), partial(self._ended, table.count))

    def _before(self, properties: StatementProperties) -> dict[str, Any]:
        """Return the definition of the table before a statement."""
        (table,) = properties.tables
        name = table.strip("`")
        is_local = properties.creates_table and "." not in name
        if is_local and name not in self._names:
            self._names.add(name)
            return {table: None}
        tables: dict[str, Any] = {table: None}
        query = self._batch.definition(table)

        def after(count: int, rows: Sequence[Any]) -> None:
            tables[table] = self._batch.digest(rows)

        self._add(query, after)
        try:
            self._flush()
        except DBAPIError as error:
            if error.statement != query[0] or not self._batch.is_absent(error):
                raise
        return tables

    def _started(self, number: int, count: int, rows: Sequence[Any]) -> None:
        self._journal.started(number)

    def _ended(self, entries: int, count: int, rows: Sequence[Any]) -> None:
        self._journal.ended(entries)

    def _check_version(self, count: int, rows: Sequence[Any]) -> None:
        if count != 1:
            raise SchemaError(
                f"alembic's table was changed during the {self._journal.step}:"
                f" {count} row(s) have the revision that it had before. "
                "Correct the table and repeat the command"
            )

    def _add(self, statement: Statement, after: _After | None = None) -> None:
        self._trip.append((statement, after))

    def _flush(self) -> None:
        trip, self._trip = self._trip, []
        with closing(self._batch.send([one for one, _ in trip])) as results:
            for (_, after), (count, rows) in zip(trip, results, strict=True):
                if after is not None:
                    after(count, rows)
