"""Clients of vendors that remember: `client = remember(OpenAI(), session)`, from the module of the vendor; and adapters
for agent frameworks: `openai_agents` and `pydantic_ai`.

No vendor's package is imported: a client is known by what it can do. A framework is, by its adapter alone.
"""
