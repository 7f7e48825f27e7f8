"""Clients of vendors that remember: `client = remember(OpenAI(), session)`, from the module of the vendor.

No vendor's package is imported: a client is known by what it can do.
"""
