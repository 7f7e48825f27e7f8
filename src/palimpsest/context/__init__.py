"""From entries and a budget to what a model is given: the window, the cut, the short-term rules, the result. Pure."""
