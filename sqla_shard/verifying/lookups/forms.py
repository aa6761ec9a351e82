"""The forms of the keys that objects say they have."""

from __future__ import annotations

from collections.abc import Iterable

from sqla_shard.exc import InvalidKeyError
from sqla_shard.lookup.keys import Form
from sqla_shard.lookup.keys import Table

__all__ = ["forms_of"]


def forms_of(
    table: Table, keys: Iterable[object]
) -> tuple[list[tuple[str, tuple[Form, ...]]], list[tuple[object, str]]]:
    """Return the forms of keys.

    :returns: each key with its forms; and each that cannot be one, with the
        reason.
    """
    forms: list[tuple[str, tuple[Form, ...]]] = []
    unfit: list[tuple[object, str]] = []
    seen: set[str] = set()
    for key in keys:
        try:
            if not isinstance(key, str):
                raise InvalidKeyError(key=key, reason="it is not text")
            if key not in seen:
                seen.add(key)
                forms.append((key, table.forms(key)))
        except InvalidKeyError as error:
            unfit.append((key, error.reason))
    return forms, unfit
