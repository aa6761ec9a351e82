"""Object classes.

``kinds``, ``scalars``, ``containers``, ``records``, ``codecs``
                 from an annotation to JSON and back
``expressions``  the SQL types of fields
``fields``       :func:`blob_field`
``creation``     what the creation of all classes has in common
``definition``   what happens when an object class is created
``hierarchies``  classes that share the table of an object class
``hiding``       soft delete
``saving``       writing a blob without overwriting other writers
``objects``      :class:`ObjectMixin`
``uniqueness``   constraints that hold on each shard only
``linking``      many-to-many relationships
``keyspaces``    :class:`KeyspaceMixin`, for models that are no objects
"""

from __future__ import annotations

from sqla_shard.orm import linking as _linking  # noqa: F401  # listens
from sqla_shard.orm.fields import blob_field
from sqla_shard.orm.keyspaces import KeyspaceMixin
from sqla_shard.orm.objects import ObjectMixin

__all__ = ["KeyspaceMixin", "ObjectMixin", "blob_field"]
