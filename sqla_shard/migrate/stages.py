"""The stages of moving an application from one database to shards, as data.

Both sides have the rows of the tables that move, and one of them is the
*truth*: the side that the application writes first, in its own transaction.
What was written there is copied to the other side.  A stage determines which
side is the truth, whether writes are marked and which way rows are copied:

.. code-block:: text

    legacy -> marking -> copying -> reading -> closing -> switched -> detached
                                       ^                     |
                                       +---- returning <-----+

From each stage but the last there is a way back.  In ``closing`` and
``returning`` neither side is the truth: writes wait, while the last rows are
copied.  So the truth is never on both sides.

:class:`Progress` is the stage in which a move is, as stored with the topology;
:func:`advanced` and :func:`check_step` are the rules of changing it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeAlias

from sqla_shard.exc import StageRefusedError

__all__ = [
    "FIRST",
    "STAGES",
    "Condition",
    "Progress",
    "Side",
    "Stage",
    "advanced",
    "check_step",
    "other_side",
]

#: The database as it was, and the virtual shards.
Side: TypeAlias = Literal["legacy", "shards"]

#: What must be true before a stage is left for the next one.
#:
#: ``claimed``: every row of the source has a mark of this round.
#: ``equal``: the last pass over all rows has found no difference.
#: ``drained``: no row is waiting to be copied.
Condition: TypeAlias = Literal["claimed", "equal", "drained"]

_REMEDIES: Mapping[Condition, str] = {
    "claimed": "not all rows were copied; run: sqla-shard migrate backfill",
    "drained": "rows wait to be copied; run: sqla-shard migrate backfill, "
    "whose log names those that fail",
    "equal": "no pass since has found all rows equal; run: sqla-shard "
    "migrate reconcile",
}


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of a move.

    :ivar name: name of the stage.
    :ivar truth: the side whose transactions the application commits; None if
        writes wait.
    :ivar marks: whether each transaction raises the versions of the rows that
        it writes.
    :ivar copies: the side that rows are copied to; None if none are.
    :ivar reads: the sides that may be read.
    :ivar forward: the next stage; None for the last one.
    :ivar back: the stage to go back to; None if there is no way back.
    :ivar needs: what must be true before the stage is left for the next one.
    """

    name: str
    truth: Side | None
    marks: bool
    copies: Side | None
    reads: tuple[Side, ...]
    forward: str | None
    back: str | None
    needs: frozenset[Condition] = frozenset()

    @property
    def source(self) -> Side | None:
        """The side that rows are copied from; None if none are."""
        return None if self.copies is None else other_side(self.copies)


def other_side(side: Side) -> Side:
    """Return the opposite side."""
    return "shards" if side == "legacy" else "legacy"


def _stages(*stages: Stage) -> dict[str, Stage]:
    return {stage.name: stage for stage in stages}


#: The stages by name, in the order of a move without a way back.
STAGES: Mapping[str, Stage] = _stages(
    Stage(
        name="legacy",
        truth="legacy",
        marks=False,
        copies=None,
        reads=("legacy",),
        forward="marking",
        back=None,
    ),
    Stage(
        name="marking",
        truth="legacy",
        marks=True,
        copies=None,
        reads=("legacy",),
        forward="copying",
        back="legacy",
    ),
    Stage(
        name="copying",
        truth="legacy",
        marks=True,
        copies="shards",
        reads=("legacy",),
        forward="reading",
        back="marking",
        needs=frozenset({"claimed", "equal"}),
    ),
    Stage(
        name="reading",
        truth="legacy",
        marks=True,
        copies="shards",
        reads=("legacy", "shards"),
        forward="closing",
        back="copying",
        needs=frozenset({"equal"}),
    ),
    Stage(
        name="closing",
        truth=None,
        marks=True,
        copies="shards",
        reads=("legacy", "shards"),
        forward="switched",
        back="reading",
        needs=frozenset({"claimed", "drained"}),
    ),
    Stage(
        name="switched",
        truth="shards",
        marks=True,
        copies="legacy",
        reads=("shards",),
        forward="detached",
        back="returning",
    ),
    Stage(
        name="returning",
        truth=None,
        marks=True,
        copies="legacy",
        reads=("shards",),
        forward="reading",
        back="switched",
        needs=frozenset({"drained"}),
    ),
    Stage(
        name="detached",
        truth="shards",
        marks=False,
        copies=None,
        reads=("shards",),
        forward=None,
        back=None,
    ),
)

