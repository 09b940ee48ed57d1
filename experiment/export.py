"""A run as a Hugging Face model: `python -m experiment.export`.

checkpoint -> safetensors and config that transformers loads without custom code, tokenizer, model card
"""

import json
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from experiment.config.check import to_config
from experiment.config.front_door import front_door
from experiment.config.schema import Config, ExportConfig
from experiment.data.artifacts import recorded_artifact
from experiment.errors import RunRefused
from experiment.evaluation.recorded import named_runs, recorded_config, recorded_fingerprints
from experiment.evaluation.scores import read_points
from experiment.run_directory import RunDirectory, place_for, read_lines, replaced_as_a_whole

FILES = ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
FILES += ("generation_config.json", "README.md")


@front_door("export", ExportConfig)
def main(cfg: DictConfig) -> None:
    asked = to_config(cfg, ExportConfig)
    (path,) = named_runs(Path(asked.paths.runs) / asked.scale, asked.run, several=False)
    out = export(RunDirectory(path), asked)
    print(f"{path.name} at {asked.checkpoint}: {out}")


def export(directory: RunDirectory, asked: ExportConfig) -> Path:
    """Write the model; the directory it is in. Raises RunRefused for what is no checkpoint or no place for a model."""
    from experiment.model.huggingface import hf_config, hf_weights
    from experiment.training.checkpoints import find_weights, load_weights, write_safetensors

    if asked.checkpoint == "all":
        raise RunRefused("checkpoint: got all; name one")
    config = recorded_config(directory.path)
    weights = load_weights(find_weights(directory, asked.checkpoint)[0])
    record, fingerprints = directory.read() or {}, recorded_fingerprints(directory)
    tokenizer = recorded_artifact(Path(asked.paths.artifacts), "tokenizers", fingerprints["tokenizer"])
    if weights.run != directory.path.name:
        raise RunRefused(f"{weights.path}: holds weights of {weights.run}, not of {directory.path.name}")
    out = place_for(
        Path(asked.out) if asked.out else directory.path / "export" / asked.checkpoint, FILES, "an exported model"
    )
    with replaced_as_a_whole(out) as place:
        try:
            theirs = hf_weights(weights.state)
        except KeyError as error:
            raise RunRefused(f"{weights.path}: holds the weight {error}, which this model does not have") from error
        write_safetensors(place / "model.safetensors", theirs, {"format": "pt"})
        _write(place / "config.json", hf_config(config.model, config.tok.vocab_size))
        for name, content in _tokenizer_files(tokenizer.path / "tokenizer.json", config).items():
            _write(place / name, content)
        (place / "README.md").write_text(model_card(directory, record, config, weights.step), encoding="utf-8")
    return out


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _tokenizer_files(path: Path, config: Config) -> dict[str, dict[str, Any]]:
    """tokenizer.json puts <bos> before a text, as in training; a text that spells out "<eos>" stays text."""
    from experiment.tokenizers.tokenizer import BOS, EOS, PAD, SPECIAL_TOKENS

    unk, bos, eos, pad = SPECIAL_TOKENS
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [
            {"SpecialToken": {"id": bos, "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": bos, "type_id": 1}},
            {"Sequence": {"id": "B", "type_id": 1}},
        ],
        "special_tokens": {bos: {"id": bos, "ids": [BOS], "tokens": [bos]}},
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": unk,
        "bos_token": bos,
        "eos_token": eos,
        "pad_token": pad,
        "model_max_length": config.model.context,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,
        "padding_side": "left",
    }
    generation = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
    return {
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": settings,
        "special_tokens_map.json": {k: settings[k] for k in ("unk_token", "bos_token", "eos_token", "pad_token")},
        "generation_config.json": generation,
    }


def model_card(directory: RunDirectory, record: dict[str, Any], config: Config, step: int) -> str:
    """README.md of the model: what it was trained on, how, and its scores at this step."""
    schedule, tokens = config.schedule, step * config.batch.tokens
    points = [line for line in read_lines(directory.evaluations) if line["step"] == step]
    for path in sorted(directory.scores.glob(f"step_{step:07d}__*.parquet")):
        points += read_points(path)
    scores = ["| source | language | documents | bits per byte |", "|---|---|---|---|"]
    scores += [f"| {p['source']} | {p['lang']} | {p['docs']} | {p['bpb']:.4f} |" for p in points]
    model = config.model
    return "\n".join(
        [
            "---",
            "library_name: transformers",
            "pipeline_tag: text-generation",
            "language:",
            *(f"- {lang}" for lang in config.mixture.langs),
            "---",
            "",
            f"# {record['name']}",
            "",
            "A model of an experiment on transfer between languages under starved and destarved tokenizers. It shows a",
            "difference between training conditions and is no product.",
            "",
            f"- languages: {', '.join(config.mixture.langs)}; shares: {config.mixture.probs or 'uniform'}",
            f"- tokenizer: {record['tok_name']}, {config.tok.vocab_size:,} entries, "
            f"fingerprint {record['fingerprints']['tokenizer'][:12]}",
            f"- corpus: {config.data.corpus}",
            f"- model: {model.layers} layers, width {model.dim}, {model.heads} heads, feed-forward {model.ffn_dim}, "
            f"context {model.context}, QK-norm {'on' if model.qk_norm else 'off'}",
            f"- training: {tokens:,} tokens in {step:,} updates of {config.batch.tokens:,}; schedule {schedule.kind}, "
            f"peak rate {schedule.peak_lr:g}, floor {schedule.min_lr:g}, decay {schedule.decay_shape}",
            f"- seed {config.seed}, data seed {config.data_seed}; precision {record.get('precision')}; "
            f"commit {record.get('commit') or 'unknown'}",
            "",
            *(scores if points else ["No scores were recorded at this step."]),
            "",
            "```python",
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            'model, tokenizer = AutoModelForCausalLM.from_pretrained("."), AutoTokenizer.from_pretrained(".")',
            "```",
            "",
            f"At most {model.context} tokens at a time. The licences of its corpus say whether it may be passed on.",
            "",
        ]
    )


if __name__ == "__main__":
    main()
