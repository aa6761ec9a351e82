"""The linter of :mod:`.lint` in a pytest run.

It is off by default.  Switch it on for all tests in the configuration, ::

    [tool.pytest.ini_options]
    sqla_shard_lint = true

or with ``--sqla-shard-lint``; for one test, class or module with
``@pytest.mark.sqla_shard_lint``, or with the fixture ``shard_lint``.  A test
that has passed fails if there are findings; one that has failed shows them in
addition to its own error.  Statements of fixtures before the test are not
checked.

Kinds of findings can be allowed for a test, a class or a module::

    @pytest.mark.sqla_shard_allow("scatter")
    def test_report(cluster): ...

or for a part of a test, with the fixture, a :class:`.ShardLint`::

    def test_report(cluster, shard_lint):
        with shard_lint.allow("scatter"):
            ...

Options in the configuration, which are also keywords of the mark
``sqla_shard_lint``, without the prefix:

``sqla_shard_lint_max_repeats`` Maximum number of times that a line may send
    the same SELECT in a session (5).  ``sqla_shard_lint_max_shards`` Maximum
    number of shards of the ids of a statement (no limit).
    ``sqla_shard_lint_setup`` Whether to also check statements of fixtures
    before the test (false).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    # Imported for type checking only: pytest imports this plugin in every
    # project whose environment has this package.
    from sqla_shard.testing.lint import ShardLint

__all__ = ["LintHooks", "add_options", "shard_lint"]

_MARKS = (
    (
        "sqla_shard_lint(max_repeats=5, max_shards=None, setup=False): fail "
        "on scatters, cross-shard writes and N+1 over shards"
    ),
    (
        "sqla_shard_allow(*kinds): let the linter allow scatter, fan_out, "
        "cross_shard_write or n_plus_one"
    ),
)
_OPTIONS = ("max_repeats", "max_shards", "setup")


def add_options(parser: pytest.Parser) -> None:
    """Add the options of the linter."""
    parser.getgroup("sqla_shard").addoption(
        "--sqla-shard-lint",
        action="store_true",
        help="fail tests on scatters, cross-shard writes and N+1 over shards",
    )
    parser.addini(
        "sqla_shard_lint",
        "fail tests on scatters, cross-shard writes and N+1 over shards",
        type="bool",
        default=False,
    )
    parser.addini(
        "sqla_shard_lint_max_repeats",
        "maximum number of times that a line may send a SELECT in a session",
        default="",
    )
    parser.addini(
        "sqla_shard_lint_max_shards",
        "maximum number of shards of the ids of a statement",
        default="",
    )
    parser.addini(
        "sqla_shard_lint_setup",
        "whether to check statements of fixtures before the test",
        type="bool",
        default=False,
    )


@pytest.fixture
def shard_lint(request: pytest.FixtureRequest) -> ShardLint:
    """Return the linter of this test, and switch it on."""
    item: pytest.Item = request.node
    found = item.stash.get(_LINT, None)
    if found is None:
        raise pytest.UsageError(
            "shard_lint must be an argument of the test or of its fixtures: "
            "getfixturevalue() is too late to lint the test"
        )
    return found


class LintHooks:
    """Lints the tests for which it is switched on.

    It listens from the first of them to the end of the run: threads that
    outlive a test may send statements at any time.
    """

    def __init__(self, config: pytest.Config) -> None:
        for mark in _MARKS:
            config.addinivalue_line("markers", mark)
        self._everywhere = bool(
            config.getoption("--sqla-shard-lint") or config.getini("sqla_shard_lint")
        )
        self._options: dict[str, Any] = {
            name: _number(config, f"sqla_shard_lint_{name}")
            for name in ("max_repeats", "max_shards")
        }
        self._options["setup"] = config.getini("sqla_shard_lint_setup")
        self._current: ShardLint | None = None
        self._listening = False

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Check the marks of all tests."""
        for item in items:
            marks = [*item.iter_markers("sqla_shard_allow")]
            lints = [*item.iter_markers("sqla_shard_lint")]
            if marks or lints:
                _check(item, marks, lints)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(
        self, item: pytest.Item
    ) -> Generator[None, object, object]:
        """Create the linter of a test; check its fixtures if configured."""
        item.stash.setdefault(_LINT, None)
        if not self._wanted(item):
            return (yield)
        options = {k: v for k, v in self._options.items() if v is not None}
        for mark in reversed([*item.iter_markers("sqla_shard_lint")]):
            options.update(mark.kwargs)
        setup = options.pop("setup")
        lint = item.stash[_LINT] = self._linter(item, options)
        with self._checking(lint if setup else None):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Check the test, and fail it if there are findings."""
        lint = item.stash.get(_LINT, None)
        if lint is None:
            return (yield)
        with self._checking(lint):
            result = yield
        text = lint.text()
        if text:
            pytest.fail(f"{text}\n\n{_hint(lint)}", pytrace=False)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Show the findings of a test that has failed."""
        report = yield
        lint = item.stash.get(_LINT, None)
        if lint is not None and call.when == "call" and report.failed:
            text = lint.text()
            if text and text not in report.longreprtext:
                report.sections.append(("sqla_shard lint", text))
        return report

    def pytest_unconfigure(self) -> None:
        """Stop listening."""
        if self._listening:
            from sqlalchemy import event

            from sqla_shard.cluster.cluster import Cluster

            event.remove(Cluster, "after_statement", self._see)
            self._listening = False

    def _wanted(self, item: pytest.Item) -> bool:
        return (
            self._everywhere
            or item.get_closest_marker("sqla_shard_lint") is not None
            or "shard_lint" in getattr(item, "fixturenames", ())
        )

    def _linter(self, item: pytest.Item, options: dict[str, Any]) -> ShardLint:
        from sqla_shard.testing.lint import ShardLint

        allowed = {
            kind for mark in item.iter_markers("sqla_shard_allow") for kind in mark.args
        }
        return ShardLint(allow=allowed, **options)

    @contextmanager
    def _checking(self, lint: ShardLint | None) -> Iterator[None]:
        """Check all statements inside the block with a linter."""
        if not self._listening:
            from sqlalchemy import event

            from sqla_shard.cluster.cluster import Cluster

            event.listen(Cluster, "after_statement", self._see)
            self._listening = True
        self._current = lint
        try:
            yield
        finally:
            self._current = None

    def _see(self, cluster: Any, report: Any) -> None:
        lint = self._current
        if lint is not None:
            lint.see(cluster, report)


