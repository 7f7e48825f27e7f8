"""Redaction after the fact: a scan finds, shows and redacts what a new policy would have redacted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from marked_sessions import PATTERN, PLACES, POLICY, Words, everything, left_in, opened, play, session_of
from palimpsest import AsyncMemory, ConfigError, Conflict, Entry, Memory, Redactor, Session, SessionNotFound
from palimpsest.runtime.runner import drive
from palimpsest.stores import Store
from palimpsest.strategies import SourceSummarizer
from palimpsest.tokens.counter import encoding
from private_messages import export
from sealed import address, bytes_of


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


def facts(memory: Memory) -> list[Any]:
    """Return what redaction leaves alone: ids, seqs, times and links of entries, and the head's view of the log."""
    found: list[Any] = []
    for one in memory.sessions():
        session = session_of(memory, one.session)
        head = drive(memory.store.head(session.options.key))
        assert head is not None
        found.append((one.session, head.next_seq, head.erased, head.rewound, head.compaction, head.turns, head.pinned))
        found += [
            (e.id, e.seq, e.kind, e.role, e.at, e.turn, e.group, e.answers) for e in session.entries(rewound=True)
        ]
        found += [(made.id, made.covers, made.revision) for made in session.summaries(history=True)]
    return found


# --- looking


def test_a_scan_knows_secrets_of_a_session_by_their_names(place: str, tmp_path: Path) -> None:
    """A scan redacts titles and metadata of a session as they would be redacted when given, by key, too."""
    said = {"password": "hunter2", "pin": {"api_key": "abc"}, "card": 4111111111111111, "kind": "web"}
    with opened(place, tmp_path) as memory:
        session = memory.session("one", title="about ann@example.org", metadata=said)
        session.add_user_message("hello")

        found = memory.scan("default", apply=True)

        assert (found.findings["credential", "metadata"], found.findings["card", "metadata"]) == (2, 1)
        assert memory.info("one").metadata == Redactor("default").value(said)
        assert memory.info("one").title == "about [REDACTED]"
        assert not memory.scan("default").findings


def test_a_scan_finds_everything_and_changes_nothing(place: str, tmp_path: Path) -> None:
    """Without `apply` all places are found, by kind and place, and the store is as it was."""
    with opened(place, tmp_path) as memory:
        play(memory, Words())
        before = (memory.sessions(), facts(memory), left_in(everything(memory)))

        found = memory.scan(POLICY)

        assert (found.sessions, found.redacted, found.refused) == (2, 0, ())
        assert found.entries > 10
        assert found.summaries == 2
        places = {where for _, where in found.findings}
        assert places == {"content", "arguments", "name", "metadata", "native", "summary", "reason", "condition"}
        assert (memory.sessions(), facts(memory), left_in(everything(memory))) == before


def test_samples_show_place_and_redacted_text(tmp_path: Path) -> None:
    """A sample names session, entry or summary, kind and place, with redacted text around it."""
    with opened("memory", tmp_path) as memory:
        session = session_of(memory)
        session.add_user_message(f"Long before it, {'x' * 100} and the word zq100secret stands here. {'y' * 100}")
        session.add_user_message("zq101secret", metadata={"note": "zq102secret"})

        samples = memory.scan(POLICY).samples

        assert [(s.session, s.where, s.kind, s.place) for s in samples] == [
            ("one", 1, "redact_patterns[0]", "content"),
            ("one", 2, "redact_patterns[0]", "metadata"),
            ("one", 2, "redact_patterns[0]", "content"),
        ]
        assert samples[0].text.startswith("…")
        assert "and the word [REDACTED] stands here." in samples[0].text
        assert all(len(sample.text) < 70 for sample in samples)
        assert samples[1].text == '{"note": "[REDACTED]"}'
        assert len(memory.scan(POLICY, sample=1).samples) == 1
        assert memory.scan(POLICY, sample=0).samples == ()


def test_nothing_private_is_in_what_a_scan_reports(place: str, tmp_path: Path) -> None:
    """A scan's report contains nothing private, dry or applied."""
    with opened(place, tmp_path) as memory:
        play(memory, Words())

        assert left_in(repr(memory.scan(POLICY, sample=1000))) == []
        assert left_in(repr(memory.scan(POLICY, sample=1000, apply=True))) == []


