"""Integrations with other packages, and replacements for parts of them.

``fastapi``           FastAPI and Starlette; requires the extra ``fastapi``
``flask``             Flask; requires the extra ``flask``
``flask_pagination``  numbered pages of a select
``flask_commands``    the commands ``flask shard``
``horizontal_shard``  replacement for the ``ShardedSession`` of SQLAlchemy
``opentelemetry``     OpenTelemetry; requires the extra ``opentelemetry``
``responses``         the HTTP responses to errors, for all of them

Importing this package imports none of them.
"""

from __future__ import annotations

__all__: list[str] = []
