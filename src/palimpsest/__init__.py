"""Palimpsest: memory for LLM agents. One log per conversation; contexts that fit, are valid and stay stable."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from palimpsest.compaction import Step as Step
    from palimpsest.compaction import TriggerDecision as TriggerDecision
    from palimpsest.compaction.erase import Neuralyzer as Neuralyzer
    from palimpsest.compaction.evict import Lru as Lru
    from palimpsest.compaction.evict import SimpleFifo as SimpleFifo
    from palimpsest.compaction.evict import TokenAwareLru as TokenAwareLru
    from palimpsest.compaction.ladder import Ladder as Ladder
    from palimpsest.compaction.mask import MaskResults as MaskResults
    from palimpsest.compaction.mask import SupersededContexts as SupersededContexts
    from palimpsest.compaction.summarize import HybridSummary as HybridSummary
    from palimpsest.compaction.summarize import Summarize as Summarize
    from palimpsest.compaction.triggers import Triggers as Triggers
    from palimpsest.context.budget import Budget as Budget
    from palimpsest.context.conditions import ConditionFailed as ConditionFailed
    from palimpsest.context.result import Context as Context
    from palimpsest.context.result import LeftOut as LeftOut
    from palimpsest.context.result import Parts as Parts
    from palimpsest.context.result import Prefix as Prefix
    from palimpsest.context.result import Report as Report
    from palimpsest.context.short_term import MaxTokens as MaxTokens
    from palimpsest.errors import BudgetImpossible as BudgetImpossible
    from palimpsest.errors import Closed as Closed
    from palimpsest.errors import ConfigError as ConfigError
    from palimpsest.errors import Conflict as Conflict
    from palimpsest.errors import EntryNotFound as EntryNotFound
    from palimpsest.errors import ErasureFailed as ErasureFailed
    from palimpsest.errors import ForkedProcess as ForkedProcess
    from palimpsest.errors import ImportFailed as ImportFailed
    from palimpsest.errors import InvalidContext as InvalidContext
    from palimpsest.errors import InvalidEntry as InvalidEntry
    from palimpsest.errors import LockTimeout as LockTimeout
    from palimpsest.errors import MissingExtra as MissingExtra
    from palimpsest.errors import PalimpsestError as PalimpsestError
    from palimpsest.errors import PalimpsestWarning as PalimpsestWarning
    from palimpsest.errors import PastUnknown as PastUnknown
    from palimpsest.errors import PrivacyRefused as PrivacyRefused
    from palimpsest.errors import SessionNotFound as SessionNotFound
    from palimpsest.errors import StoreCorrupt as StoreCorrupt
    from palimpsest.errors import StoreError as StoreError
    from palimpsest.errors import StoreTooNew as StoreTooNew
    from palimpsest.errors import StoreUnavailable as StoreUnavailable
    from palimpsest.errors import SummarizerFailed as SummarizerFailed
    from palimpsest.errors import WrongKey as WrongKey
    from palimpsest.formats import Adapted as Adapted
    from palimpsest.log.change import Record as Record
    from palimpsest.log.entry import Audio as Audio
    from palimpsest.log.entry import Entry as Entry
    from palimpsest.log.entry import File as File
    from palimpsest.log.entry import Image as Image
    from palimpsest.log.entry import Opaque as Opaque
    from palimpsest.log.entry import Reasoning as Reasoning
    from palimpsest.log.entry import Text as Text
    from palimpsest.log.head import Usage as Usage
    from palimpsest.log.summary import Spent as Spent
    from palimpsest.log.summary import Summary as Summary
    from palimpsest.log.summary import SummaryItem as SummaryItem
    from palimpsest.privacy import Span as Span
    from palimpsest.privacy.policy import Policy as Policy
    from palimpsest.privacy.redaction import Redactor as Redactor
    from palimpsest.sessions.adding.streaming import Answer as Answer
    from palimpsest.sessions.compacting.result import CompactionResult as CompactionResult
    from palimpsest.sessions.erased import Erased as Erased
    from palimpsest.sessions.erased import Vacuumed as Vacuumed
    from palimpsest.sessions.erasing.query import Query as Query
    from palimpsest.sessions.erasing.scanned import Scanned as Scanned
    from palimpsest.sessions.importing.report import Imported as Imported
    from palimpsest.sessions.importing.report import ImportReport as ImportReport
    from palimpsest.sessions.importing.report import Refused as Refused
    from palimpsest.sessions.memory import AsyncMemory as AsyncMemory
    from palimpsest.sessions.reading import Interaction as Interaction
    from palimpsest.sessions.reading import Stats as Stats
    from palimpsest.sessions.session import AsyncSession as AsyncSession
    from palimpsest.sessions.sync import Memory as Memory
    from palimpsest.sessions.sync import Session as Session
    from palimpsest.sessions.turns import TurnEnd as TurnEnd
    from palimpsest.sessions.verifying import Verification as Verification
    from palimpsest.stores.encrypted.keys import Keys as Keys
    from palimpsest.stores.values import SessionInfo as SessionInfo
    from palimpsest.summaries.models.callables import CallableSummarizer as CallableSummarizer
    from palimpsest.summaries.models.model_summarizer import ModelSummarizer as ModelSummarizer

_HOMES = {
    "Adapted": "formats",
    "Answer": "sessions.adding.streaming",
    "AsyncMemory": "sessions.memory",
    "AsyncSession": "sessions.session",
    "Audio": "log.entry",
    "Budget": "context.budget",
    "BudgetImpossible": "errors",
    "CallableSummarizer": "summaries.models.callables",
    "Closed": "errors",
    "CompactionResult": "sessions.compacting.result",
    "ConditionFailed": "context.conditions",
    "ConfigError": "errors",
    "Conflict": "errors",
    "Context": "context.result",
    "Entry": "log.entry",
    "EntryNotFound": "errors",
    "Erased": "sessions.erased",
    "ErasureFailed": "errors",
    "File": "log.entry",
    "ForkedProcess": "errors",
    "HybridSummary": "compaction.summarize",
    "Image": "log.entry",
    "ImportFailed": "errors",
    "ImportReport": "sessions.importing.report",
    "Imported": "sessions.importing.report",
    "Interaction": "sessions.reading",
    "InvalidContext": "errors",
    "InvalidEntry": "errors",
    "Keys": "stores.encrypted.keys",
    "Ladder": "compaction.ladder",
    "LeftOut": "context.result",
    "LockTimeout": "errors",
    "Lru": "compaction.evict",
    "MaskResults": "compaction.mask",
    "MaxTokens": "context.short_term",
    "Memory": "sessions.sync",
    "MissingExtra": "errors",
    "ModelSummarizer": "summaries.models.model_summarizer",
    "Neuralyzer": "compaction.erase",
    "Opaque": "log.entry",
    "PalimpsestError": "errors",
    "PalimpsestWarning": "errors",
    "Parts": "context.result",
    "PastUnknown": "errors",
    "Policy": "privacy.policy",
    "Prefix": "context.result",
    "PrivacyRefused": "errors",
    "Query": "sessions.erasing.query",
    "Reasoning": "log.entry",
    "Record": "log.change",
    "Redactor": "privacy.redaction",
    "Refused": "sessions.importing.report",
    "Report": "context.result",
    "Scanned": "sessions.erasing.scanned",
    "Session": "sessions.sync",
    "SessionInfo": "stores.values",
    "SessionNotFound": "errors",
    "SimpleFifo": "compaction.evict",
    "Span": "privacy",
    "Spent": "log.summary",
    "Stats": "sessions.reading",
    "Step": "compaction",
    "StoreCorrupt": "errors",
    "StoreError": "errors",
    "StoreTooNew": "errors",
    "StoreUnavailable": "errors",
    "Summarize": "compaction.summarize",
    "SummarizerFailed": "errors",
    "Summary": "log.summary",
    "SummaryItem": "log.summary",
    "SupersededContexts": "compaction.mask",
    "Text": "log.entry",
    "TokenAwareLru": "compaction.evict",
    "TriggerDecision": "compaction",
    "Triggers": "compaction.triggers",
    "TurnEnd": "sessions.turns",
    "Usage": "log.head",
    "Vacuumed": "sessions.erased",
    "Verification": "sessions.verifying",
    "WrongKey": "errors",
}

__all__ = [  # noqa: PLE0604 (the names of a literal table)
    *sorted(_HOMES),
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'palimpsest' has no attribute {name!r}")
    value = getattr(import_module(f"palimpsest.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
