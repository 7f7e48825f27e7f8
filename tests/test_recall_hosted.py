"""What provider-run tools return is found in their messages, as far as it is readable text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from palimpsest import Memory
from recall_helpers import index_bytes, marks, place_of, traces

BLOB = "QUJDREVG" * 40
SAID = {
    "anthropic": [
        {"role": "user", "content": "Who won?"},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I look."},
                {
                    "type": "server_tool_use",
                    "id": "srvtoolu_wordless",
                    "name": "web_search",
                    "input": {"query": "regatta"},
                },
                {
                    "type": "web_search_tool_result",
                    "tool_use_id": "srvtoolu_wordless",
                    "content": [
                        {
                            "type": "web_search_result",
                            "title": "Gondola triumph",
                            "url": "https://lagoon.example/race",
                            "encrypted_content": "sealedwords",
                            "page_age": None,
                        }
                    ],
                },
                {
                    "type": "bash_code_execution_tool_result",
                    "tool_use_id": "srvtoolu_2",
                    "content": {
                        "type": "bash_code_execution_result",
                        "stdout": "furlongs 42.7",
                        "stderr": "",
                        "return_code": 0,
                    },
                },
                {"type": "redacted_thinking", "data": "sealedwords"},
                {"type": "text", "text": "Venice won."},
            ],
        },
    ],
    "openai-responses": [
        {"role": "user", "content": "Go on."},
        {
            "type": "code_interpreter_call",
            "id": "ci_wordless",
            "code": "print('zeppelin')",
            "container_id": "cntr_wordless",
            "outputs": [{"type": "logs", "logs": "airship"}, {"type": "image", "url": f"data:image/png;base64,{BLOB}"}],
            "status": "completed",
        },
        {
            "type": "file_search_call",
            "id": "fs_wordless",
            "status": "completed",
            "queries": ["harbour"],
            "results": [{"file_id": "file-wordless", "filename": "tariff.pdf", "score": 0.9, "text": "nine ducats"}],
        },
        {
            "type": "mcp_call",
            "id": "mcp_wordless",
            "server_label": "zoo",
            "name": "lookup",
            "arguments": '{"q": "walrus"}',
            "output": "tusks",
            "error": None,
        },
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "pondering"}],
            "encrypted_content": "sealedwords",
        },
    ],
    "gemini": [
        {"role": "user", "parts": [{"text": "A sum?"}]},
        {
            "role": "model",
            "parts": [
                {"executableCode": {"language": "PYTHON", "code": "abacus()"}},
                {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "beads"}},
            ],
        },
    ],
}
FOUND = {
    "anthropic": ["regatta", "gondola", "lagoon.example", "furlongs", "Venice"],
    "openai-responses": ["zeppelin", "airship", "harbour", "tariff", "ducats", "walrus", "tusks"],
    "gemini": ["abacus", "beads"],
}
NEVER = ["wordless", "sealedwords", "pondering", BLOB, BLOB[:40], "base64"]


def hits(memory: Any, query: str, **options: Any) -> list[Any]:
    """Return the hits whose text contains something of the query."""
    return [one for one in memory.recall(query, max_tokens=None, neighbours=0, **options).hits if one.matched]


@pytest.fixture
def memory() -> Iterator[Memory]:
    with Memory.open("memory://") as opened:
        yield opened


@pytest.mark.parametrize("format", FOUND)
def test_results_of_provider_run_tools_are_found(memory: Memory, format: str) -> None:
    """Readable results of provider-run tools are found and shown, and read as part of the whole entry."""
    session = memory.session("s", format=format)
    session.add(SAID[format])
    for word in FOUND[format]:
        (hit,) = hits(memory, word)
        assert word.lower() in hit.text.lower()
        (whole,) = session.passages([hit.seq], max_tokens=None).passages
        assert whole.text[hit.start : hit.end] == hit.text
        assert whole.chars == hit.chars == len(whole.text)
    for word in NEVER:
        assert hits(memory, word) == [], word
    everything = session.passages(list(range(1, 10)), max_tokens=None).text
    assert [word for word in NEVER if word in everything and word != "pondering"] == []


def test_messages_with_different_provider_results_are_two_hits(memory: Memory) -> None:
    """Two messages without texts of their own but with different results are two hits."""
    session = memory.session("s", format="openai-responses")
    calls = [
        {"type": "mcp_call", "id": f"m{n}", "name": "look", "arguments": "{}", "output": f"walrus {n}"} for n in (1, 2)
    ]
    session.add([{"role": "user", "content": "Look."}, *calls])
    assert sorted(hit.text.split()[-1] for hit in hits(memory, "walrus")) == ["1", "2"]


def test_a_long_provider_result_shows_the_matching_part(memory: Memory) -> None:
    """Of a long result, the part that answers is shown."""
    session = memory.session("s", format="openai-responses")
    output = " ".join(f"Line {n} is about nothing." for n in range(900)) + " The walrus sleeps."
    session.add([{"type": "mcp_call", "id": "m", "name": "look", "arguments": "{}", "output": output}])
    (hit,) = hits(memory, "walrus")
    assert "walrus" in hit.text
    assert 0 < len(hit.text) < 5_000
    assert session.passages([1], max_tokens=None).passages[0].text[hit.start : hit.end] == hit.text


def test_a_policy_redacts_results_of_provider_run_tools(tmp_path: Path) -> None:
    """A privacy policy redacts such results like texts, even those stored before it."""
    call = {"type": "mcp_call", "id": "m", "name": "look", "arguments": "{}", "output": "walrus ann@example.org"}
    with Memory.open(tmp_path / "a.db") as memory:
        memory.session("s", format="openai-responses").add([call])
        assert "ann@example.org" in hits(memory, "walrus")[0].text
    with Memory.open(tmp_path / "a.db", privacy="default") as memory:
        assert "ann@" not in hits(memory, "walrus")[0].text


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_erasing_an_entry_removes_its_provider_results_from_the_index(tmp_path: Path, kind: str) -> None:
    """Erasing the entry removes such results from the index completely."""
    gone, kept = marks(kind, 2)
    with Memory.open(place_of(kind, tmp_path)) as memory:
        session = memory.session("s", format="openai-responses")
        for word in (gone, kept):
            session.add([{"type": "mcp_call", "id": word, "name": "look", "arguments": "{}", "output": f"is {word}"}])
        assert [hit.seq for word in (gone, kept) for hit in hits(memory, word)] == [1, 2]
        assert traces([gone], index_bytes(kind, tmp_path))
        session.erase([1])
        assert hits(memory, gone) == []
        assert [hit.seq for hit in hits(memory, kept)] == [2]
    assert not traces([gone], index_bytes(kind, tmp_path))
    assert traces([kept], index_bytes(kind, tmp_path))
