"""Build what a model is given from entries and a budget: window, cut, short-term rules, result. Pure."""
