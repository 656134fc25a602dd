"""The paper's decoder in plain torch, in two sizes.

Pre-norm blocks of causal attention and a plain MLP of GELU, RMSNorm, rotary positions, QK-norm, heads of 64 values,
a tied or an untied head, and a z-loss (arXiv 2501.18512, Table 2 and section 3). Left out: dropout, biases, grouped
queries, a key cache and generation: the model is here to be trained.

Shapes: B sequences, T positions, D model width, N heads, K = D / N values a head, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from protocol.errors import UserError

EMBEDDING_STD = 0.02
ROTARY_BASE = 10_000.0
NORM_EPS = 1e-6


@dataclass(frozen=True)
class DecoderConfig:
    """The shape of a decoder. Counts are of values; `context` is the longest sequence it can read."""

    vocab: int
    layers: int
    width: int
    heads: int
    mlp: int
    context: int
    tied: bool = True

    def __post_init__(self) -> None:
        for name in ("vocab", "layers", "width", "heads", "mlp", "context"):
            if getattr(self, name) < 1:
                raise UserError.field(f"model.{name}", getattr(self, name), "must be at least 1")
        if self.width % (2 * self.heads):
            raise UserError.field("model.width", self.width, f"must be a multiple of 2 * heads ({2 * self.heads})")

    @property
    def head_width(self) -> int:
        """Values of one attention head (K)."""
        return self.width // self.heads


PRESETS: dict[str, DecoderConfig] = {
    # Four blocks of 131k parameters and a matrix of 33k: four fragments of 131k to 164k. A minute on a laptop.
    "tiny": DecoderConfig(vocab=256, layers=4, width=128, heads=2, mlp=256, context=128),
    # Table 2's smallest, with bytes for its vocabulary (19M parameters instead of 35M).
    "35m": DecoderConfig(vocab=256, layers=6, width=512, heads=8, mlp=2048, context=1024),
}


def preset(name: str) -> DecoderConfig:
    """The configuration of that name; UserError listing the known names otherwise."""
    if name not in PRESETS:
        raise UserError.field("model.name", name, f"must be one of {', '.join(sorted(PRESETS))}")
    return PRESETS[name]


class Attention(nn.Module):
    """Causal multi-head attention over RMS-normalized, rotated queries and keys."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.output = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        batch, positions, width = x.shape
        qkv = self.qkv(x).view(batch, positions, 3, self.heads, -1)  # (B, T, 3, N, K)
        normal = F.rms_norm(qkv[:, :, :2], qkv.shape[-1:], eps=NORM_EPS)  # queries and keys at once
        query, key = rotate(normal, turns).permute(2, 0, 3, 1, 4).unbind(0)  # each (B, N, T, K)
        value = qkv[:, :, 2].transpose(1, 2)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)  # (B, N, T, K)
        return cast(Tensor, self.output(mixed.transpose(1, 2).reshape(batch, positions, width)))


class Block(nn.Module):
    """One layer: attention and MLP, each behind its norm and beside the residual stream."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, eps=NORM_EPS)
        self.attention = Attention(config)
        self.mlp_norm = nn.RMSNorm(config.width, eps=NORM_EPS)
        self.mlp_in = nn.Linear(config.width, config.mlp, bias=False)
        self.mlp_out = nn.Linear(config.mlp, config.width, bias=False)

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), turns)
        return x + cast(Tensor, self.mlp_out(F.gelu(self.mlp_in(self.mlp_norm(x)))))


class Decoder(nn.Module):
    """A decoder-only language model. Its parameters are torch's until `aggregation.initial` has filled them."""

    turns: Tensor

    def __init__(self, config: DecoderConfig, *, z_loss: float = 1e-4) -> None:
        super().__init__()
        self.config = config
        self.z_loss = z_loss
        self.embedding = nn.Embedding(config.vocab, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.final_norm = nn.RMSNorm(config.width, eps=NORM_EPS)
        self.head = nn.Linear(config.width, config.vocab, bias=False)
        if config.tied:
            self.head.weight = self.embedding.weight
        self.register_buffer("turns", rotary_turns(config.context, config.head_width), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits, fp32 (B, T, V), for tokens int64 (B, T)."""
        positions = tokens.shape[1]
        if positions > self.config.context:
            raise UserError.field("data.sequence", positions, f"must be at most the context ({self.config.context})")
        x = self.embedding(tokens)  # (B, T, D)
        for block in self.blocks:
            x = block(x, self.turns[:positions])
        return cast(Tensor, self.head(self.final_norm(x)).float())

    def losses(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Cross-entropy and z-loss, both scalars, of predicting each next token of int64 (B, T+1).

        Cross-entropy is in nats per token. The z-loss, z_loss * mean(logsumexp(logits)²), keeps logits from drifting.
        """
        logits = self(tokens[:, :-1])
        normalizer = logits.logsumexp(-1)  # (B, T)
        chosen = logits.gather(-1, tokens[:, 1:, None]).squeeze(-1)
        return (normalizer - chosen).mean(), self.z_loss * normalizer.square().mean()

    def loss(self, tokens: Tensor) -> Tensor:
        """What training minimizes, a scalar: cross-entropy in nats per token plus the z-loss. Tokens int64 (B, T+1)."""
        cross_entropy, z = self.losses(tokens)
        return cross_entropy + z

    def cross_entropy(self, tokens: Tensor) -> Tensor:
        """What evaluation reports, a scalar: nats per token without the z-loss. Tokens int64 (B, T+1)."""
        return self.losses(tokens)[0]

    def initial_stds(self) -> dict[str, float]:
        """Standard deviation of each matrix's first values, by parameter name; norms are left out and start at one.

        Matrices get 1 / sqrt(fan-in); those that write to the residual stream, two a layer, are divided by
        sqrt(2 * layers) as well. The embedding and the head get 0.02.
        """
        return {name: self._std(name, weight) for name, weight in self.named_parameters() if weight.dim() > 1}

    def _std(self, name: str, weight: Tensor) -> float:
        if name in ("embedding.weight", "head.weight"):
            return EMBEDDING_STD
        writes = 2 * self.config.layers if name.endswith(("output.weight", "mlp_out.weight")) else 1
        # math.sqrt is rounded correctly everywhere, ** is not: all peers must get the same initial bytes.
        return 1.0 / math.sqrt(weight.shape[1] * writes)


def rotary_turns(positions: int, head_width: int) -> Tensor:
    """Unit complex numbers, complex64 (positions, head_width / 2), of the rotary angles (arXiv 2104.09864)."""
    frequencies = ROTARY_BASE ** (-torch.arange(0, head_width, 2, dtype=torch.float32) / head_width)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
    return torch.polar(torch.ones_like(angles), angles)


def rotate(x: Tensor, turns: Tensor) -> Tensor:
    """Turn each pair of neighbours along K of queries and keys (B, T, 2, N, K) by its position's angle."""
    # As one complex product: three times as fast on a CPU as the sines and cosines written out.
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))  # (B, T, 2, N, K / 2)
    return torch.view_as_real(pairs * turns[:, None, None]).flatten(-2)
