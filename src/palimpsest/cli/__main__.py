"""`python -m palimpsest.cli` does what `palimpsest` does."""

from palimpsest.cli import main

main()
