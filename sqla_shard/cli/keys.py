"""``sqla-shard key``: whether a transaction with a key has committed."""

from __future__ import annotations

import sys

import click

from sqla_shard.cli.printing import examples
from sqla_shard.cli.printing import json_option
from sqla_shard.cli.printing import print_json
from sqla_shard.cli.settings import pass_settings
from sqla_shard.cli.settings import Settings

__all__ = ["key_command"]


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