_LINT: pytest.StashKey[ShardLint | None] = pytest.StashKey()


def _hint(lint: ShardLint) -> str:
    kinds = dict.fromkeys(finding.kind for finding in lint.findings)
    words = ", ".join(f'"{kind}"' for kind in kinds)
    return f"If it is intended: @pytest.mark.sqla_shard_allow({words})"


def _number(config: pytest.Config, name: str) -> int | None:
    text = str(config.getini(name)).strip()
    if not text:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise pytest.UsageError(f"{name} = {text!r} must be an integer from 1")
    return int(text)


def _check(
    item: pytest.Item, allows: list[pytest.Mark], lints: list[pytest.Mark]
) -> None:
    """Refuse marks that are not valid.

    :raises pytest.UsageError: if a mark is not valid; has the name of the
        test.
    """
    from sqla_shard.testing.lint import KINDS, ShardLint

    for mark in allows:
        unknown = [kind for kind in mark.args if kind not in KINDS]
        if unknown or mark.kwargs or not mark.args:
            raise pytest.UsageError(
                f"{item.nodeid}: sqla_shard_allow takes "
                f"{', '.join(map(repr, KINDS))}; it was given "
                f"{_given(mark)}"
            )
    for mark in lints:
        options = dict(mark.kwargs)
        try:
            if mark.args or not options.keys() <= {*_OPTIONS}:
                raise ValueError(f"it was given {_given(mark)}")
            options.pop("setup", None)
            ShardLint(**options)
        except ValueError as error:
            raise pytest.UsageError(
                f"{item.nodeid}: sqla_shard_lint takes "
                f"{', '.join(f'{name}=' for name in _OPTIONS)}; {error}"
            ) from error


def _given(mark: pytest.Mark) -> str:
    words = [repr(value) for value in mark.args]
    words += [f"{name}={value!r}" for name, value in mark.kwargs.items()]
    return ", ".join(words) or "nothing"
