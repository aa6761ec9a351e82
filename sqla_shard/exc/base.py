"""The base classes of all errors, and how their messages show values."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Sequence
from dataclasses import InitVar
from inspect import get_annotations, Parameter, Signature
from typing import Any, ClassVar, dataclass_transform, NamedTuple

from sqlalchemy.exc import (
    DBAPIError,
    DontWrapMixin,
    OperationalError,
    SQLAlchemyError,
    StatementError,
)

from sqla_shard.util.logs import outlived

_MAX_ITEMS_SHOWN = 10
_MOST_PROBLEMS = 100


class _Positional(NamedTuple):
    default: Any


def field(*, kw_only: bool, default: Any = Parameter.empty) -> Any:
    """Declare an attribute that the constructor takes by its position.

    :param kw_only: False; keyword-only attributes need no declaration.
    :param default: the value if the argument is not given.
    """
    return _Positional(default)


def _rebuild(
    cls: type[ShardError], args: tuple[Any, ...], state: dict[str, Any]
) -> ShardError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


@dataclass_transform(eq_default=False, kw_only_default=True, field_specifiers=(field,))
class ShardError(SQLAlchemyError, DontWrapMixin):
    """Base of every error of this package."""

    # Subclasses are declared like dataclasses: the constructor takes what
    # they annotate as keywords; an ``InitVar`` is for the message only.
    # Sequences and mappings are copied where the annotation is a tuple or a
    # dict.

    #: Template of the message; its fields are the arguments.
    _text: ClassVar[str] = "{message}"
    _parameters: ClassVar[dict[str, Parameter]] = {}
    _signature: ClassVar[Signature] = Signature(
        [Parameter("message", Parameter.POSITIONAL_OR_KEYWORD, default="")]
    )
    #: The signature for Sphinx and help(); None for the one of ``__init__``.
    __signature__: ClassVar[Signature | None] = _signature

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        found: dict[str, Parameter] = {}
        for base in reversed(cls.__bases__):
            found.update(getattr(base, "_parameters", {}))
        for name, annotation in get_annotations(cls).items():
            if annotation.startswith("ClassVar"):
                continue
            default = vars(cls).get(name, Parameter.empty)
            is_positional = isinstance(default, _Positional)
            if is_positional:
                default = default.default
                delattr(cls, name)
            found[name] = Parameter(
                name,
                Parameter.POSITIONAL_OR_KEYWORD
                if is_positional
                else Parameter.KEYWORD_ONLY,
                default=default,
                annotation=annotation,
            )
        if found:
            cls._parameters = found
            cls._signature = Signature(sorted(found.values(), key=lambda one: one.kind))
            has_own = "__init__" in vars(cls)
            cls.__signature__ = None if has_own else cls._signature

    def __init__(self, *positional: Any, **keywords: Any) -> None:
        given = self._signature.bind(*positional, **keywords)
        given.apply_defaults()
        init_only: dict[str, Any] = {}
        for name, value in given.arguments.items():
            annotation = self._signature.parameters[name].annotation
            if annotation is Parameter.empty or annotation.startswith("Init"):
                init_only[name] = value
            elif annotation.startswith("tuple["):
                setattr(self, name, tuple(value))
            elif annotation.startswith("dict["):
                setattr(self, name, dict(value))
            else:
                setattr(self, name, value)
        SQLAlchemyError.__init__(self, self._describe(**init_only))

    def _describe(self, *_: Any, **init_only: Any) -> str:
        """Return the message.

        :param init_only: the arguments that are not attributes.
        """
        return self._text.format(**vars(self), **init_only)

    def __reduce__(self) -> Any:
        # Subclasses take keyword arguments; the default would call them with
        # only the message and fail in the process that unpickles the error.
        return _rebuild, (type(self), self.args, self.__dict__)


class MessageError(ShardError):
    """Base of the errors whose first argument is their message."""

    message: InitVar[str] = field(kw_only=False, default="")


class DriverError(ShardError, OperationalError):
    """Base of the errors that have a driver's error as their ``orig``."""

    error: InitVar[Any]
    _text = "{orig}"
    _is_lost: ClassVar[bool] = False

    def __init__(self, *, error: Any, **attributes: Any) -> None:
        OperationalError.__init__(
            self,
            getattr(error, "statement", None),
            getattr(error, "params", None),
            original(error),
            hide_parameters=True,
            connection_invalidated=self._is_lost,
        )
        ShardError.__init__(self, error=error, **attributes)

    def __str__(self) -> str:
        # SQLAlchemy's __str__ shows the statement.
        return str(self.args[0])


