"""``sqla-shard key`` and ``halves``: which transactions have committed."""

from __future__ import annotations

import sys
from datetime import timedelta

import click

from sqla_shard.cli.printing import examples
from sqla_shard.cli.printing import json_option
from sqla_shard.cli.printing import print_json
from sqla_shard.cli.settings import FiniteRange
from sqla_shard.cli.settings import pass_settings
from sqla_shard.cli.settings import Settings
from sqla_shard.committed import MINUTE

__all__ = ["halves_command", "key_command"]


@click.command(
    "key",
    epilog=examples(
        "sqla-shard key order-17",
        "sqla-shard key order-17 --json",
    ),
)
@click.argument("key")
@json_option
@pass_settings
def key_command(settings: Settings, key: str, as_json: bool) -> None:
    """Say where a transaction with a key has committed.

    KEY is that of cluster.run(fn, key=KEY).  Every shard is asked; one that
    is about to commit is not seen yet, nor a key that was forgotten.  The
    status is 1 when no shard has the key.
    """
    with settings.cluster() as cluster:
        try:
            found = cluster.find_key(key)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="KEY") from error
    if as_json:
        print_json({"key": key, "committed": [one.as_dict() for one in found]})
    else:
        for line in map(str, found) if found else [f"no shard has {key}"]:
            click.echo(line)
    if not found:
        sys.exit(1)


@click.command(
    "halves",
    epilog=examples(
        "sqla-shard halves",
        "sqla-shard halves --older-than 600 --json",
    ),
)
@click.option(
    "--older-than",
    metavar="S",
    type=FiniteRange(least=0),
    default=MINUTE.total_seconds(),
    show_default=True,
    help="Seconds that the COMMITs of one transaction may take.",
)
@json_option
@pass_settings
def halves_command(
    settings: Settings, older_than: float, as_json: bool
) -> None:
    """List transactions that have committed on some of their servers only.

    That is what a process has left that was killed between two COMMITs of
    cluster.run(fn, key=KEY, cross_shard="ordered").  They are listed until
    their keys are forgotten.  The status is 1 when there is one.
    """
    with settings.cluster() as cluster:
        found = cluster.find_halves(timedelta(seconds=older_than))
    if as_json:
        print_json({"halves": [one.as_dict() for one in found]})
    else:
        for one in found:
            click.echo(str(one))
        click.echo(f"{len(found):,} half committed")
    if found:
        sys.exit(1)
