"""Scores of checkpoints after training: `python -m experiment.evaluate`.

find runs and checkpoints -> texts as tokens -> score what is not scored yet, on all devices -> scores/ of each run
"""

import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from experiment.config.check import to_config
from experiment.config.front_door import front_door
from experiment.config.schema import EvaluateConfig
from experiment.errors import ConfigError, RunRefused
from experiment.evaluation.recorded import named_runs, recorded_config
from experiment.matrix.identity import Run
from experiment.run_directory import RunDirectory

if TYPE_CHECKING:
    from lightning.fabric import Fabric

    from experiment.evaluation.scores import DocumentScores
    from experiment.training.module import PretrainingModule

SOURCES = ("holdout", "parallel", "flores", "files")


@front_door("evaluate", EvaluateConfig)
def main(cfg: DictConfig) -> None:
    config = to_config(cfg, EvaluateConfig)
    _check(config)
    runs = [_as_asked(path, config) for path in named_runs(Path(config.paths.runs) / config.scale, config.run)]
    points = evaluate(config, runs)
    if points is not None and config.output == "json":
        print(json.dumps(points, indent=1, ensure_ascii=False))


def _check(config: EvaluateConfig) -> None:
    problems = []
    if unknown := [source for source in config.sources if source not in SOURCES]:
        problems.append(f"sources: got {', '.join(unknown)}; must be among {', '.join(SOURCES)}")
    if not config.sources:
        problems.append(f"sources: got none; name some of {', '.join(SOURCES)}")
    if config.accelerator not in ("auto", "cpu", "gpu"):
        problems.append(f"accelerator: got {config.accelerator!r}; must be auto, cpu or gpu")
    if config.precision not in (None, "bf16", "fp32"):
        problems.append(f"precision: got {config.precision!r}; must be bf16 or fp32")
    if config.output not in ("table", "json"):
        problems.append(f"output: got {config.output!r}; must be table or json")
    for name in ("devices", "batch_tokens"):
        if (value := getattr(config, name)) is not None and value < 1:
            problems.append(f"{name}: got {value}; must be at least 1")
    if "files" in config.sources and not any(config.data.files.values()):
        problems.append("data.files: none given, but sources has files; set data.files.<language>=PATH")
    if problems:
        raise ConfigError(problems)


def _as_asked(path: Path, asked: EvaluateConfig) -> Run:
    """A recorded run, with devices, precision and places of its text as asked for."""
    config = recorded_config(path)
    trainer = replace(config.trainer, accelerator=asked.accelerator, devices=asked.devices, num_nodes=1, compile=False)
    trainer.precision = asked.precision or trainer.precision
    evaluation = replace(config.evaluation, batch_tokens=asked.batch_tokens or config.evaluation.batch_tokens)
    data = replace(config.data, parallel=asked.data.parallel or config.data.parallel)
    return Run(path.name, replace(config, trainer=trainer, evaluation=evaluation, data=data, paths=asked.paths))


