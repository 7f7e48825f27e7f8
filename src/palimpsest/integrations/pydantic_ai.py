"""`SessionHistory(session)`: a capability of Pydantic AI that remembers. No other module imports Pydantic AI."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Self, cast

from palimpsest import AsyncSession, Session
from palimpsest.errors import ConfigError, MissingExtra, PalimpsestError
from palimpsest.formats import FORMATS, FormatName, find_format
from palimpsest.integrations.pydantic_messages import PydanticAI
from palimpsest.integrations.streams import ready, surely_of
from palimpsest.integrations.waiting import open_group
from palimpsest.transfer.sources.pydantic_ai import CHARACTERS, DATA

try:
    from pydantic_ai import AgentRunResult, DeferredToolRequests, RunContext, UserPromptNode
    from pydantic_ai.capabilities import AbstractCapability, WrapRunHandler
    from pydantic_ai.messages import (
        ModelMessage,
        ModelMessagesTypeAdapter,
        ModelRequest,
        ModelResponse,
        ToolReturn,
        ToolReturnPart,
        UserPromptPart,
    )
    from pydantic_ai.models import ModelRequestContext
except ImportError as missing:
    raise MissingExtra("an agent of Pydantic AI", "pydantic-ai") from missing

FORMATS.register(PydanticAI.name, PydanticAI)

FORMAT = cast("FormatName", PydanticAI.name)


class _Known:
    """Which parts of a run's messages are in the log, or were there before the run.

    A processor of histories may replace messages by copies, or leave some out. So parts are recognised by their kind,
    their time, and the call that they are about. A tool's result is stored once, and only while its call waits for it.
    """

    def __init__(self) -> None:
        self._parts = Counter[tuple[object, ...]]()
        self._waiting = set[str]()

    def beside(self, messages: Sequence[ModelMessage]) -> Iterator[tuple[ModelMessage, list[Any]]]:
        """Yield each message with those of its parts that are not known at that moment."""
        seen = Counter[tuple[object, ...]]()
        for message in messages:
            unknown = list[Any]()
            for part in message.parts:
                identity, call = _identity(message, part), _answered(part)
                seen[identity] += 1
                if seen[identity] > self._parts[identity] and (call is None or call in self._waiting):
                    unknown.append(part)
            yield message, unknown

    def add(self, message: ModelMessage, parts: Sequence[Any]) -> None:
        """Mark these parts of a message as known."""
        for part in parts:
            self._parts[_identity(message, part)] += 1
            if part.part_kind == "tool-call":
                self._waiting.add(part.tool_call_id)
            elif (call := _answered(part)) is not None:
                self._waiting.discard(call)


@dataclass
class SessionHistory(AbstractCapability[Any]):
    """Lets an agent continue a session of Palimpsest, and stores what is new.

    Use it as `agent.run("…", capabilities=[SessionHistory(chat)])`, also with `run_sync`, `run_stream` and `iter`. A
    run begins with the session's context in place of `message_history`; if that is given, it is used instead. What the
    run says is added to the log step by step: the prompt together with the model's first response, so that a run
    without a response can be tried again; calls before their tools run; results before the model is asked. However the
    run ends, that is stored, once for each run id.

    The run's instructions, tools, prompt and steps take room beside the context, so give the session a `reserve` for
    them and the answer. A run without a prompt continues with calls that wait for their results; so does a run that is
    given `deferred_tool_results`, with a prompt or without. To run several agents at once on one conversation, put
    `turn()` of the session around each run; they then go one after the other.

    An AsyncSession fits everywhere. A Session blocks the event loop while its store works, so it is for `run_sync` and
    for programs that run one agent. Raises ConfigError if this is no session.
    """

    session: Session | AsyncSession
    _: KW_ONLY
    id: str | None = "session-history"  # an agent has one: that of a run takes the place of the agent's own
    _messages: list[ModelMessage] = field(default_factory=list[ModelMessage], init=False, repr=False)
    _known: _Known = field(default_factory=_Known, init=False, repr=False)
    _batches: int = field(default=0, init=False, repr=False)
    _is_pending: bool = field(default=False, init=False, repr=False)
    _outputs: set[str] = field(default_factory=set[str], init=False, repr=False)
    _returned: dict[str, Any] = field(default_factory=dict[str, Any], init=False, repr=False)

    def __post_init__(self) -> None:
        """Check what was given."""
        if not isinstance(self.session, Session | AsyncSession):
            raise ConfigError("session", type(self.session).__qualname__, "a session: memory.session(…)")

    @classmethod
    def get_serialization_name(cls) -> str | None:
        """Return None: the specification of an agent cannot name this capability, since it holds a session."""
        return None

    async def for_run(self, ctx: RunContext[Any]) -> Self:
        """Return the capability for one run."""
        return replace(self)

    async def before_run(self, ctx: RunContext[Any]) -> None:
        """Begin with the session's context, unless a history was given."""
        if not ctx.messages:
            context = await ready(self.session.context(format=FORMAT))
            ctx.messages[:] = ModelMessagesTypeAdapter.validate_python(context.messages)
            self._is_pending = bool(context.pending)
        for message in ctx.messages:
            self._known.add(message, message.parts)

    async def before_node_run(self, ctx: RunContext[Any], *, node: Any) -> Any:
        """Show the run the calls that wait for their results, if it was started to continue with them."""
        if self._is_pending and isinstance(node, UserPromptNode):
            self._is_pending = False
            if node.user_prompt is None or node.deferred_tool_results is not None:
                dumps = find_format(FORMAT).encode(await open_group(self.session))
                waiting = ModelMessagesTypeAdapter.validate_python(dumps)
                ctx.messages.extend(waiting)
                for message in waiting:
                    self._known.add(message, message.parts)
        return node

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Store the results that the model is about to be given."""
        self._outputs = {tool.name for tool in request_context.model_request_parameters.output_tools}
        self._returned.clear()  # ids of calls may be used again
        await self._keep(ctx.messages, ctx.run_id)
        return request_context

    async def after_tool_execute(
        self, ctx: RunContext[Any], *, call: Any, tool_def: Any, args: Any, result: Any
    ) -> Any:
        """Note what a tool has returned: `run_stream` hides the last results from capabilities."""
        self._returned[call.tool_call_id] = result
        return result

    async def after_node_run(self, ctx: RunContext[Any], *, node: Any, result: Any) -> Any:
        """Store what the step has brought."""
        await self._keep(ctx.messages, ctx.run_id)
        return result

    async def wrap_run(self, ctx: RunContext[Any], *, handler: WrapRunHandler) -> AgentRunResult[Any]:
        """Store what is left, however the run ends."""
        left = list[ModelMessage]()
        try:
            result = await handler()
            left = _left_results(self._messages, ctx.run_id, result, self._outputs, self._returned)
            return result
        finally:
            messages = [*self._messages, *left]
            await surely_of(self.session, lambda: self._keep(messages, ctx.run_id))

    async def _keep(self, messages: list[ModelMessage], run_id: str | None) -> None:
        """Add the parts of the run's messages that are not in the log yet."""
        self._messages = messages
        own = [message for message in messages if message.run_id == run_id]
        if not any(map(_is_to_be_kept, own)):
            return
        try:
            await self._added(messages, run_id)
        except PalimpsestError as fault:
            fault.answer = own
            raise

    async def _added(self, messages: list[ModelMessage], run_id: str | None) -> None:
        """Add, message by message, the parts of this run that are not known yet."""
        redact = self.session.redact
        for message, unknown in self._known.beside(messages):
            if message.run_id != run_id:
                continue
            if isinstance(message, ModelResponse) and message.state == "suspended":
                return
            parts = [part for part in unknown if _is_said(message, part)]
            if parts:
                (dump,) = ModelMessagesTypeAdapter.dump_python(
                    [replace(cast("Any", message), parts=parts)], mode="json"
                )
                for part, dumped in zip(parts, dump["parts"], strict=True):
                    _write_as_sent(part, dumped)
                entries = find_format(FORMAT).decode([_prepared(dump, redact)], "messages")
                await ready(self.session.add_entries(entries, key=f"{run_id} {self._batches}"))
                self._batches += 1
                self._known.add(message, parts)


