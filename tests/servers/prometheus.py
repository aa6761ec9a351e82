"""A Prometheus with the alert rules of the repository."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import urlopen

from sqla_shard.testing.local_server import LocalServer
from sqla_shard.testing.plugin import skip_or_fail
from tests.servers.command_line import ROOT

MONITORING = ROOT / "examples" / "monitoring"

_PATIENCE = 60


def require_prometheus() -> None:
    """Skip or fail a test if Prometheus is not installed."""
    if shutil.which("prometheus") is None:
        skip_or_fail("Prometheus is not installed: apt-get install prometheus")


class PrometheusServer(LocalServer):
    """A Prometheus that listens on 127.0.0.1.

    :param targets: address to scrape, by the address in the example.
    :param rules: texts to replace in the rules, such as long times.
    """

    _log_name = "prometheus.log"

    def __init__(
        self, targets: Mapping[str, str], rules: Mapping[str, str], **more: Any
    ) -> None:
        super().__init__(
            "prometheus1",
            **{"parent": None, "start_timeout": 60.0, "stop_timeout": 20.0, **more},
        )
        self._targets = targets
        self._rules = rules

    def _prepare(self, directory: Path) -> None:
        config = (MONITORING / "prometheus.yml").read_text("utf-8")
        for old, new in self._targets.items():
            assert old in config
            config = config.replace(old, new)
        config = config.replace(
            "scrape_interval: 15s", "scrape_interval: 5s\n  scrape_timeout: 5s"
        ).replace("evaluation_interval: 15s", "evaluation_interval: 1s")
        (directory / "prometheus.yml").write_text(config, "utf-8")
        rules = (MONITORING / "alerts.yml").read_text("utf-8")
        rules = re.sub(r"(?m)^( +for:) .*", r"\1 1s", rules)
        for old, new in self._rules.items():
            assert old in rules, old
            rules = rules.replace(old, new)
        (directory / "alerts.yml").write_text(rules, "utf-8")

    def _command(self, directory: Path) -> list[str]:
        return [
            "prometheus",
            f"--config.file={directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--log.level=warn",
        ]

    def _is_ready(self) -> bool:
        try:
            with self._open("/-/ready"):
                return True
        except (URLError, OSError):
            return False

    def _open(self, path: str) -> Any:
        url = f"http://127.0.0.1:{self.port}{path}"
        return urlopen(url, timeout=_PATIENCE)  # of this machine

    def _data(self, path: str) -> Any:
        with self._open(path) as response:
            return json.load(response)["data"]

    def alerts(self) -> set[str]:
        """Return the names of the alerts that fire."""
        return {
            alert["labels"]["alertname"]
            for alert in self._data("/api/v1/alerts")["alerts"]
            if alert["state"] == "firing"
        }

    def names(self) -> set[str]:
        """Return the names of all metrics that were scraped."""
        return set(self._data("/api/v1/label/__name__/values"))

    def rules(self) -> list[dict[str, Any]]:
        """Return the alert rules, with their health."""
        groups = self._data("/api/v1/rules")["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the result of an expression now."""
        found = self._data(f"/api/v1/query?query={quote(expression)}")
        return list(found["result"])
