"""Messages of refused classes name a way that works."""

from __future__ import annotations

from tests.suites.remedy_classes import Definitions

TestDefinitions = Definitions
