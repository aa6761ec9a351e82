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


TestAlone = reference_reading.Alone
TestWithObjects = reference_reading.WithObjects
TestWritten = reference_writing.Written
TestRefused = reference_writing.Refused
TestRacing = reference_writing.Racing
TestVerified = reference_verifying.Verified
TestDrifting = reference_tables.Drifting
TestGrown = reference_verifying.Grown
