"""The decoder as a model of the transformers library: Llama, or Qwen3 where QK-norm is on."""

from typing import Any

from torch import Tensor

from experiment.config.schema import Model
from experiment.tokenizers.tokenizer import BOS, EOS, PAD

NAMES = {
    "embedding.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
BLOCK_NAMES = {
    "attention_norm.weight": ["input_layernorm.weight"],
    "attention.qkv.weight": [f"self_attn.{name}_proj.weight" for name in "qkv"],
    "attention.q_norm.weight": ["self_attn.q_norm.weight"],
    "attention.k_norm.weight": ["self_attn.k_norm.weight"],
    "attention.out.weight": ["self_attn.o_proj.weight"],
    "ffn_norm.weight": ["post_attention_layernorm.weight"],
    "ffn.gate_up.weight": ["mlp.gate_proj.weight", "mlp.up_proj.weight"],
    "ffn.down.weight": ["mlp.down_proj.weight"],
}
"""Our matrix -> theirs, which are its equal parts along the output axis."""


def hf_config(model: Model, vocab_size: int) -> dict[str, Any]:
    """config.json. Qwen3 is Llama with an RMSNorm on the queries and keys of each head before the rotation."""
    name, kind = ("Qwen3ForCausalLM", "qwen3") if model.qk_norm else ("LlamaForCausalLM", "llama")
    return {
        "architectures": [name],
        "model_type": kind,
        "vocab_size": vocab_size,
        "hidden_size": model.dim,
        "intermediate_size": model.ffn_dim,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.heads,
        "head_dim": model.dim // model.heads,
        "hidden_act": "silu",
        "max_position_embeddings": model.context,
        "rms_norm_eps": model.norm_eps,
        "rope_theta": model.rope_base,
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_base},
        "attention_bias": False,
        "mlp_bias": False,
        "use_sliding_window": False,
        "tie_word_embeddings": False,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
        "dtype": "float32",
    }


def hf_weights(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The decoder's state under the names of transformers; the same numbers."""
    weights: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if not name.startswith("blocks."):
            weights[NAMES[name]] = tensor.contiguous()
            continue
        _, number, rest = name.split(".", 2)
        parts = BLOCK_NAMES[rest]
        for part, theirs in zip(tensor.chunk(len(parts), dim=0), parts, strict=True):
            weights[f"model.layers.{number}.{theirs}"] = part.contiguous()
    return weights
