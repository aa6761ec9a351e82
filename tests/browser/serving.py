"""The pinboard on a port of 127.0.0.1, and the content of its database."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from werkzeug.serving import make_server, WSGIRequestHandler

from examples.pinboard.app import create_app
from examples.pinboard.boards import add_board, add_pins
from examples.pinboard.caching import keep, MEMORY
from examples.pinboard.inputs import BoardInput, PinInput
from examples.pinboard.lab.lab import Lab
from examples.pinboard.models import BoardHasPins
from examples.pinboard.samples import add_user
from sqla_shard import Cluster, ShardSession
from tests.suites.pinboard_tables import create_tables


class _Quiet(WSGIRequestHandler):
    """Answers as usual, and logs errors only."""

    def log_request(self, code: object = "-", size: object = "-") -> None:
        pass


class Site:
    """The application over a cluster, served by a thread of this process.

    :param cluster: closed by the caller, after the site.
    :param lab: of the demo; None for an application without one.
    """

    def __init__(self, cluster: Cluster, lab: Lab | None = None) -> None:
        self.cluster = cluster
        keep(cluster, MEMORY)
        self._app = create_app(cluster, secret_key="of the tests", lab=lab)
        self._server = make_server(
            "127.0.0.1", 0, self._answer, threaded=True, request_handler=_Quiet
        )
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._names = (f"user {n}" for n in itertools.count(1))
        self.address = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Site:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer(self, environ: dict[str, Any], start_response: Any) -> list[bytes]:
        # All of it at once: Werkzeug's server leaves a file open when the
        # browser, on its way to another page, hangs up in the middle of it.
        answer = self._app(environ, start_response)
        try:
            return [b"".join(answer)]
        finally:
            if hasattr(answer, "close"):
                answer.close()

    def create_tables(self) -> None:
        """Create them on every virtual shard."""
        create_tables(self.cluster)

    def add_user(
        self, name: str | None = None, shard_id: int | None = None
    ) -> tuple[str, int]:
        """Write a user, and return name and id."""
        name = name or next(self._names)
        about = "Made by the tests."
        return name, add_user(self.cluster, name, about, shard_id)

    def add_board(self, user_id: int, title: str, entered: Sequence[PinInput]) -> int:
        """Write a board whose pins are in this order, and return its id."""
        return self.cluster.run(_add_board, user_id, title, entered)

    def order(self, board_id: int) -> list[str]:
        """Return the ids of the pins of a board, as the database has them."""
        with self.cluster.session(cache=False) as session:
            rows = BoardHasPins.iterate(session, board_id)
            return [str(row.pin_id) for row in rows]


def _add_board(
    session: ShardSession, user_id: int, title: str, entered: Sequence[PinInput]
) -> int:
    board_id = add_board(
        session, user_id, BoardInput(title=title, details="Of the tests.")
    )
    # The last one ends on top.
    add_pins(session, user_id, board_id, entered[::-1])
    return board_id


def pins(count: int, name: str = "Pin") -> list[PinInput]:
    """Return pins to enter, numbered from 1."""
    return [
        PinInput(
            link=f"https://{number % 7}.example.com/{number}",
            title=f"{name} {number}",
            details=f"What is said of {name} {number}.",
        )
        for number in range(1, count + 1)
    ]
