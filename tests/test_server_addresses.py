"""Addresses and options of stores on servers: what is refused, and that no error shows a password."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest

from commands import run
from on_servers import KINDS, OnServer
from palimpsest import ConfigError, Memory, StoreUnavailable
from palimpsest.errors import MissingExtra

SECRET = "sesame"

OPTIONS = {
    "postgres": {
        "schema_name=Mine": "schema_name.*lower-case",
        "schema_name=a-b": "schema_name",
        "schema_name=pg_mine": "pg_",
        "schema_name=a&schema_name=b": "schema_name.*once",
        "schema_name=" + "a" * 64: "schema_name",
        "statement_cache_size=few": "statement_cache_size.*whole number",
    },
    "redis": {
        "prefix=a{b": "prefix",
        "prefix=a&prefix=b": "prefix.*once",
        "decode_responses=true": "decode_responses.*prefix, cluster.*ssl_",
        "=x": "text that is no name",
        "ssl_ca_certs=/none": "ssl_ca_certs.*rediss://",
    },
    "mongodb": {},
}
COMMON = {
    "pool_size=0": "pool_size.*1 to 1000",
    "pool_size=1&pool_size=2": "pool_size.*once",
    "timeout_seconds=never": "timeout_seconds.*seconds",
    "timeout_seconds=0": "timeout_seconds.*above 0",
    "readonly=perhaps": "readonly.*true or false",
    "large_bytes=1": "large_bytes.*at least 64",
}
ADDRESSES = {
    "postgres": [
        "postgres:x",
        "postgresql:/me:sesame@host/x",
        "postgresql://me:sesame@host:port/x",
        "postgresql://a:sesame#@b/x",
    ],
    "redis": [
        "redis:x",
        "redis:/me:sesame@host/0",
        "redis://me:sesame@host:port/0",
        "redis://a:sesame#@b/0",
        "redis://me:sesame@host/first",
        "redis://me:sesame@/0",
        "rediss://me:sesame@host/1?cluster=true",
    ],
    "mongodb": [
        "mongodb:x",
        "mongodb:/me:sesame@host/x",
        "mongodb://me:se/same@host:port/x",
        "mongodb://a:sesame@/x",
        "mongodb://a:sesame@host/x?tls=true&tlsCAFile=/none/sesame",
    ],
}
FORMS = {
    "postgres": "user:password@host:5432",
    "redis": "user:password@host:6379|database 0",
    "mongodb": "user:password@host:27017|files that can be read",
}
AWAY = {
    "postgres": ["postgresql://", "?sslmode=nonsense", "?sslmode=require&passfile=/none"],
    "redis": ["redis://", "rediss://", "?cluster=true", "?client_name=agent&socket_keepalive=true"],
    "mongodb": ["mongodb://", "?tls=true", "?retryWrites=false&w=1"],
}

REFUSED = {
    "postgres": ["postgresql://me:sesame@a..b:1/x", f"postgresql://me:sesame@{'a' * 70}.b:1/x", "postgresql://::1:1/x"],
    "redis": [
        "redis://me:sesame@host/0?health_check_interval=often",
        "redis://me:sesame@host/0?cluster=true&socket_connect_timeout=soon",
        "rediss://me:sesame@host/0?ssl_nothing=1",
    ],
    "mongodb": [
        "mongodb://me:sesame@host/x?minPoolSize=100",
        "mongodb+srv://me:sesame@a..b/x",
    ],
}
"""Addresses that no check of ours refuses, and the driver does, as it is about to connect."""


def cases(table: dict[str, dict[str, str]] | dict[str, list[str]]) -> list[tuple[str, str]]:
    """Return each kind of store with each of its cases."""
    return [(kind, one) for kind, several in table.items() for one in several]


@pytest.mark.parametrize(("kind", "query"), cases({kind: OPTIONS[kind] | COMMON for kind in KINDS}))
def test_an_invalid_option_is_named(kind: str, query: str) -> None:
    """An invalid option is refused by name before anything connects, without the password."""
    store = KINDS[kind]

    with pytest.raises(ConfigError, match=(OPTIONS[kind] | COMMON)[query]) as caught:
        Memory.open(f"{store.scheme}://me:{SECRET}@127.0.0.1:1/{store.database}?{query}")

    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seconds", [float("inf"), 1e300, 1e12])
def test_a_timeout_of_any_length_is_accepted(kind: str, seconds: float) -> None:
    """`timeout_seconds` may be longer than a driver can count, or infinite."""
    with Memory.open(KINDS[kind].address_of("patient"), timeout_seconds=seconds) as memory:
        memory.session("s").add_user_message("hello")

        assert len(memory.session("s").entries()) == 1


@pytest.mark.parametrize(("kind", "address"), cases(ADDRESSES))
def test_an_invalid_address_shows_the_form_and_no_password(kind: str, address: str) -> None:
    """An invalid address is refused with the form that addresses have, without its password."""
    with pytest.raises(ConfigError, match=FORMS[kind]) as caught:
        Memory.open(address)

    assert SECRET not in f"{caught.value}{caught.value.__cause__}"


@pytest.mark.parametrize(("kind", "address"), cases(REFUSED))
def test_an_address_refused_by_the_driver_raises_store_unavailable(kind: str, address: str) -> None:
    """What the driver raises about an address becomes StoreUnavailable, which says where to look and shows no login."""
    with pytest.raises(StoreUnavailable, match="look at its host and options") as caught:
        Memory.open(address).session("s").add_user_message("x")

    assert caught.value.written is False
    assert SECRET not in str(caught.value)


@pytest.mark.sampled
@pytest.mark.parametrize(("kind", "how"), cases(AWAY))
def test_an_unreachable_server_is_named_without_its_password(kind: str, how: str) -> None:
    """An unreachable server is named in the error; the password is in no error, cause or representation."""
    store = KINDS[kind]
    scheme, query = (how, "?") if how.endswith("://") else (f"{store.scheme}://", f"{how}&")
    address = f"{scheme}me:{SECRET}@127.0.0.1:1/{store.database}{query}timeout_seconds=1"

    with pytest.raises(StoreUnavailable) as caught:
        Memory.open(address).session("s").add_user_message("x")

    shown, fault = "", caught.value
    while fault is not None:
        shown, fault = f"{shown}{fault!r} {fault}", fault.__cause__ or fault.__context__
    assert "127.0.0.1:1" in str(caught.value)
    assert caught.value.written is False
    assert SECRET not in shown


@pytest.mark.sampled
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_the_cause_of_a_failed_connection_is_reported(kind: str) -> None:
    """If nothing listens at the address the error says so, rather than that time ran out."""
    hasty = "&serverSelectionTimeoutMS=300" if kind == "mongodb" else ""
    address = f"{KINDS[kind].scheme}://127.0.0.1:1/{KINDS[kind].database}?timeout_seconds=20{hasty}"

    try:
        with pytest.raises(StoreUnavailable, match=r"(?i)refused|connect call failed"):
            Memory.open(address).session("s").entries()
    finally:
        gc.collect()  # PyMongo leaves a socket to it when it is closed while it connects


@pytest.mark.parametrize("store", KINDS.values(), ids=KINDS)
def test_a_missing_driver_names_its_extra(store: OnServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its driver a store raises MissingExtra with the extra to install."""
    monkeypatch.setitem(sys.modules, store.driver, None)

    with pytest.raises(MissingExtra, match=rf"palimpsest-memory\[{store.extra}\]"):
        Memory.open(f"{store.scheme}://host/{store.database}")


