"""The options of all commands, and what they name.

Only what connects to a server needs the values of ``${NAME}`` in its URL.
Everything else loads the topology with an empty text for each, so that it
works on machines that know no password.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from typing import Concatenate
from typing import ParamSpec
from typing import TypeVar

import click
from click.shell_completion import CompletionItem

from sqla_shard.cluster import Cluster
from sqla_shard.following import is_zookeeper
from sqla_shard.following import load_location
from sqla_shard.masking import shown
from sqla_shard.topology import DEFAULT_PLACEHOLDERS
from sqla_shard.topology import Topology

__all__ = [
    "DEFAULT_FILE",
    "LOCATION",
    "VARIABLE",
    "FiniteRange",
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

# Longer ones are no ids, and Python refuses to make numbers of them.
_NUMBER = re.compile(r"[0-9]{1,100}|0[xX][0-9a-fA-F]{1,100}")


class _Location(click.ParamType):  # type: ignore[type-arg]  # generic in the newest versions of click only
    """A path, or the URL of a ZooKeeper."""

    name = "location"

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str:
        """Return it as it is."""
        if not str(value):
            self.fail("it is empty; write a path, or a URL", param, ctx)
        return str(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Let the shell complete paths."""
        return [CompletionItem(incomplete, type="file")]


#: The type of an argument that names a topology.
LOCATION = _Location()


class FiniteRange(click.FloatRange):
    """A number of seconds, hours or rows, of at most 1e9 if nothing is said.

    click takes ``nan`` as within any range, and ``inf`` where there is no
    upper bound, of which no time can be made.
    """

    def __init__(
        self, *, least: float, most: float = 1e9, is_open: bool = False
    ) -> None:
        super().__init__(least, most, min_open=is_open)

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        """Return it as a float."""
        found: float = super().convert(value, param, ctx)
        if math.isnan(found):
            self.fail(f"{value!r} is not a number", param, ctx)
        return found


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the options of ``sqla-shard`` itself say.

    :param named: the topology that was named, if any: a path, or the URL of
        a ZooKeeper.
    :param placeholders: what ``${NAME}`` may stand in a URL.
    """

    named: str | None = None
    placeholders: Collection[str] = DEFAULT_PLACEHOLDERS

    @property
    def location(self) -> str:
        """The topology: a path, or the URL of a ZooKeeper.

        :raises click.ClickException: when none is named and none is here.
        """
        if self.named is not None:
            return self.named
        if not Path(DEFAULT_FILE).is_file():
            raise click.ClickException(
                f"there is no {DEFAULT_FILE} in the current directory; name "
                f"a topology file with --topology PATH or {VARIABLE}=PATH"
            )
        return DEFAULT_FILE

    def zookeeper(self, named: str | None = None) -> str:
        """Return the URL of a ZooKeeper.

        :param named: what the option of the command says, if anything.
        :raises click.UsageError: when what is named is none.
        """
        found = named or self.named
        if not is_zookeeper(found):
            said = (
                "none is named" if found is None else f"{shown(found)} is none"
            )
            raise click.UsageError(
                f"this needs a ZooKeeper, and {said}; say "
                "sqla-shard --topology zookeeper://host:port,host:port/path"
            )
        return str(found)

    @property
    def blank(self) -> Mapping[str, str]:
        """Values of the placeholders for what connects to nothing."""
        return dict.fromkeys(self.placeholders, "")

    def topology(
        self, location: str | None = None, *, connects: bool = False
    ) -> Topology:
        """Return a topology.

        :param location: where it is; None for that of the settings.
        :param connects: whether the placeholders need their values.
        :raises TopologyError: when it cannot be read or is not valid.
        :raises TopologyUnavailableError: when a ZooKeeper does not answer.
        """
        return load_location(
            location or self.location,
            placeholders=self.placeholders,
            environ=None if connects else self.blank,
        )

    def cluster(self) -> Cluster:
        """Return the cluster, which follows its topology.

        For what takes long, and repairs: by an old topology it would look
        for an object on the server that was its primary once, and delete
        what leads there.

        :raises TopologyError: see :meth:`topology`.
        :raises TopologyUnavailableError: when a ZooKeeper does not answer.
        """
        return Cluster.from_location(
            self.location,
            placeholders=self.placeholders,
            # The last topology that was good could be an old one, too.
            snapshot=False,
        )

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
            f"{reprlib.repr(text)} is not a number of at most 100 digits; "
            "write it in decimal, or in hexadecimal digits after 0x"
        )
    return int(text, 16 if text[:2] in ("0x", "0X") else 10)
