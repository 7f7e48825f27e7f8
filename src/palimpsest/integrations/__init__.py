"""Vendors' clients with memory: `client = remember(OpenAI(), session)`, from the module of the vendor; and adapters for
agent frameworks: `openai_agents` and `pydantic_ai`.

No vendor's package is imported: a client is recognised by its methods. A framework is imported by its adapter alone.
"""
