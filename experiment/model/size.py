"""How large a model is and what a token of it costs: formulas only, no torch."""

from experiment.config.schema import Model

# dense bf16 FLOP/s by the maker's data sheets
PEAK_FLOPS = {"H100": 989e12, "H200": 989e12, "GH200": 989e12, "A100": 312e12}

BYTES_PER_PARAMETER = 4 + 8
"""fp32 weight and the two fp32 averages of AdamW: what a checkpoint holds."""


def parameter_count(model: Model, vocab_size: int) -> int:
    """Number of weights of the decoder, both embeddings included."""
    return 2 * vocab_size * model.dim + model.layers * block_parameters(model) + model.dim


def block_parameters(model: Model) -> int:
    """Number of weights of one layer."""
    norms = 2 * model.dim + (2 * (model.dim // model.heads) if model.qk_norm else 0)
    return 4 * model.dim**2 + 3 * model.dim * model.ffn_dim + norms


def flops_per_token(model: Model, vocab_size: int) -> float:
    """Training FLOPs per token, 6 N + 12 layers dim context (PaLM, arXiv 2204.02311, appendix B).

    N leaves out the input embedding, which is looked up and not multiplied.
    """
    n = parameter_count(model, vocab_size) - vocab_size * model.dim
    return 6.0 * n + 12.0 * model.layers * model.dim * model.context
