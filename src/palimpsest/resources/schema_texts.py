"""What keys that stand inside of others are for, where no docstring of ours says it. Pure."""

from __future__ import annotations

TEXTS = {
    "project": {"id": "the project's name"},
    "persistence": {
        "type": "the kind of store",
        "ttl": "how long a session lasts when nothing is added any more; 0, or nothing: for ever; redis needs it",
        "url": "the address of a server, or ${NAME}: what that environment variable says",
        "path": "the file of sqlite, or the folder of file; a relative one begins where the program runs",
        "circuit_breaker": "when a store that does not answer is left alone",
    },
    "circuit_breaker": {
        "enabled": "whether there is one; true where the block is there",
        "timeout": "how long a call of the store may take; 5s by default",
        "max_failures": "after how many failures in a row the store is left alone; 5 by default",
        "reset_timeout": "after how long it is tried again; 30s by default",
    },
    "locking": {
        "append_ttl": "how long a turn of a process that was killed holds up the next one; 30s by default",
        "clear_ttl": "without effect: to clear is one step here",
        "flush_ttl": "how long a compaction of a process that was killed holds up the next one; 5m by default",
    },
    "token_allocation": {
        "short_term": "the share of the messages, which also have what the others leave",
        "long_term": "the share that summaries take at most",
        "system": "the share of system messages and of what is pinned, which may take more",
        "user_defined": "shares by name; they are counted in the sum, and bound nothing",
    },
    "token_provider": {
        "provider": "whose model it is; its usual window is taken where no model is named",
        "model": "the model whose tokens are counted, and whose window max_context_ratio is a share of",
        "api_key": "not used: tokens are counted on this machine; let it be ${NAME}, if it has to be there",
        "api_key_env": "not used: tokens are counted on this machine",
        "endpoint": "not used: tokens are counted on this machine",
        "fallback": "the model that counts where the other one is not known",
        "settings": "not used",
    },
    "encryption": {"keys_env": "the environment variable that has the keys, as ID:KEY; keys do not stand in files"},
    "knowledge_base": {
        "collection_id": "the name of the collection",
        "search_mode": "always, on_demand, never, or a condition",
        "search_type": "how it is searched",
        "top_k": "how many are taken",
        "fetch_k": "how many are looked at",
        "max_tokens": "tokens that they take at most",
        "score_threshold": "how near one has to be, from 0 to 1",
        "lambda_mult": "from 0, the most different ones, to 1, the nearest ones",
        "write": "whether summaries are written there",
    },
    "text_splitter": {
        "type": "where it is split",
        "unit": "what sizes are counted in",
        "chunk_size": "how large a piece is; 512 by default",
        "chunk_overlap": "how much of a piece stands in the next one, too; 64 by default",
        "min_chunk": "how small a piece may be",
        "separators": "texts at which it is split",
        "keep_separator": "whether they stay in the pieces",
        "add_start_index": "whether a piece says where it begins",
    },
    "pattern": {
        "pattern": "a regular expression",
        "redaction_string": "what each match becomes; nothing: the policy's string",
    },
    "summarizer": {"api_key_env": "the environment variable that has the key; nothing: the provider's own"},
}
"""By the key that they stand in, and by their own."""
