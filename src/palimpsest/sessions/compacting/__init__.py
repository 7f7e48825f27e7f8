"""The compaction of a session: by hand and automatic, from the snapshot to the commit."""
