"""Reference tables, on SQLite."""

from __future__ import annotations

from tests.models.reference_models import REFERENCES
from tests.suites import (
    reference_reading,
    reference_tables,
    reference_verifying,
    reference_writing,
)

cluster = REFERENCES.on_sqlite()


class TestAlone(reference_reading.Alone):
    pass


class TestWithObjects(reference_reading.WithObjects):
    pass


class TestWritten(reference_writing.Written):
    pass


class TestRefused(reference_writing.Refused):
    pass


class TestRacing(reference_writing.Racing):
    pass


class TestVerified(reference_verifying.Verified):
    pass


class TestDrifting(reference_tables.Drifting):
    pass


class TestGrown(reference_verifying.Grown):
    pass
