"""The command line. Thin: it only calls the public API."""
