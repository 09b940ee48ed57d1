"""What a person sees while a run trains, and progress.json for those who look from outside."""

import sys
import time
from typing import Any

from lightning.pytorch import Callback, Trainer
from tqdm import tqdm

from experiment.matrix.identity import Run
from experiment.model.size import flops_per_token
from experiment.run_directory import RunDirectory
from experiment.training.devices import peak_flops
from experiment.training.module import PretrainingModule

SECONDS_BETWEEN_FILES = 5.0
LINES_PER_RUN = 10  # where stderr is no terminal


class Progress(Callback):
    """Tokens, percent, loss, rate, phase, tok/s, MFU (known devices only), time left.

    tok/s is measured over the time since the last line, evaluation and saving left out. The loss is that of this rank
    in the update before, the last one that the host knows without waiting for the device.
    """

    def __init__(self, run: Run, directory: RunDirectory, stop_step: int):
        self.run, self.directory, self.stop_step = run, directory, stop_step
        self.flops = flops_per_token(run.config.model, run.config.tok.vocab_size)
        self.bar: tqdm | None = None
        self.tok_per_s: float | None = None
        self.first_step: int | None = None
        self.file_written = 0.0

    def on_train_start(self, trainer: Trainer, module: PretrainingModule) -> None:
        self.first_step = trainer.global_step
        self.mark_time(trainer, module)
        if trainer.is_global_zero and sys.stderr.isatty():
            total = self.stop_step * self.run.config.batch.tokens
            done = self.first_step * self.run.config.batch.tokens
            self.bar = tqdm(total=total, initial=done, unit="tok", unit_scale=True, desc=self.run.name, leave=False)

    def mark_time(self, trainer: Trainer, module: PretrainingModule) -> None:
        self.since = (trainer.global_step, time.perf_counter() - module.seconds_aside)

    def on_train_batch_end(self, trainer: Trainer, module: PretrainingModule, *_: Any) -> None:
        if not trainer.is_global_zero:
            return
        step = trainer.global_step
        if self.bar is not None:
            self.bar.update(self.run.config.batch.tokens)
        steps = max(1, (self.stop_step - self.run.schedule.start_step) // LINES_PER_RUN)
        wanted = step % steps == 0 or step == self.stop_step
        file_due = time.monotonic() - self.file_written > SECONDS_BETWEEN_FILES or step == self.stop_step
        if not (wanted or file_due):
            return
        step_then, time_then = self.since
        seconds = time.perf_counter() - module.seconds_aside - time_then
        if step > step_then and seconds > 0:
            self.tok_per_s = (step - step_then) * self.run.config.batch.tokens / seconds
        self.mark_time(trainer, module)
        mfu = self._mfu(trainer, module)
        if wanted:
            self._show(step, module, mfu)
            speed = {"tok_per_s": self.tok_per_s, "mfu": mfu}
            for logger in trainer.loggers:
                logger.log_metrics({name: number for name, number in speed.items() if number is not None}, step)
        if file_due:
            self._write(step, module)

    def on_exception(self, trainer: Trainer, module: PretrainingModule, exception: BaseException) -> None:
        """A run that is stopped says where it stands."""
        if trainer.is_global_zero and self.first_step is not None and trainer.global_step > self.first_step:
            self._write(trainer.global_step, module)

    def _write(self, step: int, module: PretrainingModule) -> None:
        self.file_written = time.monotonic()
        self.directory.write_progress(
            step=step,
            tokens=step * self.run.config.batch.tokens,
            end_step=self.run.schedule.end_step,
            stop_step=self.stop_step,
            phase=self.run.schedule.phase_of_step(step),
            loss=module.health.loss,
            tok_per_s=self.tok_per_s,
        )

    def _mfu(self, trainer: Trainer, module: PretrainingModule) -> float | None:
        peak = peak_flops(module.device)
        if peak is None or self.tok_per_s is None:
            return None
        return self.tok_per_s * self.flops / (peak * trainer.world_size)

    def _show(self, step: int, module: PretrainingModule, mfu: float | None) -> None:
        batch, schedule = self.run.config.batch.tokens, self.run.schedule
        loss = module.health.loss
        parts = [
            *([] if loss is None else [f"loss {loss:.3f}"]),
            f"lr {schedule.lr_of_step(step):.2e}",
            schedule.phase_of_step(step),
        ]
        if self.tok_per_s:
            left = (self.stop_step - step) * batch / self.tok_per_s
            parts += [f"{self.tok_per_s:,.0f} tok/s"]
            parts += [f"MFU {mfu:.1%}"] if mfu is not None else []
            parts += [f"{_duration(left)} left"]
        if self.bar is not None:
            self.bar.set_postfix_str(", ".join(parts))
        else:
            percent = step / self.stop_step
            print(f"{self.run.name}  {step * batch:,} tokens ({percent:.0%})  " + "  ".join(parts), flush=True)

    def teardown(self, trainer: Trainer, module: PretrainingModule, stage: str) -> None:
        if self.bar is not None:
            self.bar.close()


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes:02d}m" if hours else f"{minutes}m {seconds:02d}s" if minutes else f"{seconds}s"