COMMANDS = [
    ("doctor",),
    ("sessions",),
    ("copy", "ADDRESS", "x.db"),
    ("copy", "there.db", "ADDRESS"),
    ("search", "words"),
    ("index",),
    ("facts",),
    ("sweep",),
    ("vacuum",),
    ("import", "chat.jsonl"),
    ("worker", "--config", "chat.yaml", "--once"),
    ("config", "diff", "chat.yaml"),
    ("memory", "read", "chat", "key", "--config", "chat.yaml"),
]
DECLARED = """
resource: memory
id: chat
type: token_based
max_tokens: 4000
persistence: {{type: {}, url: "{}", ttl: 24h}}
"""


@pytest.mark.sampled
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_command_shows_a_password(
    kind: str, command: tuple[str, ...], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command names an unreachable store without its password, and advises no backup."""
    store = KINDS[kind]
    address = f"{store.scheme}://me:{SECRET}@127.0.0.1:1/{store.database}?timeout_seconds=1"
    monkeypatch.setenv("PALIMPSEST_STORE", address)
    (here / "chat.yaml").write_text(DECLARED.format(kind, address))
    (here / "chat.jsonl").write_text('{"role": "user", "content": "hello"}')
    Memory.open(here / "there.db").close()

    result = run(*(address if part == "ADDRESS" else part for part in command))

    assert result.exit_code
    assert "127.0.0.1:1" in result.output + result.stderr
    assert SECRET not in result.output + result.stderr
    assert "backup" not in result.output


@pytest.mark.parametrize("kind", KINDS)
def test_a_declared_address_is_shown_without_its_password(kind: str, here: Path) -> None:
    """`config` checks and shows a declared address without opening it, and without its password."""
    store = KINDS[kind]
    (here / "chat.yaml").write_text(
        DECLARED.format(kind, f"{store.scheme}://me:{SECRET}@host.internal/{store.database}")
    )

    for command in (("check",), ("show",), ("show", "--json")):
        result = run("config", command[0], "chat.yaml", *command[1:])
        assert result.exit_code == 0
        assert command == ("check",) or "host.internal" in result.output
        assert SECRET not in result.output + result.stderr
