"""The log as pure functions: entries, the head, changes and their records, links, and what summaries cover."""
