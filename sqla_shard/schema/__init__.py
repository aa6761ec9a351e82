"""Alembic over every virtual shard; with the extra ``alembic``.

``portable``      our types and defaults, as a revision writes them
``differences``   what alembic does not notice of a column
``autogenerate``  models against the tables that are there
``starting``      alembic.ini, env.py and the folders of revisions
"""

from __future__ import annotations

from sqla_shard.schema.autogenerate import comparing
from sqla_shard.schema.starting import init
from sqla_shard.schema.starting import template_path

__all__ = ["comparing", "init", "template_path"]
