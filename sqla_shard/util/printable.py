"""Text that does not control the terminal on which it is shown."""

from __future__ import annotations

import re

# Control characters of ASCII and Latin-1, Unicode line separators, and
# characters that change the direction of the text.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)


def printable(text: str) -> str:
    """Return a string with escaped control characters, except tab and newline.

    Errors of servers and findings contain values of end users, which must
    not control the terminal of an operator.
    """
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)
