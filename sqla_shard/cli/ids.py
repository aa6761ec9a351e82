"""``sqla-shard id`` and ``sqla-shard where``."""

from __future__ import annotations

from typing import Any

import click

from sqla_shard.cli.printing import echo
from sqla_shard.cli.printing import examples
from sqla_shard.cli.printing import json_option
from sqla_shard.cli.printing import print_json
from sqla_shard.cli.settings import number
from sqla_shard.cli.settings import pass_settings
from sqla_shard.cli.settings import Settings
from sqla_shard.ids import ObjectId
from sqla_shard.ids import pack
from sqla_shard.ids import unpack
from sqla_shard.topology import find_object

__all__ = ["id_command", "where_command"]


@click.command(
    "id",
    epilog=examples(
        "sqla-shard id 241294492511762325",
        "sqla-shard id 0x3594010006bf795",
        "sqla-shard id --shard 5 --type 1 --local 7",
    ),
)
@click.argument("ids", metavar="[ID]...", nargs=-1, type=number)
@click.option(
    "--shard", metavar="N", type=number, help="The shard, to compose an id."
)
@click.option("--type", "type_", metavar="N", type=number, help="The type.")
@click.option("--local", metavar="N", type=number, help="The local id.")
@json_option
def id_command(
    ids: tuple[int, ...],
    shard: int | None,
    type_: int | None,
    local: int | None,
    as_json: bool,
) -> None:
    """Decode object ids, or compose one of its parts.

    An ID is decimal, or hexadecimal after 0x.  No topology is needed.
    """
    parts = (shard, type_, local)
    if ids and parts == (None, None, None):
        decoded = [unpack(one) for one in ids]
    elif ids or shard is None or type_ is None or local is None:
        raise click.UsageError(
            "say either ids, to decode them, or all of --shard, --type and "
            "--local, to compose one"
        )
    else:
        decoded = [unpack(pack(shard, type_, local))]
    if as_json:
        print_json([_document(one) for one in decoded])
        return
    for one in decoded:
        echo(_line(one) if ids else str(int(one)))


def _document(parts: ObjectId) -> dict[str, Any]:
    return {
        "id": str(int(parts)),
        "hex": hex(int(parts)),
        "shard": parts.shard_id,
        "type": parts.type_id,
        "local": str(parts.local_id),
    }


def _line(parts: ObjectId) -> str:
    return (
        f"{int(parts)} ({int(parts):#x}): shard {parts.shard_id}, type "
        f"{parts.type_id}, local id {parts.local_id}"
    )


@click.command(
    "where",
    epilog=examples(
        "sqla-shard where 241294492511762325",
        "sqla-shard where 0x1401000000007 --json",
    ),
)
@click.argument("ids", metavar="ID...", nargs=-1, required=True, type=number)
@click.option(
    "--keyspace",
    metavar="NAME",
    help="The keyspace of the ids, where there are several of objects.",
)
@json_option
@pass_settings
def where_command(
    settings: Settings,
    ids: tuple[int, ...],
    keyspace: str | None,
    as_json: bool,
) -> None:
    """Tell the server and the database of objects.

    By the topology alone: whether the objects exist is not known.
    """
    topology = settings.topology()
    found = [find_object(topology, one, keyspace) for one in ids]
    if as_json:
        print_json([one.to_mapping() for one in found])
        return
    for object_id, one in zip(ids, found, strict=True):
        echo(f"{object_id}: {one}")
