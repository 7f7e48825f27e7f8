"""Palimpsest: memory for LLM agents. One log per conversation; contexts that fit, are valid and stay stable.

Here are the names that most programs use. The others have three homes: `palimpsest.errors` has every error and warning,
`palimpsest.strategies` what decides when and how a session is compacted, `palimpsest.types` what verbs return and what
options may be. Each name has one home, and is loaded when it is first used; errors that programs often catch are here
as well.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from palimpsest.context.budget import Budget as Budget
    from palimpsest.context.result import Context as Context
    from palimpsest.errors import BudgetImpossible as BudgetImpossible
    from palimpsest.errors import ConfigError as ConfigError
    from palimpsest.errors import Conflict as Conflict
    from palimpsest.errors import EntryNotFound as EntryNotFound
    from palimpsest.errors import ImportFailed as ImportFailed
    from palimpsest.errors import InvalidEntry as InvalidEntry
    from palimpsest.errors import LockTimeout as LockTimeout
    from palimpsest.errors import PalimpsestError as PalimpsestError
    from palimpsest.errors import PalimpsestWarning as PalimpsestWarning
    from palimpsest.errors import SessionNotFound as SessionNotFound
    from palimpsest.errors import StoreError as StoreError
    from palimpsest.errors import StoreUnavailable as StoreUnavailable
    from palimpsest.errors import SummarizerFailed as SummarizerFailed
    from palimpsest.errors import WrongKey as WrongKey
    from palimpsest.log.entry import Audio as Audio
    from palimpsest.log.entry import Entry as Entry
    from palimpsest.log.entry import File as File
    from palimpsest.log.entry import Image as Image
    from palimpsest.log.entry import Opaque as Opaque
    from palimpsest.log.entry import Reasoning as Reasoning
    from palimpsest.log.entry import Text as Text
    from palimpsest.log.head import Usage as Usage
    from palimpsest.privacy import Span as Span
    from palimpsest.privacy.policy import Policy as Policy
    from palimpsest.privacy.redaction import Redactor as Redactor
    from palimpsest.sessions.adding.streaming import Answer as Answer
    from palimpsest.sessions.binding import carry as carry
    from palimpsest.sessions.binding import current_memory as current_memory
    from palimpsest.sessions.binding import current_session as current_session
    from palimpsest.sessions.erasing.query import Query as Query
    from palimpsest.sessions.memory import AsyncMemory as AsyncMemory
    from palimpsest.sessions.session import AsyncSession as AsyncSession
    from palimpsest.sessions.sync import Memory as Memory
    from palimpsest.sessions.sync import Session as Session
    from palimpsest.sessions.working import AsyncWorkingMemory as AsyncWorkingMemory
    from palimpsest.sessions.working_sync import WorkingMemory as WorkingMemory
    from palimpsest.stores.encrypted.keys import Keys as Keys

_HOMES = {
    "Answer": "sessions.adding.streaming",
    "AsyncMemory": "sessions.memory",
    "AsyncSession": "sessions.session",
    "AsyncWorkingMemory": "sessions.working",
    "Audio": "log.entry",
    "Budget": "context.budget",
    "BudgetImpossible": "errors",
    "ConfigError": "errors",
    "Conflict": "errors",
    "Context": "context.result",
    "Entry": "log.entry",
    "EntryNotFound": "errors",
    "File": "log.entry",
    "Image": "log.entry",
    "ImportFailed": "errors",
    "InvalidEntry": "errors",
    "Keys": "stores.encrypted.keys",
    "LockTimeout": "errors",
    "Memory": "sessions.sync",
    "Opaque": "log.entry",
    "PalimpsestError": "errors",
    "PalimpsestWarning": "errors",
    "Policy": "privacy.policy",
    "Query": "sessions.erasing.query",
    "Reasoning": "log.entry",
    "Redactor": "privacy.redaction",
    "Session": "sessions.sync",
    "SessionNotFound": "errors",
    "Span": "privacy",
    "StoreError": "errors",
    "StoreUnavailable": "errors",
    "SummarizerFailed": "errors",
    "Text": "log.entry",
    "Usage": "log.head",
    "WorkingMemory": "sessions.working_sync",
    "WrongKey": "errors",
    "carry": "sessions.binding",
    "current_memory": "sessions.binding",
    "current_session": "sessions.binding",
}


def _names(module: dict[str, Any], homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a module whose public names are loaded from their homes when first used."""

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {module['__name__']!r} has no attribute {name!r}")
        value = module[name] = getattr(import_module(f"palimpsest.{homes[name]}"), name)
        return value

    return load, lambda: sorted(homes)


__all__ = [  # noqa: PLE0604 (the names of a literal table)
    *sorted(_HOMES),
]

if not TYPE_CHECKING:  # a type checker that saw it would believe in every name
    __getattr__, __dir__ = _names(globals(), _HOMES)
