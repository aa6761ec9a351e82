"""Five steps through the lab.  The step of a browser is in its cookie."""

from __future__ import annotations

from dataclasses import dataclass

from flask import session as cookie

_COOKIE = "lab_step"


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step of the tour.

    :ivar number: from 1.
    :ivar endpoint: of the page where it happens.
    :ivar anchor: part of that page.
    :ivar link: text of the link to that page.
    """

    number: int
    title: str
    text: str
    endpoint: str
    link: str
    anchor: str | None = None


STEPS = (
    Step(
        number=1,
        title="Everybody has a shard",
        text="Sign in as one of the three. The lit cell of the map above is "
        "the virtual shard of that user, and all of the user's boards and "
        "pins are in it. “Where you live” shows how the id says so.",
        endpoint="pages.users",
        link="Choose a user",
    ),
    Step(
        number=2,
        title="A page asks one server",
        text="Open a board, then the strip at the bottom of the page. It has "
        "each statement, its shards, and the time of each server; load it "
        "again, and the cache answers some of them.",
        endpoint="pages.own_boards",
        link="Your boards",
    ),
    Step(
        number=3,
        title="Asking everybody is said aloud",
        text="The newest pins of all users are one statement on all servers "
        "at once. Without scatter() the same statement is refused, and the "
        "message says what to do.",
        endpoint="lab.newest",
        link="Newest pins",
    ),
    Step(
        number=4,
        title="Break it",
        text="Stop a server, or make it slow, or switch the cache off. The "
        "line at the top says who is affected; visit the boards of the "
        "others.",
        endpoint="lab.page",
        anchor="break",
        link="Break it",
    ),
    Step(
        number=5,
        title="Grow it, with 200 writers",
        text="Let 200 writers write, and move shards to a third server "
        "meanwhile. No id changes: the map gets a third block, and all "
        "addresses of pages stay.",
        endpoint="lab.page",
        anchor="writers",
        link="Writers and growth",
    ),
)


def step() -> Step | None:
    """Return the step of this browser; None if it is not on the tour."""
    number = cookie.get(_COOKIE, 0)
    return STEPS[number - 1] if 1 <= number <= len(STEPS) else None


def go_to(number: int) -> None:
    """Set the step of this browser; any other number ends the tour."""
    cookie[_COOKIE] = number
