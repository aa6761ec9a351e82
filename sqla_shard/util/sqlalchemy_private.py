"""Private names of SQLAlchemy that this package uses.

SQLAlchemy has no public way to read the parts of a statement, and few into
the state of a session; a release that renames one of them is adapted to here.
The number after each is the release series that introduced it; 1.3 may mean
an older one.

A subclass overrides by name and cannot go through a function, so these stand
where they are overridden: ``_identity_lookup`` (1.3), ``_connection_for_bind``
(1.3), ``_execute_internal`` (2.0) and ``_choose_shard_and_assign`` (1.3) of
sessions; ``_propagate_attrs`` (1.4) and ``_from_objects`` (1.3) of SQL
elements; ``_setup_select_stack`` (1.3), ``visit_*`` (1.3),
``_label_select_column`` (1.3) and ``returning_clause`` (1.3) of compilers;
``_deliver_insertmanyvalues_batches`` (2.0.10) of dialects;
``fetchall_for_returning`` (2.0.10) and ``_setup_ins_pk_from_lastrowid`` (1.4)
of executions; ``_memoized_method_*``, ``_memoized_attr_*`` and
``_fallback_getattr`` (1.3) of comparators; ``_do_commit``, ``_close_impl``,
``_deactivate_from_connection`` and ``_savepoint`` (1.4) of savepoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter, methodcaller
from typing import Any

from sqlalchemy.engine.util import TransactionalContext
from sqlalchemy.orm import Query
from sqlalchemy.orm.strategies import _register_attribute
from sqlalchemy.sql.elements import ClauseElement
from sqlalchemy.sql.util import extract_first_column_annotation


def call_last_first(listeners: Any) -> None:
    """Call the listener of an event that was added last before the others.

    ``listen(insert=True)`` has no effect on events of dialects.

    :param listeners: such as ``engine.dialect.dispatch.do_connect``.
    """
    listeners.listeners.rotate(1)  # 1.3


def _read(name: str, default: Any, element: Any) -> Any:
    return getattr(element, name, default)


def _part(name: str, default: Any) -> Callable[[Any], Any]:
    """Return a function that reads an attribute which may be missing."""
    return partial(_read, name, default)


def class_of(element: Any) -> Any:
    """Return the mapper or alias whose column comes first in an expression.

    :param element: an expression or an element of FROM, or None.
    :returns: None if it has columns of no class (1.4).
    """
    if not isinstance(element, ClauseElement):
        return None
    return extract_first_column_annotation(element, "parententity")  # type: ignore[no-untyped-call]  # SQLAlchemy's


def roll_back_flush(session: Any) -> None:
    """Roll back the transaction as after an error of its flush (2.0)."""
    session._autobegin_t()._begin().rollback(_capture_exception=True)


def earlier_joins(statement: Any) -> list[Any]:
    """Return the joins of a SELECT before its columns were replaced (1.4)."""
    return [
        join
        for earlier in statement._memoized_select_entities
        for join in earlier._setup_joins
    ]


# Parts of a statement.
#: The options of a statement, given by ``options()`` (1.3).
with_options: Callable[[Any], tuple[Any, ...]] = _part("_with_options", ())
#: The columns and classes that a SELECT names (1.3).
raw_columns: Callable[[Any], Sequence[Any]] = _part("_raw_columns", ())
#: The arguments of ``select_from()`` (1.3).
from_obj: Callable[[Any], Sequence[Any]] = _part("_from_obj", ())

#: The calls of ``join()`` of a SELECT (1.4).
setup_joins: Callable[[Any], tuple[Any, ...]] = attrgetter("_setup_joins")
#: The conditions of WHERE (1.4).
where_criteria: Callable[[Any], tuple[Any, ...]] = _part("_where_criteria", ())


def _singly(clauses: Iterable[Any]) -> Iterator[Any]:
    for clause in clauses:
        if clause.__visit_name__ == "clauselist":
            yield from _singly(clause.clauses)
        else:
            yield clause


def _clauses(name: str) -> Callable[[Any], tuple[Any, ...]]:
    part = attrgetter(name)

    def read(statement: Any) -> tuple[Any, ...]:
        """Return the elements of a statement, singly."""
        clauses: tuple[Any, ...] = part(statement)
        for clause in clauses:
            # Of a function in GROUP BY, a composite() or a Bundle SQLAlchemy makes
            # a list.
            if clause.__visit_name__ == "clauselist":
                return tuple(_singly(clauses))
        return clauses

    return read


#: The elements of GROUP BY (1.4).
group_by_clauses: Callable[[Any], tuple[Any, ...]] = _clauses("_group_by_clauses")
#: The elements of ORDER BY (1.3).
order_by_clauses: Callable[[Any], tuple[Any, ...]] = _clauses("_order_by_clauses")
#: The conditions of HAVING (1.4).
having_criteria: Callable[[Any], tuple[Any, ...]] = attrgetter("_having_criteria")
#: The LIMIT of a SELECT or None (1.3).
limit_clause: Callable[[Any], Any] = attrgetter("_limit_clause")
#: The OFFSET of a SELECT or None (1.3).
offset_clause: Callable[[Any], Any] = attrgetter("_offset_clause")
#: The FETCH of a SELECT or None (1.4).
fetch_clause: Callable[[Any], Any] = attrgetter("_fetch_clause")
#: Whether a SELECT has a LIMIT, OFFSET or FETCH (1.4).
has_row_limiting_clause: Callable[[Any], bool] = attrgetter("_has_row_limiting_clause")
#: Whether a SELECT is DISTINCT (1.3).
distinct: Callable[[Any], bool] = attrgetter("_distinct")
#: The elements of DISTINCT ON (1.4).
distinct_on: Callable[[Any], tuple[Any, ...]] = attrgetter("_distinct_on")
#: The FOR UPDATE of a statement, or None (1.3).
for_update_arg: Callable[[Any], Any] = _part("_for_update_arg", None)

#: The arguments of ``prefix_with()``, with dialects (1.3).
prefixes: Callable[[Any], tuple[Any, ...]] = attrgetter("_prefixes")
#: The arguments of ``suffix_with()``, with dialects (1.3).
suffixes: Callable[[Any], tuple[Any, ...]] = attrgetter("_suffixes")
#: The arguments of ``with_statement_hint()`` (1.3).
statement_hints: Callable[[Any], tuple[Any, ...]] = attrgetter("_statement_hints")
#: The arguments of ``values()`` (1.3).
values: Callable[[Any], Mapping[Any, Any] | None] = _part("_values", None)

#: The arguments of ``values()`` for several rows (1.4).
multi_values: Callable[[Any], tuple[Any, ...]] = attrgetter("_multi_values")
#: The arguments of ``ordered_values()``, or None (1.4).
ordered_values: Callable[[Any], Any] = _part("_ordered_values", None)

#: The columns of INSERT .. FROM SELECT (1.4).
select_names: Callable[[Any], Any] = attrgetter("_select_names")
#: ON DUPLICATE KEY UPDATE or the like, or None (1.3).
post_values_clause: Callable[[Any], Any] = attrgetter("_post_values_clause")
#: The columns of RETURNING (1.3).
returning: Callable[[Any], tuple[Any, ...]] = attrgetter("_returning")
#: The columns that an element of RETURNING stands for (1.4).
selected: Callable[[Any], Sequence[Any]] = attrgetter("_select_iterable")
#: Whether an INSERT returns keys that the server gives (1.3).
return_defaults: Callable[[Any], bool] = attrgetter("_return_defaults")
#: Whether RETURNING keeps the order of the parameters (2.0.10).
sort_by_parameter_order: Callable[[Any], bool] = attrgetter("_sort_by_parameter_order")
#: The statement that a ``lambda_stmt()`` stands for (1.4).
resolved: Callable[[Any], Any] = attrgetter("_resolved")


def copy_with(statement: Any, **parts: Any) -> Any:
    """Return a copy of a statement with other parts (1.3).

    :param parts: the new parts by the names of the functions of this module,
        such as ``having_criteria=()``; ``with_options=`` and
        ``execution_options=`` are accepted as well.
    """
    copy = statement._generate()
    for name, value in parts.items():
        setattr(copy, f"_{name}", value)
    return copy


def refreshing(statement: Any, state: Any) -> Any:
    """Return a SELECT that reads by the loader options of an object (1.4)."""
    options: Any = Query._compile_options
    at = {"_current_path": state.load_path.parent, "_for_refresh_state": True}
    statement = statement.options(*state.load_options)
    return copy_with(statement, compile_options=options + at)


def cache_key(statement: Any) -> Any:
    """Return the key of a statement in SQLAlchemy's cache, or None (1.3)."""
    return statement._generate_cache_key()


