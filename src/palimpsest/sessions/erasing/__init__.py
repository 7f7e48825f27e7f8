"""Destroying stored texts: erasing entries, forgetting a user or session, and redacting what is already stored."""
