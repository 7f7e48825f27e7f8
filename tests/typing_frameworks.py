"""Type checkers accept the adapters as types of their frameworks. `mypy --strict` and pyright read this file."""

from __future__ import annotations

import agents
import pydantic_ai
from pydantic_ai.capabilities import AbstractCapability

from palimpsest import AsyncSession, Session
from palimpsest.integrations.openai_agents import PalimpsestSession
from palimpsest.integrations.pydantic_ai import SessionHistory


def sessions(chat: Session, other: AsyncSession) -> list[agents.Session]:
    """Sessions of the OpenAI Agents SDK."""
    return [PalimpsestSession(chat), PalimpsestSession(other, session_settings=agents.SessionSettings(limit=20))]


def capabilities(chat: Session, other: AsyncSession) -> list[AbstractCapability[object]]:
    """Capabilities of agents of any kind."""
    return [SessionHistory(chat), SessionHistory(other)]


async def runs(chat: AsyncSession) -> list[str]:
    """Runs with the adapters, with and without dependencies."""
    guide = agents.Agent[None](name="Guide")
    done = await agents.Runner.run(guide, "Hello.", session=PalimpsestSession(chat))
    other = pydantic_ai.Agent("test", deps_type=int, capabilities=[SessionHistory(chat)])
    more = await other.run("Hello.", deps=1, capabilities=[SessionHistory(chat)])
    return [str(done.final_output), more.output]
