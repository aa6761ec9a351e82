"""Suites: classes of tests that request a fixture ``cluster``.

``tests/suite_table.py`` lists the backends that they run on; a module of
tests with a cluster of its own makes subclasses.
"""
