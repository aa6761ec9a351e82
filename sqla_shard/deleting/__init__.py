"""Deleting an object with what belongs to it.

``plans``       what is deleted, as data
``calls``       what is done on other shards after COMMIT
``children``    the objects that belong to others
``belongings``  rows, lists and keys of objects
``running``     :func:`plan_deletion` and :func:`delete_object`
"""

from __future__ import annotations

from sqla_shard.deleting.plans import DeletionPlan
from sqla_shard.deleting.plans import Part
from sqla_shard.deleting.running import async_delete_object
from sqla_shard.deleting.running import delete_object
from sqla_shard.deleting.running import plan_deletion

__all__ = [
    "DeletionPlan",
    "Part",
    "async_delete_object",
    "delete_object",
    "plan_deletion",
]