def test_a_scan_uses_the_given_policy_or_the_memorys(tmp_path: Path) -> None:
    """A preset's name, a mapping, a policy and a redactor are taken; without one it is the memory's; else an error."""
    with opened("file", tmp_path) as memory:
        session_of(memory).add_user_message("zq100secret of jane@example.com")
        for given in ("default", {"recognisers": "email"}, Redactor({"recognisers": ["email"]})):
            assert memory.scan(given).findings == {("email", "content"): 1}
        with pytest.raises(ConfigError, match="privacy"):
            memory.scan()
        with pytest.raises(ConfigError, match="sample"):
            memory.scan(POLICY, sample=-1)
        with pytest.raises(ConfigError, match="apply"):
            memory.scan(POLICY, apply="yes")  # type: ignore[arg-type]
        with pytest.raises(SessionNotFound):
            memory.scan(POLICY, session="two")
    with opened("file", tmp_path, privacy=POLICY) as memory:
        assert memory.scan().findings == {("redact_patterns[0]", "content"): 1}


# --- redacting


def test_found_texts_are_gone_after_apply(place: str, tmp_path: Path) -> None:
    """After `apply` no export, context, record, head or byte of the files has a found text."""
    word = Words()
    with opened(place, tmp_path) as memory:
        play(memory, word)
        assert left_in(everything(memory)) == sorted(word.used)
        before = facts(memory)

        done = memory.scan(POLICY, apply=True)

        assert left_in(everything(memory)) == []
        assert facts(memory) == before
        assert done.redacted > 10
        assert done.remains == ()
        stored = bytes_of(tmp_path)
        assert [marker for marker in word.used if marker.encode() in stored] == []
        assert b"[REDACTED]" in stored or place.startswith("sealed") or place == "memory"


def test_private_text_of_an_import_is_redacted_in_every_place(disk: str, tmp_path: Path) -> None:
    """A scan redacts private text wherever a foreign or old export may have it, names of strategies included."""
    marker = "zq100secret"
    with opened(disk, tmp_path) as memory:
        memory.import_session(export(marker), session_id="one")
        session_of(memory, view=f"of {marker}", max_tokens=900).context()

        done = memory.scan(POLICY, apply=True)

        assert {place for _, place in done.findings} >= {"view", "strategy", "condition", "counter", "summary"}
        assert done.refused == ()
        assert left_in(everything(memory)) == []
        assert memory.scan(POLICY).findings == {}
        assert session_of(memory).verify().problems == ()
    assert marker.encode() not in bytes_of(tmp_path)


def test_a_private_user_id_is_reported_and_stays(place: str, tmp_path: Path) -> None:
    """The id of a user cannot be redacted, since sessions are found by it: a scan says so until it is another."""
    with opened(place, tmp_path) as memory:
        session = session_of(memory)
        session.add_user_message("hello")
        session.describe(user="zq100secret")

        for found in (memory.scan(POLICY), memory.scan(POLICY, apply=True)):
            assert [(one.place, "describe" in one.why) for one in found.refused] == [("about", True)]
            assert "zq100secret" not in repr(found)
        assert session.info().user == "zq100secret"
        session.describe(user=None)

        assert memory.scan(POLICY).refused == ()


def test_a_second_scan_finds_nothing(place: str, tmp_path: Path) -> None:
    """A second scan finds and writes nothing."""
    with opened(place, tmp_path) as memory:
        play(memory, Words())
        memory.scan(POLICY, apply=True)
        revisions = [one.revision for one in memory.sessions()]

        again = memory.scan(POLICY, apply=True)

        assert (again.findings, again.redacted, again.samples) == ({}, 0, ())
        assert [one.revision for one in memory.sessions()] == revisions


def test_a_redaction_begins_a_new_epoch_in_every_branch(place: str, tmp_path: Path) -> None:
    """Every branch with a changed entry gets a new epoch and revision, and reported usage is outdated."""
    with opened(place, tmp_path) as memory:
        play(memory, Words())
        before = {one.session: (one.epoch, one.revision) for one in memory.sessions()}

        memory.scan(POLICY, apply=True)

        for one in memory.sessions():
            assert one.epoch > before[one.session][0]
            assert one.revision > before[one.session][1]
            head = drive(memory.store.head(session_of(memory, one.session).options.key))
            assert head is not None
            assert head.usage is not None
            assert head.epoch_reason == "redaction"
            assert head.usage.stale


