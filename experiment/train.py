"""One run, from its settings to its scores: `python -m experiment.train`.

compose and check -> prepare data -> resume what is there, or refuse it -> trunk, where it is missing -> fit
"""

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from experiment.config.check import check_batch_divides
from experiment.config.compose import Composed, checked
from experiment.config.front_door import front_door
from experiment.config.schema import Config
from experiment.errors import ConfigError, Diverged, ExperimentError, Interrupted, RunLive, RunRefused
from experiment.matrix.belonging import Identity, identity_of, is_done, refuse_other, refuse_other_trunk
from experiment.matrix.identity import Run, resolve
from experiment.run_directory import RunDirectory, read_lines, write_atomically

POLL_SECONDS = 2.0
SWEEPS = ("hydra/sweeper", "hydra.sweeper", "hydra/launcher", "hydra.launcher")
"""Settings without effect on a single run."""


@front_door("train", Config)
def main(cfg: DictConfig) -> int:
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(number) is signal.SIG_DFL:  # submitit has a handler of its own
            signal.signal(number, _leave)
    hydra = HydraConfig.get()
    if hydra.mode is RunMode.RUN and (stray := [o for o in hydra.overrides.hydra if o.lstrip("+~").startswith(SWEEPS)]):
        raise ConfigError([f"{override}: is for a sweep; add -m (--multirun)" for override in stray])
    return train(checked(cfg, hydra))


def _leave(number: int, frame: FrameType | None) -> None:
    """A signal before training begins (then a callback takes over): nothing to save, the same command goes on."""
    raise Interrupted(f"stopped by signal {number} before training. The same command continues the run")


def train(composed: Composed) -> int:
    """Train the run that a config stands for, with what it depends on. Returns the exit code.

    Of several processes the first decides; the others take part in each fit that it announces.
    """
    run = resolve(composed)
    # torch takes seconds to import: only now, when the settings are known to be good
    from experiment.data.prepare import prepare
    from experiment.training.devices import find_processes
    from experiment.training.fit import fit
    from experiment.training.loggers import check_logger
    from experiment.training.stages import Stage, StageBoard

    processes = find_processes(run.config)
    check_batch_divides(run.config, processes.world_size)
    with StageBoard(processes) as board:
        if processes.is_leader:
            check_logger(run.config)
            prepared = prepare(run.config)

            def fit_together(target: Run, identity: Identity, checkpoint: Path | None, stop_step: int) -> None:
                which = "run" if target is run else "trunk"
                board.post(Stage(which, identity, str(checkpoint) if checkpoint else None, stop_step))
                fit(target, identity, prepared, processes, checkpoint, stop_step)

            Leader(prepared.fingerprints, composed.overrides, fit_together).finish(run)
            return 0
        code = 0
        for stage in board.stages():
            prepared = prepare(run.config)  # all there: the leader has built it
            target = run if stage.run == "run" else run.trunk
            assert target is not None
            try:
                fit(
                    target,
                    stage.identity,
                    prepared,
                    processes,
                    stage.checkpoint and Path(stage.checkpoint),
                    stage.stop_step,
                )
            except (Interrupted, Diverged) as error:
                code = error.exit_code  # all ranks meet these; the leader has still to write down what happened
            except ExperimentError as error:
                return error.exit_code  # the leader has met the same one and says so
    return code


