"""What commands say and take of revisions."""

from __future__ import annotations

import re

import click

__all__ = ["RESOLVE_HELP", "RelativeCommand"]

# Not a docstring: the backspace keeps click from filling the lines below it,
# and a docstring with an escape would have to be a raw one, which has none.
RESOLVE_HELP = """\
Say what is true of a SHARD whose revision is in doubt.

`status` shows the statement; look at the database, with `sqla-shard shell
--shard N`, and answer one of these:

\b
statement-done    it took effect; the next run goes on after it
statement-undone  it did not; the next run repeats it
revision-done     all of the revision is there; it is written down
revision-undone   nothing of it is left; the next run begins it again
"""


class RelativeCommand(click.Command):
    """Takes ``-1`` for the revision that it is, as alembic does."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put it behind two hyphens, before which it would be an option."""
        steps = [arg for arg in args if re.fullmatch(r"-\d+", arg)]
        if len(steps) == 1 and "--" not in args:
            args = [arg for arg in args if arg not in steps]
            args += ["--", *steps]
        return super().parse_args(ctx, args)
