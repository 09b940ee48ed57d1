"""Every setting of a run, with its type and a sentence on what it does.

Token counts are nominal (30e9 means "30B tokens at main scale") and typed float, because
that is how they are written; `scale.token_scale` turns them into the tokens of a scale.
"""

from dataclasses import dataclass, field

from omegaconf import MISSING


@dataclass
class Mixture:
    langs: list[str] = MISSING
    """Languages of the run, English first where it takes part."""
    probs: list[float] | None = None
    """Share of windows for each language, in the order of `langs`; null is uniform."""
    budget_tokens: float = MISSING
    """Tokens this mixture may be trained for; beyond 30e9 it has a trunk and cooldowns."""


@dataclass
class Tok:
    flavor: str = MISSING
    """Algorithm: `bl` byte-level BPE, `unigram` with byte fallback, `pa` parity-aware BPE."""
    condition: str = MISSING
    """`starved`: vocabulary learned over the world's languages; `destarved`: over `langs` only."""
    vocab_size: int = MISSING
    """Entries of the vocabulary, the four special tokens included; at most 65,536 (uint16 shards)."""
    langs: list[str] = field(default_factory=lambda: ["en", "de", "fr", "ar", "zh"])
    """Study languages: what a destarved vocabulary is learned from, in content-matched amounts."""
    temperature: float = 100.0
    """T of the starved sample: a language of n bytes gets a share proportional to n^(1/T)."""
    match: str = "content"
    """What a destarved sample holds equally much of in each language: `content` (by byte premium) or `bytes`."""
    byte_premium: str = "table"
    """Bytes for the same content: the `table` of FLORES+, or as measured on the `parallel` text of the data."""
    parity_window: int | None = None
    """`pa`: languages that had more than their share of that many last merges wait (Foroutan et al.); null: none do."""
    parity_alpha: float = 2.0
    """`pa` with a window: how many times its even share of the merges a language may have."""


@dataclass
class ScheduleConfig:
    kind: str = MISSING
    """`wsd` (self-contained), `trunk` (no decay) or `cooldown` (a branch of a trunk)."""
    suffix: str = ""
    """What the schedule adds to a run's name: nothing for 30B, `trunk`, `100b`."""
    peak_lr: float = MISSING
    """Learning rate of the stable phase."""
    min_lr: float = MISSING
    """Learning rate of the last update of the decay."""
    warmup_tokens: float = MISSING
    """Length of the linear warmup to `peak_lr`."""
    stable_tokens: float = MISSING
    """Length of the stable phase after the warmup."""
    decay_tokens: float = MISSING
    """Length of the decay to `min_lr`; 0 on a trunk."""
    decay_shape: str = "1-sqrt"
    """`1-sqrt`, `linear` or `cosine`."""


@dataclass
class Branch:
    mark: float | None = None
    """Token position of the trunk at which a cooldown starts; null for other schedules."""
    load_optim: bool = True
    """Continue with the trunk's optimizer state; false is an ablation."""
    trunk: str | None = None
    """Name of the trunk's run; null is the trunk that belongs to this cell."""
    missing: str = "train"
    """A trunk that is missing is trained (`train`) or is an error (`error`)."""


@dataclass
class Scale:
    name: str = MISSING
    """Name of the scale; the directory its runs lie in."""
    token_scale: float = MISSING
    """Real tokens per nominal token; 1.0 at main. Never changes a name."""
    vocab_size: int = MISSING
    """Vocabulary size that tokenizers of this scale have."""
    data: str = MISSING
    """The corpus of this scale's canonical runs; another `data` makes a variant."""


@dataclass
class Model:
    dim: int = MISSING
    """Width of the residual stream."""
    layers: int = MISSING
    """Number of decoder blocks."""
    heads: int = MISSING
    """Attention heads; `dim / heads` must be even."""
    ffn_dim: int = MISSING
    """Hidden width of the SwiGLU feed-forward."""
    context: int = MISSING
    """Context length in tokens; also the length of a training window."""
    rope_base: float = 10000.0
    """Base of the rotary position embedding."""
    norm_eps: float = 1e-5
    """Epsilon of RMSNorm."""
    qk_norm: bool = True
    """RMSNorm on queries and keys of each head, before the rotation."""
    z_loss: float = 1e-4
    """Weight of the squared log-partition added to the training loss; 0 turns it off."""


@dataclass
class Optim:
    beta1: float = 0.9
    """AdamW's decay of the gradient average."""
    beta2: float = 0.95
    """AdamW's decay of the squared-gradient average."""
    eps: float = 1e-8
    """AdamW's epsilon."""
    weight_decay: float = 0.1
    """Decoupled weight decay of matrices; norms and the embedding have none."""
    clip_norm: float = 1.0
    """Global gradient norm above which gradients are scaled down."""


@dataclass
class Batch:
    tokens: int = MISSING
    """Global batch in tokens: a multiple of the context length, the same on any number of devices."""


@dataclass
class Train:
    stable_marks: list[float] = field(default_factory=list)
    """Token positions at which a permanent checkpoint `stable_*` is kept."""
    checkpoint_every_tokens: float = MISSING
    """Distance of the rolling checkpoints `last`."""
    log_every_steps: int = 10
    """Distance of the lines in metrics.jsonl, in updates."""


