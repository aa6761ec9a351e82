"""The first sentence of each docstring."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("sqla_shard", "examples", "tests", "docs")
_QUESTION = re.compile(r'"""(?:What|Which|Who|Whose|How|Where|When|Why)\b.*')


def test_begins_with_a_verb_or_a_noun():
    """One that begins like a question says less than the name below it."""
    assert not [
        f"{path.relative_to(ROOT)}: {found[0]}"
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for found in _QUESTION.finditer(path.read_text("utf-8"))
    ]
