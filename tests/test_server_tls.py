"""Stores on servers behind TLS: the server's certificate is checked before anything is sent."""

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
"""For each server: the scheme of TLS, the option that names the trusted certificate, and further options."""

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # sockets of cut connections


def certificate(folder: Path) -> tuple[Path, Path]:
    """Write a self-signed certificate for 127.0.0.1 and its key, and return the two files."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    alternative_name = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(hours=1))
    builder = builder.add_extension(alternative_name, critical=False).add_extension(
        x509.BasicConstraints(True, None), critical=True
    )
    files = folder / "server.pem", folder / "server.key"
    files[0].write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    files[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, *plain))
    return files


@pytest.fixture(params=HOW)
def behind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Yield the address of an empty store behind TLS, and the option that trusts its certificate."""
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
    gc.collect()  # a driver leaves sockets of failed handshakes to the garbage collector


def test_a_trusted_server_is_used_over_tls(behind: tuple[str, str]) -> None:
    """A server whose certificate is trusted is used like any other."""
    address, trusts = behind

    with Memory.open(f"{address}&{trusts}") as memory:
        session = memory.session("s")
        session.add_user_message("secret")
        assert [entry.text for entry in session.entries()] == ["secret"]


@pytest.mark.wide
def test_an_untrusted_server_is_sent_nothing(behind: tuple[str, str]) -> None:
    """An untrusted server raises an error that says why and that nothing was written."""
    address, _ = behind

    with (
        pytest.raises(StoreUnavailable, match=r"(?i)certificate verify failed") as caught,
        Memory.open(address) as memory,
    ):
        memory.session("s").add_user_message("secret")

    assert caught.value.written is False


def test_postgres_is_a_scheme_too() -> None:
    """`postgres:

    ` names the same store as `postgresql:

    `.
    """
    address = KINDS["postgres"].address_of("scheme")
    with Memory.open(address) as memory:
        memory.session("s").add_user_message("one")

    with Memory.open(with_options(address.replace("postgresql://", "postgres://"))) as memory:
        assert [entry.text for entry in memory.session("s").entries()] == ["one"]
