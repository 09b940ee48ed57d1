"""A run as a Hugging Face model: loaded by transformers without custom code, the same numbers."""

import json
import math
import subprocess
import sys

import pytest
import torch

from experiment.data.artifacts import recorded_artifact
from experiment.data.parallel import parallel_segments
from experiment.evaluation.bpb import document_nll, scores_of
from experiment.evaluation.sources import documents
from experiment.model.decoder import Decoder
from experiment.tokenizers.tokenizer import BOS, EOS, load_tokenizer
from experiment.training.checkpoints import find_weights, load_weights

transformers = pytest.importorskip("transformers", reason="the extra `eval` is not installed")


def export(launcher, name: str, *options: str) -> subprocess.CompletedProcess[str]:
    places = [option for option in launcher.base if option.startswith("paths.")]
    command = [sys.executable, "-m", "experiment.export", f"run={name}", *places, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("condition", ["starved", "destarved"])
def test_bpb_through_plain_transformers_is_ours(launcher, tmp_path, condition):
    done = launcher.train("mixture=en-ar", f"tok=bl_{condition}", "trainer.precision=fp32")
    result = export(launcher, done.run.name, f"out={tmp_path / 'model'}")
    assert result.returncode == 0, result.stderr
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    assert type(theirs).__name__ == "Qwen3ForCausalLM"
    their_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")

    config = done.run.config
    ours = Decoder(config.model, config.tok.vocab_size)
    ours.load_state_dict(load_weights(find_weights(done.directory, "final")[0]).state)
    fingerprint = done.record["fingerprints"]["tokenizer"]
    tokenizer = load_tokenizer(recorded_artifact(launcher.artifacts, "tokenizers", fingerprint))
    langs = ["en", "de", "fr", "ar", "zh"]  # the model has seen two of them; the others are text all the same
    segments = parallel_segments(config.data, langs)[:50]
    for lang in langs:
        texts = [(row["id"], row[lang]) for row in segments]
        mine = documents(texts, tokenizer)
        nll = 0.0
        for (_, text), document in zip(texts, mine, strict=True):
            ids = [*their_tokenizer(text)["input_ids"], their_tokenizer.eos_token_id]
            assert ids == list(document.ids) and ids[0] == BOS and ids[-1] == EOS
            for start in range(0, len(ids) - 1, config.model.context):
                piece = torch.tensor([ids[start : start + config.model.context + 1]])
                with torch.no_grad():
                    loss = theirs(piece[:, :-1]).logits[0].double()
                nll += float(torch.nn.functional.cross_entropy(loss, piece[0, 1:], reduction="sum"))
        their_bpb = nll / math.log(2) / sum(len(text.encode()) for _, text in texts)
        scores = scores_of(mine, document_nll(ours, mine, config.model.context, 1024, torch.device("cpu")))
        assert scores.bpb == pytest.approx(their_bpb, abs=1e-4)


@pytest.mark.parametrize("qk_norm, name", [(True, "Qwen3ForCausalLM"), (False, "LlamaForCausalLM")])
def test_logits_are_equal_to_float_error(launcher, tmp_path, qk_norm, name):
    done = launcher.train("mixture=en", f"model.qk_norm={str(qk_norm).lower()}", "model.rope_base=5000")
    assert export(launcher, done.run.name, f"out={tmp_path / 'model'}").returncode == 0
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    assert type(theirs).__name__ == name
    ours = Decoder(done.run.config.model, done.run.config.tok.vocab_size)
    ours.load_state_dict(load_weights(find_weights(done.directory, "final")[0]).state)
    ids = torch.randint(4, 512, (3, 64), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.allclose(ours(ids), theirs(ids).logits, rtol=1e-4, atol=1e-4)
    assert sum(p.numel() for p in theirs.parameters()) == sum(p.numel() for p in ours.parameters())


def test_the_tokenizer_gives_our_ids_and_the_text_back(launcher, tmp_path):
    done = launcher.train("mixture=en")
    assert export(launcher, done.run.name, f"out={tmp_path / 'model'}").returncode == 0
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    fingerprint = done.record["fingerprints"]["tokenizer"]
    ours = load_tokenizer(recorded_artifact(launcher.artifacts, "tokenizers", fingerprint))
    for text in ("plain", " two  spaces ", "العربية", "中文 and <eos> spelled out", "e\u0301 😀\r\n\ttab", ""):
        ids = theirs(text, add_special_tokens=False)["input_ids"]
        assert ids == ours.encode(text)
        assert theirs.decode(ids) == text


def test_the_card_has_the_scores_and_a_place_that_is_taken_is_kept(launcher, tmp_path):
    done = launcher.train("mixture=en")
    assert export(launcher, done.run.name).returncode == 0
    card = (done.directory.path / "export" / "final" / "README.md").read_text()
    last = done.evaluations[-1]
    assert f"| {last['source']} | {last['lang']} | {last['docs']} | {last['bpb']:.4f} |" in card
    assert json.loads((done.directory.path / "export" / "final" / "config.json").read_text())["vocab_size"] == 512
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep me")
    for options, message in [
        ([f"out={tmp_path / 'mine'}"], "is not an exported model"),
        (["checkpoint=stable_24000M"], "there: final"),
        (["checkpoint=all"], "name one"),
    ]:
        result = export(launcher, done.run.name, *options)
        assert result.returncode == 2 and message in result.stderr and len(result.stderr.splitlines()) == 1
    assert (tmp_path / "mine" / "notes.txt").read_text() == "keep me"
    assert "there: " + done.run.name in export(launcher, "nothing").stderr
