"""The search index of a PostgreSQL store: tables of its own in the store's schema."""
