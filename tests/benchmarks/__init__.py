"""Figures, printed as a table; no judgement is passed."""
