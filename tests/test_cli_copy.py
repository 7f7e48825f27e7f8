"""`palimpsest copy`: what it says of a copy that is there already, and of one that has gone on."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands import run
from palimpsest import Memory


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    """Two addresses; there is a session at the first one."""
    one, other = f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/b.db"
    with Memory.open(one) as memory:
        memory.session("s").add_user_message("hello")
    return one, other


def test_a_copy_that_is_there_is_told(pair: tuple[str, str]) -> None:
    """In a sentence, for one session as for several."""
    assert run("copy", *pair).stdout == "Copied 1 session and 0 items of 1 tenant.\n"

    again = run("copy", *pair)

    assert again.stdout == "Copied 1 session and 0 items of 1 tenant. 1 of them was there already.\n"


def test_a_session_that_has_gone_on_is_replaced_where_that_is_said(pair: tuple[str, str]) -> None:
    """Otherwise it is an error, which names what to say."""
    run("copy", *pair)
    with Memory.open(pair[0]) as memory:
        memory.session("s").add_user_message("more")

    refused = run("copy", *pair)

    assert (refused.exit_code, "say `replace`" in refused.output) == (4, True)
    assert run("copy", *pair, "--replace").exit_code == 0
    with Memory.open(pair[1]) as memory:
        assert [entry.text for entry in memory.session("s").entries()] == ["hello", "more"]


def test_a_tenant_before_the_command_is_copied_alone(pair: tuple[str, str]) -> None:
    """And one that the source does not have is an error, before as behind."""
    with Memory.open(pair[0], tenant="acme") as memory:
        memory.session("mine").add_user_message("hello")

    assert run("--tenant", "acme", "copy", *pair).stdout == "Copied 1 session and 0 items of 1 tenant.\n"

    with Memory.open(pair[1]) as memory:
        assert memory.sessions() == []
        assert [one.session for one in memory.for_tenant("acme").sessions()] == ["mine"]
    assert run("--tenant", "acne", "copy", *pair).exit_code == 2


def test_a_copy_does_not_seem_to_heed_a_policy(pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes nothing out: it refuses the option, and says so of the variable, which is for all commands."""
    for option in ("--privacy", "--store"):
        refused = run(option, "default", "copy", *pair)
        assert (refused.exit_code, f"{option} has no place before `copy`" in refused.stderr) == (2, True)
    assert not Path(pair[1].removeprefix("sqlite:///")).exists()
    monkeypatch.setenv("PALIMPSEST_PRIVACY", "default")
    copied = run("copy", *pair)
    assert (copied.exit_code, "takes nothing out of a copy" in copied.stderr) == (0, True)
