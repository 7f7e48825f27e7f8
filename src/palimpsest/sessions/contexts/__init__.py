"""The contexts of a session: reading what they need, building them, and committing their cuts."""
