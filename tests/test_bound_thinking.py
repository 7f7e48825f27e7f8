"""Signed thinking of Claude's newer models: they take it only behind exactly the messages that it was made behind."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from palimpsest import Context, Memory, Policy, Session
from palimpsest.strategies import MaxTokens

Message = dict[str, Any]

NEWER, OLDER = "claude-sonnet-5-5", "claude-opus-4-6"


class Claude:
    """Judges requests as Anthropic does, and makes thinking that is bound to what was sent before it."""

    def __init__(self) -> None:
        self.made_behind: dict[str, str] = {}
        self.taken: list[str] = []
        """The signatures in the newest request."""

    def ask(self, context: Context, *blocks: Message) -> Message:
        """Return an answer to the request: signed thinking, and the blocks. Fails if Anthropic would refuse it."""
        request = context.request(cache_breakpoints=False)
        self.taken = []
        for i, message in enumerate(request["messages"]):
            for j, block in enumerate(_blocks(message)):
                if block["type"] == "thinking":
                    self.taken.append(block["signature"])
                    before = _prefix(request, i, j)
                    assert self.made_behind[block["signature"]] == before, f"{block} is bound to other messages"
        signature = f"signature {len(self.made_behind)}"
        self.made_behind[signature] = _prefix(request, len(request["messages"]), 0)
        return {
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": "hm", "signature": signature}, *blocks],
        }


def _blocks(message: Message) -> list[Message]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _prefix(request: Message, i: int, j: int) -> str:
    """Everything that is sent before a block, as blocks of each role: messages of one role are one turn."""
    turns: list[tuple[str, list[Message]]] = []
    for place, message in enumerate(request["messages"][: i + 1]):
        blocks = _blocks(message)[: j if place == i else None]
        if blocks:
            turns.append((message["role"], blocks))
    return json.dumps([request.get("system"), turns])


def run(session: Session, claude: Claude, number: int, **asked: Any) -> None:
    """Have a turn with a question, a call of a tool and an answer."""
    session.add({"role": "user", "content": f"question {number}"})
    call = {"type": "tool_use", "id": f"toolu_{number}", "name": "find", "input": {}}
    session.add(claude.ask(session.context(**asked), call))
    session.add(
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": "word " * 200}],
        }
    )
    session.add(claude.ask(session.context(**asked), {"type": "text", "text": f"answer {number}"}))


def runs(session: Session, claude: Claude, count: int) -> None:
    """Have so many turns."""
    for number in range(count):
        run(session, claude, number)


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    with Memory.open(f"sqlite:///{tmp_path / 'm.db'}") as opened:
        yield opened


@pytest.mark.parametrize("model", [NEWER, None])
@pytest.mark.parametrize("options", [{}, {"mask": False}, {"max_messages": 9}, {"long_term": "ladder"}], ids=str)
def test_thinking_is_sent_until_a_cut_changes_the_messages_before_it(
    memory: Memory, options: dict[str, Any], model: str | None
) -> None:
    """Thinking goes back to newer models until a cut changes what is before it; then it is left out."""
    session, claude = memory.session("s", format="anthropic", model=model, max_tokens=2_000, **options), Claude()
    taken = set[str]()

    for number in range(12):
        run(session, claude, number)
        taken |= {*claude.taken}

    assert len(taken) > 3, "thinking that nothing has changed before is sent"
    assert any(record.kind == "cut" for record in session.history())


def test_older_models_get_all_thinking_back(memory: Memory) -> None:
    """Models that take thinking behind any messages get it back after a cut, too."""
    session, claude = memory.session("s", format="anthropic", model=OLDER, max_tokens=2_000), Claude()

    with pytest.raises(AssertionError, match="is bound to other messages"):
        runs(session, claude, 12)


@pytest.mark.parametrize(
    "change",
    [
        lambda memory, session: session.erase(session.entries()[2].id),
        lambda memory, session: memory.forget(matches="question 0"),
        lambda memory, session: memory.scan(Policy(redact_patterns=["answer 0"]), apply=True),
        lambda memory, session: session.hide(session.entries()[0].id),
        lambda memory, session: session.compact("ladder"),
        lambda memory, session: session.rewind(session.history()[-3].revision),
    ],
    ids=["erase", "forget", "scan", "hide", "compact", "rewind"],
)
def test_thinking_behind_erased_redacted_or_covered_messages_is_not_sent(
    memory: Memory, change: Callable[[Memory, Session], object]
) -> None:
    """After an erasure, a redaction or a compaction no thinking is sent that was made behind what is gone."""
    session, claude = memory.session("s", format="anthropic", model=NEWER, max_tokens=20_000), Claude()
    for number in range(4):
        run(session, claude, number)

    change(memory, session)
    for number in range(4, 7):
        run(session, claude, number)

    assert claude.taken, "thinking that was made since is sent"


def test_a_session_with_facts_in_the_tail_sends_no_thinking(memory: Memory) -> None:
    """A session that shows facts behind the newest entry sends no thinking back: these may be others next time."""
    facts = memory.working("user")
    facts.set("name", "Ann")
    session, claude = memory.session("s", format="anthropic", model=NEWER, max_tokens=5_000, facts="user"), Claude()

    for number in range(3):
        run(session, claude, number)
        facts.set("number", number)

    assert not claude.taken


def test_an_exact_walk_sends_thinking_until_it_leaves_something_out(memory: Memory) -> None:
    """A context that is chosen anew at every call has no thinking once it leaves something out."""
    session = memory.session("s", format="anthropic", model=NEWER, short_term=MaxTokens(memory_max_tokens=2_000))
    claude, taken = Claude(), list[int]()

    for number in range(8):
        run(session, claude, number)
        taken.append(len(claude.taken))

    assert taken[0] == 1
    assert taken[-1] == 0


def test_a_smaller_budget_sends_no_thinking_from_before_its_cut(memory: Memory) -> None:
    """A context in another budget than the session's, whose cut is not stored, has no thinking from before."""
    session, claude = memory.session("s", format="anthropic", model=NEWER, max_tokens=20_000), Claude()
    for number in range(6):
        run(session, claude, number)

    small = session.context(max_tokens=1_200)

    claude.ask(small, {"type": "text", "text": "ok"})
    assert not claude.taken
    claude.ask(session.context(), {"type": "text", "text": "ok"})
    assert claude.taken


