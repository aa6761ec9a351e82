"""Sizes of modules."""

from __future__ import annotations

from tests.size import size_of


def test_comments_and_docstrings_are_no_code():
    text = '''"""A module."""

# A comment.
NAME = """two
lines"""  # and a comment


class One:
    """A class."""

    async def method(
        self,
    ) -> None:
        """Do nothing,
        in two lines."""
'''
    assert size_of(text) == (6, [5], ["One"])
