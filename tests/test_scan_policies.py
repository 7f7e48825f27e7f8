"""Scans by kind of policy: withheld, pseudonymous and uncheckable entries, and data derived from them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from marked_sessions import PLACES, POLICY, everything, left_in, opened, session_of
from palimpsest import ConfigError, Redactor, Span
from palimpsest.errors import ErasureFailed
from palimpsest.strategies import CallableSummarizer
from processes import remains
from sealed import bytes_of

KEY = b"a key of thirty-two bytes, it is"
NUMBERED = {"recognisers": {"email": "pseudonym"}}


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> str:
    """Each kind of store."""
    kind: str = request.param
    return kind


@pytest.fixture(params=[kind for kind in PLACES if not kind.endswith("memory")])
def disk(request: pytest.FixtureRequest) -> str:
    """Each kind of store that can be opened again."""
    kind: str = request.param
    return kind


# --- withholding


def test_withheld_types_are_erased_and_results_become_stubs(place: str, tmp_path: Path) -> None:
    """Entries of a withheld type are tombstones in every branch; a result keeps its call answered."""
    policy = {"non_persistable_message_types": ["health"]}
    with opened(place, tmp_path) as memory:
        session = session_of(memory)
        session.add_user_message("zq100secret", metadata={"type": "health"})
        session.add_tool_call("look_up", {}, call_id="c")
        session.add_tool_result(None, "zq101secret", call_id="c", metadata={"tags": ["Health"]})
        session.add_assistant_message("fine")
        branch = session.fork("branch")

        found = memory.scan(policy)
        done = memory.scan(policy, apply=True)

        assert (found.withheld, found.redacted) == (4, 0)
        assert 2 <= done.withheld <= 4  # an erasure reaches the branch, and in SQLite so does a rewriting
        assert found.findings == {}
        for chat in (session, branch):
            assert [entry.erased for entry in chat.entries()] == [True, False, False, False]
            assert chat.entry(3).text == "[REDACTED]"
            assert [m["role"] for m in chat.context().messages] == ["assistant", "tool", "assistant"]
            assert chat.verify().problems == ()
        assert left_in(everything(memory)) == []
        assert b"secret" not in bytes_of(tmp_path)
        assert memory.scan(policy, apply=True).redacted == 0


def test_summaries_of_withheld_entries_are_made_again(place: str, tmp_path: Path) -> None:
    """A summary that covered a withheld entry loses its words in every version, and comes back without it."""
    with opened(place, tmp_path) as memory:
        session = session_of(
            memory, summarizer=CallableSummarizer(lambda _: "About zq100secret, and the harbour.", checked=False)
        )
        for number in range(5):
            metadata = {"type": "health"} if number == 1 else None
            session.add_user_message(f"{number} zq100secret " + "words " * 60, metadata=metadata)
            session.add_assistant_message(f"The harbour opens at {number}. " + "words " * 60)
        session.compact({"strategy": "summarizer", "interaction_keep": 1, "cod_max_loops": 0, "summary_floor": 10})

        memory.scan({**POLICY, "non_persistable_message_types": ["health"]}, apply=True)

        assert left_in(everything(memory)) == []
        (made,) = session.summaries()
        assert made.text
        assert made.version > 0
        assert session.verify().problems == ()


# --- pseudonyms


def test_a_scan_continues_the_sessions_pseudonym_numbers(disk: str, tmp_path: Path) -> None:
    """A pseudonym has the number that the session gave out, new ones come behind, and writing goes on with them."""
    with opened(disk, tmp_path, privacy=Redactor(NUMBERED, key=KEY)) as memory:
        session_of(memory).add_user_message("from a@example.com")
    with opened(disk, tmp_path) as memory:
        session_of(memory).add_user_message("b@example.com to a@example.com, B@example.com")
    with opened(disk, tmp_path, privacy=Redactor(NUMBERED, key=KEY)) as memory:
        memory.scan(apply=True)

        session = session_of(memory)
        session.add_user_message("c@example.com, b@example.com")
        assert [entry.text for entry in session.entries()] == [
            "from [EMAIL_1]",
            "[EMAIL_2] to [EMAIL_1], [EMAIL_2]",
            "[EMAIL_3], [EMAIL_2]",
        ]
        assert b"example.com" not in bytes_of(tmp_path)


def test_one_pseudonym_never_means_two_values_in_branches(disk: str, tmp_path: Path) -> None:
    """A shared entry gets pseudonyms behind those that its branches have given out."""
    with opened(disk, tmp_path) as memory:
        session_of(memory).add_user_message("first@example.com")
        session_of(memory).fork("branch")
        session_of(memory).fork("third")
    with opened(disk, tmp_path, privacy=Redactor(NUMBERED, key=KEY)) as memory:
        session_of(memory, "branch").add_user_message("other@example.com")
        memory.scan(apply=True)
        session_of(memory).add_user_message("new@example.com")
        session_of(memory, "third").add_user_message("another@example.com")

        for name in ("one", "branch", "third"):
            texts = [entry.text for entry in session_of(memory, name).entries()]
            assert len(set(texts)) == 2, texts


def test_a_number_used_differently_in_two_branches_is_not_used_in_shared_entries(disk: str, tmp_path: Path) -> None:
    """A number that two branches use for different values is used for neither in shared entries."""
    redactor = Redactor(NUMBERED, key=KEY)
    with opened(disk, tmp_path) as memory:
        session_of(memory, "b").add_user_message("x@example.com and y@example.com")
        session_of(memory, "b").fork("a")
        session_of(memory, "b").fork("c")
    with opened(disk, tmp_path, privacy=redactor) as memory:
        session_of(memory, "a").add_user_message("y@example.com")
        session_of(memory, "c").add_user_message("z@example.com")
        memory.scan(apply=True)
        for name in ("a", "b", "c"):
            session_of(memory, name).add_user_message("w@example.com")

        for name in ("a", "b", "c"):
            shared, *own = [entry.text for entry in session_of(memory, name).entries()]
            x, y = shared.split(" and ")
            assert x != y
            assert own[-1] not in (x, y, *own[:-1])
            assert name != "c" or own[0] not in (x, y)
            assert name != "a" or own[0] != x
        assert memory.scan().findings == {}


# --- what cannot be done


def test_entries_that_cannot_be_checked_are_reported_and_left(place: str, tmp_path: Path) -> None:
    """A recogniser that fails for one entry, or one summary, keeps the rest from nothing."""

    def fails(text: str) -> list[Span]:
        if "unreadable" in text:
            raise RuntimeError(f"cannot read {text}")
        at = text.find("zq")
        return [Span(at, at + 11, "word")] if at >= 0 else []

    with opened(place, tmp_path) as memory:
        session = session_of(memory)
        for number in range(30):
            session.add_user_message(f"zq{number + 100}secret" + (" unreadable" if number % 2 else ""))
        session.erase([session.add_user_message("x").id], reason="unreadable")

        done = memory.scan({"recognisers": [fails]}, apply=True)

        assert done.redacted == 15
        assert [one.place for one in done.refused] == [*(f"entry {seq}" for seq in range(2, 31, 2)), "record 32"]
        assert "fails" in done.refused[0].why
        assert left_in(repr(done)) == []
        texts = [entry.text for entry in session.entries()]
        assert texts[0::2][:15] == ["[REDACTED]"] * 15
        assert all("unreadable" in text for text in texts[1::2][:15])


def test_a_read_only_memory_finds_but_does_not_redact(tmp_path: Path) -> None:
    """Scanning needs no right to write, redacting is refused before anything is looked at."""
    with opened("sqlite", tmp_path) as memory:
        session_of(memory).add_user_message("zq100secret")
    with opened("sqlite", tmp_path, readonly=True) as memory:
        assert memory.scan(POLICY).entries == 1
        with pytest.raises(ConfigError, match=r"apply.*readonly=True"):
            memory.scan(POLICY, apply=True)


def test_a_damaged_entry_is_reported_and_the_rest_redacted(tmp_path: Path) -> None:
    """A damaged entry is reported, stays, and does not stop the scan."""
    import sqlite3

    with opened("sqlite", tmp_path) as memory:
        session = session_of(memory)
        for number in range(5):
            session.add_user_message(f"zq{number + 100}secret")
    db = sqlite3.connect(tmp_path / "a.db")
    with db:
        db.execute("UPDATE entry SET value = '{' WHERE pos & 4294967295 = 3")
    db.close()
    with opened("sqlite", tmp_path) as memory:
        done = memory.scan(POLICY, apply=True)

        assert [(one.session, one.place) for one in done.refused] == [("one", "entry 3")]
        assert [session_of(memory).entry(seq).text for seq in (1, 2, 4, 5)] == ["[REDACTED]"] * 4
    assert remains(tmp_path / "a.db").count(b"secret") == 0


class Index:
    """Derived data that records what it is told."""

    name = "index"

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []
        self.fails = False

    async def erased(self, _: str, session: str, entries: Mapping[int, str]) -> int:
        """Drop what was derived from these entries."""
        if self.fails:
            raise OSError("away")
        self.told += [(session, seq) for seq in entries]
        return len(entries)

    async def gone(self, _: str, __: str) -> int:
        """Drop what was derived from a session."""
        return 0


def test_derived_data_is_told_before_entries_are_redacted(place: str, tmp_path: Path) -> None:
    """Derived data is told of changed entries in every branch before they change; if it fails, nothing changes."""
    with opened(place, tmp_path) as memory:
        index = Index()
        memory.derive(index)
        session = session_of(memory)
        for text in ("clean", "zq100secret", "zq101secret"):
            session.add_user_message(text)
        session.fork("branch")
        index.fails = True
        with pytest.raises(ErasureFailed):
            memory.scan(POLICY, apply=True)
        assert session.entry(2).text == "zq100secret"
        index.fails = False

        memory.scan(POLICY, apply=True)

        assert set(index.told) == {("one", 2), ("one", 3), ("branch", 2), ("branch", 3)}
        assert left_in(everything(memory)) == []
