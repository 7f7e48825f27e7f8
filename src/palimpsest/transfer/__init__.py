"""Exporting sessions, reading exports back, and reading conversations from files of other programs."""
