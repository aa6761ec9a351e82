"""Types whose values have another format than SQLAlchemy gives them."""

from __future__ import annotations

from typing import Any

from sqla_shard.exc import UnsupportedStatementError


class Encoded:
    """A type whose values are stored in another format than SQLAlchemy's.

    :ivar label: the field or column as ``Class.field``, for messages.
    :ivar takes_plain: whether a text or number may be in that format already.
    :ivar is_compared: whether equal values are equal texts.
    """

    label = "Class.column"
    takes_plain: bool
    is_compared = True

    def encodes(self, value: Any, *, is_own: bool) -> bool:
        """Return whether to store a value in the format of the type.

        :param is_own: whether it stands for a value of the field, as in
            ``coalesce()``; otherwise it may be any argument of a function.
        """
        raise NotImplementedError

    def refusal(self, construct: str) -> UnsupportedStatementError:
        """Return the error for a comparison of values that have no order."""
        return UnsupportedStatementError(
            f"{construct}: {self.label} is structured JSON, which every "
            "server formats differently. Use the server's JSON functions, "
            "such as func.json_contains(), or compare in Python",
            construct=construct,
        )
