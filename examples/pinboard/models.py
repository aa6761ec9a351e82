"""Users have boards, boards have pins, and both are in an order.

Three object classes on one shard each, and the lists of a user; two more
hold an uploaded file until a job has made boards and pins of it.
One list leads to other shards: the pins of others that are saved on a board;
it has an inverse.  A follow graph and home feeds have tables of their own.
Users do not sign in with ids, so two lookups lead from mail addresses and
names to users.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy.orm import DeclarativeBase, Mapped

from examples.pinboard.inputs import BoardInput, PinInput
from sqla_shard import blob_field, LookupMixin, MappingMixin, ObjectMixin
from sqla_shard.contrib import Feed, Follows
from sqla_shard.jobs import respace_by_job
from sqla_shard.models import normalization

LISTS = "lists"
"""The queue of jobs that re-space lists."""


class Base(DeclarativeBase):
    """Holds the tables of this example."""


class User(ObjectMixin, Base, type_id=3):
    """A root: its shard is chosen when it is written, once and for all."""

    __tablename__ = "users"

    name: Mapped[str] = blob_field()
    about: Mapped[str] = blob_field(default="")
    #: As it was entered.  It is shown only to the user; users of earlier
    #: versions have none.
    email: Mapped[str | None] = blob_field(default=None)


class Board(ObjectMixin, Base, type_id=2, colocate_with="user_id"):
    """Lives on the shard of its user."""

    __tablename__ = "boards"

    user_id: Mapped[int] = blob_field(ref=User)
    title: Mapped[str] = blob_field()
    details: Mapped[str] = blob_field(default="")


class Pin(ObjectMixin, Base, type_id=1, colocate_with="board_id"):
    """Lives on the shard of its board, which is that of the user."""

    __tablename__ = "pins"

    board_id: Mapped[int] = blob_field(ref=Board)
    link: Mapped[str] = blob_field()
    title: Mapped[str] = blob_field(default="")
    details: Mapped[str] = blob_field(default="")


class Import(ObjectMixin, Base, type_id=4, colocate_with="user_id"):
    """A bookmark file that a user has uploaded, and its progress."""

    __tablename__ = "imports"

    user_id: Mapped[int] = blob_field(ref=User)
    #: The id of its job.
    job: Mapped[str] = blob_field(default="")
    #: In the order in which they are written; empty at the end.
    parts: Mapped[list[int]] = blob_field(default_factory=list)
    total: Mapped[int] = blob_field()
    total_boards: Mapped[int] = blob_field()
    skipped: Mapped[int] = blob_field(default=0)
    reasons: Mapped[list[str]] = blob_field(default_factory=list)
    done: Mapped[int] = blob_field(default=0)
    boards: Mapped[int] = blob_field(default=0)
    is_done: Mapped[bool] = blob_field(default=False)


class ImportPart(ObjectMixin, Base, type_id=5, colocate_with="import_id"):
    """Some links of an import, which become pins in one transaction.

    They belong to a new board, or to the board of the part before.
    """

    __tablename__ = "import_parts"

    import_id: Mapped[int] = blob_field(ref=Import)
    board: Mapped[BoardInput | None] = blob_field(default=None)
    pins: Mapped[list[PinInput]] = blob_field()


class UserHasBoards(MappingMixin, Base, source=User, target=Board):
    """The boards of a user, the newest on top."""

    if TYPE_CHECKING:
        board_id: Mapped[int]


class BoardHasPins(MappingMixin, Base, source=Board, target=Pin):
    """The pins of a board, in the order they were dragged to.

    A removed pin retains its row, so that it is restored to its place.
    """

    if TYPE_CHECKING:
        pin_id: Mapped[int]


# A worker re-spaces the pins of a board with many moves; without one, a move
# does it when there is no room left.
respace_by_job(BoardHasPins, queue=LISTS)


class BoardHasRemovedPins(MappingMixin, Base, source=Board, target=Pin):
    """The pins that were removed from a board, the latest first.

    Without it, finding them would require reading every pin of the shard.
    """

    if TYPE_CHECKING:
        pin_id: Mapped[int]


class UserFollowsBoards(
    MappingMixin, Base, source=User, target=Board, inverse="BoardHasFollowers"
):
    """Boards that a user followed before users could be followed.

    ``tables.py`` moves its rows to the follow graph.
    """

    if TYPE_CHECKING:
        board_id: Mapped[int]


class BoardHasFollowers(MappingMixin, Base, source=Board, target=User):
    """The inverse of ``UserFollowsBoards``."""

    if TYPE_CHECKING:
        user_id: Mapped[int]


class BoardHasSavedPins(
    MappingMixin, Base, source=Board, target=Pin, inverse="PinInBoards"
):
    """Pins of other boards that were saved on a board, the latest first.

    Not in ``BoardHasPins``: those are the board's own, which its user edits,
    removes and restores, and counts on the one shard they are on.  A saved
    pin is removed by another user, on another shard.
    """

    if TYPE_CHECKING:
        pin_id: Mapped[int]


class PinInBoards(MappingMixin, Base, source=Pin, target=Board):
    """The boards that a pin was saved on, in addition to its own."""

    if TYPE_CHECKING:
        board_id: Mapped[int]


class UserEmail(
    LookupMixin, Base, target=User, normalize=normalization.email, field="email"
):
    """The user of a mail address."""


class UserName(
    LookupMixin, Base, target=User, normalize=normalization.casefold, field="name"
):
    """The user of a name, regardless of case: "Ada" and "ada" are one name."""


#: The users and boards that each user follows.
graph = Follows(Base, user=User, board=Board, owner="user_id")
#: The newest pins of these.
home = Feed(Base, follows=graph, post=Pin)
