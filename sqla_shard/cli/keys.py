"""``sqla-shard key`` and ``halves``: which transactions have committed."""

from __future__ import annotations

from datetime import timedelta

import click

from sqla_shard.cli.printing import echo
from sqla_shard.cli.printing import end
from sqla_shard.cli.printing import examples
from sqla_shard.cli.printing import json_option
from sqla_shard.cli.printing import print_json
from sqla_shard.cli.settings import FiniteRange
from sqla_shard.cli.settings import pass_settings
from sqla_shard.cli.settings import Settings
from sqla_shard.committed import halves_on_all
from sqla_shard.committed import key_on_all
from sqla_shard.committed import MINUTE
from sqla_shard.engines.troubles import listed

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
    status is 1 when no shard has the key, and 3 when a shard could not be
    read, which may have it.
    """
    with settings.cluster() as cluster:
        try:
            found, troubles = key_on_all(cluster, key)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="KEY") from error
    wrong = listed(troubles)
    if as_json:
        committed = [one.as_dict() for one in found]
        print_json({"key": key, "committed": committed, "troubles": wrong})
    else:
        which = "no shard that was read" if wrong else "no shard"
        for line in map(str, found) if found else [f"{which} has {key}"]:
            echo(line)
        for line in wrong:
            echo(line)
    end(is_good=bool(found), is_read=not wrong)


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
    their keys are forgotten.  The status is 1 when there is one.  Where a
    shard could not be read it is 3, and none is listed: what is missing may
    be there.
    """
    with settings.cluster() as cluster:
        age = timedelta(seconds=older_than)
        found, troubles = halves_on_all(cluster, age)
    wrong = listed(troubles)
    if as_json:
        halves = None if wrong else [one.as_dict() for one in found]
        print_json({"halves": halves, "troubles": wrong})
    else:
        for line in (*map(str, found), *wrong):
            echo(line)
        # What is missing may be on a shard that was not read.
        count = "it is not known what is" if wrong else f"{len(found):,}"
        echo(f"{count} half committed")
    end(is_good=not found, is_read=not wrong)
