"""The search index in this process's memory, for a Python whose SQLite lacks FTS5."""
