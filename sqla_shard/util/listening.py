"""Listeners of events that are registered for a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import event


def stop_listening(target: Any, name: str, listener: Callable[..., Any]) -> None:
    """Remove a listener, unless an interrupt came before it was registered."""
    if event.contains(target, name, listener):
        event.remove(target, name, listener)
