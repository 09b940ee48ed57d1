"""The languages the experiment knows. A new language is one line here."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Language:
    name: str
    script: str
    flores: str
    """Its code in FLORES+."""
    fineweb: str
    """Its configuration in FineWeb2, which has no English."""
    byte_premium: float
    """UTF-8 bytes for the same content, English = 1, on FLORES+ dev and devtest (2009 sentences)."""
    flores_bytes: int
    """UTF-8 bytes of FLORES+ dev and devtest."""


LANGUAGES = {
    "en": Language("English", "Latin", "eng_Latn", "", 1.0, 257386),
    "de": Language("German", "Latin", "deu_Latn", "deu_Latn", 1.1861, 305294),
    "fr": Language("French", "Latin", "fra_Latn", "fra_Latn", 1.2374, 318500),
    "ar": Language("Arabic", "Arabic", "arb_Arab", "arb_Arab", 1.6001, 411839),
    "zh": Language("Chinese", "Han", "cmn_Hans", "cmn_Hani", 0.9249, 238057),
}