def test_a_redaction_leaves_a_record_and_an_event(place: str, tmp_path: Path) -> None:
    """A record and an event say that, and how much, was redacted, and no word of what."""
    told: list[tuple[str, dict[str, Any]]] = []
    with opened(place, tmp_path) as memory:
        memory.on("redacted", lambda session, facts: told.append((session, facts)))
        session = session_of(memory)
        session.add_user_message("zq100secret zq101secret")

        memory.scan(POLICY)
        assert told == []
        memory.scan(POLICY, apply=True)

        record = session.history()[-1]
        assert (record.kind, record.reason) == ("redact", "redaction")
        assert record.detail == {"entries": 1, "summaries": 0, "found": 2}
        assert told == [("one", record.detail)]
        assert session.export()["records"][-1]["kind"] == "redact"


def test_redacted_sessions_verify_and_continue(place: str, tmp_path: Path) -> None:
    """After a scan sessions verify, give contexts, continue, and can be exported and imported."""
    with opened(place, tmp_path) as memory:
        play(memory, Words())

        memory.scan(POLICY, apply=True)

        for one in memory.sessions():
            session = session_of(memory, one.session)
            assert session.verify().problems == ()
            session.add_user_message("and on")
            context = session.context()
            assert context.messages[-1]["content"] == "and on"
            copy = memory.import_session(session.export(), session_id=f"{one.session}-copy")
            assert session_of(memory, copy).verify().problems == ()
            assert session_of(memory, copy).context().messages == context.messages


def test_redacted_summaries_cover_the_same_entries(place: str, tmp_path: Path) -> None:
    """A summary is redacted, still covers the same entries, and is counted again."""
    with opened(place, tmp_path) as memory:
        session = play(memory, Words())
        (before,) = session.summaries()

        memory.scan(POLICY, apply=True)

        (after,) = session.summaries()
        assert (after.id, after.covers) == (before.id, before.covers)
        assert after.text.startswith("It was about [REDACTED].")
        assert [entry.id for entry in session.expand(after)] == [entry.id for entry in session.expand(before)]
        fresh = memory.import_session(session.export(), session_id="fresh")
        assert session.context().tokens == session_of(memory, fresh).context().tokens


def test_items_of_summaries_are_redacted(tmp_path: Path) -> None:
    """The items of a summary are redacted and name the same entries."""
    with opened("sqlite", tmp_path) as memory:
        session = session_of(memory)
        for number in range(8):
            session.add_user_message(f"Please note that zq10{number}secret must be kept. " + "And more. " * 40)
            session.add_assistant_message("Noted. " + "And more. " * 40)
        session.compact({"strategy": "summarizer", "interaction_keep": 1})
        (before,) = session.summaries()
        assert left_in(repr(before.items))

        memory.scan(POLICY, apply=True)

        (after,) = session.summaries()
        assert [(item.kind, item.sources) for item in after.items] == [(i.kind, i.sources) for i in before.items]
        assert left_in(repr(after)) == []
        assert "[REDACTED]" in repr(after.items)


SECRETS = "password: swordfish9, Authorization: Bearer abcdef1234567890, DE89 3704 0044 0532 0130 00"


@pytest.mark.parametrize("shared", [False, True], ids=["own", "of a branch"])
def test_summary_words_from_redacted_texts_alone_are_redacted(tmp_path: Path, shared: bool) -> None:
    """Words of a summary that only redacted texts contained are redacted, too, such as a password alone.

    Words that entries still contain stay. A branch's own summaries are redacted likewise.
    """
    told = SourceSummarizer(
        lambda _: "Ann has swordfish9 and writes as jane.quill@exam... from Lisbon. " + "And on. " * 9
    )
    with opened("sqlite", tmp_path) as memory:
        session = session_of(memory, "a")
        session.add_user_message(f"I am Ann from Lisbon: {SECRETS}, jane.quill@example.com. " + "And more. " * 90)
        session.add_assistant_message("Noted. " + "And more. " * 90)
        if shared:
            session = session.fork("b")
        session.compact({"strategy": "summarizer", "interaction_keep": 0})
        listed = repr(session.summaries()[0].items)
        assert all(word in listed for word in ("swordfish9", "abcdef1234567890", "3704"))
        told_by_a_model = memory.session("b" if shared else "a", summarizer=told)
        told_by_a_model.add_user_message("And more. " * 90)
        told_by_a_model.add_assistant_message("Fine.")
        assert told_by_a_model.compact({"strategy": "summarizer", "interaction_keep": 0}).done

        memory.scan("default", apply=True)

        (summary,) = session.summaries()
        assert summary.text.startswith("Ann has [REDACTED] and writes as [REDACTED].[REDACTED]@exam... from Lisbon.")
        left = repr(session.summaries(history=True))
        assert [word for word in ("swordfish9", "abcdef1234567890", "3704", "quill") if word in left] == []
        assert memory.scan("default").findings == {}