def changed(element: Any, /, **parts: Any) -> Any:
    """Return a copy of an element with other parts (1.3)."""
    clone = element._clone()
    for name, part in parts.items():
        setattr(clone, name, part)
    return clone


def renamed(parameter: Any) -> Any:
    """Return a copy of a parameter, with another name if it has none (1.3)."""
    return parameter._clone()


# SQL elements and types.
#: The tables that an element reads (1.3).
from_objects: Callable[[Any], Sequence[Any]] = _part("_from_objects", ())

#: The columns that a column of a subquery stands for (1.3).
proxies: Callable[[Any], Sequence[Any]] = attrgetter("_proxies")
#: The ORM plugin and class of an element (1.4).
propagate_attrs: Callable[[Any], Any] = attrgetter("_propagate_attrs")
#: The CTE that another is an alias of, or None (1.3).
cte_alias: Callable[[Any], Any] = attrgetter("_cte_alias")
#: The name that a bind parameter was given (1.3).
original_key: Callable[[Any], str | None] = attrgetter("_orig_key")
#: Whether a type is not known yet (1.3).
is_null_type: Callable[[Any], bool] = attrgetter("_isnull")
#: The types of ``with_variant()``, by dialect (2.0).
type_variants: Callable[[Any], Mapping[str, Any]] = _part("_variant_mapping", {})

