"""Taking conversations from files into a memory, once however often it is repeated."""
