"""A statement as SQLAlchemy will render it.

What stands in the FROM of a nested SELECT is decided while a statement is
compiled: which tables it takes from outside, the joins of relationships, the
criteria of loader options.  Rather than repeating those rules, a statement is
compiled once per form and asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy.engine.default import StrCompileDialect
from sqlalchemy.sql.compiler import StrSQLCompiler
from sqlalchemy.sql.selectable import FromClause

from sqla_shard.exc import UnsupportedStatementError

__all__ = ["Rendered", "Rendering"]


@dataclass(frozen=True)
class Rendered:
    """One SELECT as it is sent.

    :ivar select: its Core form.
    :ivar froms: what stands in its FROM; tables of outer SELECTs do not.
    """

    select: Any
    froms: tuple[FromClause, ...]


class Rendering:
    """A whole statement as it is sent.

    :ivar statement: its Core form.
    :ivar extra_froms: further tables of an UPDATE or DELETE.
    """

    def __init__(self, statement: Any) -> None:
        compiler: Any = _Recorder(_DIALECT, statement)
        state = compiler.compile_state
        self._found: dict[tuple[int, bool], list[Rendered]] = compiler.found
        self.statement = statement if state is None else state.statement
        self.extra_froms: tuple[FromClause, ...] = tuple(
            getattr(state, "_extra_froms", ())
        )
        # Holds what the dictionary names by id() alone.
        self._kept = compiler.kept

    def find(self, select: Any, *, in_from: bool) -> Rendered:
        """Return what a SELECT becomes.

        :param in_from: whether it stands in FROM.
        :raises UnsupportedStatementError: when it is rendered in several
            ways, or in a way that cannot be seen.
        """
        found = self._found.get((id(select), in_from), [])
        if len({frozenset(map(hash, one.froms)) for one in found}) != 1:
            raise UnsupportedStatementError(
                "one and the same subquery stands in places where it has "
                "different meanings; build one for each",
                construct="subquery",
            )
        return found[0]


class _Recorder(StrSQLCompiler):
    """Takes down each SELECT that it renders."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.found: dict[tuple[int, bool], list[Rendered]] = {}
        self.kept: list[Any] = []
        self._originals: list[Any] = []
        super().__init__(*args, **kwargs)

    def visit_select(self, select_stmt: Any, *args: Any, **kw: Any) -> Any:
        self._originals.append(select_stmt)
        base: Any = super()
        try:
            return base.visit_select(select_stmt, *args, **kw)
        finally:
            self._originals.pop()

    def _setup_select_stack(
        self,
        select: Any,
        compile_state: Any,
        entry: Any,
        asfrom: Any,
        *args: Any,
        **kw: Any,
    ) -> Any:
        base: Any = super()
        froms = base._setup_select_stack(
            select, compile_state, entry, asfrom, *args, **kw
        )
        original = self._originals[-1]
        self.kept.append(original)
        self.found.setdefault((id(original), bool(asfrom)), []).append(
            Rendered(select, tuple(froms))
        )
        return froms


_DIALECT: Any = StrCompileDialect()
