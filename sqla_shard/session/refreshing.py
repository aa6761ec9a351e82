"""Reading an object again, or a part of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from typing import TypeVar

from sqlalchemy import inspect
from sqlalchemy.ext.horizontal_shard import ShardedSession

from sqla_shard.routing import spec_of

__all__ = ["Refreshing"]


T = TypeVar("T")


class Refreshing(ShardedSession):
    """A session that is asked for fields, and reads the document."""

    shows_hidden = False  #: whether reads show inactive objects

    def merge(self, instance: T, **kwargs: Any) -> T:
        """Merge an object; see :meth:`sqlalchemy.orm.Session.merge`."""
        # An inactive row is there all the same: taken for missing, it
        # would be inserted a second time.
        before, self.shows_hidden = self.shows_hidden, True
        try:
            return super().merge(instance, **kwargs)
        finally:
            self.shows_hidden = before

    def expire(
        self, instance: object, attribute_names: Iterable[str] | None = None
    ) -> None:
        """Expire attributes; see :meth:`sqlalchemy.orm.Session.expire`.

        :raises BlobError: for a field of an object of which other fields
            are changed and not flushed: they are read as one.
        """
        super().expire(instance, _loaded_as(instance, attribute_names))

    def refresh(
        self,
        instance: object,
        attribute_names: Iterable[str] | None = None,
        with_for_update: Any = None,
    ) -> None:
        """Read it again; see :meth:`sqlalchemy.orm.Session.refresh`.

        :raises BlobError: as :meth:`expire` does, where the session does
            not flush by itself.
        """
        if attribute_names is not None:
            self._autoflush()
        super().refresh(
            instance, _loaded_as(instance, attribute_names), with_for_update
        )


def _loaded_as(
    instance: object, names: Iterable[str] | None
) -> Iterable[str] | None:
    """Return the attributes that are to be read for others."""
    state: Any = inspect(instance, raiseerr=False)
    if names is None or state is None:
        return names
    loaded_as = spec_of(state.mapper.local_table).loaded_as
    return names if loaded_as is None else loaded_as(state, list(names))
