"""Llama-style decoder: RMSNorm, rotary positions, SwiGLU, untied embeddings, QK-norm."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiment.config.schema import Model

INIT_STD = 0.02


class Attention(nn.Module):
    def __init__(self, model: Model):
        super().__init__()
        self.heads, self.head_dim = model.heads, model.dim // model.heads
        self.qkv = nn.Linear(model.dim, 3 * model.dim, bias=False)
        self.out = nn.Linear(model.dim, model.dim, bias=False)
        make_norm = (lambda: nn.RMSNorm(self.head_dim, eps=model.norm_eps)) if model.qk_norm else nn.Identity
        self.q_norm, self.k_norm = make_norm(), make_norm()

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, time, dim = x.shape
        q, k, v = self.qkv(x).view(batch, time, 3, self.heads, self.head_dim).unbind(2)
        q = rotate(self.q_norm(q.float()), cos, sin).to(v.dtype)  # norm and rotation in fp32 under autocast
        k = rotate(self.k_norm(k.float()), cos, sin).to(v.dtype)
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, time, dim))


class FeedForward(nn.Module):
    """SwiGLU, Shazeer, arXiv 2002.05202."""

    def __init__(self, model: Model):
        super().__init__()
        self.gate_up = nn.Linear(model.dim, 2 * model.ffn_dim, bias=False)
        self.down = nn.Linear(model.ffn_dim, model.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class Block(nn.Module):
    def __init__(self, model: Model):
        super().__init__()
        self.attention_norm = nn.RMSNorm(model.dim, eps=model.norm_eps)
        self.attention = Attention(model)
        self.ffn_norm = nn.RMSNorm(model.dim, eps=model.norm_eps)
        self.ffn = FeedForward(model)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.ffn(self.ffn_norm(x))


class Decoder(nn.Module):
    """ids [batch, time] -> logits [batch, time, vocab]. `time` is at most the context length."""

    def __init__(self, model: Model, vocab_size: int):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, model.dim)
        self.blocks = nn.ModuleList(Block(model) for _ in range(model.layers))
        self.norm = nn.RMSNorm(model.dim, eps=model.norm_eps)
        self.head = nn.Linear(model.dim, vocab_size, bias=False)
        cos, sin = rotary_table(model.context, model.dim // model.heads, model.rope_base)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.logits(self.features(ids))

    def features(self, ids: Tensor) -> Tensor:
        """What the head reads: ids [batch, time] -> [batch, time, dim]."""
        time = ids.shape[1]
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x, self.cos[:time], self.sin[:time])
        return self.norm(x)

    def logits(self, features: Tensor) -> Tensor:
        """[..., dim] -> [..., vocab]."""
        return self.head(features)

    @torch.no_grad()
    def initialise(self, seed: int) -> None:
        """Normal weights of std 0.02, residual outputs scaled by 1/sqrt(2 layers) (GPT-2); the seed decides all."""
        generator = torch.Generator().manual_seed(seed)
        residual_std = INIT_STD / math.sqrt(2 * len(self.blocks))
        for name, parameter in self.named_parameters():
            if parameter.ndim < 2:
                parameter.fill_(1.0)
                continue
            std = residual_std if name.endswith(("attention.out.weight", "ffn.down.weight")) else INIT_STD
            parameter.copy_(torch.empty(parameter.shape).normal_(0.0, std, generator=generator))


def rotary_table(context: int, head_dim: int, base: float) -> tuple[Tensor, Tensor]:
    """cos and sin [context, 1, head_dim / 2] of rotary positions (Su et al., arXiv 2104.09864)."""
    frequencies = base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angles = torch.outer(torch.arange(context, dtype=torch.float64), frequencies)[:, None, :]
    return angles.cos().float(), angles.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the halves of each head: x [batch, time, heads, head_dim], the layout of Llama in transformers."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
