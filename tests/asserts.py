"""Failures of asserts outside of test modules show values, too."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.models", "tests.servers", "tests.suites")
