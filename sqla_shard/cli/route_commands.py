"""``sqla-shard where`` and ``explain``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import click
from sqlalchemy import event

from sqla_shard.cli.application_options import evaluate, models_option, names
from sqla_shard.cli.options import keyspace_option, number, pass_settings, Settings
from sqla_shard.cli.output import data_option, echo, end, examples, print_data
from sqla_shard.cli.shell_command import refuse_writes
from sqla_shard.engine import StatementReport
from sqla_shard.topology import find_object
from sqla_shard.topology.keyspaces import as_ranges
from sqla_shard.util import sqlalchemy_private as private


@click.command(
    "where",
    epilog=examples(
        "sqla-shard where 241294492511762325", "sqla-shard where 0x1401000000007 --json"
    ),
)
@click.argument("ids", metavar="ID...", nargs=-1, required=True, type=number)
@keyspace_option
@data_option
@pass_settings
def where_command(
    settings: Settings, ids: tuple[int, ...], keyspace: str | None, as_data: bool
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
@click.option(
    "--full",
    is_flag=True,
    help="List each shard, and show the whole statement for each server.",
)
@click.option(
    "--analyze",
    is_flag=True,
    help="Also execute the SELECT, in read-only transactions, and show the "
    "time of each server.",
)
@data_option
@pass_settings
def explain_command(
    settings: Settings,
    what: str,
    models: tuple[str, ...],
    keyspace: str | None,
    full: bool,
    analyze: bool,
    as_data: bool,
) -> None:
    """Explain which shards an id or a statement is routed to, and why.

    Without --analyze no server is contacted, and no password is needed.

    WHAT is an id, decimal or hexadecimal after 0x, or a statement as a
    Python expression, which can use the public names of sqlalchemy,
    sqlalchemy.orm, sqla_shard and the modules in --models.  A statement that
    would be refused is explained as well, with status 0; with --analyze, 1.
    """
    subject: Any
    if _NUMERIC.fullmatch(what.strip()):
        subject = number(what.strip())
    else:
        subject = evaluate(what.strip(), names(models))
    with settings.silent_cluster() as cluster:
        found = cluster.explain(subject, keyspace=keyspace)
    reports: list[StatementReport] = []
    if analyze:
        _check_analyzable(subject)
        if found.refusal is None:
            reports = _executed(settings, subject)
    if as_data:
        print_data(
            {**found.as_dict(), "analyzed": [*map(_document, reports)]}
            if analyze
            else found.as_dict()
        )
    else:
        echo(found.text(full=full))
        for report in reports:
            echo("\n".join(_analyzed_lines(report)))
    end(is_good=not analyze or found.refusal is None, is_read=True)


def _check_analyzable(subject: Any) -> None:
    """Refuse what is no SELECT, or one that locks rows.

    :raises click.UsageError: if so.
    """
    if not getattr(subject, "is_select", False):
        raise click.UsageError("--analyze executes SELECT statements only")
    if private.for_update_arg(subject) is not None:
        raise click.UsageError("--analyze executes no SELECT ... FOR UPDATE")


def _executed(settings: Settings, statement: Any) -> list[StatementReport]:
    """Execute a SELECT, and return the reports of what was sent."""
    reports: list[StatementReport] = []
    with settings.cluster() as cluster:
        for _, place in cluster.places.servers():
            refuse_writes(place.engine)
        # The time to connect is not that of the statement.
        cluster.warm()
        event.listen(
            cluster, "after_statement", lambda cluster, report: reports.append(report)
        )
        with cluster.session() as session:
            session.execute(statement).all()
    return reports


def _document(report: StatementReport) -> dict[str, Any]:
    return {
        "rows": report.rows,
        "seconds": report.seconds,
        "servers": [
            {
                "server": one.server,
                "shards": list(one.shards),
                "rows": one.rows,
                "seconds": one.seconds,
            }
            for one in report.servers
        ],
    }


def _analyzed_lines(report: StatementReport) -> Iterator[str]:
    """Yield a line for the statement, and one for each server."""
    rows = "" if report.rows is None else f"{report.rows:,} rows in "
    yield f"executed: {rows}{report.seconds * 1000:.1f} ms"
    for one in report.servers:
        rows = "" if one.rows is None else f", {one.rows:,} rows"
        yield (
            f"  {one.server}: {one.seconds * 1000:.1f} ms{rows}, shards "
            f"{as_ranges(one.shards)}"
        )
