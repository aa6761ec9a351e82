"""Mapping tables: ordered lists of objects.

``ordering``    the arithmetic of positions
``definition``  what happens when a mapping class is created
``statements``  the SQL of a class
``lists``       a class, a session and a source
``bookmarks``   where a page goes on
``pages``       reading a list
``many``        reading many lists
``inverse``     the reverse of a mapping, kept with it
``changes``     adding and removing
``moving``      moving, and making room
``mixin``       :class:`MappingMixin`
"""

from __future__ import annotations

from sqla_shard.mappings.mixin import MappingMixin
from sqla_shard.mappings.moving import NarrowGap

__all__ = ["MappingMixin", "NarrowGap"]
