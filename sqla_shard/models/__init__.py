"""Object, mapping, lookup and reference classes.

``class_checks``      checks and defaults of all kinds of classes
``codecs``, ``container_codecs``, ``field_types``
                      from the annotation of a field to JSON, and to SQL
``blob_fields``, ``field_declarations``
                      :func:`blob_field`, and the fields of a class
``blob_writes``       writing a blob without overwriting other writers
``object_definition``, ``object_mixin``
                      :class:`ObjectMixin`; ``active``, ``deactivate()`` and
                      ``restore()``
``id_sources``, ``tickets``
                      the ids of new objects: AUTO_INCREMENT, services
``keyspace_mixin``    :class:`KeyspaceMixin`, for plain models
``many_to_many``      many-to-many relationships, and the rows of their links
``mapping_definition``, ``mapping_list``, ``mapping_mixin``
                      :class:`MappingMixin`, ordered lists of objects
``list_positions``, ``list_pages``, ``list_changes``, ``inverse_mapping``
                      reads and changes of lists, and their reverse rows
``spread_list``       lists whose rows are on several shards
``normalization``     policies of keys
``lookup_table``, ``claims``, ``lookup_mixin``
                      :class:`LookupMixin`, objects found by a key
``registration``      :func:`sign_up` and :func:`change`
``reference``         tables with the same rows on every shard
``deletion``          deleting objects with everything that refers to them
"""

from __future__ import annotations

from sqla_shard.models import (
    deletion as _plans,  # noqa: F401  # listens
    many_to_many as _linking,  # noqa: F401  # listens
    normalization,
)
from sqla_shard.models.blob_fields import blob_field
from sqla_shard.models.claims import Claim
from sqla_shard.models.keyspace_mixin import KeyspaceMixin
from sqla_shard.models.list_changes import NarrowGap
from sqla_shard.models.lookup_mixin import LookupMixin
from sqla_shard.models.mapping_mixin import MappingMixin
from sqla_shard.models.normalization import Normalization
from sqla_shard.models.object_mixin import ObjectMixin
from sqla_shard.models.registration import async_change, async_sign_up, change, sign_up

__all__ = [
    "Claim",
    "KeyspaceMixin",
    "LookupMixin",
    "MappingMixin",
    "NarrowGap",
    "Normalization",
    "ObjectMixin",
    "async_change",
    "async_sign_up",
    "blob_field",
    "change",
    "normalization",
    "sign_up",
]
