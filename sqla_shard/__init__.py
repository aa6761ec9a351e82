"""Shard MySQL with plain SQLAlchemy: the id of an object is its address."""
