"""Importing conversations from files into a memory. Repeating an import adds nothing twice."""
