"""What the matrix costs, by hand; how far its runs are, from their directories."""

import json
import subprocess
import sys

import pytest

from experiment.data.prepare import prepare
from experiment.matrix.board import status
from experiment.matrix.budget import plan
from experiment.matrix.runs import matrix_runs
from experiment.run_directory import RunDirectory

MAIN = ["scale=main"]
FLOPS = 6.54354432e9  # per token at main: 6 x 956.4M + 12 x 16 x 2048 x 2048


def ask(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "experiment.runs", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_the_full_matrix_does_not_fit_into_1200_hours_and_eight_cells_do():
    report = plan(matrix_runs(overrides=MAIN), tok_per_s=61_750, budget_hours=1200)
    assert report["total_tokens"] == 844e9 and report["cells"] == 18 and len(report["runs"]) == 26
    assert (
        report["total_gpu_hours"] == pytest.approx(844e9 / 61_750 / 3600) and round(report["total_gpu_hours"]) == 3797
    )
    assert report["total_flops"] == pytest.approx(844e9 * FLOPS)
    budget = report["budget"]
    assert budget["fits"] is False
    assert round(budget["affordable_tokens"] / 1e9) == 267 and budget["affordable_30b_cells"] == 8
    assert budget["tok_per_s_needed"] == pytest.approx(844e9 / 1200 / 3600)
    # two mixtures in two conditions: 30B and 100B runs apart would be 130B, trunk and cooldowns are 106B
    assert report["trunks_save_tokens"] == 4 * 24e9


def test_the_30b_runs_and_the_design_of_all_pairs():
    report = plan(matrix_runs(only_30b=True, overrides=MAIN), tok_per_s=61_750, budget_hours=1200)
    assert report["total_tokens"] == 540e9 and round(report["total_gpu_hours"]) == 2429
    assert report["budget"]["fits"] is False and report["trunks_save_tokens"] == 0
    pairs = report["all_pairs"]
    assert (pairs["mixtures"], pairs["cells"], pairs["tokens"]) == (15, 30, 900e9)
    assert pairs["gpu_hours"] == pytest.approx(900e9 / 61_750 / 3600)
    assert plan(matrix_runs(only_30b=True, overrides=MAIN), tok_per_s=126_000, budget_hours=1200)["budget"]["fits"]


def test_a_rate_from_mfu_and_device_and_none_where_nothing_is_known():
    runs = matrix_runs(overrides=MAIN)
    assert plan(runs, mfu=0.409, device="GH200")["tok_per_s"] == pytest.approx(0.409 * 989e12 / FLOPS)
    unknown = plan(runs, budget_hours=1200)
    assert unknown["tok_per_s"] is None and unknown["total_gpu_hours"] is None and unknown["budget"]["fits"] is None


def test_disk_of_checkpoints():
    (trunk,) = [r for r in matrix_runs(overrides=MAIN) if r.name == "en-ar__bl_starved__trunk"]
    (row,) = plan([trunk])["runs"]
    assert (
        row["checkpoint_bytes"] == 3 * 1_090_590_720 * 12
    )  # two marks and the rolling one; weights and AdamW's averages


def test_epochs_are_counted_on_the_packed_corpus_with_a_warning_above_one(launcher):
    facts = prepare(launcher.compose("mixture=zh", "tok=bl_starved").config).shards["zh"].facts
    tokens = facts["tokens"]
    overrides = [*launcher.base, "scale.token_scale=1e-3"]
    runs = [r for r in matrix_runs(overrides=overrides) if r.name.startswith("zh__bl_starved")]
    report = plan(runs)
    assert report["runs"][0]["epochs"] == {"zh": pytest.approx(30e6 / tokens)}
    assert report["runs"][0]["text_bytes"] == {"zh": pytest.approx(30e6 * facts["bytes"] / tokens)}, "as measured"
    assert len(report["warnings"]) == 1 and "zh is read" in report["warnings"][0]


def test_state_progress_and_scores_of_runs(launcher):
    done = launcher.train("mixture=en", "tok=bl_destarved")
    facts = status(done.run)
    assert (facts["state"], facts["percent"], facts["tokens"]) == ("done", 100.0, 29 * 512)
    last = {f"{line['source']}/{line['lang']}": line["bpb"] for line in done.evaluations if line["step"] == 29}
    assert facts["bpb"] == last and facts["tok_per_s"] > 0 and facts["seconds_left"] is None
    pending = status(launcher.resolve("mixture=zh"))
    assert (pending["state"], pending["percent"], pending["bpb"]) == ("pending", 0.0, {})
    cooldown = launcher.train("mixture=en-ar", "schedule=cooldown_30b")
    trunk = status(launcher.resolve("mixture=en-ar", "schedule=trunk"))
    assert trunk["state"] == "interrupted" and 25 < trunk["percent"] < 35 and "as far as" in trunk["note"]
    assert status(cooldown.run)["percent"] == 100.0
    # another experiment under the same name is not shown as this one
    other = status(launcher.resolve("mixture=en", "scale.token_scale=1e-6"))
    assert other["state"] == "other" and "scale.token_scale" in other["error"]


def test_variants_on_disk_are_shown_and_rubbish_is_not(launcher, tmp_path):
    variant = launcher.train("mixture=en", "seed=1").run
    (variant.scale_directory / "rubbish").mkdir()
    (variant.scale_directory / "rubbish" / "run.json").write_text('{"state": "done"}')
    shown = json.loads(ask("view=status", "output=json", *launcher.base).stdout)
    assert len(shown) == 27
    facts = shown[-1]
    assert (facts["name"], facts["kind"], facts["mixture"]) == (variant.name, "wsd", "en")
    assert (facts["state"], facts["tokens"], facts["percent"]) == ("done", 29 * 512, 100.0)
    assert len(json.loads(ask("view=status", "output=json", "mixture=zh", *launcher.base).stdout)) == 2


def test_a_live_run_is_running_and_one_whose_process_died_is_interrupted(launcher):
    run = launcher.resolve("mixture=en")
    directory = RunDirectory(run.directory)
    launcher.train("mixture=en")
    directory.set_state("running")
    directory.write_progress(step=10, tokens=5120, end_step=29, stop_step=29, phase="stable", loss=5.0, tok_per_s=512.0)
    with directory.held():
        facts = status(run)
        assert facts["state"] == "running" and facts["seconds_left"] == 19.0 and facts["stale_seconds"] < 60
    assert status(run)["state"] == "interrupted"


def test_views_print_only_json_when_asked(launcher):
    for view in ("status", "plan"):
        command = [
            sys.executable,
            "-m",
            "experiment.runs",
            f"view={view}",
            "output=json",
            "mixture=en-ar",
            *launcher.base,
        ]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert result.returncode == 0, result.stderr
        parsed = json.loads(result.stdout)
        assert len(parsed["runs"] if view == "plan" else parsed) == 6
    table = subprocess.run(
        [sys.executable, "-m", "experiment.runs", "view=plan"], capture_output=True, text=True, timeout=60
    )
    assert "844B nominal tokens" in table.stdout


@pytest.mark.parametrize(
    "options, message",
    [
        (["view=plan", "mfu=0.4"], "give both"),
        (["view=plan", "mfu=0.4", "device=H900"], "did you mean H"),
        (["view=boards"], "view: got 'boards'"),
        (["view=plan", "budget_hours=-3"], "budget_hours: got -3"),
        (["mixture.probs=[0.7,0.3]"], "the matrix sets this itself"),
        (["tok.condition=starved"], "the matrix sets this itself"),
    ],
)
def test_a_wrong_question_is_one_line(options, message):
    result = subprocess.run(
        [sys.executable, "-m", "experiment.runs", *options], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 2 and message in result.stderr
    assert len(result.stderr.splitlines()) == 1
