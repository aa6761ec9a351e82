"""Rows of mappings, their objects, and their reverse.

``rows``     looking through the rows of a mapping
``running``  :func:`verify_relations`
"""

from __future__ import annotations

from sqla_shard.verifying.relations.running import verify_relations

__all__ = ["verify_relations"]
