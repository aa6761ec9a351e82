"""Cache servers for tests are what their documentation says, of either kind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sqla_shard import exc
from sqla_shard.testing.local_server import wait_until
from tests.servers.processes import is_running, sockets_of

_KILLED = """\
import os, signal
from sqla_shard.testing import {name}
server = {name}().start()
print(server.pid, server.directory, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


class CacheServers:
    #: The class of the servers.
    kind: Any
    #: The environment variable with its program, and what finds that.
    variable: str
    find: Any

    def test_it_listens_on_the_local_host_alone_and_never_by_udp(
        self, server: Any
    ) -> None:
        assert sockets_of(server.pid, "tcp") == [f"0100007F:{server.port:04X}"]
        for table in ("tcp6", "udp", "udp6"):
            assert sockets_of(server.pid, table) == []

    def test_says_what_is_wrong_with_options(self) -> None:
        server = self.kind(options=["--no-such-option"])
        with pytest.raises(exc.ServerProcessError, match="while it started"):
            server.start()
        assert server.directory is None
        with pytest.raises(ValueError, match="megabytes=0"):
            self.kind(megabytes=0)

    def test_says_that_its_program_is_missing(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv(self.variable, str(tmp_path / "none"))
        assert type(self).find() is None
        with pytest.raises(exc.ServerProcessError, match="apt-get install"):
            self.kind().start()

    def test_ends_with_the_process_that_started_it(self) -> None:
        program = _KILLED.format(name=self.kind.__name__)
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=False
        )
        pid, directory = done.stdout.split()
        gone = wait_until(lambda: not Path(directory).exists(), seconds=60)
        assert gone, done.stderr
        assert wait_until(lambda: not is_running(int(pid)), seconds=60)
