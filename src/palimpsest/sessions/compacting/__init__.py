"""The compaction of a session: by hand and by itself, from the snapshot to the commit."""