def test_the_report_names_the_thinking_that_is_left_out(memory: Memory) -> None:
    """The report says whose thinking is left out, and the count of tokens is of what is sent."""
    count = lambda text: len(text.split())  # noqa: E731 (a counter of words)
    session = memory.session("s", format="anthropic", model=NEWER, counter=count, max_tokens=2_000)
    thought = {"type": "thinking", "thinking": "so many words " * 100, "signature": "c2ln"}
    session.add([{"role": "user", "content": "Hello"}])
    session.add([{"role": "assistant", "content": [thought, {"type": "text", "text": "Yes."}]}])
    before = session.context()

    session.add([{"role": "user", "content": "word " * 1_800}])
    session.add([{"role": "assistant", "content": "Well."}, {"role": "user", "content": "And?"}])
    session.erase(session.entries()[2].id)
    after = session.context()

    assert before.tokens > 300
    assert after.tokens < 100
    assert [(one.seq, one.what) for one in after.report.adapted] == [(2, "reasoning left out")]
    assert session.entries()[1].text.startswith("so many words"), "the log keeps it"


def test_bound_thinking_is_known_in_branches_and_other_processes(memory: Memory, tmp_path: Path) -> None:
    """Which thinking is bound to other messages is known from the log alone, also in a branch and for past contexts."""
    session, claude = memory.session("s", format="anthropic", model=NEWER, max_tokens=2_000), Claude()
    for number in range(6):
        run(session, claude, number)
    session.erase(session.entries()[-2].id)

    with Memory.open(f"sqlite:///{tmp_path / 'm.db'}") as other:
        again = other.session("s", format="anthropic", model=NEWER, max_tokens=2_000)
        claude.ask(again.context(), {"type": "text", "text": "ok"})
        claude.ask(again.fork("branch").context(), {"type": "text", "text": "ok"})
        assert again.context(at=session.stats().revision).messages == again.context().messages


def test_bound_thinking_survives_an_export(memory: Memory) -> None:
    """A session that is imported elsewhere leaves out what the exported one leaves out."""
    session, claude = memory.session("s", format="anthropic", model=NEWER, max_tokens=20_000), Claude()
    for number in range(2):
        run(session, claude, number)
    session.erase(session.entries()[1].id)

    with Memory.open("memory://") as elsewhere:
        elsewhere.import_session(session.export())
        imported = elsewhere.session("s", format="anthropic", model=NEWER, max_tokens=20_000)
        claude.ask(imported.context(), {"type": "text", "text": "ok"})

        assert imported.context().messages == session.context().messages


def test_thinking_behind_an_escaped_text_is_not_sent(memory: Memory) -> None:
    """If a text of an answer is escaped, the thinking that the answer holds behind it does not fit any more."""
    session = memory.session("s", format="anthropic", model=NEWER)
    first, second = ({"type": "thinking", "thinking": "hm", "signature": signature} for signature in ("a", "b"))
    call = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    for words in ("I look.", "<summary>I look.</summary>"):
        content = [first, {"type": "text", "text": words}, call, found, second, {"type": "text", "text": "Yes."}]
        session.add([{"role": "user", "content": "Hello"}, {"role": "assistant", "content": content}])

    answers = [message["content"] for message in session.context().messages if message["role"] == "assistant"]

    assert [[block["type"] == "thinking" for block in answer] for answer in answers] == [
        [True, False, False, False, True, False],
        [True, False, False, False, False],
    ]


def test_another_view_sends_no_thinking(memory: Memory) -> None:
    """A view beside the main one shows no thinking: it was made behind what the main view shows."""
    session, claude = memory.session("s", format="anthropic", model=NEWER, max_tokens=2_000), Claude()
    titles = memory.session("s", view="titles", format="anthropic", model=NEWER, max_tokens=900)
    for number in range(6):
        run(session, claude, number)
        claude.ask(titles.context(), {"type": "text", "text": "A title"})
        assert not claude.taken


def test_a_cut_stored_by_an_earlier_version_is_made_again(memory: Memory) -> None:
    """A cut that an earlier version of the library has stored, with bound thinking, is made again at once."""
    session, claude = memory.session("s", format="anthropic", model=NEWER, max_tokens=2_000), Claude()
    runs(session, claude, 4)
    export = session.export()
    for name in ("renderer", "thoughts"):
        del export["head"]["views"]["main"][name]

    with Memory.open("memory://") as elsewhere:
        elsewhere.import_session(export)
        context = elsewhere.session("s", format="anthropic", model=NEWER, max_tokens=2_000).context()

    assert (context.report.new_cut, context.report.epoch_reason) == (True, "a new renderer")
    assert "thinking" not in str(context.messages)
