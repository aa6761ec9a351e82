"""Commands that write lists which the application has cached."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sqla_shard import Cluster
from tests.models.operation_models import after_crash, make_due
from tests.suites.verify_relations import (
    Board,
    BoardHasPins,
    BoardLikesBoard,
    ends,
    new,
    PinInBoards,
    plant,
    remove,
)

MODELS = "tests.suites.verify_relations"


@dataclass(frozen=True, kw_only=True)
class Write:
    """A list, and a command that changes it.

    :ivar cls: its class.
    :ivar source: its source.
    :ivar before: its targets.
    :ivar after: those after the command.
    :ivar command: the arguments of ``sqla-shard``.
    """

    cls: Any
    source: int
    before: Sequence[int]
    after: Sequence[int]
    command: Sequence[str]


def _repair(cluster: Cluster) -> Write:
    """An inverse on another shard, pending after a crash."""
    board, pin = ends(cluster)
    with after_crash(), cluster.begin(cross_shard="logged") as session:
        BoardHasPins.append(session, board, pin)
    make_due(cluster)
    return Write(
        cls=PinInBoards,
        source=pin,
        before=[],
        after=[board],
        command=("repair", "--models", MODELS, "--once"),
    )


_VERIFY = ("verify", "relations", "--models", MODELS, "--grace", "0")


def _one_sided(cluster: Cluster) -> Write:
    board, pin = ends(cluster)
    plant(cluster, BoardHasPins, board, pin)
    return Write(
        cls=PinInBoards,
        source=pin,
        before=[],
        after=[board],
        command=(*_VERIFY, "--repair"),
    )


def _dangling(cluster: Cluster) -> Write:
    liking, liked = (cluster.run(new, Board, shard) for shard in (1, 2))
    cluster.run(BoardLikesBoard.append, liking, liked)
    remove(cluster, Board, liked)
    return Write(
        cls=BoardLikesBoard,
        source=liking,
        before=[liked],
        after=[],
        command=(*_VERIFY, "--repair"),
    )


def _method(cluster: Cluster) -> Write:
    liking, liked = (cluster.run(new, Board, shard) for shard in (1, 2))
    program = f"BoardLikesBoard.append(session, {liking}, {liked})"
    return Write(
        cls=BoardLikesBoard,
        source=liking,
        before=[],
        after=[liked],
        command=_shell(program),
    )


def _statement(cluster: Cluster) -> Write:
    """A DELETE without a shard or a list."""
    liking, liked = (cluster.run(new, Board, shard) for shard in (1, 2))
    cluster.run(BoardLikesBoard.append, liking, liked)
    which = f"BoardLikesBoard.liked_id == {liked}"
    return Write(
        cls=BoardLikesBoard,
        source=liking,
        before=[liked],
        after=[],
        command=_shell(f"session.execute(delete(BoardLikesBoard).where({which}))"),
    )


def _shell(program: str) -> Sequence[str]:
    return (
        *("shell", "--shard", "1", "--models", MODELS),
        *("-c", f"{program}; session.commit()"),
    )


WRITES: dict[str, Callable[[Cluster], Write]] = {
    "repair": _repair,
    "verify relations, one-sided": _one_sided,
    "verify relations, dangling": _dangling,
    "shell, method": _method,
    "shell, statement": _statement,
}


def each_write() -> Any:
    """Return a fixture ``write`` for a test module with ``plain``."""

    @pytest.fixture(params=list(WRITES))
    def write(request: Any, plain: Cluster) -> Write:
        return WRITES[request.param](plain)

    return write


def write_settings(path: Path, nodes: Sequence[str]) -> Path:
    """Write the file of a cache on memcached nodes."""
    lists = (BoardHasPins, PinInBoards, BoardLikesBoard)
    path.write_text(
        'prefix = "shop"\n'
        "[regions.lists]\n"
        'backend = "sqla_shard.memcached"\n'
        "[regions.lists.arguments]\n"
        f"servers = {json.dumps(list(nodes))}\n"
        # A busy machine may take its time.
        "timeout = 5.0\n"
        "retry = 0.1\n"
        "[classes]\n"
        + "".join(f'"{MODELS}:{cls.__name__}" = "lists"\n' for cls in lists),
        "utf-8",
    )
    return path
