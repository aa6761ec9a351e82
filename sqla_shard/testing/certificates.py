"""Certificates for a TLS server of the tests: valid for days, made anew.

Made by the program ``openssl`` 3.0 or later, in a few hundredths of a second.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from sqla_shard import exc

__all__ = ["Certificates", "make_certificates"]

# Not that of the system, whose extensions differ from one to the next.
_SETTINGS = """
[req]
distinguished_name = name
prompt = no
[name]
[authority]
basicConstraints = critical,CA:TRUE
keyUsage = critical,keyCertSign
subjectKeyIdentifier = hash
[end]
basicConstraints = critical,CA:FALSE
keyUsage = critical,digitalSignature
extendedKeyUsage = serverAuth,clientAuth
subjectAltName = IP:127.0.0.1,DNS:localhost
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """Paths of PEM files.

    :ivar ca: certificate of the authority that has signed both others.
    :ivar certificate: of a client.
    :ivar key: of a client, not encrypted.
    :ivar server: certificate and key of the server, for 127.0.0.1 and
        localhost.
    """

    ca: Path
    certificate: Path
    key: Path
    server: Path


def make_certificates(directory: Path) -> Certificates:
    """Make an authority, and by it a server's and a client's certificate.

    :param directory: made if need be.
    :raises sqla_shard.exc.ServerProcessError: if ``openssl`` is missing or
        fails.
    """
    directory.mkdir(mode=0o700, exist_ok=True)
    settings = directory / "openssl.cnf"
    settings.write_text(_SETTINGS)
    ca, ca_key = _make(settings, "authority")
    signed = ["-CA", str(ca), "-CAkey", str(ca_key)]
    certificate, key = _make(settings, "client", *signed)
    server, server_key = _make(settings, "server", *signed)
    both = directory / "store.pem"
    both.touch(mode=0o600)
    both.write_text(server_key.read_text() + server.read_text())
    return Certificates(ca=ca, certificate=certificate, key=key, server=both)


def _make(settings: Path, name: str, *signed: str) -> tuple[Path, Path]:
    certificate = settings.with_name(f"{name}.pem")
    key = settings.with_name(f"{name}.key")
    program = shutil.which("openssl")
    if program is None:
        raise exc.ServerProcessError(
            "openssl is not installed: apt-get install openssl", log=""
        )
    done = subprocess.run(
        [
            *(program, "req", "-x509", "-config", str(settings)),
            *("-extensions", "end" if signed else "authority"),
            *("-subj", f"/CN={name} of a test", "-days", "7", *signed),
            *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-nodes", "-keyout", str(key), "-out", str(certificate)),
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise exc.ServerProcessError(
            f"openssl ended with status {done.returncode}", log=done.stderr
        )
    return certificate, key
