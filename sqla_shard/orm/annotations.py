"""The types of fields, from the annotations of a class."""

from __future__ import annotations

import inspect
import sys
import typing
from typing import Any

from sqlalchemy.orm import Mapped

from sqla_shard.exc import ClassDefinitionError
from sqla_shard.orm.fields import MISSING
from sqla_shard.orm.fields import settings_of

__all__ = ["field_type", "hide"]

_SAVED = "__sqla_shard_annotations__"


def field_type(cls: type[Any], key: str) -> Any:
    """Return T of the annotation ``Mapped[T]`` of a field.

    :raises ClassDefinitionError: when there is none, or one that names what
        cannot be found.
    """
    for base in cls.__mro__:
        annotation = inspect.get_annotations(base).get(key)
        if annotation is None:
            annotation = base.__dict__.get(_SAVED, {}).get(key)
        if annotation is not None:
            found = _resolved(cls, base, key, annotation)
            if typing.get_origin(found) is Mapped:
                (found,) = typing.get_args(found)
            return found
    raise ClassDefinitionError(
        f"{key} has no annotation that tells its type; write {key}: "
        "Mapped[str] = blob_field()",
        class_name=cls.__name__,
    )


def _resolved(
    cls: type[Any], base: type[Any], key: str, annotation: Any
) -> Any:
    names = {"Mapped": Mapped, **vars(sys.modules[base.__module__])}
    # ``date: Mapped[date] = blob_field()`` means the type, not the field.
    own = {
        name: value
        for name, value in vars(base).items()
        if value is not MISSING and settings_of(value) is None
    }
    holder = type("holder", (), {"__annotations__": {key: annotation}})
    try:
        found = typing.get_type_hints(holder, names, own, include_extras=True)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise ClassDefinitionError(
            f"the annotation {annotation!r} of {key} cannot be resolved "
            f"({error}); define its names at the top of the module, not in "
            "a function or under TYPE_CHECKING, or say "
            "blob_field(type_=...)",
            class_name=cls.__name__,
        ) from error
    return found[key]


def hide(cls: type[Any]) -> None:
    """Hide the annotations of blob fields from SQLAlchemy.

    It would take ``Mapped[...]`` for columns.  They are kept aside for the
    classes that inherit the field.
    """
    for base in cls.__mro__:
        found = {
            key: annotation
            for key, annotation in inspect.get_annotations(base).items()
            if settings_of(base.__dict__.get(key)) is not None
        }
        for key in found:
            del base.__annotations__[key]
        if found:
            setattr(base, _SAVED, {**base.__dict__.get(_SAVED, {}), **found})