#: Whether a type changes what is selected (1.3).
has_column_expression: Callable[[Any], bool] = attrgetter("_has_column_expression")


# Executions.


#: The names of the values of each list in the parameters (1.4).
expanded_parameters: Callable[[Any], Mapping[str, Sequence[str]]] = attrgetter(
    "_expanded_parameters"
)
#: The options of an execution that change no SQL (2.0).
orm_options: Callable[[Any], Sequence[Any]] = attrgetter("_non_compile_orm_options")
#: The identity token of an execution, or None (2.0).
identity_token: Callable[[Any], Any] = attrgetter("_identity_token")
#: The state of the object that is refreshed, or None (1.3).
refresh_state: Callable[[Any], Any] = _part("_refresh_state", None)
#: Number of rows that are loaded at a time (1.3).
yield_per: Callable[[Any], int | None] = _part("_yield_per", None)

#: Whether an UPDATE or DELETE flushes before (1.3).
autoflushes: Callable[[Any], bool] = attrgetter("_autoflush")
#: How an UPDATE or DELETE changes the objects of the session (2.0).
synchronizes: Callable[[Any], Any] = attrgetter("_synchronize_session")
#: Further tables of an UPDATE or DELETE (1.3).
extra_froms: Callable[[Any], Sequence[Any]] = _part("_extra_froms", ())

#: The columns of the result of a compiled statement (1.3).
result_columns: Callable[[Any], Sequence[Any]] = attrgetter("_result_columns")
#: The names of the columns to which an INSERT assigns values (2.0).
inserted_names: Callable[[Any], Sequence[str]] = attrgetter("_insert_col_keys")
#: The function of a number of the server and the parameters of a row that
#: returns its primary key (1.4).
inserted_key: Callable[[Any], Callable[[Any, Any], Any]] = attrgetter(
    "_inserted_primary_key_from_lastrowid_getter"
)


def key_parameter(column: Any, row: int | None) -> str:
    """Return the name of the parameter of a column of an INSERT (1.4).

    :param row: the number of the row, if the statement has several.
    """
    return column.key if row is None else f"{column.key}_m{row}"


#: The Result that a ScalarResult reads, or None (1.4).
real_result: Callable[[Any], Any] = _part("_real_result", None)


