"""Adding to a session: from what a verb is given to what the store commits."""
