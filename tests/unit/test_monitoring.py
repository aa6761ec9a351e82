"""Alert rules and the dashboard name metrics that exist."""

from __future__ import annotations

import json
import re

import pytest

from sqla_shard.monitor.metrics import METRICS
from tests.servers.command_line import ROOT
from tests.servers.prometheus import MONITORING

_NAME = re.compile(r"\bsqla_shard_\w+")

#: The series of each metric in Prometheus.
SERIES = {
    series: one
    for one in METRICS.values()
    for series in (
        [f"{one.prometheus_name}_{end}" for end in ("bucket", "sum", "count")]
        if one.kind == "histogram"
        else [one.prometheus_name]
    )
}
RULES = (MONITORING / "alerts.yml").read_text("utf-8")
ALERTS = re.findall(r"(?s)- alert: .*?(?=\n\n|\Z)", RULES)
DASHBOARD = json.loads((MONITORING / "grafana.json").read_text("utf-8"))
EXPRESSIONS = [
    target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]
]


def test_rules_and_dashboard_name_metrics_that_exist():
    for text in (RULES, *EXPRESSIONS):
        assert set(_NAME.findall(text)) <= set(SERIES)


def test_the_dashboard_has_what_operators_look_for():
    shown = {
        SERIES[name].name
        for expression in EXPRESSIONS
        for name in _NAME.findall(expression)
    }
    # Its panels would be too many; others are on the same subject.
    left_out = {
        name
        for name in METRICS
        if name.startswith(("sqla_shard.cache.", "sqla_shard.job."))
    } | {"sqla_shard.queue.unread_servers"}
    assert METRICS.keys() - shown <= left_out


def test_labels_of_expressions_exist():
    """Each label in braces or in by() is one of a metric of the line."""
    added = {"le", "instance", "job", "pid"}
    for expression in EXPRESSIONS:
        known = set(added)
        for name in _NAME.findall(expression):
            known.update(SERIES[name].labels)
        for group in re.findall(r"by \(([^)]*)\)", expression):
            assert set(group.split(", ")) <= known, expression


@pytest.mark.parametrize("rule", ALERTS)
def test_each_rule_has_a_reason(rule):
    assert re.search(r'\n +reason: "[^"]{40,}"', rule), rule
    assert re.search(r"\n +severity: |severity: (page|warn)", rule), rule


def test_the_reference_has_each_metric_with_its_meaning():
    page = (ROOT / "docs" / "reference" / "metrics.rst").read_text("utf-8")
    rows = re.findall(r"\* - ``(sqla_shard_\w+)``\n +- (.+)\n +- (.+)", page)
    assert rows == [
        (
            one.prometheus_name,
            ", ".join(f"``{label}``" for label in one.labels) or "-",
            one.help,
        )
        for one in METRICS.values()
    ]
