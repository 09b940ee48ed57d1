"""Bilingual pretraining runs that separate script from tokenizer starvation."""

__version__ = "0.1.0"
