"""The contexts of a session: what is read for one, how it is laid out, when a cut is committed."""
