"""Tools that do not depend on shards.

``masking``             masks secrets in strings
``files``               replaces files atomically
``calling_lines``       the line that has executed a statement
``definitions``         where a function is defined
``forking``             calls in a child process, right after a fork
``greenlets``           whether a thread runs greenlets of this library
``jitter``              random pauses
``listening``           listeners that are registered for a time
``pace``                how fast a run reads rows
``printable``           text without control characters
``signals``             signals that end a wait
``sqlalchemy_private``  private names of SQLAlchemy
"""

from __future__ import annotations

__all__: list[str] = []
