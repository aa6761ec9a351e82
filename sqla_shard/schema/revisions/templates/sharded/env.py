"""Alembic runs this file for every command."""

from alembic import context
from sqla_shard.schema import run_env

# Import your models here: from myapp.models import Base
target_metadata = None  # Base.metadata

run_env(context, target_metadata)