def with_lazyload_from(query: Any, state: Any) -> Any:
    """Return a Query that loads for an object (1.3)."""
    return query._set_lazyload_from(state)


# Sessions and their transactions.


#: Whether a session has nothing to flush (1.3).
is_clean: Callable[[Any], bool] = methodcaller("_is_clean")
#: Whether a session is flushing (1.3).
is_flushing: Callable[[Any], bool] = attrgetter("_flushing")
#: The connections of a session by engine and connection (1.3).
connections_of: Callable[[Any], dict[Any, Any]] = attrgetter("_connections")

#: Set a savepoint on a connection, and return its name (1.3).
set_savepoint: Callable[[Any], str] = methodcaller("_savepoint_impl")


def autobegin(session: Any) -> Any:
    """Begin the transaction of a session if there is none; return it (2.0)."""
    return session._autobegin_t()


def autoflush(session: Any) -> None:
    """Flush a session as a statement would (1.3)."""
    session._autoflush()


def register_altered(session: Any, states: Iterable[Any]) -> None:
    """Let the session expire objects if a savepoint is rolled back (1.3)."""
    session._register_altered(states)


def check_can_execute(session: Any) -> None:
    """Raise SQLAlchemy's error if the session cannot execute (1.4)."""
    TransactionalContext._trans_ctx_check(session)
    transaction = autobegin(session)
    if not transaction.is_active:
        transaction._raise_for_prerequisite_state("execute", transaction._state)


# Mappers, attributes and events.


#: The properties of a mapper without configuring it (1.3).
properties: Callable[[Any], Mapping[str, Any]] = attrgetter("_props")
#: Changes of collections of an object that are not loaded (1.3).
pending_mutations: Callable[[Any], Mapping[str, Any]] = attrgetter("_pending_mutations")
#: Whether a constraint was made by an argument of a column (1.3).
is_of_column: Callable[[Any], bool] = attrgetter("_column_flag")


def has_implementation(manager: Any, key: str) -> bool:
    """Return whether an attribute of a class is complete (1.3)."""
    has: bool = manager._attr_has_impl(key)
    return has


def register_attribute(*args: Any, **kwargs: Any) -> None:
    """Give an attribute of a class its implementation (1.3)."""
    register: Any = _register_attribute  # has no annotations
    register(*args, **kwargs)


def track_mutable(cls: Any, attribute: Any, *, coerce: bool) -> None:
    """Register the listeners of a ``Mutable`` for an attribute (1.3).

    :param coerce: whether values that are loaded are coerced.
    """
    cls._listen_on_attribute(attribute, coerce, attribute.class_)


def dispose_mapper(mapper: Any) -> None:
    """Undo the mapping of one class (1.4).

    Like ``registry.dispose()``, but for a single class.
    """
    manager = mapper.class_manager
    mapper.registry._managers.pop(manager, None)
    mapper.registry._dispose_manager_and_mapper(manager)


def replace_run_crud(
    relation: Any, make: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    """Replace the function that writes the link rows of a relationship (1.3).

    :param relation: a relationship with ``secondary`` of a configured mapper.
    :param make: receives the current function of (flush, inserted, updated,
        deleted), and returns the new one.
    """
    processor = relation._dependency_processor
    processor._run_crud = make(processor._run_crud)


def dispatch_for(target: Any, cls: type[Any]) -> Any:
    """Return the events of an object with the listeners of a class (1.3)."""
    return type(target).dispatch._for_class(cls)


# Engines.


def json_functions(dialect: Any) -> tuple[Any, Any]:
    """Return a dialect's JSON serializer and deserializer, or None (1.3)."""
    return (
        getattr(dialect, "_json_serializer", None),
        getattr(dialect, "_json_deserializer", None),
    )


def handle_driver_error(connection: Any, *args: Any, **kwargs: Any) -> None:
    """Raise the error of SQLAlchemy for an error of the driver (1.3)."""
    connection._handle_dbapi_exception(*args, **kwargs)


def is_autocommit(connection: Any) -> bool:
    """Return whether a connection is in autocommit mode (1.4)."""
    is_on: bool = connection._is_autocommit_isolation()
    return is_on
