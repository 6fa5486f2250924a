# SPDX-License-Identifier: Apache-2.0
"""Models in the sizes that people have, for tests/frameworks/scale: --scale names one of SHAPES."""
from collections import namedtuple

import torch
from torch import nn

from model import Shape

Mixture = namedtuple("Mixture", "dim hidden expert_hidden layers dense experts vocab router_bias", defaults=[True])
Many = namedtuple("Many", "layers tensors rows columns")


class Gated(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.gate = nn.Linear(dim, hidden, bias=False)
        self.up = nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)


class MixtureLayer(nn.Module):
    """DeepSeek-V3's: latent attention of 128 heads, and experts, each with three matrices of its own."""

    def __init__(self, size, number):
        super().__init__()
        self.attention_norm = nn.RMSNorm(size.dim)
        self.query_down, self.query_norm = nn.Linear(size.dim, 1536, bias=False), nn.RMSNorm(1536)
        self.query_up = nn.Linear(1536, 128 * 192, bias=False)
        self.key_value_down, self.key_value_norm = nn.Linear(size.dim, 512 + 64, bias=False), nn.RMSNorm(512)
        self.key_value_up = nn.Linear(512, 128 * 256, bias=False)
        self.output = nn.Linear(128 * 128, size.dim, bias=False)
        self.feed_forward_norm = nn.RMSNorm(size.dim)
        if number < size.dense:
            self.feed_forward = Gated(size.dim, size.hidden)
            return
        self.router = nn.Linear(size.dim, size.experts, bias=size.router_bias)
        self.shared = Gated(size.dim, size.expert_hidden)
        self.experts = nn.ModuleList(Gated(size.dim, size.expert_hidden) for _ in range(size.experts))


class MixtureModel(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.embedding = nn.Embedding(size.vocab, size.dim)
        self.layers = nn.ModuleList(MixtureLayer(size, number) for number in range(size.layers))
        self.norm = nn.RMSNorm(size.dim)
        self.lm_head = nn.Linear(size.dim, size.vocab, bias=False)

    def reset_buffers(self, _):
        """It has none."""

    @torch.no_grad()
    def init_weights(self):
        """On top of what the modules' constructors did, as Llama's."""
        for parameter in self.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.02)


class ManyTensors(nn.Module):
    """Nothing but a number of tensors."""

    def __init__(self, size):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ParameterList(nn.Parameter(torch.empty(size.rows, size.columns)) for _ in range(size.tensors))
            for _ in range(size.layers))

    def reset_buffers(self, _):
        """It has none."""


SHAPES = {"70B": Shape(8192, 1024, 28672, 80, 128256), "405B": Shape(16384, 1024, 53248, 126, 128256),
          "671B-mixture": Mixture(7168, 18432, 2048, 61, 3, 256, 129280),
          # 10^12 parameters in 69,915 tensors.
          "1T-mixture": Mixture(7168, 18432, 2048, 61, 1, 384, 163840, False),
          "100000-tensors": Many(100, 1000, 1024, 1024),
          # Short ones of each, to try the scripts.
          "tiny-70B": Shape(8192, 1024, 28672, 1, 16032), "tiny-mixture": Mixture(7168, 18432, 2048, 2, 1, 16, 16160),
          "tiny-tensors": Many(2, 50, 1024, 1024)}
MODELS = {Mixture: MixtureModel, Many: ManyTensors}
