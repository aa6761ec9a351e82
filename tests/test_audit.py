"""The dependencies are audited, whatever the service of advisories says."""

from __future__ import annotations

import http.server
import importlib.util
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
TIME = "2026-01-01T00:00:00Z"

pytestmark = pytest.mark.skipif(
    not importlib.util.find_spec("pip_audit"),
    reason="pip-audit is not installed: pip install --group audit",
)


class Service:
    """Knows of vulnerabilities of the packages that it is given."""

    def __init__(self) -> None:
        self.vulnerable = {"flask==0.12"}
        self.asked: set[str] = set()
        service = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                size = int(self.headers["Content-Length"])
                query = json.loads(self.rfile.read(size))
                body = json.dumps(service.answer(query)).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: Any) -> None:
                """Log nothing; requests are recorded."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/query"

    def answer(self, query: Any) -> Any:
        name, version = query["package"]["name"], query["version"]
        self.asked.add(f"{name}=={version}")
        if f"{name}=={version}" not in self.vulnerable:
            return {}
        affected = {"package": query["package"], "versions": [version]}
        return {
            "vulns": [
                {
                    "id": "PYSEC-1",
                    "modified": TIME,
                    "published": TIME,
                    "summary": "It is one.",
                    "affected": [affected],
                }
            ]
        }


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    thread = threading.Thread(target=service.server.serve_forever)
    thread.start()
    try:
        yield service
    finally:
        service.server.shutdown()
        thread.join()
        service.server.server_close()


@pytest.fixture
def requirements(tmp_path: Path) -> Path:
    path = tmp_path / "requirements.txt"
    path.write_text(
        "".join(
            f"{pin} --hash=sha256:{'0' * 64}\n" for pin in ("one==1.0", "other==2.0")
        )
    )
    return path


def audit(path: Path, url: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*(sys.executable, "-m", "tests.audit", "--osv-url", url), str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_asks_for_each_package(service: Service, requirements: Path) -> None:
    done = audit(requirements, service.url)
    assert done.returncode == 0, done.stdout + done.stderr
    assert service.asked == {"flask==0.12", "one==1.0", "other==2.0"}
    assert "no known vulnerabilities" in done.stdout


def test_a_vulnerability_is_a_failure(service: Service, requirements: Path) -> None:
    service.vulnerable.add("other==2.0")
    done = audit(requirements, service.url)
    assert done.returncode == 1
    assert "PYSEC-1" in done.stdout
    assert "other" in done.stdout


def test_a_service_that_says_nothing_is_named(
    service: Service, requirements: Path
) -> None:
    service.vulnerable.clear()
    done = audit(requirements, service.url)
    assert done.returncode == 0
    assert f"NO AUDIT of the dependencies: {service.url}" in done.stdout


def test_a_service_that_cannot_be_reached_is_named(
    service: Service, requirements: Path
) -> None:
    url = service.url
    service.server.server_close()
    done = audit(requirements, url)
    assert done.returncode == 0
    assert f"NO AUDIT of the dependencies: {url} says" in done.stdout


def test_a_file_that_cannot_be_read_is_a_failure(
    service: Service, requirements: Path
) -> None:
    requirements.write_text("one>=1.0\n")
    done = audit(requirements, service.url)
    assert done.returncode == 1
    assert "FAILED" in done.stdout
