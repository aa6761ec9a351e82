"""Tools that do not depend on shards.

``masking``             masks secrets in strings
``files``               replaces files atomically
``greenlets``           whether a thread runs greenlets of this library
``jitter``              random pauses
``listening``           listeners that are registered for a time
``pace``                how fast a run reads rows
``printable``           text without control characters
``processes``           calls right after a fork, signals that end a wait
``source_lines``        where a statement is executed, a function defined
``sqlalchemy_private``  private names of SQLAlchemy
"""

from __future__ import annotations

__all__: list[str] = []
