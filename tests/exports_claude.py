"""Builds Claude's data export as its users get it: a list of conversations, each a list of messages with blocks.

The vendor publishes no library and no schema for it; the shape is that of exported files.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

BEGAN = datetime(2025, 3, 1, 12, 0, 0, 250_000, tzinfo=UTC)


def text(words: str) -> dict[str, Any]:
    """Return a block of text, with the other fields of an export."""
    return {
        "start_timestamp": BEGAN.isoformat(),
        "stop_timestamp": None,
        "type": "text",
        "text": words,
        "citations": [],
    }


class Talk:
    """Builds a conversation message by message."""

    def __init__(self, id: str = "claude-1", name: str = "A talk", *, parents: bool = False) -> None:
        self.id, self.name = id, name
        self.messages: list[dict[str, Any]] = []
        self._parents = parents

    def said(
        self,
        sender: str,
        *blocks: str | dict[str, Any],
        attachments: Sequence[dict[str, Any]] = (),
        files: Sequence[dict[str, Any]] = (),
        after: str | None = None,
    ) -> str:
        """Add a message and return its id."""
        id = f"{self.id}-m{len(self.messages)}"
        made = [text(block) if isinstance(block, str) else block for block in blocks]
        at = BEGAN + timedelta(seconds=len(self.messages))
        message = {
            "uuid": id,
            "text": "\n".join(block["text"] for block in made if block["type"] == "text"),
            "content": made,
            "sender": sender,
            "created_at": at.isoformat().replace("+00:00", "Z"),
            "updated_at": at.isoformat().replace("+00:00", "Z"),
            "attachments": list(attachments),
            "files": list(files),
        }
        if self._parents:
            before = self.messages[-1]["uuid"] if self.messages else "00000000-0000-4000-8000-000000000000"
            message["parent_message_uuid"] = after or before
        self.messages.append(message)
        return id

    def done(self) -> dict[str, Any]:
        """Return the conversation as it is exported."""
        return {
            "uuid": self.id,
            "name": self.name,
            "created_at": BEGAN.isoformat(),
            "updated_at": BEGAN.isoformat(),
            "account": {"uuid": "someone"},
            "chat_messages": self.messages,
        }


def simple(id: str = "claude-1", turns: int = 2) -> Talk:
    """Return a conversation of questions and answers."""
    talk = Talk(id)
    for turn in range(turns):
        talk.said("human", f"{id} question {turn}")
        talk.said("assistant", f"{id} answer {turn}")
    return talk


def with_tools(id: str = "claude-tools") -> Talk:
    """Return a conversation with thoughts, tools with and without ids, attachments, files and unknown blocks."""
    talk = Talk(id, "With tools")
    attachment = {"file_name": "plan.md", "file_size": 9, "file_type": "md", "extracted_content": "# The plan"}
    talk.said("human", "What is the plan?", attachments=[attachment], files=[{"file_name": "photo.png"}])
    talk.said(
        "assistant",
        {"type": "thinking", "thinking": "I look it up.", "summaries": [{"summary": "Looking"}], "cut_off": False},
        "One moment.",
        {"type": "tool_use", "id": "toolu_1", "name": "search", "input": {"q": "plan"}, "message": "Searching"},
        {
            "type": "tool_result",
            "tool_use_id": "toolu_1",
            "name": "search",
            "content": [{"type": "text", "text": "found", "uuid": "x"}, {"type": "knowledge", "title": "Plans"}],
            "is_error": False,
        },
        {"type": "tool_use", "name": "repl", "input": {"code": "1/0"}},
        {"type": "tool_result", "name": "repl", "content": [{"type": "text", "text": "error"}], "is_error": True},
        "Here it is.",
        {"type": "token_budget", "remaining": 7},
    )
    return talk


def written(talks: Sequence[Talk]) -> bytes:
    """Return the bytes of conversations.json."""
    return json.dumps([talk.done() for talk in talks], ensure_ascii=False).encode()
