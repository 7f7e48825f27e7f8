"""Doors for programs that were written for other memories: their names and signatures, over Palimpsest."""
