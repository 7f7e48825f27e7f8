"""Descriptions of keys within other keys that no docstring describes, for the schema. Pure."""

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
        "clear_ttl": "how long a clear by key of a process that was killed holds up the next one; 10s by default",
        "flush_ttl": "how long a compaction of a process that was killed holds up the next one; 5m by default",
    },
    "limits": {
        "max_message_content": "bytes of one message's content; 10240 by default",
        "max_total_content_size": "bytes of all that is written at once; 102400 by default",
        "max_messages_per_request": "messages that are written at once; 100 by default",
    },
    "token_allocation": {
        "short_term": "the share of the messages, which also have what the others leave",
        "long_term": "the share that summaries, and what is recalled, take at most",
        "system": "the share of system messages and of what is pinned, which may take more",
        "user_defined": "shares by tag: the most that entries with this tag in their metadata take",
    },
    "token_provider": {
        "provider": "whose model it is; its usual window is taken where no model is named",
        "model": "the model whose tokens are counted, and whose window max_context_ratio is a share of",
        "api_key": "${NAME}: the variable with the key of a counting service that the program registers; else not used",
        "api_key_env": "the variable that has the key of such a service",
        "endpoint": "what such a service is given as its address",
        "fallback": "the model, or encoding, that counts where the other one is not known, or such a service fails",
        "settings": "what such a service is given besides",
    },
    "encryption": {"keys_env": "the environment variable that has the keys, as ID:KEY; keys do not stand in files"},
    "knowledge_base": {
        "collection_id": "the name of the collection",
        "search_mode": "when contexts are given what it holds: always, on_demand, never, or where a condition holds",
        "search_type": "how it is searched; nothing: hybrid with an embedder, else keyword",
        "top_k": "the most chunks that are found; 4 by default",
        "fetch_k": "how many chunks are looked at; nothing: 20, or four times top_k where that is more",
        "max_tokens": "tokens that a context is given from it, at most; nothing: as many as the tail has room for",
        "score_threshold": "the least score of a chunk that is found, from 0 to 1; nothing: any",
        "lambda_mult": "for mmr, from 0, variety alone, to 1, the question alone; 0.5 by default",
        "write": "whether summaries are written there; true by default",
        "embedder": "the name of a model that makes vectors, such as wordllama; nothing: words are compared",
    },
    "text_splitter": {
        "type": "where it is split",
        "unit": "what sizes are counted in",
        "chunk_size": "how large a piece is; 512 by default",
        "chunk_overlap": "how much of a piece stands in the next one, too; 64 by default",
        "min_chunk": "how small the last piece may be; 0 by default",
        "separators": "texts behind which it is split, the best first",
        "keep_separator": "whether pieces keep those that they begin and end with; true by default",
        "add_start_index": "whether a piece says at which character it begins; false by default",
    },
    "pattern": {
        "pattern": "a regular expression",
        "redaction_string": "what each match becomes; nothing: the policy's string",
    },
    "summarizer": {"api_key_env": "the environment variable that has the key; nothing: the provider's own"},
}
"""By the outer key, and by the key within it."""
