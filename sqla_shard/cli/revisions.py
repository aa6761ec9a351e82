"""Revisions on the command line."""

from __future__ import annotations

import re

import click

__all__ = ["RelativeCommand"]


class RelativeCommand(click.Command):
    """Takes ``-1`` for the revision that it is, as alembic does."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put it behind two hyphens, before which it would be an option."""
        steps = [arg for arg in args if re.fullmatch(r"-\d+", arg)]
        if len(steps) == 1 and "--" not in args:
            args = [arg for arg in args if arg not in steps]
            args += ["--", *steps]
        return super().parse_args(ctx, args)