class Leader:
    """Decides, from what lies on disk, what is left to train."""

    def __init__(
        self,
        fingerprints: dict[str, Any],
        overrides: tuple[str, ...],
        fit: Callable[[Run, Identity, Path | None, int], None],
    ):
        self.fingerprints, self.overrides, self.fit = fingerprints, overrides, fit

    def finish(self, run: Run) -> None:
        """Train a run to its end, or say that it is finished. A branch comes after its trunk."""
        directory, identity = RunDirectory(run.directory), self._identity(run)
        record = directory.read()
        if record is not None and is_done(directory.path, record, run, identity):
            print(f"{run.name} is finished already.")
        else:
            start = None
            if run.branch_from is not None and _own_checkpoint(directory) is None:
                start = run.branch_from
                self._bring_trunk_to(start, run)
                refuse_other_trunk(start, _identity_in(start), identity, run.schedule.start_step)
            with directory.held():
                self._train(run, identity, directory, start, run.schedule.end_step)
        print(summary(directory))

    def _identity(self, run: Run) -> Identity:
        trunk = identity_of(run.trunk, self.fingerprints) if run.trunk else None
        if run.config.branch.trunk:  # a trunk by name says itself what it is
            trunk = RunDirectory(run.scale_directory / run.config.branch.trunk).read()
            if trunk is None:
                raise RunRefused(f"branch.trunk: there is no run {run.config.branch.trunk} in {run.scale_directory}")
        return identity_of(run, self.fingerprints, trunk)

    def _bring_trunk_to(self, mark: Path, branch: Run) -> None:
        """Make the checkpoint that a branch leaves from: train its trunk so far, or wait for who does."""
        if mark.exists():
            return
        trunk = branch.trunk
        if trunk is None or branch.config.branch.missing == "error":
            raise RunRefused(f"{mark}: missing, and branch.missing=error; train the trunk first: schedule=trunk")
        directory, stop_step = RunDirectory(trunk.directory), branch.schedule.start_step
        told = False
        while not mark.exists():
            own = _own_checkpoint(directory)
            if own is not None and (step := _identity_in(own)["step"]) >= stop_step:
                raise RunRefused(
                    f"{mark}: missing, and the trunk is past it (update {step} of {stop_step}); "
                    "name marks in train.stable_marks before a trunk reaches them, or remove its directory"
                )
            try:
                with directory.held():
                    print(f"{branch.name} starts from {trunk.name} at {mark.stem}, which is trained first.", flush=True)
                    self._train(trunk, self._identity(trunk), directory, None, stop_step)
            except RunLive:
                if not told:
                    print(f"waiting for {mark.stem} of {trunk.name}: {directory.holder()}", flush=True)
                    told = True
                time.sleep(POLL_SECONDS)

    def _train(self, run: Run, identity: Identity, directory: RunDirectory, start: Path | None, stop_step: int) -> None:
        """Train a held run to `stop_step` from its own last checkpoint, else from `start`; record how it went."""
        record = directory.read()
        if record is not None:
            if is_done(directory.path, record, run, identity):
                return  # another process finished it while this one waited
            if record["state"] == "diverged":
                raise RunRefused(
                    f"{directory.path}: this run has diverged ({record.get('error')}). {_kept(directory)}. Try a "
                    f"variant, say schedule.peak_lr={run.config.schedule.peak_lr / 3:g}, or remove the directory "
                    "to start again"
                )
        if (own := _own_checkpoint(directory)) is not None:
            found = _identity_in(own)
            refuse_other(own, found, identity)
            if found["step"] > stop_step:
                raise RunRefused(f"{own}: stands at update {found['step']}, beyond the end asked for ({stop_step})")
        self._write_down(run, identity, directory)
        try:
            self.fit(run, identity, own or start, stop_step)
        except Diverged as error:
            directory.set_state("diverged", error=str(error))
            raise Diverged(f"{run.name} diverged: {error}. {_kept(directory)}") from error
        except (Interrupted, KeyboardInterrupt, SystemExit, BrokenPipeError):  # submitit leaves with SystemExit
            directory.set_state("interrupted")
            raise
        except BaseException as error:
            with suppress(OSError):  # a full disk may be what went wrong
                directory.set_state("failed", error=f"{type(error).__name__}: {error}")
            raise
        if stop_step == run.schedule.end_step:
            directory.set_state("done")
        else:
            directory.set_state("interrupted", note="as far as it was needed; schedule=trunk goes on")

    def _write_down(self, run: Run, identity: Identity, directory: RunDirectory) -> None:
        from experiment.training.provenance import provenance

        facts = {"state": "running", "end_step": run.schedule.end_step}
        origin = {"overrides": list(self.overrides)} | provenance(run.config)
        directory.write(identity | run.resolved() | facts | origin)
        hydra = directory.path / ".hydra"
        write_atomically(hydra / "config.yaml", OmegaConf.to_yaml(OmegaConf.structured(run.config)))
        write_atomically(hydra / "overrides.yaml", OmegaConf.to_yaml(list(self.overrides)))


def _kept(directory: RunDirectory) -> str:
    return f"Last healthy checkpoint: {directory.last if directory.last.exists() else 'none yet'}"


def _own_checkpoint(directory: RunDirectory) -> Path | None:
    return next((path for path in (directory.last, directory.final) if path.exists()), None)


def _identity_in(checkpoint: Path) -> dict[str, Any]:
    from experiment.training.checkpoints import load

    return load(checkpoint, mmap=True)["run"]


def summary(directory: RunDirectory) -> str:
    """A finished run in a few lines: tokens, BPB per language and source, where things are."""
    lines = read_lines(directory.evaluations)
    rows = [""]
    metrics = read_lines(directory.metrics)
    if lines and metrics:
        last = [line for line in lines if line["step"] == lines[-1]["step"]]
        epochs = ", ".join(f"{lang} {n:.2f}" for lang, n in metrics[-1]["epochs"].items())
        rows += [f"{last[0]['run']}: {last[0]['tokens']:,} tokens in {last[0]['step']:,} updates; epochs: {epochs}"]
        rows += bpb_table(last)
    rows += [
        f"  run          {directory.path}",
        f"  checkpoint   {directory.final}",
        f"  records      {directory.evaluations.name}, {directory.metrics.name}, run.json",
    ]
    return "\n".join(rows)


def bpb_table(lines: list[dict[str, Any]]) -> list[str]:
    """BPB of one evaluation point, languages by sources."""
    sources = list(dict.fromkeys(line["source"] for line in lines))
    langs = list(dict.fromkeys(line["lang"] for line in lines))
    bpb = {(line["lang"], line["source"]): f"{line['bpb']:.4f}" for line in lines}
    return [
        "  BPB  " + "".join(f"{source:>10}" for source in sources),
        *(f"  {lang:5}" + "".join(f"{bpb.get((lang, source), ''):>10}" for source in sources) for lang in langs),
    ]


if __name__ == "__main__":
    main()
