"""One stage of training: from a checkpoint (or nothing) to a step, with everything written down."""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DDPStrategy, Strategy

from experiment.config.schema import Config
from experiment.data.datamodule import MixtureDataModule
from experiment.data.prepare import Prepared
from experiment.evaluation.sources import evaluation_sources
from experiment.matrix.identity import Run
from experiment.model.size import block_parameters
from experiment.run_directory import RunDirectory, keep_lines_up_to
from experiment.schedule import steps_of_marks
from experiment.tokenizers.tokenizer import load_tokenizer
from experiment.training.checkpoints import CheckpointWriter, RollingCheckpoint, load
from experiment.training.devices import Processes, keep_freed_memory
from experiment.training.interruption import Interruption
from experiment.training.loggers import make_logger
from experiment.training.module import PretrainingModule
from experiment.training.progress import Progress
from experiment.training.records import EvaluationPoints, Metrics
from experiment.training.wsd import WSD

BUCKET_MIB = 25  # torch's own


def fit(
    run: Run,
    identity: dict[str, Any],
    prepared: Prepared,
    processes: Processes,
    checkpoint: Path | None,
    stop_step: int,
) -> None:
    """Train `run` up to update `stop_step`, on every process of the run.

    Raises Diverged, Interrupted, or what the parts raise. Records after the checkpoint are dropped
    first, for they are about to be written again.
    """
    config, schedule = run.config, run.schedule
    directory = RunDirectory(run.directory)
    if processes.accelerator == "cpu":
        keep_freed_memory()
    if config.trainer.compile:
        _prepare_to_compile(config)
    data = MixtureDataModule(config, prepared.shards, processes.rank, processes.world_size)
    sources = evaluation_sources(config, prepared.corpora, load_tokenizer(prepared.tokenizer))
    module = PretrainingModule(config, identity)
    if processes.is_leader and schedule.warmup_tokens and schedule.warmup_end_step == schedule.start_step:
        print(f"{run.name}: the warmup rounds to no update at this scale; the first update is at the peak rate")
    start_step = 0 if checkpoint is None else int(load(checkpoint, mmap=True)["run"]["step"])
    if processes.is_leader:
        for lines in (directory.metrics, directory.evaluations):
            keep_lines_up_to(lines, start_step)
    writer = CheckpointWriter()
    rolling = RollingCheckpoint(directory, schedule, config.train.checkpoint_every_tokens, stop_step, writer)
    marks = steps_of_marks(config.train.stable_marks, config.batch.tokens, config.scale.token_scale)
    trainer = Trainer(
        accelerator=processes.accelerator,
        devices=processes.devices,
        num_nodes=processes.num_nodes,
        strategy=_strategy(processes, config),
        plugins=[writer, processes.environment],
        # order matters: records before checkpoints, interruption last
        callbacks=[
            Progress(run, directory, stop_step),
            Metrics(run, directory, data),
            EvaluationPoints(run, directory, data, sources),
            WSD(directory, schedule, marks),
            rolling,
            Interruption(rolling),
        ],
        logger=make_logger(run, directory.path),
        max_steps=stop_step,
        max_epochs=-1,
        # compiled for a CPU, a model repeats bit for bit only if asked to
        deterministic=config.trainer.deterministic or (config.trainer.compile and processes.accelerator == "cpu"),
        default_root_dir=directory.path,
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        limit_val_batches=0,
    )
    _let_lightning_not_broadcast(trainer)
    with garbage_collected_aside():
        trainer.fit(module, datamodule=data, ckpt_path=checkpoint, weights_only=True)


def _strategy(processes: Processes, config: Config) -> Strategy | str:
    if processes.world_size == 1:
        return "auto"
    backend = "nccl" if processes.accelerator == "gpu" else "gloo"
    bucket = max(BUCKET_MIB, round(4 * block_parameters(config.model) / 2**20))  # the gradients of a block
    return DDPStrategy(process_group_backend=backend, gradient_as_bucket_view=True, bucket_cap_mb=bucket)


def _prepare_to_compile(config: Config) -> None:
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(config.paths.artifacts).absolute() / "compiled"))
    torch._dynamo.config.optimize_ddp = False  # blocks are compiled one by one: no graph to cut at DDP's buckets


def _let_lightning_not_broadcast(trainer: Trainer) -> None:
    """Before each batch Lightning broadcasts from the device whether SIGTERM came, and waits for the answer;
    Interruption does it on the host."""
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None


@contextmanager
def garbage_collected_aside() -> Iterator[None]:
    """No collection of Python's garbage inside an update, where every rank would wait for it: only `aside` collects."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()
