"""``sqla-shard id``."""

from __future__ import annotations

from typing import Any

import click

from sqla_shard.cli.options import number
from sqla_shard.cli.output import echo
from sqla_shard.cli.output import examples
from sqla_shard.cli.output import json_option
from sqla_shard.cli.output import print_json
from sqla_shard.ids import ObjectId
from sqla_shard.ids import pack
from sqla_shard.ids import unpack

__all__ = ["id_command"]


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
    "--shard", metavar="N", type=number, help="Shard of the id to compose."
)
@click.option("--type", "type_", metavar="N", type=number, help="Its type.")
@click.option("--local", metavar="N", type=number, help="Its local id.")
@json_option
def id_command(
    ids: tuple[int, ...],
    shard: int | None,
    type_: int | None,
    local: int | None,
    as_json: bool,
) -> None:
    """Decode object ids, or compose an id from its parts.

    ID is decimal, or hexadecimal after 0x.  No topology is needed.
    """
    parts = (shard, type_, local)
    if ids and parts == (None, None, None):
        decoded = [unpack(one) for one in ids]
    elif ids or shard is None or type_ is None or local is None:
        raise click.UsageError(
            "specify either ids to decode, or all of --shard, --type and "
            "--local to compose one"
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
