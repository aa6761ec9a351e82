"""Classes of lists with more and more pieces, as processes have them.

The names of this module are of the stage in which rows are moved.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_shard import MappingMixin, ObjectMixin

#: Options of ``sqla-shard spread``.
MODELS = ("--models", "tests.models.spread_stages", "--class", "Fans")

SHARDS = 16
PIECES = 8
#: Keywords before, during and after an increase, by the pieces before it.
STAGES: dict[int, tuple[dict[str, int], ...]] = {
    1: (
        {},
        {"spread_to": PIECES},
        {"spread": PIECES, "spread_from": 1},
        {"spread": PIECES},
    ),
    2: (
        {"spread": 2},
        {"spread": 2, "spread_to": PIECES},
        {"spread": PIECES, "spread_from": 2},
        {"spread": PIECES},
    ),
}


class Stage(NamedTuple):
    """The classes of one stage.

    :ivar fans: the lists that have more and more pieces.
    :ivar likes: lists whose inverse, ``likers``, has more and more pieces.
    """

    base: Any
    user: Any
    fans: Any
    likes: Any
    likers: Any


def stage(before: int, number: int) -> Stage:
    """Define the classes of a stage.

    Operations of classes that were defined before call the new ones, as after
    a deployment.

    :param before: number of pieces before the increase.
    :param number: index of the stage.
    """
    keywords: dict[str, Any] = {**STAGES[before][number], "counted": True}
    if len(keywords) > 1:
        keywords["spread_over"] = SHARDS

    class StageBase(DeclarativeBase):
        pass

    class User(ObjectMixin, StageBase, type_id=1):
        __tablename__ = "users"

    class Fans(
        MappingMixin,
        StageBase,
        source=User,
        target=User,
        source_column="owner_id",
        target_column="fan_id",
        **keywords,
    ):
        remark: Mapped[str | None] = mapped_column(String(40))

    class Likes(
        MappingMixin,
        StageBase,
        source=User,
        target=User,
        source_column="liking_id",
        target_column="liked_id",
        inverse="Likers",
    ):
        pass

    class Likers(
        MappingMixin,
        StageBase,
        source=User,
        target=User,
        source_column="liked_id",
        target_column="liking_id",
        **keywords,
    ):
        pass

    return Stage(StageBase, User, Fans, Likes, Likers)


_stage = stage(2, 2)
Base, Fans = _stage.base, _stage.fans
