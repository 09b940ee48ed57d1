"""Mixtures, names, the 18 cells and 26 runs, and what depends on what. Imports no torch."""