_PROCESSED = "Final result processed."
_NOT_USED = "Output tool not used - a final result was already processed."
_NOT_EXECUTED = "Tool not executed - a final result was already processed."
"""Pydantic AI's words for what became of the calls beside a final result."""


def _left_results(
    messages: Sequence[ModelMessage],
    run_id: str | None,
    result: AgentRunResult[Any],
    outputs: set[str],
    returned: dict[str, Any],
) -> list[ModelMessage]:
    """Return the results of a finished run's last response, as Pydantic AI gives them to the caller of `run_stream`."""
    last = messages[-1] if messages else None
    if not isinstance(last, ModelResponse) or last.run_id != run_id or last.state != "complete":
        return []
    if not last.tool_calls or isinstance(result.output, DeferredToolRequests):
        return []
    parts, beside, words = list[Any](), list[Any](), _PROCESSED
    for call in last.tool_calls:
        content: Any = returned.get(call.tool_call_id, _NOT_EXECUTED)
        if call.tool_name in outputs:
            content, words = words, _NOT_USED
        if isinstance(content, ToolReturn):
            beside += [UserPromptPart(content.content)] if content.content else []
            content = content.return_value
        parts.append(ToolReturnPart(call.tool_name, content, call.tool_call_id))
    return [ModelRequest([*parts, *beside], run_id=run_id)]


