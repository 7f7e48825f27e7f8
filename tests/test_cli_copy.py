"""`palimpsest copy`: copying again, replacing, tenants, and options that it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands import run
from palimpsest import Keys, Memory


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    """Return the addresses of two stores, of which the first has a session."""
    one, other = f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/b.db"
    with Memory.open(one) as memory:
        memory.session("s").add_user_message("hello")
    return one, other


def test_copying_again_reports_what_exists(pair: tuple[str, str]) -> None:
    """Copying again says how many sessions the target had already."""
    assert run("copy", *pair).stdout == "Copied 1 session and 0 items of 1 tenant.\n"

    again = run("copy", *pair)

    assert again.stdout == "Copied 1 session and 0 items of 1 tenant. 1 of them was there already.\n"


def test_a_session_that_has_grown_is_replaced_only_with_replace(pair: tuple[str, str]) -> None:
    """A session that has grown since the last copy is an error that names `replace`, unless `--replace` is given."""
    run("copy", *pair)
    with Memory.open(pair[0]) as memory:
        memory.session("s").add_user_message("more")

    refused = run("copy", *pair)

    assert (refused.exit_code, "give `replace`" in refused.output) == (4, True)
    assert run("copy", *pair, "--replace").exit_code == 0
    with Memory.open(pair[1]) as memory:
        assert [entry.text for entry in memory.session("s").entries()] == ["hello", "more"]


def test_a_tenant_before_the_command_is_the_only_one_copied(pair: tuple[str, str]) -> None:
    """`--tenant` before `copy` copies that tenant alone; a tenant unknown to the source exits with 2."""
    with Memory.open(pair[0], tenant="acme") as memory:
        memory.session("mine").add_user_message("hello")

    assert run("--tenant", "acme", "copy", *pair).stdout == "Copied 1 session and 0 items of 1 tenant.\n"

    with Memory.open(pair[1]) as memory:
        assert memory.sessions() == []
        assert [one.session for one in memory.for_tenant("acme").sessions()] == ["mine"]
    assert run("--tenant", "acne", "copy", *pair).exit_code == 2


def test_copy_refuses_a_privacy_policy(pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """`copy` redacts nothing: it refuses `--privacy`, and warns if PALIMPSEST_PRIVACY is set."""
    for option in ("--privacy", "--store"):
        refused = run(option, "default", "copy", *pair)
        assert (refused.exit_code, f"{option} cannot be given before `copy`" in refused.stderr) == (2, True)
    assert not Path(pair[1].removeprefix("sqlite:///")).exists()
    monkeypatch.setenv("PALIMPSEST_PRIVACY", "default")
    copied = run("copy", *pair)
    assert (copied.exit_code, "does not redact a copy" in copied.stderr) == (0, True)


def test_copy_says_that_it_does_not_encrypt(pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """`copy` encrypts nothing: it says so if PALIMPSEST_KEY is set."""
    monkeypatch.setenv("PALIMPSEST_KEY", f"a:{Keys.new()}")
    copied = run("copy", *pair)
    assert (copied.exit_code, "PALIMPSEST_KEY does not encrypt a copy" in copied.stderr) == (0, True)
