"""Revisions of the tables of this package itself."""

from __future__ import annotations

__all__: list[str] = []
