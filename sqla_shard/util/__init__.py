"""Tools that do not depend on shards.

``masking``             masks secrets in strings; text without control characters
``files``               replaces files atomically
``json_values``         strict JSON and TOML; reports as JSON values
``logs``                logs whose handlers stop nobody
``pace``                how fast a run reads rows; random pauses
``processes``           calls right after a fork, signals that end a wait
``source_lines``        where a statement is executed, a function defined
``sqlalchemy_helpers``  ordered tables; listeners for a time; kinds of dialects
``sqlalchemy_private``  private names of SQLAlchemy
``weak_keys``           values of objects, for as long as the objects exist
"""

from __future__ import annotations

__all__: list[str] = []
