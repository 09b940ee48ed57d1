"""The languages the experiment knows. A new language is one line here."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Language:
    name: str
    script: str
    byte_premium: float
    """UTF-8 bytes for the same content, English = 1, on FLORES+ dev and devtest (2009 sentences)."""


LANGUAGES = {
    "en": Language("English", "Latin", 1.0),
    "de": Language("German", "Latin", 1.1861),
    "fr": Language("French", "Latin", 1.2374),
    "ar": Language("Arabic", "Arabic", 1.6001),
    "zh": Language("Chinese", "Han", 0.9249),
}
