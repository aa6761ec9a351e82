"""What a SELECT is: its FROM and WHERE, with the values in them.

A bookmark is of one condition: by another, its row may be anywhere, and rows
would be left out without a sign.  The texts are those of SQLAlchemy's
dialect as it is before it has met a server, alike in all processes, and
selected columns are left out: a deployment may add one.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from collections.abc import Mapping
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any
from uuid import UUID

from sqlalchemy import literal
from sqlalchemy.engine import Dialect
from sqlalchemy.orm.util import LoaderCriteriaOption

from sqla_shard.exc import UnsupportedStatementError
from sqla_shard.types.binds import ShardBound

__all__ = ["bare", "fingerprint"]

_PLAIN = (
    type(None),
    bytes,
    str,
    float,
    Decimal,
    dt.date,
    dt.time,
    dt.timedelta,
    Enum,
    UUID,
)


def bare(statement: Any) -> Any:
    """Return a SELECT of its FROM and WHERE alone."""
    made = statement.with_only_columns(
        literal(1), maintain_column_froms=True
    ).order_by(None)
    # Others, as those for eager loading, are about what is selected.
    made._with_options = tuple(
        option
        for option in made._with_options
        if isinstance(option, LoaderCriteriaOption)
    )
    return made


def fingerprint(
    statement: Any, parameters: Mapping[str, Any] | None, dialect: Dialect
) -> tuple[str, ...]:
    """Return the SQL of :func:`bare`, and the values of its parameters.

    :param parameters: of the statement, as for ``execute()``.
    :raises UnsupportedStatementError: for a value that has no text.
    """
    kind: Any = type(dialect)
    compiled = bare(statement).compile(dialect=_untouched(kind))
    values = compiled.construct_params(parameters)
    told = []
    for name, bind in sorted(
        (name, bind) for bind, name in compiled.bind_names.items()
    ):
        type_ = bind.type.dialect_impl(compiled.dialect)
        process = type_.bind_processor(compiled.dialect)
        value = values[name]
        if bind.expanding and isinstance(value, (list, tuple)):
            # That of a set has another order in each process.
            texts = sorted(_text(one, process) for one in value)
            told.append(f"{name}={texts}")
        else:
            told.append(f"{name}={_text(value, process)}")
    return str(compiled), *told


@lru_cache(maxsize=16)
def _untouched(kind: Any) -> Dialect:
    # Named: drivers differ in how they write parameters.
    made: Dialect = kind(paramstyle="named")
    return made


def _text(value: Any, process: Callable[[Any], Any] | None) -> str:
    """Return a text of a value, the same in all processes."""
    if isinstance(value, ShardBound):
        value = value.whole
    if isinstance(value, int):
        # Python does not write very large ones in decimal.
        return f"{value:x}"
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{','.join(_text(one, process) for one in value)}]"
    if process is not None:
        return _text(process(value), None)
    raise UnsupportedStatementError(
        f"scatter_page(): a bookmark of this statement cannot hold a value "
        f"of type {type(value).__name__} in WHERE; compare with a number, a "
        "time or a text",
        construct="WHERE",
    )
