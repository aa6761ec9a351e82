"""Reference tables: small, and the same on every virtual shard.

::

    class Country(ReferenceMixin, Base):
        code: Mapped[str] = mapped_column(String(2), primary_key=True)
        name: Mapped[str] = mapped_column(String(100))

    Country.replace(cluster, [{"code": "de", "name": "Germany"}, ...])

The table, ``country``, is in the database of every shard of a keyspace of
kind ``objects``.  So objects are joined with its rows, or load them by a
relationship, wherever they are; and a statement about nothing else asks one
shard, whichever is at hand.

The primary key is the application's.  Rows are read as those of any class;
they are written by :meth:`ReferenceMixin.replace`,
:meth:`~ReferenceMixin.upsert` and :meth:`~ReferenceMixin.delete` alone, and
sessions refuse to.

Limits:

* A table has up to 10,000 rows: all of them are read and compared on each
  shard, to write one.
* Shards are written one after another, and are different meanwhile.  A
  transaction reads all of them on one shard, unless it joins them.
* Keys are compared as Python compares them; two that are one to the server,
  for its collation, are refused.
* Nothing but the primary key is unique, and the table has no foreign keys.
  Object tables may have one that refers to it; then a row that is in use on
  any shard cannot be deleted.
* A shard that was opened later is empty until ``replace()`` or
  :func:`~sqla_shard.reference.verify_references` has filled it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import event

from sqla_shard.cluster import Cluster
from sqla_shard.reference.definition import define
from sqla_shard.reference.definition import finish
from sqla_shard.reference.rows import given
from sqla_shard.reference.rows import keys_of
from sqla_shard.reference.writing import Change
from sqla_shard.reference.writing import write

__all__ = ["ReferenceMixin"]


class ReferenceMixin:
    """Makes a declarative class a reference table; it stands before the base.

    :param keyspace: class keyword: name of the keyspace, where there are
        several of kind ``objects``.
    :raises ClassDefinitionError: when the class could not work.

    The methods write the lowest shard first, in one transaction, and then
    bring all others to what it has, each in a transaction of its own.  To
    repeat one does no harm, and two at the same time end with the same rows
    everywhere.  Nothing of it belongs to the transaction of a session.

    They raise :exc:`~sqla_shard.exc.ReferenceRowsError` and
    :exc:`~sqla_shard.exc.ReferenceSizeError` for what cannot be the rows of
    the table, and :exc:`~sqla_shard.exc.ReferenceIncompleteError` when some
    shards were not written; what the lowest shard refuses, such as NULL
    where there must be a value, is raised as it is, and nothing is written.
    """

    def __init_subclass__(
        cls, *, keyspace: str | None = None, **kwargs: Any
    ) -> None:
        define(cls, ReferenceMixin, keyspace=keyspace)
        super().__init_subclass__(**kwargs)

    @classmethod
    def replace(cls, cluster: Cluster, rows: Iterable[Any]) -> None:
        """Let the table have these rows, and no others.

        :param rows: mappings from attributes to values, or objects of the
            class; what they leave out is the default of the column, or NULL.
        """
        write(cls, _replacing(cls, rows), cluster.places)

    @classmethod
    def upsert(cls, cluster: Cluster, rows: Iterable[Any]) -> None:
        """Let the table have these rows, beside others.

        :param rows: as for :meth:`replace`; each is written in full.
        """
        write(cls, _upserting(cls, rows), cluster.places)

    @classmethod
    def delete(cls, cluster: Cluster, keys: Iterable[Any]) -> None:
        """Let the table have no rows with these keys.

        :param keys: values of the primary key, tuples where it has several
            columns; that there is no such row does no harm.
        """
        write(cls, _deleting(cls, keys), cluster.places)

    @classmethod
    async def async_replace(
        cls, cluster: Cluster, rows: Iterable[Any]
    ) -> None:
        """Await :meth:`replace`, with the connections of this event loop."""
        await cluster.async_call(write, cls, _replacing(cls, rows))

    @classmethod
    async def async_upsert(cls, cluster: Cluster, rows: Iterable[Any]) -> None:
        """Await :meth:`upsert`, with the connections of this event loop."""
        await cluster.async_call(write, cls, _upserting(cls, rows))

    @classmethod
    async def async_delete(cls, cluster: Cluster, keys: Iterable[Any]) -> None:
        """Await :meth:`delete`, with the connections of this event loop."""
        await cluster.async_call(write, cls, _deleting(cls, keys))


def _replacing(cls: Any, rows: Iterable[Any]) -> Change:
    wanted = given(cls, rows)
    return lambda there: wanted


def _upserting(cls: Any, rows: Iterable[Any]) -> Change:
    more = given(cls, rows)
    return lambda there: {**there, **more}


def _deleting(cls: Any, keys: Iterable[Any]) -> Change:
    gone = keys_of(cls, keys)
    return lambda there: {k: r for k, r in there.items() if k not in gone}


event.listen(
    ReferenceMixin, "after_mapper_constructed", finish, propagate=True
)
