"""``sqla-shard where`` and ``explain``."""

from __future__ import annotations

import re
from typing import Any

import click

from sqla_shard.cli.application_options import evaluate
from sqla_shard.cli.application_options import models_option
from sqla_shard.cli.application_options import names
from sqla_shard.cli.options import keyspace_option
from sqla_shard.cli.options import number
from sqla_shard.cli.options import pass_settings
from sqla_shard.cli.options import Settings
from sqla_shard.cli.output import data_option
from sqla_shard.cli.output import echo
from sqla_shard.cli.output import examples
from sqla_shard.cli.output import print_data
from sqla_shard.cli.output import print_report
from sqla_shard.topology import find_object

__all__ = [
    "explain_command",
    "where_command",
]


@click.command(
    "where",
    epilog=examples(
        "sqla-shard where 241294492511762325",
        "sqla-shard where 0x1401000000007 --json",
    ),
)
@click.argument("ids", metavar="ID...", nargs=-1, required=True, type=number)
@keyspace_option
@data_option
@pass_settings
def where_command(
    settings: Settings,
    ids: tuple[int, ...],
    keyspace: str | None,
    as_data: bool,
) -> None:
    """Show the server and the database of objects.

    Only the topology is read; the objects need not exist.
    """
    topology = settings.topology()
    found = [find_object(topology, one, keyspace) for one in ids]
    if as_data:
        print_data([one.as_dict() for one in found])
        return
    for object_id, one in zip(ids, found, strict=True):
        echo(f"{object_id}: {one}")


_NUMERIC = re.compile(r"[0-9]\w*")


@click.command(
    "explain",
    epilog=examples(
        "sqla-shard explain 241294492511762325",
        "sqla-shard explain --models shop.models \\",
        '    "select(Pin).where(Pin.board_id == 241294492511762325)"',
        "sqla-shard explain --models shop.models \\",
        '    "select(func.count(Pin.id)).options(scatter())"',
    ),
)
@click.argument("what")
@models_option
@keyspace_option
@data_option
@pass_settings
def explain_command(
    settings: Settings,
    what: str,
    models: tuple[str, ...],
    keyspace: str | None,
    as_data: bool,
) -> None:
    """Explain which shards an id or a statement is routed to, and why.

    No server is contacted, and no password is needed.

    WHAT is an id, decimal or hexadecimal after 0x, or a statement as a
    Python expression, which can use the public names of sqlalchemy,
    sqlalchemy.orm, sqla_shard and the modules in --models.  A statement that
    would be refused is explained as well, with status 0.
    """
    subject: Any
    if _NUMERIC.fullmatch(what.strip()):
        subject = number(what.strip())
    else:
        subject = evaluate(what.strip(), names(models))
    with settings.silent_cluster() as cluster:
        found = cluster.explain(subject, keyspace=keyspace)
    print_report(found, as_data)
