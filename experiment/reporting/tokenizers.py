"""The tables of the tokenizers: what they do to text, what their vocabularies hold, how they split."""

from collections.abc import Mapping
from typing import Any

from fontTools import unicodedata

from experiment.reporting.tables import Table, markdown

SCRIPTS_SHOWN = 12
BOUNDARY = "│"


def tokenizer_tables(shards: list[dict[str, Any]], analysis: Mapping[str, Any] | None) -> list[Table]:
    """Those of the training shards and of an analysis (`experiment.tokenizers.analysis`), where there are any."""
    made = [_shards(shards)]
    if analysis and "reason" not in analysis:
        made += [_ratios(analysis), _text(analysis), _summary(analysis), _scripts(analysis), _splits(analysis)]
    return [table for table in made if table.rows]


def verdicts(analysis: Mapping[str, Any]) -> list[str]:
    """For each flavor, whether its conditions differ enough to go on."""
    return [found["sentence"] for found in analysis["verdicts"].values()]


def tokenizers_markdown(report: Mapping[str, Any]) -> str:
    """An analysis with its origin (`experiment.tokenizers.__main__`) as one document."""
    data, prints = report["data"], report["fingerprints"].items()
    origin = [f"corpus {data['corpus']}", f"parallel text {data['parallel']} (sha256 {data['parallel_sha256'][:12]})"]
    origin += [f"{name} {fingerprint[:12]}" for name, fingerprint in prints]
    parts = [f"# Tokenizers of flavor {report['flavor']} at scale {report['scale']}", "; ".join(origin)]
    parts += verdicts(report)
    parts += [markdown(table, level=2).rstrip("\n") for table in tokenizer_tables([], report)]
    return "\n\n".join(parts) + "\n"


def _shards(rows: list[dict[str, Any]]) -> Table:
    out = [
        (r["tok"], r["variant"], r["lang"], f"{r['bytes_per_token']:.3f}", f"{r['tokens']:,}", f"{r['bytes']:,}")
        for r in rows
    ]
    note = "<bos> and <eos> included."
    columns = ("tokenizer", "variant", "language", "bytes per token", "tokens", "bytes")
    return Table("tokenizers", "Tokenizers on the training shards", note, columns, out, rows)


def _ratios(analysis: Mapping[str, Any]) -> Table:
    out, records = [], []
    for r in analysis["comparisons"]:
        ratios = [r["ratios"][lang] for lang in analysis["langs"]]
        out.append((f"{r['of']} / {r['to']}", *(f"{ratio:.3f}" for ratio in ratios), f"{r['jaccard']:.3f}"))
        records.append({"of": r["of"], "to": r["to"], **r["ratios"], "jaccard": r["jaccard"]})
    note = (
        f"Tokens of one tokenizer over tokens of another for the same {analysis['segments']:,} parallel segments; "
        f"the gate for starved / destarved is {analysis['gate']:g}. Shared entries: those that both vocabularies "
        "have over those that either has (Jaccard)."
    )
    columns = ("tokens of / tokens of", *analysis["langs"], "shared entries")
    return Table("tokenizer_ratios", "Tokens for the same text", note, columns, out, records)


def _text(analysis: Mapping[str, Any]) -> Table:
    out = []
    for r in analysis["rows"]:
        counts = (r["tok"], r["lang"], f"{r['tokens']:,}", f"{r['tokens_per_segment']:.2f}", _number(r["parity"]))
        sizes = (f"{r['bytes_per_token']:.3f}", _number(r["tokens_per_word"]))
        shares = (f"{r['byte_share']:.1%}", f"{r['character_share']:.1%}", f"{r['renyi_efficiency']:.3f}")
        out.append((*counts, *sizes, *shares))
    note = (
        f"{analysis['segments']:,} parallel segments, none of those for development; without <bos> and <eos>. Parity: "
        "tokens over those of English for the same segments (arXiv 2305.15425). Words are separated by whitespace; "
        "none in Chinese. Byte tokens: those that are no whole characters; single characters: one code point, a "
        "leading space not counted. Rényi efficiency: alpha 2.5, over all entries (Zouhar et al. 2023)."
    )
    columns = ("tokenizer", "language", "tokens", "per segment", "parity", "bytes per token", "tokens per word")
    columns += ("byte tokens", "single characters", "Rényi efficiency")
    return Table("tokenizer_text", "Tokenizers on parallel text", note, columns, out, analysis["rows"])


def _summary(analysis: Mapping[str, Any]) -> Table:
    records = [
        {"tok": name, **{key: value for key, value in found.items() if key != "scripts"}}
        for name, found in analysis["tokenizers"].items()
    ]
    out = []
    for r in records:
        measures = (f"{r[name]:.3f}" for name in ("gini", "gini_of_segments", "renyi_efficiency"))
        out.append((r["tok"], f"{r['entries']:,}", str(r["special"]), *measures))
    note = (
        "Gini over the languages of their mean tokens per parallel segment (arXiv 2508.04796), and the mean over "
        "segments of the Gini within one; 0 is the same number of tokens in every language. Rényi efficiency of all "
        "languages' text together."
    )
    columns = ("tokenizer", "entries", "special tokens among them", "Gini", "Gini within segments", "Rényi efficiency")
    return Table("tokenizer_summary", "Tokenizers as a whole", note, columns, out, records)


def _scripts(analysis: Mapping[str, Any]) -> Table:
    """Scripts by the most entries that any tokenizer has; the rare ones are one row, and all are in the records."""
    toks = analysis["tokenizers"]
    most: dict[str, int] = {}
    for found in toks.values():
        for script, count in found["scripts"].items():
            most[script] = max(most.get(script, 0), count["entries"])
    ordered = sorted(most, key=lambda script: (-most[script], script))
    records = []
    for script in ordered:
        record: dict[str, Any] = {"script": script}
        for name, found in toks.items():
            count = found["scripts"].get(script, {"entries": 0, "multi": 0})
            record |= {f"{name}_entries": count["entries"], f"{name}_multi": count["multi"]}
        records.append(record)
    shown, rest = records[:SCRIPTS_SHOWN], records[SCRIPTS_SHOWN:]
    out = [(_script_name(r["script"]), *(f"{value:,}" for value in list(r.values())[1:])) for r in shown]
    if rest:
        sums = (f"{sum(r[key] for r in rest):,}" for key in list(rest[0])[1:])
        out.append((f"{len(rest)} more", *sums))
    note = (
        "Entries by the Unicode script of their letters, and how many of them hold two letters or more; special tokens "
        "are left out. Common: no letter. Mixed: letters of several scripts. Partial: byte fallback, no whole "
        "characters."
    )
    columns = ("script", *(column for name in toks for column in (name, f"{name}, 2+ letters")))
    return Table("vocabulary_scripts", "Vocabulary by script", note, columns, out, records)


def _script_name(code: str) -> str:
    names = {"mixed": "mixed", "partial": "partial"}
    return names.get(code) or f"{unicodedata.script_name(code).replace('_', ' ')} ({code})"


def _splits(analysis: Mapping[str, Any]) -> Table:
    out = []
    for r in analysis["samples"]:
        out.append((r["id"], r["lang"], r["tok"], str(len(r["pieces"])), BOUNDARY.join(r["pieces"])))
    columns = ("segment", "language", "tokenizer", "tokens", "split")
    records = [dict(zip(columns, row, strict=True)) for row in out]
    note = f"Tokens end at {BOUNDARY}; bytes that are no whole characters are hexadecimal."
    return Table("segmentation", "How text is split", note, columns, out, records)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
