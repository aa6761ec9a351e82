"""The options of all commands, and what they name.

Only what connects to a server needs the values of ``${NAME}`` in its URL.
Everything else loads the topology with an empty text for each, so that it
works on machines that know no password.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Concatenate
from typing import ParamSpec
from typing import TypeVar

import click

from sqla_shard.cluster import Cluster
from sqla_shard.topology import DEFAULT_PLACEHOLDERS
from sqla_shard.topology import FileSource
from sqla_shard.topology import Topology

__all__ = [
    "DEFAULT_FILE",
    "VARIABLE",
    "Settings",
    "number",
    "pass_settings",
]

DEFAULT_FILE = "topology.toml"
"""The topology of the current directory, where none is named."""

VARIABLE = "SQLA_SHARD_TOPOLOGY"
"""The environment variable that names one."""

P = ParamSpec("P")
T = TypeVar("T")

_NUMBER = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]+")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the options of ``sqla-shard`` itself say.

    :param path: the topology file that was named, if any.
    :param placeholders: what ``${NAME}`` may stand in a URL.
    """

    path: Path | None = None
    placeholders: Collection[str] = DEFAULT_PLACEHOLDERS

    @property
    def file(self) -> Path:
        """The topology file.

        :raises click.ClickException: when none is named and none is here.
        """
        if self.path is not None:
            return self.path
        if not Path(DEFAULT_FILE).is_file():
            raise click.ClickException(
                f"there is no {DEFAULT_FILE} in the current directory; name "
                f"a topology file with --topology PATH or {VARIABLE}=PATH"
            )
        return Path(DEFAULT_FILE)

    @property
    def blank(self) -> Mapping[str, str]:
        """Values of the placeholders for what connects to nothing."""
        return dict.fromkeys(self.placeholders, "")

    def topology(
        self, path: Path | None = None, *, connects: bool = False
    ) -> Topology:
        """Return a topology.

        :param path: of its file; None for that of the settings.
        :param connects: whether the placeholders need their values.
        :raises TopologyError: when it cannot be read or is not valid.
        """
        source = FileSource(
            path or self.file,
            placeholders=self.placeholders,
            environ=None if connects else self.blank,
        )
        return source.load()

    def silent_cluster(self) -> Cluster:
        """Return the cluster for what connects to nothing.

        :raises TopologyError: see :meth:`topology`.
        """
        return Cluster(self.topology(), environ=self.blank)


def pass_settings(
    command: Callable[Concatenate[Settings, P], T],
) -> Callable[P, T]:
    """Give a command the settings, as its first argument."""
    return click.make_pass_decorator(Settings)(command)


def number(text: str) -> int:
    """Return an id or a part of one, as the type of an argument.

    :param text: decimal, or hexadecimal digits after ``0x``.
    :raises click.BadParameter: when it is neither.
    """
    if not _NUMBER.fullmatch(text):
        raise click.BadParameter(
            f"{text!r} is not a number; write it in decimal, or in "
            "hexadecimal digits after 0x"
        )
    return int(text, 16 if text[:2] in ("0x", "0X") else 10)