@dataclass
class Evaluation:
    every_tokens: float = MISSING
    """Distance of the evaluation points; the end of a run always is one."""
    parallel_segments: int | None = None
    """Parallel segments scored inside the loop (the end scores all); null is all of them."""
    holdout_docs: int | None = None
    """Holdout documents scored per language; null is all of them."""
    batch_tokens: int = 8192
    """Tokens scored at once; changes memory, not results."""
    snapshots: bool = False
    """Keep the weights of every evaluation point in snapshots/."""


@dataclass
class Data:
    corpus: str = MISSING
    """Name of the corpus; your own corpora need names of their own."""
    files: dict[str, str | None] = field(default_factory=dict)
    """Per language: a file or glob of jsonl, parquet or text, compressed or not; null where there is none."""
    text_column: str = "text"
    """Column that holds the document."""
    hub: dict[str, list[str]] = field(default_factory=dict)
    """Per language, instead of files: data sets of the hub, OWNER/NAME/CONFIG[@REVISION], each topping up the last."""
    budget_bytes: dict[str, float | None] = field(default_factory=dict)
    """Training text wanted from the hub per language, in UTF-8 bytes; null: what the matrix needs at this scale."""
    sample_bytes: float | None = None
    """UTF-8 bytes of text that a vocabulary is learned from; null: all there is."""
    max_document_bytes: int = 5_000_000
    """Longer documents are left out, and counted."""
    parallel: str | None = None
    """jsonl of aligned segments with `id` and one column per language; null: none are scored."""
    flores: bool = False
    """`parallel` is FLORES+, fetched there by experiment.prepare and known by its counts."""
    world: str | None = None
    """jsonl of `lang`, `text`: the languages a starved vocabulary is learned over."""
    world_hub: str | None = None
    """Instead: a data set of the hub with a configuration per language, OWNER/NAME[@REVISION] or a directory."""
    world_languages: int = 419
    """Languages of the starved sample: the study's, and the largest others of `world_hub`."""
    holdout_by: str = "text"
    """Which field's hash decides the holdout: `id` where ids are parallel across languages, else `text`."""
    holdout_fraction: float = 0.05
    """Share of documents (or ids) held out from training and scored at evaluation points."""
    missing: str = "build"
    """Artifacts that are missing are built (`build`) or are an error (`error`)."""


@dataclass
class TrainerConfig:
    accelerator: str = "auto"
    """`auto`, `cpu` or `gpu`."""
    devices: int | None = None
    """Processes on this node, one per GPU or share of the CPU; null: all GPUs, or one CPU process."""
    num_nodes: int = 1
    """Nodes; set by Slurm or torchrun where they start the processes."""
    micro_batch: int | None = None
    """Windows per device and forward pass; null: the device's whole share of the batch."""
    loss_chunk: int | None = 1024
    """Tokens whose logits are in memory at once; null: all of a micro-batch."""
    precision: str = "bf16"
    """Compute in `bf16` (autocast, fp32 weights) or `fp32`."""
    compile: bool = False
    """Compile each decoder block for training (a cold compile takes 30-90 s); evaluation runs without."""
    deterministic: bool = False
    """Make GPU runs repeat bit for bit, at some cost; CPU runs always do."""
    workers: int = 0
    """Processes per device that read ahead."""


@dataclass
class LoggerConfig:
    kind: str = MISSING
    """`csv`, or a tracker: `tensorboard`, `wandb`, `mlflow`. metrics.jsonl is written in any case."""
    project: str = "cross-script-penalty"
    """Project or experiment name in the tracker."""


@dataclass
class Paths:
    runs: str = "multirun_outputs"
    """Directory of runs: <runs>/<scale>/<run name>."""
    artifacts: str = "${paths.runs}/artifacts"
    """Directory of corpora, tokenizers and shards."""


@dataclass
class Config:
    """One run."""

    mixture: Mixture = field(default_factory=Mixture)
    tok: Tok = field(default_factory=Tok)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    branch: Branch = field(default_factory=Branch)
    scale: Scale = field(default_factory=Scale)
    model: Model = field(default_factory=Model)
    optim: Optim = field(default_factory=Optim)
    batch: Batch = field(default_factory=Batch)
    train: Train = field(default_factory=Train)
    evaluation: Evaluation = field(default_factory=Evaluation)
    data: Data = field(default_factory=Data)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)
    paths: Paths = field(default_factory=Paths)
    seed: int = 0
    """Seed of the weights."""
    data_seed: int = "${seed}"  # type: ignore[assignment]
    """Seed of the sample order; follows `seed` unless set."""


@dataclass
class PrepareData(Data):
    """The data of a run, or of one language."""

    lang: str | None = None
    """Prepare this language only; null: those of the mixture, or with all=true of the matrix."""


