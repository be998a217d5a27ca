"""Drift: what is on a box, against what should be there. `gb10 drift` is its command."""
