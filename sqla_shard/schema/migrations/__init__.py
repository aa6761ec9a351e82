"""Revisions of the tables of this package itself."""