def evaluate(asked: EvaluateConfig, runs: list[Run]) -> list[dict[str, Any]] | None:
    """Score the asked checkpoints of the runs: the points, on the first process; None on the others."""
    from lightning.fabric import Fabric

    from experiment.evaluation.scores import made_from, points_of, read_points, scores_file, write_scores
    from experiment.evaluation.sources import texts_to_score
    from experiment.training.devices import find_processes, keep_freed_memory

    jobs = [(run, step, path) for run in runs for step, path in _checkpoints(run, asked.checkpoint)]
    processes = find_processes(runs[0].config)
    if processes.accelerator == "cpu":
        keep_freed_memory()
    fabric = Fabric(
        accelerator=processes.accelerator,
        devices=processes.devices,
        num_nodes=processes.num_nodes,
        strategy="ddp" if processes.world_size > 1 else "auto",
        plugins=[processes.environment],
    )
    fabric.launch()
    tell = print if fabric.is_global_zero and asked.output == "table" else lambda text: None
    points: list[dict[str, Any]] = []
    texts: dict[str, Any] = {}
    for run, step, path in jobs:
        if run.name not in texts:
            texts = {run.name: texts_to_score(run, asked.sources, asked.data)}  # of one run at a time
        module = None
        for source, by_lang in texts[run.name].items():
            documents = _fingerprint(by_lang)
            name = f"files-{documents[:8]}" if source == "files" else source  # another file is another source
            file = scores_file(run.directory, step, name)
            facts = path.stat()
            origin = {
                "documents": documents,
                "precision": run.config.trainer.precision,
                "weights": f"{path.name}, {facts.st_size} bytes, {facts.st_mtime_ns} ns",
            }
            what = f"{run.name}  {path.stem}"
            if fabric.broadcast(made_from(file) == origin):
                known = read_points(file)
                points += known
                tell(f"{what}  {source} is scored already: {_told(known)}  ({file})")
                continue
            module = module or _module(run, path).to(fabric.device)
            scores = {(source, lang): found for lang, found in _scores(fabric, module, run, by_lang, what).items()}
            scored = points_of(run, step, scores)
            points += scored
            if fabric.is_global_zero:
                write_scores(file, scored, scores, origin)
            tell(f"{what}  {scored[0]['tokens']:,} tokens  {source}: {_told(scored)}  ({file})")
    if not points:
        langs = sorted({lang for run in runs for lang in run.config.mixture.langs})
        raise RunRefused(f"sources: there is no text of {', '.join(asked.sources)} in {', '.join(langs)}")
    return points if fabric.is_global_zero else None


def _told(points: list[dict[str, Any]]) -> str:
    return ", ".join(f"{point['lang']} {point['bpb']:.4f} ({point['docs']} documents)" for point in points)


def _checkpoints(run: Run, which: str) -> list[tuple[int, Path]]:
    """(step, file), each step once: a snapshot before a checkpoint, which is larger."""
    from experiment.training.checkpoints import find_weights, step_in

    by_step: dict[int, Path] = {}
    for path in find_weights(RunDirectory(run.directory), which):
        by_step.setdefault(step_in(path), path)
    return sorted(by_step.items())


def _module(run: Run, path: Path) -> "PretrainingModule":
    from experiment.training.checkpoints import load_weights
    from experiment.training.module import PretrainingModule

    weights = load_weights(path)
    if weights.run != run.name:
        raise RunRefused(f"{path}: holds weights of {weights.run}, not of {run.name}")
    module = PretrainingModule(run.config, {}).eval()
    try:
        module.decoder.load_state_dict(weights.state)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise RunRefused(f"{path}: does not hold this run's weights ({reason})") from error
    return module


def _scores(
    fabric: "Fabric", module: "PretrainingModule", run: Run, by_lang: dict[str, Any], what: str
) -> dict[str, "DocumentScores"]:
    """Scores of one source by language, from all processes, with a progress bar on a terminal."""
    from tqdm import tqdm

    from experiment.evaluation.bpb import document_nll, scores_of

    targets = sum(len(doc.ids) - 1 for documents in by_lang.values() for doc in documents)
    show = fabric.is_global_zero and sys.stderr.isatty()
    scores = {}
    with tqdm(total=targets, desc=what, unit="tok", unit_scale=True, disable=not show, leave=False) as bar:
        for lang, documents in by_lang.items():
            nll = document_nll(
                module,
                documents,
                run.config.model.context,
                run.config.evaluation.batch_tokens,
                fabric.device,
                fabric.global_rank,
                fabric.world_size,
                lambda totals: fabric.all_reduce(totals.to(fabric.device), reduce_op="sum").cpu(),
                lambda tokens, bar=bar: bar.update(tokens * fabric.world_size),
            )
            scores[lang] = scores_of(documents, nll)
    return scores


def _fingerprint(by_lang: dict[str, Any]) -> str:
    """sha256 over the documents of a source, as tokens."""
    digest = hashlib.sha256()
    for lang, documents in sorted(by_lang.items()):
        for doc in documents:
            digest.update(f"{lang} {doc.name} {doc.bytes} ".encode())
            digest.update(json.dumps(list(doc.ids)).encode())
    return digest.hexdigest()


if __name__ == "__main__":
    main()
