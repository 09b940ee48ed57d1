"""A cooldown is the same trajectory as a run that was never cut."""

import pytest
import torch

from experiment.errors import RunRefused
from tests.conftest import assert_same_weights


@pytest.mark.parametrize(
    "place",
    [
        (),
        ("mixture.probs=[0.7,0.3]",),
        ("scale.token_scale=1e-5", "batch.tokens=4096", "model.context=256"),  # budgets are no multiple of the batch
        ("mixture=en-de", "tok=bl_starved", "model.context=32", "data_seed=7"),
        ("batch.tokens=4096", "scale.token_scale=3.1e-6", "train.log_every_steps=1", "model.context=256"),
    ],
    ids=["plain", "uneven-shares", "batch-does-not-divide", "other-cell", "odd-scale"],
)
def test_wsd_and_trunk_with_cooldown_end_at_equal_weights(launchers, place):
    whole = launchers("whole").train("schedule=wsd", *place)
    branched = launchers("branched").train("schedule=cooldown_30b", *place)
    assert_same_weights(whole.checkpoint(), branched.checkpoint())
    mark = branched.run.schedule.start_step
    assert [line for line in whole.metrics if line["step"] > mark] == branched.metrics
    scores = [(line["step"], line["source"], line["lang"], line["nll_nats"]) for line in whole.evaluations]
    branch_scores = [(line["step"], line["source"], line["lang"], line["nll_nats"]) for line in branched.evaluations]
    assert [line for line in scores if line[0] > mark] == branch_scores
    assert branched.record["trajectory"] == whole.record["trajectory"]


def test_several_epochs_over_a_small_corpus(launchers, tmp_path):
    import json

    for lang, word in (("en", "word"), ("ar", "كلمة")):
        rows = [json.dumps({"text": f"{word} {i} " * 40}) for i in range(25)]
        (tmp_path / f"{lang}.jsonl").write_text("\n".join(rows), encoding="utf-8")
    place = (
        "data=local",
        f"data.files.en={tmp_path}/en.jsonl",
        f"data.files.ar={tmp_path}/ar.jsonl",
        "tok.langs=[en,ar]",
        "scale.vocab_size=280",
        "evaluation.every_tokens=10e9",
        "data.holdout_fraction=0.2",
    )
    whole = launchers("whole").train("schedule=wsd", *place)
    branched = launchers("branched").train("schedule=cooldown_30b", *place)
    assert whole.metrics[-1]["epochs"]["en"] > 1
    assert_same_weights(whole.checkpoint(), branched.checkpoint())


def test_a_trunk_is_trained_only_to_the_mark_and_can_go_on(launcher):
    branched = launcher.train("schedule=cooldown_30b")
    trunk = branched.run.trunk
    directory = launcher.resolve("schedule=trunk").directory
    assert trunk is not None and trunk.directory == directory
    assert sorted(p.name for p in (directory / "checkpoints").iterdir()) == ["last.ckpt", "stable_24000M.ckpt"]
    whole = launcher.train("schedule=trunk")
    assert whole.record["state"] == "done"
    names = sorted(p.name for p in (directory / "checkpoints").iterdir())
    assert names == ["final.ckpt", "stable_24000M.ckpt", "stable_80000M.ckpt"]
    assert whole.checkpoint("stable_24000M")["run"]["mark"] == 24e9
    assert whole.checkpoint("stable_24000M")["run"]["step"] == branched.run.schedule.start_step
    steps = [line["step"] for line in whole.metrics]
    assert steps == sorted(set(steps))


def test_settings_that_act_after_the_mark_share_the_trunk(launcher):
    canonical = launcher.resolve("schedule=cooldown_30b").trunk
    for later in (
        "schedule.decay_shape=linear",
        "schedule.min_lr=1e-5",
        "schedule.decay_tokens=3e9",
        "branch.load_optim=false",
    ):
        variant = launcher.resolve("schedule=cooldown_30b", later)
        assert variant.trunk.name == canonical.name
        assert variant.name != launcher.resolve("schedule=cooldown_30b").name
    for earlier in ("seed=1", "schedule.peak_lr=1e-3", "model.z_loss=0", "mixture.probs=[0.7,0.3]"):
        assert launcher.resolve("schedule=cooldown_30b", earlier).trunk.name != canonical.name


def test_without_the_optimizer_state_a_branch_ends_elsewhere(launcher):
    kept = launcher.train("schedule=cooldown_30b")
    dropped = launcher.train("schedule=cooldown_30b", "branch.load_optim=false")
    weights = [run.checkpoint()["state_dict"]["decoder.head.weight"] for run in (kept, dropped)]
    assert not torch.equal(*weights)


def test_a_branch_refuses_a_trunk_of_another_experiment(launcher):
    trunk = launcher.train("schedule=trunk", "schedule.stable_tokens=23e9", "train.stable_marks=[24e9]", "seed=3")
    with pytest.raises(RunRefused, match="seed is 3 there and 0 here"):
        launcher.train("schedule=cooldown_30b", f"branch.trunk={trunk.run.name}")


def test_a_missing_trunk_is_an_error_where_it_should_be(launcher):
    with pytest.raises(RunRefused, match=r"branch\.missing=error"):
        launcher.train("schedule=cooldown_30b", "branch.missing=error")


def test_a_mark_that_the_trunk_has_passed_without_keeping_is_an_error(launcher):
    launcher.train("schedule=cooldown_30b")
    with pytest.raises(RunRefused, match="the trunk is past it"):
        launcher.train("schedule=cooldown_30b", "branch.mark=10e9")


def test_a_finished_cell_counts_for_either_schedule(launcher, capsys):
    launcher.train("schedule=wsd")
    launcher.train("schedule=cooldown_30b")
    assert "is finished already" in capsys.readouterr().out
    assert not launcher.resolve("schedule=trunk").directory.exists()