@dataclass
class PrepareConfig(Config):
    """Staging of what runs read: settings of a run, and how much of it."""

    data: PrepareData = field(default_factory=PrepareData)
    all: bool = False
    """For every mixture and both conditions of the flavor (tok.flavor), not for the one run."""
    until: str = "shards"
    """The last stage: `text` to learn from, `tokenizer`, `corpus`, `shards`."""
    dry_run: bool = False
    """Only show what exists, what is missing and what it will cost."""
    workers: int | None = None
    """Processes that download, split and encode; null: one per core."""
    output: str = "table"
    """`table`, or `json`: nothing but JSON on stdout."""


@dataclass
class RunsConfig(Config):
    """The listing of the matrix: settings of a run, applied to each, and what to show."""

    flavor: str = "bl"
    """Tokenizer flavor of the matrix."""
    only_30b: bool = False
    """The 18 self-contained runs instead of the 26 with trunks and cooldowns."""
    view: str = "list"
    """`list`: what the runs are; `status`: how far they are; `plan`: what they cost."""
    output: str = "table"
    """`table`, or `json`: nothing but JSON on stdout."""
    run: str | None = None
    """Show this run only."""
    watch: bool = False
    """view=status: show it again every five seconds until interrupted."""
    tok_per_s: float | None = None
    """view=plan: tokens per second and GPU; null takes `mfu` and `device`, or what finished runs were seen at."""
    mfu: float | None = None
    """view=plan: share of the device's bf16 peak, with `device`."""
    device: str | None = None
    """view=plan: H100, H200, GH200 or A100."""
    budget_hours: float | None = None
    """view=plan: GPU-hours there are."""


@dataclass
class EvaluationText:
    """Texts to score that the run itself does not know."""

    files: dict[str, str | None] = field(default_factory=dict)
    """Per language: a file or glob of jsonl, parquet or text, for the source `files`."""
    text_column: str = "text"
    """Column that holds the document, and for jsonl and parquet `id` its name."""
    parallel: str | None = None
    """Where the run's parallel text is now; null: where it was in training."""
    flores_split: str = "devtest"
    """Split of FLORES+: `dev` (997 sentences) or `devtest` (1012)."""


@dataclass
class EvaluateConfig:
    """Scoring of checkpoints after training."""

    run: str = MISSING
    """Name of the run, or a pattern of names ('en-*'); quote it from the shell."""
    checkpoint: str = "final"
    """`final`, `last`, a mark (`stable_24000M`), a snapshot (`step_0000146`), or `all` snapshots and marks."""
    sources: list[str] = field(default_factory=lambda: ["holdout", "parallel"])
    """`holdout` and `parallel` text of the run, whole; `flores`; `files`."""
    data: EvaluationText = field(default_factory=EvaluationText)
    scale: str = "tiny"
    """Scale of the run; the directory under paths.runs."""
    accelerator: str = "auto"
    """`auto`, `cpu` or `gpu`."""
    devices: int | None = None
    """Processes on this node; null: all GPUs, or one CPU process."""
    precision: str | None = None
    """`bf16` or `fp32`; null is the precision of the run's training."""
    batch_tokens: int | None = None
    """Tokens scored at once; null: evaluation.batch_tokens of the run."""
    output: str = "table"
    """`table`, or `json`: nothing but JSON on stdout."""
    paths: Paths = field(default_factory=Paths)


@dataclass
class ReportConfig:
    """From evaluation points to transfer scores, tables, figures and a page."""

    scale: str = "tiny"
    """Scale of the runs; the directory under paths.runs."""
    points: str | None = None
    """A CSV of evaluation points instead of the runs' own records."""
    budgets: list[float] = field(default_factory=lambda: [2e9, 4e9, 8e9, 10e9])
    """Nominal tokens of the partner language at which scores are tabled; real ones with `points`."""
    sources: list[str] | None = None
    """Texts to compare on; null: all but `files`, which are scored for other ends."""
    replicates: int = 1000
    """Bootstrap replicates behind each interval."""
    level: float = 0.95
    """Coverage that intervals claim."""
    seed: int = 0
    """Seed of the bootstrap."""
    out: str | None = None
    """Directory of the report; null: <paths.runs>/reports/<scale>, or /<name of the points' file>."""
    paths: Paths = field(default_factory=Paths)


@dataclass
class ExportConfig:
    """A run as a Hugging Face model."""

    run: str = MISSING
    """Name of the run."""
    checkpoint: str = "final"
    """`final`, `last`, a mark (`stable_24000M`) or a snapshot (`step_0000146`)."""
    scale: str = "tiny"
    """Scale of the run; the directory under paths.runs."""
    out: str | None = None
    """Directory of the model; null: <run>/export/<checkpoint>."""
    paths: Paths = field(default_factory=Paths)


@dataclass
class TokenizersConfig(Config):
    """The analysis of the tokenizers: settings of a run, and what to compare."""

    flavor: str = "bl"
    """Tokenizer flavor whose conditions are compared; `pa`, which has one, is compared with those of `bl`."""
    gate: float = 1.1
    """Starved tokens per destarved token, for the same text, that every study language must reach."""
    output: str = "table"
    """`table`, or `json`: nothing but JSON on stdout."""
    out: str | None = None
    """Directory of the analysis; null: <paths.runs>/reports/tokenizers-<scale>-<corpus>-<flavor>."""