def _identity(message: ModelMessage, part: Any) -> tuple[object, ...]:
    """Return what a part shares with its copies, and with no part that is said at another time."""
    time = getattr(part, "timestamp", None) or message.timestamp
    return part.part_kind, getattr(part, "tool_call_id", None), time


def _answered(part: Any) -> str | None:
    """Return the id of the call that a part of a request answers; None if it answers none."""
    answers = part.part_kind in ("tool-return", "retry-prompt") and part.tool_name is not None
    return part.tool_call_id if answers else None


def _is_to_be_kept(message: ModelMessage) -> bool:
    """Return whether a message is stored by itself: a response that says something, or a request with results of tools.

    A prompt alone is not: when the run is tried again it is given again.
    """
    if isinstance(message, ModelResponse):
        return any(_is_said(message, part) for part in message.parts)
    return any(hasattr(part, "tool_call_id") for part in message.parts)


def _is_said(message: ModelMessage, part: Any) -> bool:
    """Return whether a part belongs to the conversation; of an answer that was cut off only text does."""
    if isinstance(message, ModelResponse) and message.state == "interrupted":
        return bool(part.part_kind == "text")
    return getattr(part, "scope", None) != "request"


def _write_as_sent(part: Any, dumped: dict[str, Any]) -> None:
    """Write a tool's result in the dump as the text that models are sent, and note if it was none."""
    is_result = isinstance(part, ToolReturnPart) and part.outcome != "retried"  # else it is a list of errors
    if not is_result or isinstance(part.content, str) or part.tool_kind or part.files:
        return
    value, text = dumped["content"], part.model_response_str(wrap_if_error=False)
    dumped["content"] = text
    if not isinstance(value, str):
        dumped[DATA] = True if text else json.dumps(value)


def _prepared(dump: dict[str, Any], redact: Any) -> dict[str, Any]:
    """Return the dump with the length of each thought.

    If the policy finds something in one thought, no signature is kept.
    """
    if dump["kind"] == "request":
        return {"kind": "request", "parts": dump["parts"], "timestamp": dump["timestamp"]}
    thoughts = [part for part in dump["parts"] if part["part_kind"] == "thinking"]
    is_clean = redact is None or all(redact(part["content"]) == part["content"] for part in thoughts)
    for part in thoughts:
        part.update(
            {CHARACTERS: len(part["content"])} if is_clean else dict.fromkeys(("signature", "provider_details"))
        )
    return {key: value for key, value in dump.items() if key not in ("run_id", "usage")}
