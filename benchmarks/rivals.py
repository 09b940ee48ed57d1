"""Tokens per second beside Hugging Face's Trainer and litgpt: python benchmarks/rivals.py [shape] [rounds] [python]

`python` is the interpreter of an environment with transformers, accelerate and litgpt (which wants older libraries
than this project; `pip install torch==2.13.0 transformers accelerate litgpt requests`). All train on the same
batches, with bf16 autocast, AdamW, clipping at 1 and a line of log every ten updates, each as it comes: the others a
Llama of the same width, depth, heads and vocabulary; ours also with the QK-norm and z-loss that this project has on,
as `experiment.train` runs it and with trainer.compile=true; litgpt compiled, as it always is. Each contender runs in
a process of its own, in turn; the first updates (warming, compiling) are left out. Prints medians over the rounds.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

WARM = 5
UPDATES = {"tiny": 45, "pilot": 17}


def main(shape: str, rounds: int, other_python: str) -> None:
    from measuring import keep

    environment = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}  # as it comes

    updates = UPDATES[shape]
    rates: dict[str, list[float]] = {}
    with TemporaryDirectory() as directory:
        for _ in range(rounds):
            for name, python in (
                ("ours", sys.executable),
                ("ours, compiled", sys.executable),
                ("transformers", other_python),
                ("litgpt", other_python),
            ):
                command = [python, __file__, "--contender", name, shape, str(updates), directory]
                result = subprocess.run(command, capture_output=True, text=True, cwd=directory, env=environment)
                if result.returncode:
                    raise SystemExit(f"{name} failed:\n{result.stdout[-2000:]}\n{result.stderr[-4000:]}")
                found = json.loads(result.stdout.splitlines()[-1])
                rates.setdefault(name, []).append(found["tokens"] / statistics.median(found["seconds"][WARM:]))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    print(f"{shape}, {updates - WARM} updates in each of {rounds} rounds:")
    for name, rate in medians.items():
        print(f"  {name:16} {rate:10,.0f} tok/s   ours / {name}: {medians['ours'] / rate:.2f}")
    keep(f"rivals_{shape}", {"tok_per_s": medians, "rounds": rates})


def ours(shape: str, updates: int, place: Path, compiled: bool) -> dict[str, Any]:
    import numpy as np
    from lightning.pytorch import Callback
    from measuring import NOTHING_ELSE, SHAPES, run_with

    from experiment.data.datamodule import Batches

    stamps: list[float] = []
    facts: dict[str, Any] = {}

    class Clock(Callback):
        def on_train_start(self, *_: Any) -> None:
            stamps.append(time.perf_counter())

        def on_train_batch_end(self, *_: Any) -> None:
            stamps.append(time.perf_counter())

    def clock(run: Any, prepared: Any) -> Callback:
        config = run.config
        facts["tokens"] = config.batch.tokens
        if not (place / "model.json").exists():
            batches = Batches(config, prepared.shards, 0, 1)
            np.save(place / "batches.npy", np.stack([batches[i].numpy() for i in range(updates)]))
            model = {name: getattr(config.model, name) for name in ("dim", "layers", "heads", "ffn_dim", "context")}
            (place / "model.json").write_text(json.dumps(model | {"vocab": config.tok.vocab_size}))
        return Clock()

    extra = [f"trainer.compile={str(compiled).lower()}"]
    run_with(clock, [*SHAPES[shape], *NOTHING_ELSE, *extra], updates, place / "artifacts")
    return facts | {"seconds": [b - a for a, b in pairwise(stamps)][:-1]}


def transformers(place: Path) -> dict[str, Any]:
    import numpy as np
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

    model, batches = json.loads((place / "model.json").read_text()), np.load(place / "batches.npy")
    config = LlamaConfig(
        vocab_size=model["vocab"],
        hidden_size=model["dim"],
        intermediate_size=model["ffn_dim"],
        num_hidden_layers=model["layers"],
        num_attention_heads=model["heads"],
        max_position_embeddings=model["context"],
        tie_word_embeddings=False,
    )
    windows = batches[:, :, :-1].reshape(-1, model["context"])
    rows = [{"input_ids": torch.from_numpy(row), "labels": torch.from_numpy(row)} for row in windows]
    stamps: list[float] = []

    class Clock(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            stamps.append(time.perf_counter())

        def on_step_end(self, *_: Any, **__: Any) -> None:
            stamps.append(time.perf_counter())

    arguments = TrainingArguments(
        output_dir=str(place / "hf"),
        bf16=True,
        use_cpu=not torch.cuda.is_available(),
        per_device_train_batch_size=batches.shape[1],
        max_steps=len(batches),
        learning_rate=1e-3,
        max_grad_norm=1.0,
        logging_steps=10,
        save_strategy="no",
        report_to=[],
    )
    Trainer(LlamaForCausalLM(config), arguments, train_dataset=rows, callbacks=[Clock()]).train()
    return {
        "tokens": batches.shape[1] * model["context"],
        "seconds": [b - a for a, b in pairwise(stamps)],
    }


def litgpt(place: Path) -> dict[str, Any]:
    import numpy as np
    import torch
    from litgpt import Config, pretrain
    from litgpt.args import EvalArgs, TrainArgs
    from litgpt.data import DataModule

    model, batches = json.loads((place / "model.json").read_text()), np.load(place / "batches.npy")
    config = Config(
        name="llama",
        block_size=model["context"],
        vocab_size=model["vocab"],
        padded_vocab_size=model["vocab"],
        n_layer=model["layers"],
        n_head=model["heads"],
        n_embd=model["dim"],
        rotary_percentage=1.0,
        parallel_residual=False,
        bias=False,
        norm_class_name="RMSNorm",
        mlp_class_name="LLaMAMLP",
        intermediate_size=model["ffn_dim"],
    )
    stamps: list[float] = []

    class Windows(DataModule):
        def connect(self, tokenizer: Any = None, batch_size: int = 1, max_seq_length: int | None = None) -> None:
            self.windows = torch.from_numpy(batches.reshape(-1, batches.shape[2]))

        def train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(self.windows, batch_size=batches.shape[1])

        def val_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(self.windows[: batches.shape[1]], batch_size=batches.shape[1])

    class Clock(torch.optim.AdamW):
        def step(self, *arguments: Any, **options: Any) -> Any:
            result = super().step(*arguments, **options)
            stamps.append(time.perf_counter())
            return result

    pretrain.save_checkpoint = lambda *arguments: None  # it reads the command line
    pretrain.instantiate_torch_optimizer = lambda optimizer, parameters, **options: Clock(parameters, lr=1e-3)
    pretrain.setup(
        "llama",
        model_config=config,
        out_dir=place / "litgpt",
        precision="bf16-mixed",
        data=Windows(),
        train=TrainArgs(
            save_interval=None,
            log_interval=10,
            global_batch_size=batches.shape[1],
            micro_batch_size=batches.shape[1],
            max_tokens=len(batches) * batches.shape[1] * model["context"],
            max_norm=1.0,
            min_lr=1e-4,
            lr_warmup_steps=2,
            tie_embeddings=False,
        ),
        eval=EvalArgs(interval=10**6, max_iters=1, initial_validation=False, final_validation=False),
        devices=1,
        logger_name="csv",
    )
    return {
        "tokens": batches.shape[1] * model["context"],
        "seconds": [b - a for a, b in pairwise(stamps)],
    }


def contender(name: str, shape: str, updates: int, place: Path) -> None:
    if name.startswith("ours"):
        found = ours(shape, updates, place, name.endswith("compiled"))
    else:
        found = {"transformers": transformers, "litgpt": litgpt}[name](place)
    print(json.dumps(found), flush=True)
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--contender"]:
        contender(sys.argv[2], sys.argv[3], int(sys.argv[4]), Path(sys.argv[5]))
    else:
        shape, rounds, python = (*sys.argv[1:], *["tiny", "3", sys.executable][len(sys.argv) - 1 :])
        main(shape, int(rounds), python)
