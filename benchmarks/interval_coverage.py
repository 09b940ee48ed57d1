"""How often intervals hold the truth: python benchmarks/interval_coverage.py [worlds] [checkpoint noise in BPB]

Simulated worlds with a planted interaction. Loss curves follow a power law; documents differ in how hard they are
for every model (as they do) and for each model by itself; checkpoints are off by independent noise. Each world is
analysed by the report's own code, and the share of worlds whose interval holds the planted value is printed.
"""

import sys
import time

import numpy as np

from experiment.evaluation.findings import Findings, Settings
from experiment.evaluation.points import Cell, Evidence, Point
from experiment.evaluation.scores import DocumentScores
from experiment.evaluation.transfer import interval

BUDGETS = (4e9, 8e9)
CHECKPOINTS = np.arange(1, 25)  # billions of tokens
DOCUMENTS = 400
PLANTED = {
    ("starved", "de"): 0.6,
    ("starved", "fr"): 0.6,
    ("starved", "ar"): -0.2,
    ("starved", "zh"): -0.2,
    ("destarved", "de"): 0.6,
    ("destarved", "fr"): 0.6,
    ("destarved", "ar"): 0.3,
    ("destarved", "zh"): 0.3,
}
TRUE_ATLAS = 0.5


def law(tokens: np.ndarray | float) -> np.ndarray | float:
    """BPB after so many billions of tokens."""
    return 0.8 + 0.3 * np.asarray(tokens, dtype=np.float64) ** -0.3


def true_relative(budget: float) -> float:
    """The planted interaction as a difference of relative scores, by its closed form."""
    d = budget / 1e9

    def score(t: float) -> float:
        return float((law(d) - law(2 * d / (2 - t))) / law(d))

    penalties = {
        c: np.mean([score(PLANTED[c, p]) for p in ("de", "fr")]) - np.mean([score(PLANTED[c, p]) for p in ("ar", "zh")])
        for c in ("starved", "destarved")
    }
    return float(penalties["starved"] - penalties["destarved"])


def world(rng: np.random.Generator, noise: float) -> tuple[Evidence, dict[Point, DocumentScores]]:
    """Points of one world with the scores of their documents."""
    names = tuple(f"doc {i}" for i in range(DOCUMENTS))
    sizes = {lang: rng.integers(50, 300, DOCUMENTS) for lang in ("de", "fr", "ar", "zh")}
    hardness = rng.normal(1.0, 0.3, DOCUMENTS)  # of a segment in every language: parallel text
    scores: dict[Point, DocumentScores] = {}
    for (condition, lang), t in PLANTED.items():
        for mixture in (lang, f"en-{lang}"):
            loss = law(CHECKPOINTS if mixture == lang else CHECKPOINTS / (2 - t))
            taste = rng.normal(0.0, 0.05, DOCUMENTS)
            cell = Cell(mixture, f"bl_{condition}")
            for billions, expected in zip(CHECKPOINTS, loss, strict=True):
                bits = sizes[lang] * (expected * hardness + taste + rng.normal(0.0, noise))
                found = DocumentScores(names, bits * np.log(2), sizes[lang])
                tokens, size = int(billions) * 10**9, int(sizes[lang].sum())
                scores[Point(cell, cell.name, tokens, "stable", "parallel", lang, found.bpb, size)] = found
    return Evidence(list(scores)), scores


def coverage(worlds: int, noise: float, replicates: int = 200) -> dict[tuple[str, float], float]:
    """(score, budget) -> share of the worlds whose 95% interval for documents and checkpoints holds the truth."""
    held: dict[tuple[str, float], list[bool]] = {}
    for number in range(worlds):
        evidence, scores = world(np.random.default_rng(number), noise)
        findings = Findings(evidence, Settings(BUDGETS, replicates, seed=number), read=scores.get)
        _, interactions = findings.all_contrasts(BUDGETS, findings.matchings[:1])
        for row in interactions:
            if not row["designed"]:
                continue
            truth = TRUE_ATLAS if row["score"] == "atlas" else true_relative(row["budget"])
            (found,) = [i for i in row["intervals"] if i["covers"] == ["documents", "checkpoints"]]
            low = -np.inf if found["low"] is None else found["low"]
            high = np.inf if found["high"] is None else found["high"]
            held.setdefault((row["score"], row["budget"]), []).append(bool(low <= truth <= high))
    return {key: float(np.mean(values)) for key, values in held.items()}


if __name__ == "__main__":
    worlds = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    noise = float(sys.argv[2]) if len(sys.argv) > 2 else 0.005
    start = time.perf_counter()
    found = coverage(worlds, noise)
    # what chance alone allows an interval that holds the truth in 95 of 100 worlds
    chance = interval(np.random.default_rng(0).binomial(worlds, 0.95, 20_000) / worlds, 0.95)
    print(f"{worlds} worlds, checkpoint noise {noise:g} BPB, {time.perf_counter() - start:.0f} s")
    for (score, budget), share in sorted(found.items()):
        print(f"  {score:9} at {budget / 1e9:g}B: {100 * share:.1f}% of the 95% intervals hold the planted interaction")
    print(f"  chance alone: {100 * chance[0]:.1f}% to {100 * chance[1]:.1f}%")
