"""Builds ChatGPT's data export as its users get it: a list of conversations, each a tree of nodes.

The vendor publishes no library and no schema for it; the shape is that of exported files.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Sequence
from typing import Any

Node = dict[str, Any]
BEGAN = 1_700_000_000.25


def content(*parts: Any, kind: str = "text", **fields: Any) -> dict[str, Any]:
    """Return the content of a message: parts for text, other fields for other kinds."""
    return {"content_type": kind, **({"parts": list(parts)} if parts else {}), **fields}


class Talk:
    """Builds a conversation node by node. `said` adds a node below the newest one, or below `after`."""

    def __init__(self, id: str = "talk-1", title: str | None = "A talk") -> None:
        self.id, self.title = id, title
        self.nodes: dict[str, Node] = {}
        self.current: str | None = None
        self.seconds = BEGAN
        self._node("root", None)

    def _node(self, id: str, message: dict[str, Any] | None, after: str | None = None) -> str:
        parent = after or self.current
        self.nodes[id] = {"id": id, "message": message, "parent": parent, "children": []}
        if parent is not None:
            self.nodes[parent]["children"].append(id)
        self.current = id
        return id

    def said(
        self,
        role: str,
        body: str | dict[str, Any],
        *,
        id: str | None = None,
        after: str | None = None,
        name: str | None = None,
        recipient: str = "all",
        at: float | None = -1,
        metadata: dict[str, Any] | None = None,
    ) -> str:
        """Add a message and return its node's id."""
        self.seconds += 1
        id = id or f"{self.id}-{len(self.nodes)}"
        message: dict[str, Any] = {
            "id": id,
            "author": {"role": role, "name": name, "metadata": {}},
            "create_time": self.seconds if at == -1 else at,
            "update_time": None,
            "content": content(body) if isinstance(body, str) else body,
            "status": "finished_successfully",
            "end_turn": None,
            "weight": 1.0,
            "metadata": metadata or {},
            "recipient": recipient,
            "channel": None,
        }
        return self._node(id, message, after)

    def done(self) -> dict[str, Any]:
        """Return the conversation as it is exported."""
        return {
            "title": self.title,
            "create_time": BEGAN,
            "update_time": self.seconds,
            "mapping": self.nodes,
            "moderation_results": [],
            "current_node": self.current,
            "conversation_id": self.id,
            "id": self.id,
            "default_model_slug": "gpt-4o",
        }


def simple(id: str = "talk-1", turns: int = 2) -> Talk:
    """Return a conversation of questions and answers, after the empty system node that every conversation has."""
    talk = Talk(id)
    talk.said("system", "", metadata={"is_visually_hidden_from_conversation": True}, at=None)
    for turn in range(turns):
        talk.said("user", f"{id} question {turn}")
        talk.said("assistant", f"{id} answer {turn}", metadata={"model_slug": "gpt-4o"})
    return talk


def with_tools(id: str = "tools") -> Talk:
    """Return a conversation with everything but branches: tools, thoughts, images, quotes, custom instructions."""
    talk = Talk(id, "With tools")
    talk.said("system", "", metadata={"is_visually_hidden_from_conversation": True})
    about = content(kind="user_editable_context", user_profile="I am a baker.", user_instructions="Be brief.")
    talk.said("user", about, metadata={"is_visually_hidden_from_conversation": True, "is_user_system_message": True})
    image = {"content_type": "image_asset_pointer", "asset_pointer": "file-service://file-1", "width": 10, "height": 20}
    talk.said("user", content(image, "What is in the picture?", kind="multimodal_text"))
    thought = {"summary": "Looking", "content": "It may be bread.", "chunks": [], "finished": True}
    talk.said("assistant", content(kind="thoughts", thoughts=[thought], source_analysis_msg_id="x"))
    talk.said("assistant", content(kind="reasoning_recap", content="Thought for 3 seconds"))
    talk.said("assistant", content(kind="code", language="python", text="print(1)"), recipient="python")
    talk.said("tool", content(kind="execution_output", text="1\n"), name="python")
    talk.said("assistant", content(kind="code", language="json", text='{"query": "bread"}'), recipient="browser")
    browsing = content(kind="tether_browsing_display", result="L0: bread", summary=None, assets=None, tether_id=None)
    talk.said("tool", browsing, name="browser")
    quote = content(
        kind="tether_quote", url="https://example.org/", domain="example.org", text="Bread is", title="Bread"
    )
    talk.said("tool", quote, name="browser")
    talk.said("assistant", "It is bread.", metadata={"model_slug": "o3"})
    talk.said("user", "")
    talk.said("assistant", content(kind="sonic_webpage", url="https://example.org/", snippet="?"))
    talk.said("assistant", content("go", kind="text"), recipient="python")
    talk.said("tool", content(kind="system_error", name="tool_error", text="It broke."), name="python")
    talk.said("critic", "Well done.")
    return talk


def branched(id: str = "branched") -> Talk:
    """Return a conversation whose question was edited and asked again, and answered twice; the newest is current."""
    talk = Talk(id, "Branches")
    first = talk.said("user", "first question")
    talk.said("assistant", "first answer")
    asked = talk.said("user", "edited question", after="root")
    talk.said("assistant", "edited answer, once")
    talk.said("assistant", "edited answer, again", after=asked)
    assert first in talk.nodes
    return talk


def written(talks: Sequence[Talk | dict[str, Any]]) -> bytes:
    """Return the bytes of conversations.json, on one line as the vendor writes it."""
    return json.dumps([talk.done() if isinstance(talk, Talk) else talk for talk in talks]).encode()


def archive(conversations: bytes, name: str = "conversations.json") -> bytes:
    """Return the ZIP archive of an export, with the conversations beside other files."""
    zip_bytes = io.BytesIO()
    with zipfile.ZipFile(zip_bytes, "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr("user.json", "{}")
        zipped.writestr(name, conversations)
        zipped.writestr("chat.html", "<html></html>")
    return zip_bytes.getvalue()
