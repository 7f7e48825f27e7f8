"""Recall: searching what was said in one session, or in all of a tenant's, within a budget of tokens."""
