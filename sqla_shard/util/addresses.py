"""Addresses of servers, as messages and URLs have them."""

from __future__ import annotations


def host_and_port(host: str, port: int) -> str:
    """Return ``host:port``, with an IPv6 address in brackets."""
    # Without brackets the port would read as a part of the address.
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
