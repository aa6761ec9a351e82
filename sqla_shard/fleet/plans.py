"""Plans of fleet operations: steps, costs and problems."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

from sqla_shard.exc import FleetSetupError, Problem

P = ParamSpec("P")
T = TypeVar("T")

_VERSION = 1


class Step(NamedTuple):
    """A step of an operation, which its method ``_do_NAME`` does.

    :ivar name: short and stable; it is written into the journal.
    :ivar text: one sentence for people; ``{word}`` is one of
        :meth:`.Operation.words`.
    :ivar critical: whether writes are stopped from this step on.  After a
        crash in a critical step that was not the commit point, an operation
        continues with the first critical step.  The journal is not written
        between critical steps, since that would take longer than they do.
    """

    name: str
    text: str
    critical: bool = False


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Plan of an operation.

    :ivar kind: the operation, such as ``"failover"``.
    :ivar title: a phrase, such as ``"failover of sharddb001"``.
    :ivar epoch: epoch of the topology that it was made for.
    :ivar arguments: what the operator has asked for; JSON values without
        passwords.
    :ivar steps: name and sentence of each step.
    :ivar costs: sentences about time, space and pauses.
    :ivar warnings: findings for the operator that do not prevent the plan.
    :ivar problems: why it would be refused now; empty if it can be applied.
    """

    kind: str
    title: str
    epoch: int
    arguments: Mapping[str, Any]
    steps: tuple[tuple[str, str], ...] = ()
    costs: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = field(default=())

    def as_dict(self) -> dict[str, Any]:
        """Return the document of the plan, in JSON values."""
        return {
            "plan": _VERSION,
            "kind": self.kind,
            "title": self.title,
            "epoch": self.epoch,
            "arguments": dict(self.arguments),
            "steps": [list(step) for step in self.steps],
            "costs": list(self.costs),
            "warnings": list(self.warnings),
            "problems": [asdict(problem) for problem in self.problems],
        }

    @classmethod
    def from_dict(cls, document: Any) -> Plan:
        """Return the plan of a document of :meth:`as_dict`.

        :raises FleetSetupError: if it is not the document of a plan.
        """
        if not isinstance(document, Mapping) or (document.get("plan") != _VERSION):
            raise FleetSetupError(
                "the document is not a plan of this version; make one with "
                "--plan-only --json"
            )
        try:
            return cls(
                kind=document["kind"],
                title=document["title"],
                epoch=document["epoch"],
                arguments=document["arguments"],
                steps=tuple((one[0], one[1]) for one in document["steps"]),
                costs=tuple(document["costs"]),
                warnings=tuple(document["warnings"]),
                problems=tuple(Problem(**problem) for problem in document["problems"]),
            )
        except (KeyError, TypeError, IndexError) as error:
            raise FleetSetupError(
                f"the plan is damaged ({type(error).__name__}: {error}); make "
                "it again with --plan-only --json"
            ) from error

    def __str__(self) -> str:
        lines = [f"{self.title} (epoch {self.epoch})"]
        lines += [f"  {name}: {text}" for name, text in self.steps]
        lines += [f"cost: {text}" for text in self.costs]
        lines += [f"warning: {text}" for text in self.warnings]
        lines += [f"refused: {problem}" for problem in self.problems]
        return "\n".join(lines)


def as_list(generator: Callable[P, Iterator[T]]) -> Callable[P, list[T]]:
    """Let a function that yields problems return a list of them."""

    @wraps(generator)
    def listed(*args: P.args, **kwargs: P.kwargs) -> list[T]:
        return list(generator(*args, **kwargs))

    return listed
