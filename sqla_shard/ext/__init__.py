"""What other packages need to use this one, and stand-ins for theirs.

``flask``             Flask, with an extra of its own
``horizontal_shard``  SQLAlchemy's extension of that name

Importing this folder loads none of them.
"""

from __future__ import annotations

__all__: list[str] = []
