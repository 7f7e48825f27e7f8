"""The names of Firefly's memory module, over Palimpsest."""

from typing import TYPE_CHECKING

from palimpsest import _names

if TYPE_CHECKING:
    from palimpsest.compat.firefly.conversation import ConversationMemory as ConversationMemory
    from palimpsest.compat.firefly.entries import MemoryEntry as MemoryEntry
    from palimpsest.compat.firefly.entries import MemoryScope as MemoryScope
    from palimpsest.compat.firefly.file_store import FileStore as FileStore
    from palimpsest.compat.firefly.in_memory import InMemoryStore as InMemoryStore
    from palimpsest.compat.firefly.manager import MemoryManager as MemoryManager
    from palimpsest.compat.firefly.mongodb_store import MongoDBStore as MongoDBStore
    from palimpsest.compat.firefly.postgres_store import PostgreSQLStore as PostgreSQLStore
    from palimpsest.compat.firefly.redis_store import RedisStore as RedisStore
    from palimpsest.compat.firefly.sqlite_store import SQLiteStore as SQLiteStore
    from palimpsest.compat.firefly.store import MemoryStore as MemoryStore
    from palimpsest.compat.firefly.summarization import create_llm_summarizer as create_llm_summarizer
    from palimpsest.compat.firefly.turns import ConversationTurn as ConversationTurn
    from palimpsest.compat.firefly.working import WorkingMemory as WorkingMemory

_HOMES = {
    "ConversationMemory": "compat.firefly.conversation",
    "ConversationTurn": "compat.firefly.turns",
    "FileStore": "compat.firefly.file_store",
    "InMemoryStore": "compat.firefly.in_memory",
    "MemoryEntry": "compat.firefly.entries",
    "MemoryManager": "compat.firefly.manager",
    "MemoryScope": "compat.firefly.entries",
    "MemoryStore": "compat.firefly.store",
    "MongoDBStore": "compat.firefly.mongodb_store",
    "PostgreSQLStore": "compat.firefly.postgres_store",
    "RedisStore": "compat.firefly.redis_store",
    "SQLiteStore": "compat.firefly.sqlite_store",
    "WorkingMemory": "compat.firefly.working",
    "create_llm_summarizer": "compat.firefly.summarization",
}

__all__ = [  # noqa: PLE0604 (the names of a literal table)
    *sorted(_HOMES),
]

if not TYPE_CHECKING:  # a type checker that saw it would believe in every name
    __getattr__, __dir__ = _names(globals(), _HOMES)