def original(error: Any) -> Any:
    """Return the driver's error inside SQLAlchemy's, or the error itself."""
    return getattr(error, "orig", None) or error


class _Short(reprlib.Repr):
    def repr_int(self, value: int, level: int) -> str:
        # Python refuses to write very large numbers in decimal.
        if value.bit_length() > 256:
            return f"an int of {value.bit_length()} bits"
        return repr(value)


_short = _Short()
_short.maxstring = _short.maxother = 80


def shown(value: object) -> str:
    """Return a repr that fits into a message."""
    if isinstance(value, int) and not isinstance(value, bool):
        return _short.repr_int(value, 0)
    return _short.repr(value)


def shortened_list(items: Sequence[object], most: int = _MAX_ITEMS_SHOWN) -> str:
    """Return the first items of a sequence, and the number of the others."""
    text = ", ".join(map(str, items[:most]))
    more = len(items) - most
    return f"{text} and {more} more" if more > 0 else text


def bullets(problems: Iterable[object], most: int = _MOST_PROBLEMS) -> str:
    """Return a line for each of the first problems, each after a newline."""
    items = list(problems)
    lines = [f"\n  - {item}" for item in items[:most]]
    if len(items) > most:
        lines.append(f"\n  and {len(items) - most} more, see .problems")
    return "".join(lines)


def cut(value: object) -> str:
    """Return the first 80 characters of a repr."""
    text = f"{value!r}"
    return text if len(text) <= 80 else f"{text[:80]}..."


# -- Errors for logs and traces: without the values of an application.
#
# SQLAlchemy's messages show the parameters of a statement.  Servers quote
# values: ``Duplicate entry 'me@example.com' for key 'email'``.


#: Errors of MySQL and MariaDB whose messages name servers, databases, tables,
#: columns and users, and quote no value.
_WITHOUT_VALUES = frozenset(
    {
        *(1020, 1040, 1044, 1045, 1049, 1051, 1053, 1054, 1129, 1130, 1142),
        *(1146, 1158, 1159, 1160, 1161, 1180, 1184, 1203, 1205, 1213, 1226),
        *(1227, 1251, 1267, 1270, 1271, 1290, 1317, 1364, 1412, 1449, 1524),
        *(1674, 1698, 1792, 1836, 1862, 1927, 1969, 3024, 3032, 3101, 3109),
        *(3118, 3159, 3572, 3750, 3955, 3989, 4031, 4150, 4151, 6125),
        # Error codes of the client: connections that were lost or never made.
        *range(2000, 2100),
    }
)


def code_of(error: BaseException) -> str | None:
    """Return the code of a driver's error, such as ``1062``, or None.

    :param error: the error of the driver, or SQLAlchemy's error that wraps it.
    """
    cause = original(error)
    code: str | None = getattr(cause, "sqlite_errorname", None)
    if code is None and cause.args and type(cause.args[0]) is int:
        code = str(cause.args[0])
    return code


#: Characters that are kept of an error's message, and of the name of its class.
_LONGEST_MESSAGE = 10_000
_LONGEST_NAME = 200


def message(error: BaseException) -> str:
    """Return the message of an error of any program.

    Every server can store it.  It is cut after 10,000 characters.
    """
    try:
        # A class of its own may have any length.
        text = str.__str__(str(error))
    # __str__() of others may raise anything: the error would be lost.
    except outlived() as second:
        text = f"it has no message: its __str__() raises {type(second)!r}"
    if len(text) > _LONGEST_MESSAGE:
        text = f"{text[:_LONGEST_MESSAGE]}... ({len(text)} characters)"
    # Servers and terminals refuse a lone surrogate, as of a file name.
    return text.encode(errors="backslashreplace").decode()


def summary(error: BaseException) -> str:
    """Return the class name and the message of an error, without values.

    A server's message that may quote a value is replaced by its code.
    """
    try:
        return _summary(error)
    # Even its class may be odd.
    except outlived():
        return "an error that cannot be described"


def _summary(error: BaseException) -> str:
    name = type(error).__name__[:_LONGEST_NAME]
    if isinstance(error, ShardError) or not isinstance(error, StatementError):
        return f"{name}: {message(error)}"
    cause = error.orig
    if cause is None or not isinstance(error, DBAPIError):
        return f"{name}: {type(cause).__name__}"
    code = cause.args[0] if cause.args else None
    if type(code) is int and code not in _WITHOUT_VALUES:
        return f"{name}: {code}"
    return f"{name}: {message(cause)}"
