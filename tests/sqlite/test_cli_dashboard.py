"""The program ``sqla-shard dashboard``."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from http.client import HTTPConnection, HTTPResponse

import pytest

from sqla_shard import Cluster
from sqla_shard.monitor.dashboard import Observer, pages
from sqla_shard.testing import sqlite_topology
from tests.servers.command_line import ROOT
from tests.servers.dashboard_scene import Base

#: Seconds until it must have started, or ended.
PATIENCE = 120.0


@pytest.fixture
def folder(tmp_path):
    document = sqlite_topology(tmp_path / "data", 2, 8)
    (tmp_path / "topology.json").write_text(json.dumps(document))
    with Cluster.from_topology(document) as cluster:
        cluster.create_all(Base.metadata)
    return tmp_path


def requested(address: str, path: str) -> HTTPResponse:
    connection = HTTPConnection(address.removeprefix("http://"), timeout=60)
    connection.request("GET", path)
    answer = connection.getresponse()
    assert answer.status == 200
    return answer


def test_it_serves_until_it_is_ended(folder):
    arguments = "-t topology.json dashboard --port 0 --allow-changes"
    program = subprocess.Popen(
        [
            *(sys.executable, "-m", "sqla_shard.cli", *arguments.split()),
            *("--models", "tests.servers.dashboard_scene"),
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert program.stdout is not None
        address = program.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:"), program.communicate()
        page = requested(address, "/explain").read().decode()
        assert "over Board, Pin" in page
        # A browser that listens does not keep it alive.
        stream = requested(address, "/events?topic=jobs")
        assert stream.readline() == b"retry: 2000\n"
        program.send_signal(signal.SIGTERM)
        assert program.wait(PATIENCE) == 0
        stream.close()
    finally:
        program.kill()
        out, _ = program.communicate()
    assert out == ""


def test_half_a_request_does_not_hold_a_thread(folder, monkeypatch):
    monkeypatch.setattr(pages._Quiet, "timeout", 0.1)
    with Cluster.from_file(folder / "topology.json") as cluster:
        server = pages.DashboardServer(Observer(cluster))
        thread = threading.Thread(target=server.serve)
        thread.start()
        try:
            address = ("127.0.0.1", int(server.address.rpartition(":")[2]))
            with socket.create_connection(address, timeout=PATIENCE) as half:
                half.sendall(b"GET / HTT")
                assert half.recv(1) == b""
        finally:
            server.close()
            thread.join()
