"""Settings are checked before anything starts; an error is one clear line per problem."""

import inspect
import subprocess
import sys
from dataclasses import fields, is_dataclass
from itertools import product

import pytest

from experiment.config import schema
from experiment.config.compose import CONF, compose
from experiment.errors import ConfigError
from experiment.matrix.identity import resolve
from experiment.model.size import flops_per_token, parameter_count

MISTAKES = {
    "misspelt group option": (["mixture=en-arr"], "mixture: there is no option 'en-arr'; did you mean en-ar?"),
    "misspelt key": (["schedule.peak_lrr=1e-3"], "schedule.peak_lrr: there is no such setting; did you mean peak_lr?"),
    "key forced in with +": (["+model.n_layer=3"], "model.n_layer: there is no such setting; did you mean layers?"),
    "top-level key forced in with ++": (["++x=1"], "x: there is no such setting"),
    "wrong type": (["model.dim=wide"], "model.dim: Value 'wide' of type 'str' could not be converted to Integer"),
    "parity without parallel text": (["tok=pa_destarved", "data.parallel=null"], "tok.flavor: pa balances languages"),
    "flavor that cannot exist": (["tok.flavor=pa", "tok.condition=starved"], "tok: pa_starved cannot exist"),
    "cooldown without budget": (["mixture=en-fr", "schedule=cooldown_30b"], "mixture en-fr has a budget of 3e+10"),
    "batch and context": (
        ["batch.tokens=1000"],
        "batch.tokens: got 1000; must be a multiple of the context length 256",
    ),
    "shares that do not sum": (["mixture.probs=[0.7,0.4]"], "mixture.probs: got [0.7, 0.4], which sum to 1.1"),
    "decay that vanishes": (["scale.token_scale=1e-9"], "nothing would be trained"),
    "mark in the decay": (["train.stable_marks=[29e9]"], "train.stable_marks: 2.9e+10 lies in the decay"),
    "devices that do not divide": (["trainer.devices=3"], "batch.tokens: 4096 is 16 windows, which 3 devices do not"),
    "missing corpus": (["data=local"], "data.files: nothing for 'en'"),
    "odd head size": (["model.heads=128"], "model.heads: 128 heads of dim 128"),
    "floor above peak": (["schedule.min_lr=1"], "schedule.min_lr: got 1; must not be above schedule.peak_lr=0.003"),
    "no such file": (["data.files.en=/nowhere/en.jsonl"], "data.files.en: no file matches /nowhere/en.jsonl"),
    "misspelt language": (["data.files.eng=x"], "data.files.eng: there is no such setting"),
    "language forced in": (["+data.files.eng=x"], "data.files.eng: unknown language; did you mean en?"),
    "not a number": (["schedule.peak_lr=nan"], "schedule.peak_lr: got nan; must be a finite number"),
    "scale outside its place": (["scale.name=../../x"], "scale.name: got '../../x'; must be a name of letters"),
    "named like a trunk": (["schedule=cooldown_30b", "schedule.suffix=trunk"], "schedule.suffix: got 'trunk'"),
    "mark beyond the trunk": (
        ["schedule=cooldown_30b", "branch.mark=90e9"],
        "branch.mark: got 9e+10; the trunk ends at",
    ),
    "several options": (["mixture=[en,ar]"], "mixture: "),
    "no option": (["schedule=null"], "schedule: "),
    "runs in a file": (["paths.runs=/dev/null"], "/dev/null"),
    "unreadable override": (["model.dim=[1"], "model.dim=[1: cannot be read"),
}


@pytest.mark.parametrize("overrides, message", MISTAKES.values(), ids=[name.replace(" ", "-") for name in MISTAKES])
def test_a_mistake_is_one_line_and_leaves_nothing_behind(overrides, message, tmp_path):
    result = subprocess.run(
        [sys.executable, "-m", "experiment.train", *overrides], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 2, result.stderr
    lines = result.stderr.splitlines()
    assert message in lines[0], result.stderr
    assert all(line.startswith("error: ") for line in lines)
    assert len(lines) == 1 or overrides == ["data=local"]
    assert not (tmp_path / "multirun_outputs" / "tiny").exists()


def test_all_problems_come_in_one_report():
    with pytest.raises(ConfigError) as caught:
        compose(["model.heads=3", "seed=-1", "schedule.decay_shape=steps", "trainer.precision=fp8", "batch.tokens=100"])
    text = "\n".join(caught.value.problems)
    for name in ("model.heads", "seed", "schedule.decay_shape", "trainer.precision", "batch.tokens"):
        assert name in text
    command = [sys.executable, "-m", "experiment.train", "model.dmi=3", "mixture=xx", "+y=2", "optim.eps=small"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert len(result.stderr.splitlines()) == 4


def test_help_shows_groups_and_three_examples():
    result = subprocess.run(
        [sys.executable, "-m", "experiment.train", "--help"], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0
    assert result.stdout.count("python -m experiment.train ") >= 3
    for group in ("mixture", "tok", "schedule", "scale", "optim", "data", "trainer", "logger"):
        assert group + ":" in result.stdout
    assert "Learning rate of the stable phase." in result.stdout
    for option in ("en-zh", "bl_starved", "cooldown_100b", "pilot", "wandb"):
        assert option in result.stdout


def options(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def test_every_choice_composes():
    """A pair of cell and schedule, and every option of the other groups, is a run or says why not."""
    for mixture, schedule in product(options("mixture"), options("schedule")):
        try:
            run = resolve(compose([f"mixture={mixture}", f"schedule={schedule}"]))
            assert run.name.startswith(f"{mixture}__bl_destarved")
        except ConfigError as error:
            assert schedule != "wsd" and mixture not in ("en-de", "en-ar")
            assert "budget" in str(error)
    for group in ("scale", "model", "optim", "trainer", "logger"):
        for option in options(group):
            compose([f"{group}={option}"])


def test_the_cluster_config_is_the_main_scale():
    config = compose(config_name="cluster").config
    assert (config.scale.name, config.trainer.accelerator, config.batch.tokens) == ("main", "gpu", 2**20)
    assert (config.data.corpus, config.data.missing) == ("fineweb", "error")
    assert compose(["scale=pilot"], config_name="cluster").config.scale.name == "pilot"


@pytest.mark.parametrize("scale, millions", [("tiny", 1.85), ("pilot", 288.4), ("main", 1090.6)])
def test_every_rung_of_the_ladder_has_its_size(scale, millions):
    config = compose([f"scale={scale}"]).config
    assert parameter_count(config.model, config.tok.vocab_size) / 1e6 == pytest.approx(millions, abs=0.05)
    if scale == "main":
        assert flops_per_token(config.model, config.tok.vocab_size) / 1e9 == pytest.approx(6.543, abs=0.001)


def test_every_field_of_the_schema_has_a_sentence():
    classes = [item for item in vars(schema).values() if is_dataclass(item) and item.__module__ == schema.__name__]
    for cls in classes:
        source = inspect.getsource(cls).splitlines()
        for f in fields(cls):
            if is_dataclass(f.type) or f.name not in cls.__annotations__:
                continue
            line = next(i for i, text in enumerate(source) if text.startswith(f"    {f.name}: "))
            assert source[line + 1].strip().startswith('"""'), f"{cls.__name__}.{f.name}"
