"""Generation of revisions and of the files that they need.

``types``         rendering of column types and defaults of this package
``autogenerate``  comparison of models with tables, for ``alembic revision``
``scaffold``      alembic.ini, env.py and the directories of revisions
"""

from __future__ import annotations

from sqla_shard.schema.revisions.autogenerate import comparing
from sqla_shard.schema.revisions.scaffold import init, template_path

__all__ = ["comparing", "init", "template_path"]
