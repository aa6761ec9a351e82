"""What is written into revisions, and the files that they need.

``portable``, ``plain``  our types and defaults, as revisions write them
``differences``          what alembic does not notice of a column
``autogenerate``         models against the tables that are there
``starting``             alembic.ini, env.py and the folders of revisions
"""

from __future__ import annotations

from sqla_shard.schema.revisions.autogenerate import comparing
from sqla_shard.schema.revisions.starting import init
from sqla_shard.schema.revisions.starting import template_path

__all__ = ["comparing", "init", "template_path"]
