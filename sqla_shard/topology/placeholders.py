"""``${NAME}`` in the user and the password of a server's URL.

A topology is stored, compared, logged and published with its placeholders
*unexpanded*, so that none of these ever holds a secret.  They are filled in
at the last moment, into the user and the password that were parsed out of
the URL, each by itself::

    url = sqlalchemy.make_url(server.primary)
    url = url.set(password=fill(url.password, os.environ))

Filling in the URL's text instead would let a password that contains ``@``
or ``/`` change the host.  The value of a variable is taken as it is: it is
not percent-decoded and is not searched for further placeholders.

A dollar sign that stands for itself is written twice, as in
:class:`string.Template`: ``pa$$word`` is the password ``pa$word``.  A lone
``$`` is refused when the topology is loaded.  Were it taken literally, then
``$MYSQL_PASSWORD``, the braces forgotten, would be sent to the server as the
password, and the only sign of it would be "access denied" much later.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field

from sqla_shard.exc import Problem
from sqla_shard.exc import TopologyError

__all__ = ["DEFAULT_PLACEHOLDERS", "Policy", "fill"]

DEFAULT_PLACEHOLDERS = ("MYSQL_USER", "MYSQL_PASSWORD")
"""The names that a topology may use unless the application says others."""

_DOLLAR = re.compile(
    r"\$(?:(?P<escape>\$)|\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)\})?"
)
#: Of the parts of a name, such as PW in SHOP_PW.
_SECRET = re.compile(
    r"pass|pwd|secret|token|credential|(?:^|_)(?:pw|key|auth)(?:_|$)",
    re.IGNORECASE,
)


def fill(text: str, environ: Mapping[str, str]) -> str:
    """Return ``text`` with every ``${NAME}`` replaced by its value.

    :param text: a user or a password, already parsed out of its URL and
        percent-decoded; never a whole URL.
    :param environ: the values by name, such as ``os.environ``.
    :raises TopologyError: for a name that ``environ`` does not have, or a
        ``$`` that begins no placeholder.  Neither ``text`` nor any value
        is part of the message.
    """

    def value(match: re.Match[str]) -> str:
        if match["escape"]:
            return "$"
        if match["name"] is None:
            raise _refusal("user or password", _malformed(match.start()))
        if match["name"] not in environ:
            raise _refusal(match[0], _missing(match["name"]))
        return environ[match["name"]]

    return _DOLLAR.sub(value, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Which placeholders a document may use.

    :param allowed: their names; None allows every name.
    :param environ: where they must have a value; None does not look.
    """

    allowed: Collection[str] | None = None
    environ: Mapping[str, str] | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls, allowed: Collection[str], environ: Mapping[str, str] | None
    ) -> Policy:
        """Return the policy of an application.

        :param allowed: the names it allows.
        :param environ: the variables; None reads those of this process.
        :raises TopologyError: when ``allowed`` is one text.
        """
        if isinstance(allowed, str):
            # "PASS" in "MYSQL_PASSWORD" is true: a text would allow every
            # part of itself, and refuse nothing that looks right.
            raise _refusal(
                "placeholders",
                f"{allowed!r} is one text; give a collection of names",
            )
        return cls(
            allowed=frozenset(allowed),
            environ=os.environ if environ is None else environ,
        )

    def faults(self, text: str, *, is_secret: bool) -> Iterator[str]:
        """Yield a message for each placeholder that cannot be filled in.

        :param text: a user or a password, percent-decoded.
        :param is_secret: whether it is the password.  A user is sent in the
            clear, and stands in "Access denied for user ...".
        """
        for match in _DOLLAR.finditer(text):
            name = match["name"]
            if match["escape"]:
                continue
            if name is None:
                yield _malformed(match.start())
            elif self.allowed is not None and name not in self.allowed:
                yield _forbidden(name, self.allowed)
            elif not is_secret and _SECRET.search(name):
                yield (
                    f"${{{name}}} is a secret by its name, and the server "
                    "and its log see the user in the clear; put it behind "
                    "the ':', or give the variable another name"
                )
            elif self.environ is not None and name not in self.environ:
                yield f"${{{name}}} {_missing(name)}"


def _malformed(index: int) -> str:
    # By position: the text around it may be most of a password.
    return (
        f"the '$' at character {index + 1} begins no ${{NAME}}; write "
        "${NAME} for a variable, or $$ for a dollar sign"
    )


def _missing(name: str) -> str:
    return f"has no value: set the environment variable {name}"


def _forbidden(name: str, allowed: Collection[str]) -> str:
    known = ", ".join(sorted(allowed)) or "none"
    return (
        f"${{{name}}} is not a placeholder that this application allows "
        f"({known}); use one of those, or pass its name in placeholders="
    )


def _refusal(place: str, message: str) -> TopologyError:
    return TopologyError([Problem(place, message)], source="placeholders")
