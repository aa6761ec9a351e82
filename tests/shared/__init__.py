"""What the tests of the session have in common.

The suites are classes that ask for a fixture ``cluster``; a test module makes
a subclass of each and says which cluster it is, see :mod:`.clusters`.
"""

from __future__ import annotations

import pytest

# Their asserts are the tests.
for _name in (
    "differential",
    "flushing",
    "inserting",
    "placing",
    "proofs",
    "querying",
    "reading",
    "schema",
    "schema_runner",
    "semantics",
    "updating",
    "writing",
):
    pytest.register_assert_rewrite(f"tests.shared.{_name}")
