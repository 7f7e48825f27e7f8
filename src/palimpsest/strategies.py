"""When and how a session is compacted: triggers, strategies, summarizers, and rules for short-term contexts."""

from typing import TYPE_CHECKING

from palimpsest import _names

if TYPE_CHECKING:
    from palimpsest.compaction import Plan as Plan
    from palimpsest.compaction import Snapshot as Snapshot
    from palimpsest.compaction import Step as Step
    from palimpsest.compaction import Strategy as Strategy
    from palimpsest.compaction import TriggerDecision as TriggerDecision
    from palimpsest.compaction.erase import Neuralyzer as Neuralyzer
    from palimpsest.compaction.evict import Lru as Lru
    from palimpsest.compaction.evict import SimpleFifo as SimpleFifo
    from palimpsest.compaction.evict import TokenAwareLru as TokenAwareLru
    from palimpsest.compaction.knowledge import KnowledgeBase as KnowledgeBase
    from palimpsest.compaction.knowledge import TextSplitter as TextSplitter
    from palimpsest.compaction.ladder import Ladder as Ladder
    from palimpsest.compaction.mask import MaskResults as MaskResults
    from palimpsest.compaction.mask import SupersededContexts as SupersededContexts
    from palimpsest.compaction.style import Style as Style
    from palimpsest.compaction.summarize import HybridSummary as HybridSummary
    from palimpsest.compaction.summarize import Summarize as Summarize
    from palimpsest.compaction.triggers import Triggers as Triggers
    from palimpsest.context.short_term import MaxTokens as MaxTokens
    from palimpsest.summaries import Reply as Reply
    from palimpsest.summaries import SummarySource as SummarySource
    from palimpsest.summaries.models.callables import CallableSummarizer as CallableSummarizer
    from palimpsest.summaries.models.callables import SourceSummarizer as SourceSummarizer
    from palimpsest.summaries.models.model_summarizer import ModelSummarizer as ModelSummarizer

_HOMES = {
    "CallableSummarizer": "summaries.models.callables",
    "HybridSummary": "compaction.summarize",
    "KnowledgeBase": "compaction.knowledge",
    "Ladder": "compaction.ladder",
    "Lru": "compaction.evict",
    "MaskResults": "compaction.mask",
    "MaxTokens": "context.short_term",
    "ModelSummarizer": "summaries.models.model_summarizer",
    "Neuralyzer": "compaction.erase",
    "Plan": "compaction",
    "Reply": "summaries",
    "SimpleFifo": "compaction.evict",
    "Snapshot": "compaction",
    "SourceSummarizer": "summaries.models.callables",
    "Step": "compaction",
    "Strategy": "compaction",
    "Style": "compaction.style",
    "Summarize": "compaction.summarize",
    "SummarySource": "summaries",
    "SupersededContexts": "compaction.mask",
    "TextSplitter": "compaction.knowledge",
    "TokenAwareLru": "compaction.evict",
    "TriggerDecision": "compaction",
    "Triggers": "compaction.triggers",
}

__all__ = [  # noqa: PLE0604 (the names of a literal table)
    *sorted(_HOMES),
]

if not TYPE_CHECKING:  # with `__getattr__` a type checker would accept any name
    __getattr__, __dir__ = _names(globals(), _HOMES)
