"""Stores on servers behind an encrypted connection: who the server is is checked, and whoever it is not is told."""

from __future__ import annotations

import gc
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from on_servers import KINDS
from palimpsest import Memory, StoreUnavailable
from proxy import network
from servers import with_options

pytest.importorskip("cryptography", reason="the extra `encryption`, which makes certificates here, is not installed")

HOW = {
    "redis": ("rediss", "ssl_ca_certs", {}),
    "mongodb": (
        "mongodb",
        "tlsCAFile",
        {"tls": "true", "directConnection": "true", "serverSelectionTimeoutMS": "3000"},
    ),
}
"""The scheme of an encrypted connection, the option that names whom to trust, and what else is said."""

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # sockets of cut connections


def certificate(folder: Path) -> tuple[Path, Path]:
    """The files of a certificate of this machine, which nobody else has signed, and of its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    here = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    made = made.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(hours=1))
    made = made.add_extension(here, critical=False).add_extension(x509.BasicConstraints(True, None), critical=True)
    files = folder / "server.pem", folder / "server.key"
    files[0].write_bytes(made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    files[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, *plain))
    return files


@pytest.fixture(params=HOW)
def behind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The address of an empty store behind an encrypted connection, and the option that says whom to trust."""
    scheme, trusts, more = HOW[request.param]
    plain = KINDS[request.param].address_of("tls", timeout_seconds=5, **more)
    port = urlsplit(plain).port
    assert port is not None
    whole, key = certificate(tmp_path)
    speaks = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    speaks.load_cert_chain(whole, key)
    with network(port, speaks) as between:
        address = plain.replace(f":{port}/", f":{between.port}/")
        yield address.replace(f"{urlsplit(address).scheme}://", f"{scheme}://"), f"{trusts}={whole}"
    gc.collect()  # a driver leaves a socket to it whose handshake has failed


def test_an_encrypted_connection_is_one_like_any_other(behind: tuple[str, str]) -> None:
    """Where the server is who it is to be."""
    address, trusts = behind

    with Memory.open(f"{address}&{trusts}") as memory:
        session = memory.session("s")
        session.add_user_message("secret")
        assert [entry.text for entry in session.entries()] == ["secret"]


@pytest.mark.wide
def test_a_server_that_is_nobody_s_to_trust_is_told_nothing(behind: tuple[str, str]) -> None:
    """The error says why, and that nothing was written."""
    address, _ = behind

    with (
        pytest.raises(StoreUnavailable, match=r"(?i)certificate verify failed") as caught,
        Memory.open(address) as memory,
    ):
        memory.session("s").add_user_message("secret")

    assert caught.value.written is False


def test_postgres_is_a_scheme_too() -> None:
    """`postgres://` is the same store as `postgresql://`."""
    address = KINDS["postgres"].address_of("scheme")
    with Memory.open(address) as memory:
        memory.session("s").add_user_message("one")

    with Memory.open(with_options(address.replace("postgresql://", "postgres://"))) as memory:
        assert [entry.text for entry in memory.session("s").entries()] == ["one"]
