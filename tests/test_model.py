"""The decoder, its loss, and bits per byte."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from experiment.config.compose import compose
from experiment.data.corpus import corpus
from experiment.evaluation.bpb import Document, document_nll, scores_of
from experiment.evaluation.sources import evaluation_sources
from experiment.model.decoder import Decoder, rotary_table, rotate
from experiment.model.loss import training_loss
from experiment.model.size import parameter_count
from experiment.tokenizers.tokenizer import load_tokenizer, tokenizer_artifact

CPU = torch.device("cpu")


def small(*overrides: str, vocab: int = 300, seed: int = 0) -> Decoder:
    base = ("model.dim=32", "model.layers=2", "model.heads=2", "model.ffn_dim=64", "model.context=32")
    decoder = Decoder(compose([*base, *overrides]).config.model, vocab)
    decoder.initialise(seed)
    return decoder


@pytest.mark.parametrize("qk_norm", ["true", "false"])
def test_no_position_sees_a_later_token(qk_norm):
    decoder = small(f"model.qk_norm={qk_norm}")
    ids = torch.randint(0, 300, (2, 32))
    changed = ids.clone()
    changed[:, 20:] = torch.randint(0, 300, (2, 12))
    with torch.no_grad():
        before, after = decoder(ids), decoder(changed)
    assert torch.allclose(before[:, :20], after[:, :20], atol=1e-6)
    assert not torch.allclose(before[:, 20:], after[:, 20:], atol=1e-3)


def test_the_seed_decides_the_weights_and_nothing_else_does():
    torch.manual_seed(1)
    one = small(seed=5).state_dict()
    torch.manual_seed(2)
    two = small(seed=5).state_dict()
    other = small(seed=6).state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["embedding.weight"], other["embedding.weight"])


@pytest.mark.parametrize("qk_norm", ["true", "false"])
@pytest.mark.parametrize("scale", ["tiny", "pilot", "main"])
def test_the_formula_counts_the_weights_there_are(scale, qk_norm):
    config = compose([f"scale={scale}", f"model.qk_norm={qk_norm}"]).config
    with torch.device("meta"):
        decoder = Decoder(config.model, config.tok.vocab_size)
    assert sum(p.numel() for p in decoder.parameters()) == parameter_count(config.model, config.tok.vocab_size)


def test_rotation_depends_on_distance_only():
    cos, sin = rotary_table(64, 16, 10_000.0)
    q, k = torch.randn(16), torch.randn(16)

    def product(i: int, j: int) -> float:
        at_i = rotate(q.view(1, 1, 1, 16), cos[i : i + 1], sin[i : i + 1])
        at_j = rotate(k.view(1, 1, 1, 16), cos[j : j + 1], sin[j : j + 1])
        return float((at_i * at_j).sum())

    assert product(3, 10) == pytest.approx(product(40, 47), abs=1e-4)


@pytest.mark.parametrize("z_loss", [0.0, 1e-2])
@pytest.mark.parametrize("chunk", [None, 1, 7, 16, 50, 64])
def test_the_loss_and_its_gradient_are_those_of_cross_entropy_plus_z_loss(chunk, z_loss):
    features = torch.randn(50, 12, dtype=torch.float64, requires_grad=True)
    head = torch.randn(300, 12, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, 300, (50,))
    logits = features @ head.T
    nll = -(logits[torch.arange(50), targets] - logits.exp().sum(1).log()).mean()
    whole = nll + z_loss * (logits.exp().sum(1).log() ** 2).mean()
    wanted = torch.autograd.grad(3 * whole, [features, head])
    objective, reported = training_loss(features, head, targets, z_loss, chunk)
    torch.testing.assert_close((objective, reported), (whole, nll))
    torch.testing.assert_close(torch.autograd.grad(3 * objective, [features, head]), wanted)
    assert not reported.requires_grad


@pytest.mark.parametrize("chunk", [None, 16])
def test_in_bf16_the_gradient_is_as_near_to_fp32_as_that_of_torch(chunk):
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(64, 128, generator=generator).requires_grad_()
    head = (torch.randn(512, 128, generator=generator) / 10).requires_grad_()
    targets = torch.randint(0, 512, (64,), generator=generator)

    def gradients(loss):
        return torch.autograd.grad(loss, [features, head])

    exact = gradients(torch.nn.functional.cross_entropy(features @ head.T, targets))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = gradients(training_loss(features, head, targets, 0.0, chunk)[0])
        torchs = gradients(torch.nn.functional.cross_entropy((features @ head.T).float(), targets))
    for mine, theirs, right in zip(ours, torchs, exact, strict=True):
        assert mine.dtype == torch.float32
        assert (mine - right).norm() <= 1.1 * (theirs - right).norm()


def plain_nll(model: torch.nn.Module, document: Document, context: int) -> float:
    """One document, one piece at a time, in float64."""
    total = 0.0
    for start in range(0, len(document.ids) - 1, context):
        piece = torch.tensor(document.ids[start : start + context + 1])
        with torch.no_grad():
            logits = model(piece[None, :-1])[0].double()
        log_probs = F.log_softmax(logits, dim=-1)
        for position, target in enumerate(piece[1:]):
            total -= float(log_probs[position, target])
    return total


@pytest.mark.parametrize("condition", ["starved", "destarved"])
def test_bpb_equals_a_plain_loop_in_float64_whatever_the_batch(artifacts, condition):
    config = compose(
        [f"tok=bl_{condition}", "scale.vocab_size=512", "model.context=32", "evaluation.holdout_docs=6"]
    ).config
    corpora = {lang: corpus(config.data, lang, artifacts) for lang in config.tok.langs}
    tokenizer = load_tokenizer(tokenizer_artifact(config, corpora, artifacts))
    sources = evaluation_sources(config, corpora, tokenizer)
    model = small(vocab=512).double()
    for source, limit in (("holdout", 6), ("parallel", 20)):
        for lang in ("en", "ar"):
            documents = sources[source][lang][:limit]
            if source == "holdout":
                assert max(len(doc.ids) for doc in documents) > 10 * 32, "longer than the context"
            expected = [plain_nll(model, doc, 32) for doc in documents]
            for batch_tokens in (32, 100, 1000, 10**6):
                for world_size in (1, 2, 3):
                    shares = [
                        document_nll(model, documents, 32, batch_tokens, CPU, rank, world_size)
                        for rank in range(world_size)
                    ]
                    # token losses are taken in fp32, sums in float64
                    assert np.sum(shares, axis=0) == pytest.approx(expected, rel=1e-6)
            score = scores_of(documents, np.array(expected))
            assert score.bpb == pytest.approx(
                sum(expected) / math.log(2) / sum(doc.bytes for doc in documents), rel=1e-12
            )


def test_bpb_counts_the_bytes_of_the_text_and_eos_but_not_bos(artifacts):
    config = compose(["scale.vocab_size=512", "evaluation.holdout_docs=null"]).config
    corpora = {lang: corpus(config.data, lang, artifacts) for lang in config.tok.langs}
    sources = evaluation_sources(config, corpora, load_tokenizer(tokenizer_artifact(config, corpora, artifacts)))
    held = sources["holdout"]["ar"]
    assert sum(doc.bytes for doc in held) == corpora["ar"].facts["holdout"]["bytes"]

    class Uniform:
        def features(self, ids: torch.Tensor) -> torch.Tensor:
            return torch.zeros(*ids.shape, 1)

        def logits(self, features: torch.Tensor) -> torch.Tensor:
            return torch.zeros(len(features), 512)

    nll = document_nll(Uniform(), held, 256, 4096, CPU)
    assert nll == pytest.approx([(len(doc.ids) - 1) * math.log(512) for doc in held], rel=1e-6)


def test_parallel_subsets_are_the_same_segments_in_every_run(artifacts):
    chosen = []
    for mixture in ("en", "en-ar"):
        config = compose([f"mixture={mixture}", "scale.vocab_size=512"]).config
        corpora = {lang: corpus(config.data, lang, artifacts) for lang in config.tok.langs}
        tokenizer = load_tokenizer(tokenizer_artifact(config, corpora, artifacts))
        chosen.append([doc.ids for doc in evaluation_sources(config, corpora, tokenizer)["parallel"]["en"][:128]])
    assert chosen[0] == chosen[1]
