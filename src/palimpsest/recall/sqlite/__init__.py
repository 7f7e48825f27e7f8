"""The search index in SQLite's FTS5: in a file beside the store, or in this process's memory."""
