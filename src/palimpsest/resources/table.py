"""The keys of a resource, in one table: where each comes from, and which option of Palimpsest it sets. Pure."""

from __future__ import annotations

from typing import NamedTuple

from palimpsest.sessions.options import GivenOptions


class Documented(NamedTuple):
    """A `key` of a resource, the document that defines it (`source`: "Compozy", "Alquimia", or "" for Palimpsest's
    own), the option of Palimpsest that it sets (`ours`), and its description (`says`)."""

    key: str
    source: str
    ours: str
    says: str


TABLE = (
    Documented("resource", "Compozy", "", 'always "memory": what the file declares'),
    Documented("id", "Compozy", "a part of the session's id", "the memory's name in its project"),
    Documented("project", "", "a part of the session's id", 'the project, a name or {id: NAME}; "default" by default'),
    Documented("description", "Compozy", "", "what the memory is for"),
    Documented("version", "Compozy", "definition", "the version of the definition, such as 2.1.0-beta"),
    Documented("type", "Compozy", "", "token_based, message_count_based or buffer: which limits there must be"),
    Documented("max_tokens", "Compozy", "max_log_tokens", "tokens of what the memory gives to a context"),
    Documented("max_messages", "Compozy", "max_messages", "messages of what the memory gives to a context"),
    Documented("max_context_ratio", "Compozy", "max_log_tokens", "the share of the model's window that it may take"),
    Documented("context_window", "", "max_log_tokens", "the window in tokens, where the model is not in the table"),
    Documented("token_allocation", "Compozy", "summary_share, tag_shares", "how the room is shared out"),
    Documented("token_provider", "Compozy", "model, counter", "the model whose tokens are counted"),
    Documented("flushing", "Compozy", "long_term", "when old messages leave the context, and how"),
    Documented("persistence", "Compozy", "the store, lifetime, circuit_breaker", "where it is kept, and for how long"),
    Documented(
        "locking",
        "Compozy",
        "turn_lease, compaction_lease, the lease of a clear",
        "how long one who works on a session holds it without a sign of life",
    ),
    Documented("limits", "Compozy", "limits of `keyed`", "how large what is written by key at once may be"),
    Documented("privacy_policy", "Compozy", "privacy", "what may not be kept"),
    Documented(
        "default_key_template", "Compozy", "a part of the session's id", "which key a reference without one has"
    ),
    Documented("profile", "Alquimia", "", "may hold the three keys below"),
    Documented("short_term_memory_strategy", "Alquimia", "short_term", "what of the log a context shows"),
    Documented("long_term_memory_strategy", "Alquimia", "long_term", "when the log is summarised or erased"),
    Documented("persistence_strategy", "Alquimia", "persistence", "INCREMENTAL, FLUSH or EPHEMERAL"),
    Documented("store", "", "the store", "the address of a store, in the place of `persistence`"),
    Documented("privacy", "", "privacy", "a preset or a policy of Palimpsest, in the place of `privacy_policy`"),
    Documented("circuit_breaker", "", "circuit_breaker", "when a store that does not answer is left alone"),
    Documented("encryption", "", "encryption", "{keys_env: NAME}: the variable that has the keys"),
    Documented("summarizer", "", "summarizer", "a model string, or a mapping of options of a ModelSummarizer"),
)
"""Every key of a resource that is documented here. Further keys are the options of a session (`OPTIONS`)."""

FROM_PROGRAMS = (
    *("counter", "user", "title", "metadata", "short_term"),
    *("long_term", "summarizer", "max_tokens", "persistence", "definition"),
)
"""Options of a session that are no keys of a resource: they are objects, belong to one session, or have another name or
meaning in a document."""

OPTIONS = tuple(name for name in GivenOptions.__struct_fields__ if name not in FROM_PROGRAMS)
"""Options of a session that are keys of a resource by their own names."""

BARE = ("memory_strategy_id", "long_term_memory_id")
"""The keys by which a file is known that is only a strategy: one of short-term, one of long-term memory."""

KEYS = (*dict.fromkeys((*(row.key for row in TABLE), *OPTIONS)),)
"""Every key that a resource may have."""
