"""Types for annotations: values that verbs return and contexts report, and values of options."""

from typing import TYPE_CHECKING

from palimpsest import _names

if TYPE_CHECKING:
    from palimpsest.compaction import Reason as Reason
    from palimpsest.compaction.loading import StrategyName as StrategyName
    from palimpsest.context.account import LeftOut as LeftOut
    from palimpsest.context.account import Parts as Parts
    from palimpsest.context.account import Prefix as Prefix
    from palimpsest.context.account import Report as Report
    from palimpsest.context.cut import Oversize as Oversize
    from palimpsest.formats import Adapted as Adapted
    from palimpsest.formats import FormatName as FormatName
    from palimpsest.log.change import Record as Record
    from palimpsest.log.entry import Kind as Kind
    from palimpsest.log.entry import Role as Role
    from palimpsest.log.entry import Status as Status
    from palimpsest.log.facts import Fact as Fact
    from palimpsest.log.facts import Superseded as Superseded
    from palimpsest.log.head import Definition as Definition
    from palimpsest.log.summary import Spent as Spent
    from palimpsest.log.summary import Summary as Summary
    from palimpsest.log.summary import SummaryItem as SummaryItem
    from palimpsest.privacy import Recogniser as Recogniser
    from palimpsest.runtime.events import EventName as EventName
    from palimpsest.runtime.events import Handler as Handler
    from palimpsest.sessions.adding.streaming import CutOff as CutOff
    from palimpsest.sessions.adding.verbs import Content as Content
    from palimpsest.sessions.compacting.result import CompactionResult as CompactionResult
    from palimpsest.sessions.declared import DefinitionInfo as DefinitionInfo
    from palimpsest.sessions.derived import Derived as Derived
    from palimpsest.sessions.erased import Erased as Erased
    from palimpsest.sessions.erased import Vacuumed as Vacuumed
    from palimpsest.sessions.erasing.scanned import Scanned as Scanned
    from palimpsest.sessions.importing.report import Imported as Imported
    from palimpsest.sessions.importing.report import ImportReport as ImportReport
    from palimpsest.sessions.importing.report import Refused as Refused
    from palimpsest.sessions.knowledge.base import AsyncKnowledge as AsyncKnowledge
    from palimpsest.sessions.knowledge_sync import Knowledge as Knowledge
    from palimpsest.sessions.listing import SessionPage as SessionPage
    from palimpsest.sessions.memory import OnConflict as OnConflict
    from palimpsest.sessions.memory import Privacy as Privacy
    from palimpsest.sessions.options import AutoCompact as AutoCompact
    from palimpsest.sessions.options import LongTermRun as LongTermRun
    from palimpsest.sessions.options import Persistence as Persistence
    from palimpsest.sessions.reading import Interaction as Interaction
    from palimpsest.sessions.reading import Stats as Stats
    from palimpsest.sessions.recalling.recalled import IndexStatus as IndexStatus
    from palimpsest.sessions.recalling.recalled import Passage as Passage
    from palimpsest.sessions.recalling.recalled import Recalled as Recalled
    from palimpsest.sessions.shelves.records import KnowledgeDocument as KnowledgeDocument
    from palimpsest.sessions.shelves.records import KnowledgeHit as KnowledgeHit
    from palimpsest.sessions.turns import TurnEnd as TurnEnd
    from palimpsest.sessions.verifying import Verification as Verification
    from palimpsest.sessions.working import FactPage as FactPage
    from palimpsest.stores.circuit_breaker import CircuitBreaker as CircuitBreaker
    from palimpsest.stores.options import StoreOptions as StoreOptions
    from palimpsest.stores.options import Synchronous as Synchronous
    from palimpsest.stores.values import SessionInfo as SessionInfo
    from palimpsest.transfer.sources import SourceName as SourceName
    from palimpsest.transfer.sources.limits import Limits as Limits

_HOMES = {
    "Adapted": "formats",
    "AsyncKnowledge": "sessions.knowledge.base",
    "AutoCompact": "sessions.options",
    "CircuitBreaker": "stores.circuit_breaker",
    "CompactionResult": "sessions.compacting.result",
    "Content": "sessions.adding.verbs",
    "CutOff": "sessions.adding.streaming",
    "Definition": "log.head",
    "DefinitionInfo": "sessions.declared",
    "Derived": "sessions.derived",
    "Erased": "sessions.erased",
    "EventName": "runtime.events",
    "Fact": "log.facts",
    "FactPage": "sessions.working",
    "FormatName": "formats",
    "Handler": "runtime.events",
    "ImportReport": "sessions.importing.report",
    "Imported": "sessions.importing.report",
    "IndexStatus": "sessions.recalling.recalled",
    "Interaction": "sessions.reading",
    "Kind": "log.entry",
    "Knowledge": "sessions.knowledge_sync",
    "KnowledgeDocument": "sessions.shelves.records",
    "KnowledgeHit": "sessions.shelves.records",
    "LeftOut": "context.account",
    "Limits": "transfer.sources.limits",
    "LongTermRun": "sessions.options",
    "OnConflict": "sessions.memory",
    "Oversize": "context.cut",
    "Parts": "context.account",
    "Passage": "sessions.recalling.recalled",
    "Persistence": "sessions.options",
    "Prefix": "context.account",
    "Privacy": "sessions.memory",
    "Reason": "compaction",
    "Recalled": "sessions.recalling.recalled",
    "Recogniser": "privacy",
    "Record": "log.change",
    "Refused": "sessions.importing.report",
    "Report": "context.account",
    "Role": "log.entry",
    "Scanned": "sessions.erasing.scanned",
    "SessionInfo": "stores.values",
    "SessionPage": "sessions.listing",
    "SourceName": "transfer.sources",
    "Spent": "log.summary",
    "Stats": "sessions.reading",
    "Status": "log.entry",
    "StoreOptions": "stores.options",
    "StrategyName": "compaction.loading",
    "Summary": "log.summary",
    "SummaryItem": "log.summary",
    "Superseded": "log.facts",
    "Synchronous": "stores.options",
    "TurnEnd": "sessions.turns",
    "Vacuumed": "sessions.erased",
    "Verification": "sessions.verifying",
}

__all__ = [  # noqa: PLE0604 (the names of a literal table)
    *sorted(_HOMES),
]

if not TYPE_CHECKING:  # with `__getattr__` a type checker would accept any name
    __getattr__, __dir__ = _names(globals(), _HOMES)