#: The stage in which a move begins.
FIRST = "legacy"


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The stage of a move, and the share of reads.

    :ivar number: number of changes so far; each change raises it by one, so
        it orders them, and distinguishes two visits of a stage.
    :ivar stage: name of the stage.
    :ivar former: name of the stage before the last change.
    :ivar round: number of times that marking was started; marks of an earlier
        round say nothing, since writes in between were not marked.
    :ivar shares: percentage of reads from the shards by table; tables that
        are missing have 0.
    """

    number: int = 0
    stage: str = FIRST
    former: str = FIRST
    round: int = 0
    shares: Mapping[str, int] = field(default_factory=dict)

    @property
    def rules(self) -> Stage:
        """The stage itself."""
        return STAGES[self.stage]

    def with_shares(self, shares: Mapping[str, int]) -> Progress:
        """Return the next change, with other shares of reads."""
        return replace(self, number=self.number + 1, former=self.stage, shares=shares)

    def as_dict(self) -> dict[str, Any]:
        """Return the progress as JSON values."""
        return {**asdict(self), "shares": dict(self.shares)}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Progress:
        """Return the progress of a document of :meth:`as_dict`.

        :raises ValueError: if it is not valid.
        :raises TypeError: if it has missing or unknown names.
        """
        found = cls(**document)
        for name in (found.stage, found.former):
            if name not in STAGES:
                raise ValueError(f"{name!r} is not a stage")
        for number in (found.number, found.round, *found.shares.values()):
            if type(number) is not int or number < 0:
                raise ValueError(f"{number!r} is not a number from 0")
        return found


def advanced(
    old: Progress,
    name: str,
    *,
    fences: Collection[int],
    met: Collection[Condition] = (),
) -> Progress:
    """Return the progress after a change of the stage.

    :param name: the stage to change to: the next one, or the one to go back
        to.
    :param fences: the numbers in the fences of all databases.
    :param met: the conditions that are met now.
    :raises StageRefusedError: if the stages are not neighbours, a condition is
        not met, or a fence is behind: then a second change would leave some
        database two stages behind.
    """
    check_step(old, name, met=met)
    behind = sorted({number for number in fences if number != old.number})
    if behind or not fences:
        raise StageRefusedError(
            stage=old.stage,
            wanted=name,
            reason=f"not every database has change {old.number} "
            f"(others: {behind}); repeat the command that made it",
        )
    begins = old.stage == "legacy" and name == "marking"
    return replace(
        old,
        number=old.number + 1,
        stage=name,
        former=old.stage,
        round=old.round + begins,
        shares=old.shares if "shards" in STAGES[name].reads else {},
    )


def check_step(old: Progress, name: str, *, met: Collection[Condition] = ()) -> None:
    """Check that a stage may follow.

    :param met: the conditions that are met now; going back has none.
    :raises StageRefusedError: if it may not.
    """
    rules = old.rules
    if name not in (rules.forward, rules.back):
        near = [one for one in (rules.forward, rules.back) if one is not None]
        ways = " and ".join(near) or "no other stage"
        raise StageRefusedError(
            stage=old.stage,
            wanted=name,
            reason=f"from {old.stage} the ways are to {ways}",
        )
    missing = rules.needs.difference(met) if name == rules.forward else ()
    if missing:
        raise StageRefusedError(
            stage=old.stage,
            wanted=name,
            reason="; ".join(map(_REMEDIES.__getitem__, sorted(missing))),
        )
