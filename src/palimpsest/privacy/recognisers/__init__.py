"""The recognisers that come with Palimpsest (`built_in`), and the cheap looks at a text that come before them. Pure."""
