"""Callbacks that write what a run measured: metrics.jsonl, evaluations.jsonl, scores, snapshots."""

from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from tqdm import tqdm

from experiment.data.datamodule import MixtureDataModule
from experiment.evaluation.bpb import document_nll, scores_of
from experiment.evaluation.scores import points_of, position, scores_file, write_scores
from experiment.evaluation.sources import Sources
from experiment.matrix.identity import Run
from experiment.run_directory import RunDirectory, append_lines
from experiment.training.checkpoints import write_safetensors
from experiment.training.module import PretrainingModule


def at_end(run: Run, step: int) -> bool:
    """Whether a run that has an end is there. A trunk can always go on: how long it is shows in no record."""
    return step == run.schedule.end_step and run.kind != "trunk"


class Metrics(Callback):
    """Loss and gradient norm of every `log_every_steps`-th update, in metrics.jsonl and to the logger.

    Lines hold nothing that depends on the clock, so that an interrupted run writes the same file.
    """

    def __init__(self, run: Run, directory: RunDirectory, data: MixtureDataModule):
        self.run, self.directory, self.data = run, directory, data

    def on_train_batch_end(self, trainer: Trainer, module: PretrainingModule, *_: Any) -> None:
        step = trainer.global_step
        if step % self.run.config.train.log_every_steps and not at_end(self.run, step):
            return
        module.health.check()
        loss = trainer.strategy.reduce(module.loss.clone(), reduce_op="mean")
        if not trainer.is_global_zero:
            return
        measured = {"loss": loss.item(), "grad_norm": module.grad_norm.item()}
        here = position(self.run, step)
        append_lines(self.directory.metrics, [here | measured | {"epochs": self.data.epochs(step)}])
        for logger in trainer.loggers:
            numbers = {key: value for key, value in (here | measured).items() if key not in ("step", "phase")}
            logger.log_metrics(numbers, step)


class EvaluationPoints(Callback):
    """BPB on holdout and parallel text every so many tokens and at the end, scored by all ranks.

    `parallel` is a fixed subset inside the loop where the scale says so, and all of it when a run
    with a decay ends; `docs` tells which.
    """

    def __init__(self, run: Run, directory: RunDirectory, data: MixtureDataModule, sources: Sources):
        self.run, self.directory, self.data, self.sources = run, directory, data, sources

    def on_train_batch_end(self, trainer: Trainer, module: PretrainingModule, *_: Any) -> None:
        step, schedule = trainer.global_step, self.run.schedule
        if at_end(self.run, step) or schedule.is_due(step, self.run.config.evaluation.every_tokens):
            with module.aside():
                self.evaluate(trainer, module)

    def evaluate(self, trainer: Trainer, module: PretrainingModule) -> None:
        step, config = trainer.global_step, self.run.config
        whole = at_end(self.run, step)
        scores = {}
        module.eval()
        for source, by_lang in self.sources.items():
            for lang, documents in by_lang.items():
                if source == "parallel" and not whole:
                    documents = documents[: config.evaluation.parallel_segments]
                with torch.compiler.set_stance("force_eager"):  # each of the many shapes would be compiled anew
                    nll = document_nll(
                        module,
                        documents,
                        config.model.context,
                        config.evaluation.batch_tokens,
                        module.device,
                        trainer.global_rank,
                        trainer.world_size,
                        lambda totals: _sum_over_ranks(trainer, totals),
                    )
                scores[source, lang] = scores_of(documents, nll)
        module.train()
        if trainer.is_global_zero:
            if config.evaluation.snapshots:
                self._keep_weights(module, step)
            lines = points_of(self.run, step, scores)
            write_scores(scores_file(self.directory.path, step), lines, scores)
            append_lines(self.directory.evaluations, lines)
            bpb = ", ".join(f"{line['source']} {line['lang']} {line['bpb']:.3f}" for line in lines)
            tqdm.write(f"{self.run.name}  {lines[0]['tokens']:,} tokens  BPB: {bpb}")
            for logger in trainer.loggers:
                logger.log_metrics({f"bpb/{line['source']}/{line['lang']}": line["bpb"] for line in lines}, step)

    def _keep_weights(self, module: PretrainingModule, step: int) -> None:
        self.directory.snapshots.mkdir(exist_ok=True)
        path = self.directory.snapshots / f"step_{step:07d}.safetensors"
        write_safetensors(path, module.decoder.state_dict(), {"run": self.run.name, "step": str(step)})


def _sum_over_ranks(trainer: Trainer, totals: torch.Tensor) -> torch.Tensor:
    if trainer.world_size == 1:
        return totals
    return trainer.strategy.reduce(totals.to(trainer.strategy.root_device), reduce_op="sum").cpu()
