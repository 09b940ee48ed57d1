"""Tokenizers: what text each condition learns from, and how each flavor learns."""
