"""The names of AGTerm's memory manager, over Palimpsest."""

from typing import TYPE_CHECKING

from palimpsest import _names

if TYPE_CHECKING:
    from palimpsest.compat.agterm.config import DEFAULT_MEMORY_CONFIG as DEFAULT_MEMORY_CONFIG
    from palimpsest.compat.agterm.config import MemoryConfig as MemoryConfig
    from palimpsest.compat.agterm.manager import AsyncMemoryManager as AsyncMemoryManager
    from palimpsest.compat.agterm.records import Cleared as Cleared
    from palimpsest.compat.agterm.records import CompressionResult as CompressionResult
    from palimpsest.compat.agterm.records import ContextParts as ContextParts
    from palimpsest.compat.agterm.records import MemoryEntry as MemoryEntry
    from palimpsest.compat.agterm.records import MemoryStats as MemoryStats
    from palimpsest.compat.agterm.records import MemorySummary as MemorySummary
    from palimpsest.compat.agterm.records import SessionState as SessionState
    from palimpsest.compat.agterm.records import TimeRange as TimeRange
    from palimpsest.compat.agterm.sync import MemoryManager as MemoryManager

_HOMES = {
    "AsyncMemoryManager": "compat.agterm.manager",
    "Cleared": "compat.agterm.records",
    "CompressionResult": "compat.agterm.records",
    "ContextParts": "compat.agterm.records",
    "DEFAULT_MEMORY_CONFIG": "compat.agterm.config",
    "MemoryConfig": "compat.agterm.config",
    "MemoryEntry": "compat.agterm.records",
    "MemoryManager": "compat.agterm.sync",
    "MemoryStats": "compat.agterm.records",
    "MemorySummary": "compat.agterm.records",
    "SessionState": "compat.agterm.records",
    "TimeRange": "compat.agterm.records",
}

__all__ = [  # noqa: PLE0604 (the names of a literal table)
    *sorted(_HOMES),
]

if not TYPE_CHECKING:  # a type checker that saw it would believe in every name
    __getattr__, __dir__ = _names(globals(), _HOMES)
