"""Palimpsest: memory for LLM agents. One log per conversation; contexts that fit, are valid and stay stable."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from palimpsest.budget import Budget as Budget
    from palimpsest.compaction import Step as Step
    from palimpsest.compaction import TriggerDecision as TriggerDecision
    from palimpsest.compaction.erase import Neuralyzer as Neuralyzer
    from palimpsest.compaction.evict import Lru as Lru
    from palimpsest.compaction.evict import SimpleFifo as SimpleFifo
    from palimpsest.compaction.evict import TokenAwareLru as TokenAwareLru
    from palimpsest.compaction.ladder import Ladder as Ladder
    from palimpsest.compaction.mask import MaskResults as MaskResults
    from palimpsest.compaction.mask import SupersededContexts as SupersededContexts
    from palimpsest.compaction.max_tokens import MaxTokens as MaxTokens
    from palimpsest.compaction.summarize import HybridSummary as HybridSummary
    from palimpsest.compaction.summarize import Summarize as Summarize
    from palimpsest.compaction.triggers import Triggers as Triggers
    from palimpsest.conditions import ConditionFailed as ConditionFailed
    from palimpsest.context import Context as Context
    from palimpsest.context import LeftOut as LeftOut
    from palimpsest.context import Parts as Parts
    from palimpsest.context import Prefix as Prefix
    from palimpsest.context import Report as Report
    from palimpsest.entries import Audio as Audio
    from palimpsest.entries import Entry as Entry
    from palimpsest.entries import File as File
    from palimpsest.entries import Image as Image
    from palimpsest.entries import Opaque as Opaque
    from palimpsest.entries import Reasoning as Reasoning
    from palimpsest.entries import Text as Text
    from palimpsest.erasing import Erased as Erased
    from palimpsest.erasing import Query as Query
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
    from palimpsest.errors import PastUnknown as PastUnknown
    from palimpsest.errors import PrivacyRefused as PrivacyRefused
    from palimpsest.errors import SessionNotFound as SessionNotFound
    from palimpsest.errors import StoreCorrupt as StoreCorrupt
    from palimpsest.errors import StoreError as StoreError
    from palimpsest.errors import StoreTooNew as StoreTooNew
    from palimpsest.errors import StoreUnavailable as StoreUnavailable
    from palimpsest.errors import SummarizerFailed as SummarizerFailed
    from palimpsest.errors import WrongKey as WrongKey
    from palimpsest.facade import Session as Session
    from palimpsest.formats import Adapted as Adapted
    from palimpsest.importer import Imported as Imported
    from palimpsest.importer import ImportReport as ImportReport
    from palimpsest.importer import Refused as Refused
    from palimpsest.log import Record as Record
    from palimpsest.log import Usage as Usage
    from palimpsest.memory import AsyncMemory as AsyncMemory
    from palimpsest.options import PalimpsestWarning as PalimpsestWarning
    from palimpsest.outcome import CompactionResult as CompactionResult
    from palimpsest.privacy import Span as Span
    from palimpsest.privacy.policy import Policy as Policy
    from palimpsest.privacy.redaction import Redactor as Redactor
    from palimpsest.reading import Interaction as Interaction
    from palimpsest.reading import Stats as Stats
    from palimpsest.scan import Scanned as Scanned
    from palimpsest.session import AsyncSession as AsyncSession
    from palimpsest.session import TurnEnd as TurnEnd
    from palimpsest.stores import SessionInfo as SessionInfo
    from palimpsest.stores.encrypted.keys import Keys as Keys
    from palimpsest.summarizers.callables import CallableSummarizer as CallableSummarizer
    from palimpsest.summarizers.models import ModelSummarizer as ModelSummarizer
    from palimpsest.summary import Spent as Spent
    from palimpsest.summary import Summary as Summary
    from palimpsest.summary import SummaryItem as SummaryItem
    from palimpsest.sync_memory import Memory as Memory
    from palimpsest.verifying import Verification as Verification

_HOMES = {
    "Adapted": "formats",
    "AsyncMemory": "memory",
    "AsyncSession": "session",
    "Audio": "entries",
    "Budget": "budget",
    "BudgetImpossible": "errors",
    "CallableSummarizer": "summarizers.callables",
    "Closed": "errors",
    "CompactionResult": "outcome",
    "ConditionFailed": "conditions",
    "ConfigError": "errors",
    "Conflict": "errors",
    "Context": "context",
    "Entry": "entries",
    "EntryNotFound": "errors",
    "Erased": "erasing",
    "ErasureFailed": "errors",
    "File": "entries",
    "ForkedProcess": "errors",
    "HybridSummary": "compaction.summarize",
    "Image": "entries",
    "ImportFailed": "errors",
    "ImportReport": "importer",
    "Imported": "importer",
    "Interaction": "reading",
    "InvalidContext": "errors",
    "InvalidEntry": "errors",
    "Keys": "stores.encrypted.keys",
    "Ladder": "compaction.ladder",
    "LeftOut": "context",
    "LockTimeout": "errors",
    "Lru": "compaction.evict",
    "MaskResults": "compaction.mask",
    "MaxTokens": "compaction.max_tokens",
    "Memory": "sync_memory",
    "MissingExtra": "errors",
    "ModelSummarizer": "summarizers.models",
    "Neuralyzer": "compaction.erase",
    "Opaque": "entries",
    "PalimpsestError": "errors",
    "PalimpsestWarning": "options",
    "Parts": "context",
    "PastUnknown": "errors",
    "Policy": "privacy.policy",
    "Prefix": "context",
    "PrivacyRefused": "errors",
    "Query": "erasing",
    "Reasoning": "entries",
    "Record": "log",
    "Redactor": "privacy.redaction",
    "Refused": "importer",
    "Report": "context",
    "Scanned": "scan",
    "Session": "facade",
    "SessionInfo": "stores",
    "SessionNotFound": "errors",
    "SimpleFifo": "compaction.evict",
    "Span": "privacy",
    "Spent": "summary",
    "Stats": "reading",
    "Step": "compaction",
    "StoreCorrupt": "errors",
    "StoreError": "errors",
    "StoreTooNew": "errors",
    "StoreUnavailable": "errors",
    "Summarize": "compaction.summarize",
    "SummarizerFailed": "errors",
    "Summary": "summary",
    "SummaryItem": "summary",
    "SupersededContexts": "compaction.mask",
    "Text": "entries",
    "TokenAwareLru": "compaction.evict",
    "TriggerDecision": "compaction",
    "Triggers": "compaction.triggers",
    "TurnEnd": "session",
    "Usage": "log",
    "Verification": "verifying",
    "WrongKey": "errors",
}

__all__ = [  # noqa: PLE0604 (the names of a literal table)
    *sorted(_HOMES),
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'palimpsest' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"palimpsest.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
