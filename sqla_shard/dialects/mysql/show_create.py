"""The texts of SHOW CREATE TABLE, for comparison."""

from __future__ import annotations

import re

_COUNTER = re.compile(r" AUTO_INCREMENT=\d+")
# Strings and quoted names come first: a comment may have the same words.
_CHARACTER_SET = re.compile(
    r"('(?:[^'\\]|\\.|'')*'|`(?:[^`]|``)*`|['`].*)"
    r"| CHARACTER SET \w+(?= COLLATE )",
    re.S,
)


def without_counter(created: str) -> str:
    """Return SHOW CREATE TABLE without the next AUTO_INCREMENT."""
    return _COUNTER.sub("", created)


def without_character_sets(created: str) -> str:
    """Return SHOW CREATE TABLE without what collations of columns imply.

    MySQL shows ``COLLATE utf8mb4_bin`` for a column that has the collation of
    its table, and ``CHARACTER SET utf8mb4 COLLATE utf8mb4_bin`` if a statement
    has named that collation.  A table that was created from the first text
    shows the second one, although both tables are the same.
    """
    return _CHARACTER_SET.sub(lambda found: found[1] or "", created)
