"""Imports of bookmark files, by a job that survives a killed worker.

One transaction stores the links of an upload, in parts of 50, with a job.
The job writes each part in a transaction that also stores its checkpoint, so
that after a ``kill -9`` another worker continues there: no pin is lost, and
none is written twice.  The last transaction deletes the parts and
acknowledges the job.

The last board is written first, and its last link first, because what is new
goes on top: in the end everything is in the order of the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete

from examples.pinboard.boards import add_board, add_pins, find
from examples.pinboard.errors import ConflictError, NotFoundError
from examples.pinboard.importing import Upload
from examples.pinboard.inputs import BoardInput, PinInput
from examples.pinboard.models import Import, ImportPart, User
from sqla_shard import ShardSession
from sqla_shard.jobs import current_job, JobState, RunningJob, stored_job, task

QUEUE = "imports"
_BATCH = 50
"""Pins per transaction."""
_SHOWN = 5
"""Reasons that are shown for links that were left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of an import.

    :ivar state: ``running``, ``done`` or ``failed``.
    :ivar done: pins that are stored.
    :ivar boards: boards that are stored, perhaps with some of their pins.
    :ivar skipped: how many links were left out.
    :ivar reasons: the first reasons for that.
    :ivar message: what went wrong, if it failed.
    """

    import_id: int
    state: str
    total: int
    total_boards: int
    skipped: int
    reasons: Sequence[str]
    done: int
    boards: int
    message: str

    def as_json(self) -> dict[str, Any]:
        """Return it for the API."""
        return {
            "id": str(self.import_id),
            "state": self.state,
            "done": self.done,
            "total": self.total,
            "boards": self.boards,
            "total_boards": self.total_boards,
            "skipped": self.skipped,
            "reasons": list(self.reasons),
            "message": self.message,
        }


def start_import(session: ShardSession, user_id: int, upload: Upload) -> int:
    """Store an upload and the job that writes its pins; return its id.

    :raises ConflictError: when an import of the user has not finished.
    """
    user = find(session, User, user_id)
    made = Import(
        user_id=user.id,
        total=upload.total,
        total_boards=len(upload.boards),
        skipped=len(upload.skipped),
        reasons=list(upload.skipped[:_SHOWN]),
    )
    session.add(made)
    session.flush()
    job = run_import.enqueue(
        session, made.id, near=made.id, unique_key=f"import {user.id}"
    )
    if not job.is_new:
        raise ConflictError("Your last import is still running; wait until it is done.")
    parts = [
        ImportPart(import_id=made.id, board=board, pins=pins)
        for board, pins in _parts(upload)
    ]
    session.add_all(parts)
    session.flush()
    made.job = str(job)
    made.parts = [part.id for part in parts]
    return made.id


def _parts(upload: Upload) -> Iterator[tuple[BoardInput | None, list[PinInput]]]:
    """Yield the part of each transaction; a board with its first pins."""
    for board, pins in reversed(upload.boards):
        rest = list(reversed(pins))
        yield board, rest[:_BATCH]
        for first in range(_BATCH, len(rest), _BATCH):
            yield None, rest[first : first + _BATCH]


def progress_of(session: ShardSession, user_id: int, import_id: int) -> Progress:
    """Return the progress of an import of a user.

    :raises NotFoundError: when the user has none with that id.
    """
    found = find(session, Import, import_id)
    if found.user_id != user_id:
        raise NotFoundError("There is no such import.")
    state, message = "done" if found.is_done else "running", ""
    if not found.is_done:
        job = stored_job(session.cluster, found.job)
        if job is None or job.state is JobState.FAILED:
            state = "failed"
            message = "The import could not be finished. The counted pins are stored."
    return Progress(
        import_id=found.id,
        state=state,
        total=found.total,
        total_boards=found.total_boards,
        skipped=found.skipped,
        reasons=found.reasons,
        done=found.done,
        boards=found.boards,
        message=message,
    )


@task("pinboard.import", queue=QUEUE, in_transaction=False)
def run_import(import_id: int) -> None:
    """Write the pins of an import, from the checkpoint of the job on."""
    job = current_job()
    number, board_id = job.checkpoint or (0, None)
    while number is not None:
        job.check()
        number, board_id = job.cluster.run(_write, job, import_id, number, board_id)


def _write(
    session: ShardSession,
    job: RunningJob,
    import_id: int,
    number: int,
    board_id: int | None,
) -> tuple[int | None, int | None]:
    """Write a part; after the last one, end the import.

    :param number: of the part, from 0.
    :param board_id: the board of the part before.
    :returns: both for the next call; None at the end.
    """
    found = session.get_one(Import, import_id)
    if number >= len(found.parts):
        _end(session, job, found)
        return None, None
    part = session.get_one(ImportPart, found.parts[number])
    if part.board is not None:
        board_id = add_board(session, found.user_id, part.board)
        found.boards += 1
    assert board_id is not None
    add_pins(session, found.user_id, board_id, part.pins)
    found.done += len(part.pins)
    # In this transaction: the pins and the progress commit together.
    job.save([number + 1, board_id], session=session)
    return number + 1, board_id


def _end(session: ShardSession, job: RunningJob, found: Import) -> None:
    session.execute(delete(ImportPart).where(ImportPart.id.in_(found.parts)))
    found.parts = []
    found.is_done = True
    job.ack_with(session)