def test_token_counts_of_redacted_entries_are_made_again(place: str, tmp_path: Path) -> None:
    """Counts of redacted entries are dropped and made again."""
    with opened(place, tmp_path) as memory:
        session = session_of(memory)
        session.add_user_message("clean")
        session.count()
        session.add_user_message("zq100secret " * 50)
        session.count()

        memory.scan(POLICY, apply=True)

        assert session.count() == 1
        again = session_of(memory, "again")
        again.add_user_message("clean")
        again.add_user_message("[REDACTED] " * 50)
        assert session.stats().total_tokens == again.stats().total_tokens


VERBS: dict[str, Callable[[Session], object]] = {
    "context": lambda session: session.context(),
    "count": lambda session: session.count(),
    "stats": lambda session: session.stats(),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("view_bytes", [0, 10**6], ids=["new", "remembered"])
def test_token_counts_from_before_a_scan_are_not_stored_after_it(
    verb: str, view_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A count made from a text before its redaction is not stored afterwards."""
    count, scans = Store.count, [True]
    path = tmp_path / "a.db"
    with Memory.open(path, view_bytes=view_bytes) as memory, Memory.open(path) as other:

        async def late(store: Store, *what: Any, **how: Any) -> None:
            if scans and store is memory.store:
                scans.clear()
                other.scan(POLICY, apply=True)
            await count(store, *what, **how)

        session = memory.session("one", max_tokens=400)
        session.add_user_message("clean")
        session.add_user_message("zq100secret " * 50)
        session.add_assistant_message("answer")
        with monkeypatch.context() as patched:
            patched.setattr(Store, "count", late)
            VERBS[verb](session)
            memory.close()  # which stores what is left to be stored
        assert not scans
        other.session("one").count()
        entries = drive(other.store.read(session.options.key, counter="o200k_base"))
        assert "zq100secret" not in entries[1].text
        counter = encoding("o200k_base")
        for entry in entries:
            assert entry.tokens == counter.count(entry.text)


def test_a_redacted_clamped_entry_is_clamped_again(place: str, tmp_path: Path) -> None:
    """An entry that a cut has clamped is clamped again after its text was redacted, so that it fits."""
    with opened(place, tmp_path) as memory:
        session = session_of(memory, max_tokens=600)
        session.add_user_message("Read it.")
        session.add_assistant_message("begin " + "zq100secret " * 400 + "end")
        before = session.context()
        assert before.report.clamped == (2,)

        memory.scan({"redact_patterns": [(f"({PATTERN} )+", "X ")]}, apply=True)

        context = session.context()
        assert [message["content"] for message in context.messages] == ["Read it.", "begin X end"]
        assert context.tokens <= 600
        assert [m["content"] for m in session.context(at=before.revision).messages] == ["Read it.", "begin X end"]


def test_keyed_batches_stay_idempotent_after_a_redaction(disk: str, tmp_path: Path) -> None:
    """Under the policy a keyed batch is recognised after redaction; without it, it conflicts."""
    batch = [{"role": "user", "content": "zq100secret"}, {"role": "assistant", "content": "fine"}]
    with opened(disk, tmp_path) as memory:
        session_of(memory).add(batch, key="k")
        memory.scan(POLICY, apply=True)
        with pytest.raises(Conflict):
            session_of(memory).add(batch, key="k")
    with opened(disk, tmp_path, privacy=POLICY) as memory:
        session_of(memory).add(batch, key="k")
        assert len(session_of(memory).entries()) == 2


def test_redacted_named_contexts_are_recognised(place: str, tmp_path: Path) -> None:
    """A redacted named context is recognised by its redacted name and text."""
    with opened(place, tmp_path) as memory:
        session = session_of(memory)
        session.add_context("of zq100secret", name="zq101secret.txt")
        session.add_context("clean", name="other.txt")
        session.fork("branch")

        memory.scan(POLICY, apply=True)

        for name in ("one", "branch"):
            chat = session_of(memory, name)
            assert chat.add_context("of [REDACTED]", name="[REDACTED].txt").seq == 1
            assert chat.add_context("clean", name="other.txt").seq == 2
            chat.add_context("newer", name="[REDACTED].txt")
            told = str(chat.context().messages)
            assert "newer" in told
            assert "of [REDACTED]" not in told


def test_redacting_large_content_leaves_it_in_other_sessions(place: str, tmp_path: Path) -> None:
    """Redacting large content in one session leaves it in others."""
    large = "zq100secret " + "word " * 20_000
    with opened(place, tmp_path) as memory:
        for name in ("one", "two"):
            session_of(memory, name, max_tokens=None).add_user_message(large)

        memory.scan(POLICY, session="one", apply=True)

        assert "[REDACTED]" in session_of(memory).entry(1).text
        assert session_of(memory, "two").entry(1).text == large
        memory.scan(POLICY, apply=True)
        assert b"zq100secret" not in bytes_of(tmp_path)


def test_a_scan_of_one_session_leaves_others_unchanged(tmp_path: Path) -> None:
    """Another session, and another tenant's, stay as they are."""
    for tenant in ("default", "other"):
        with opened("sqlite", tmp_path, tenant=tenant) as memory:
            for name in ("one", "two"):
                session_of(memory, name).add_user_message("zq100secret")
    with opened("sqlite", tmp_path) as memory:
        assert memory.scan(POLICY, session="two", apply=True).sessions == 1
        assert [session_of(memory, name).entry(1).text for name in ("one", "two")] == ["zq100secret", "[REDACTED]"]
    with opened("sqlite", tmp_path, tenant="other") as memory:
        assert session_of(memory, "two").entry(1).text == "zq100secret"


def test_a_long_session_is_redacted_in_portions(tmp_path: Path) -> None:
    """Many entries are redacted in several steps, each with a record."""
    with opened("sqlite", tmp_path) as memory:
        session = session_of(memory)
        for start in range(0, 5_000, 1_000):
            session.add_entries([Entry(content=f"zq100secret {start + i}") for i in range(1_000)])

        done = memory.scan(POLICY, apply=True)

        assert (done.entries, done.redacted) == (5_000, 5_000)
        assert [entry.text for entry in session.entries()] == [f"[REDACTED] {i}" for i in range(5_000)]
        portions = [record.detail["entries"] for record in session.history() if record.kind == "redact"]
        assert (len(portions), sum(portions)) == (2, 5_000)


def test_progress_counts_sessions(tmp_path: Path) -> None:
    """`progress` is called with the sessions done and their total."""
    told: list[tuple[int, int]] = []
    with opened("memory", tmp_path) as memory:
        for name in ("a", "b", "c"):
            session_of(memory, name).add_user_message("zq100secret")

        memory.scan(POLICY, progress=lambda done, total: told.append((done, total)))

        assert told == [(1, 3), (2, 3), (3, 3)]


def test_a_policy_may_redact_the_reason_of_the_record(tmp_path: Path) -> None:
    """A policy that matches the record of the redaction itself ends, too."""
    with opened("memory", tmp_path) as memory:
        session = session_of(memory)
        session.add_user_message("a redaction")

        memory.scan({"redact_patterns": ["redaction"], "default_redaction_string": "[X]"}, apply=True)

        assert session.history()[-1].reason == "[X]"
        assert session.entry(1).text == "a [X]"


def test_async_memory_has_the_same_verb(tmp_path: Path) -> None:
    """`await memory.scan(...)` finds and redacts as `Memory.scan` does."""

    async def scanned() -> tuple[int, str]:
        async with AsyncMemory.open(address("sqlite", tmp_path)) as memory:
            session = memory.session("one")
            await session.add_user_message("zq100secret")
            done = await memory.scan(POLICY, apply=True)
            return done.redacted, (await session.entry(1)).text

    assert asyncio.run(scanned()) == (1, "[REDACTED]")


def test_scanning_a_session_redacts_copies_in_its_branches(place: str, tmp_path: Path) -> None:
    """Scanning a session also redacts its branches' own copies of summaries and records."""
    with opened(place, tmp_path) as memory:
        session = memory.session("one", max_tokens=2_000, counter=len)
        for number in range(12):
            session.add_user_message(f"{number}: write to jane.doe@example.com about the order")
            session.add_assistant_message(f"{number}: done, I wrote to jane.doe@example.com")
        session.compact("summarizer")
        branch = session.fork("branch")

        memory.scan({"recognisers": {"email": "redact"}}, session="one", apply=True)

        for one in (session, branch):
            assert one.summaries(history=True)
            assert "jane.doe" not in repr([*one.summaries(history=True), *one.entries(rewound=True), *one.history()])
