# SPDX-License-Identifier: Apache-2.0
"""Small models of words, as people write them: Llama (RMSNorm, rotary embedding, grouped keys and values, SiLU), the same with a
mixture of experts, GPT-2 (LayerNorm, learned positions, GELU, dropout, the head tied to the embedding), and PyTorch's own
nn.TransformerEncoder. About 3 million parameters each."""
import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Config:
    words: int = 2048
    width: int = 256
    layers: int = 2
    heads: int = 4
    groups: int = 2
    hidden: int = 704
    length: int = 64
    dropout: float = 0.1
    experts: int = 4


def rotary_table(config):
    size = config.width // config.heads
    frequencies = 10000.0 ** (torch.arange(0, size, 2, dtype=torch.float32) / -size)
    angles = torch.outer(torch.arange(config.length, dtype=torch.float32), frequencies)
    return torch.cat([angles.cos(), angles.cos()], -1), torch.cat([angles.sin(), angles.sin()], -1)


def rotate(x, cosine, sine):
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat([-second, first], -1) * sine


class RMSNorm(nn.Module):
    """As transformers has it: in single precision, whatever the type of the input."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        single = x.float()
        single = single * torch.rsqrt(single.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * single.to(x.dtype)


class LlamaAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads, self.groups, self.size = config.heads, config.groups, config.width // config.heads
        self.query = nn.Linear(config.width, config.width, bias=False)
        self.key = nn.Linear(config.width, self.groups * self.size, bias=False)
        self.value = nn.Linear(config.width, self.groups * self.size, bias=False)
        self.output = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x, cosine, sine):
        batch, length, _ = x.shape
        query, key, value = (part(x).view(batch, length, -1, self.size).transpose(1, 2)
                             for part in (self.query, self.key, self.value))
        query, key = rotate(query, cosine, sine), rotate(key, cosine, sine)
        key, value = (part[:, :, None].expand(-1, -1, self.heads // self.groups, -1, -1).flatten(1, 2)
                      for part in (key, value))
        scores = query @ key.transpose(2, 3) / math.sqrt(self.size)
        later = torch.full((length, length), float("-inf"), device=x.device, dtype=scores.dtype).triu(1)
        weights = F.softmax(scores + later, dim=-1, dtype=torch.float32).to(x.dtype)
        return self.output((weights @ value).transpose(1, 2).reshape(batch, length, -1))


class LlamaLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.attention_norm, self.norm = RMSNorm(config.width), nn.RMSNorm(config.width, eps=1e-6)
        self.attention = LlamaAttention(config)
        self.make_words_own(config)

    def make_words_own(self, config):
        """What each word has by itself: here a feed-forward block."""
        self.gate = nn.Linear(config.width, config.hidden, bias=False)
        self.up = nn.Linear(config.width, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.width, bias=False)

    def own(self, y):
        return self.down(F.silu(self.gate(y)) * self.up(y))

    def forward(self, x, cosine, sine):
        x = x + self.attention(self.attention_norm(x), cosine, sine)
        return x + self.own(self.norm(x))


class MixtureLayer(LlamaLayer):
    """Each word goes to the two experts with the largest weights, which are stacked, and computed for all words."""

    def make_words_own(self, config):
        hidden = config.hidden // config.experts
        self.router = nn.Linear(config.width, config.experts, bias=False)
        self.gate, self.up = (nn.Parameter(torch.randn(config.experts, config.width, hidden) * 0.02) for _ in range(2))
        self.down = nn.Parameter(torch.randn(config.experts, hidden, config.width) * 0.02)

    def own(self, y):
        weights = F.softmax(self.router(y), dim=-1, dtype=torch.float32)
        largest = weights.amax(-1, keepdim=True)
        second = weights.masked_fill(weights >= largest, -1.0).amax(-1, keepdim=True)
        chosen = weights * (weights >= second)
        chosen = (chosen / chosen.sum(-1, keepdim=True)).to(y.dtype).flatten(0, 1)
        words = y.flatten(0, 1).expand(len(self.gate), -1, -1)
        parts = (F.silu(words @ self.gate) * (words @ self.up)) @ self.down
        return (parts * chosen.t()[:, :, None]).sum(0).view_as(y)


class Llama(nn.Module):
    LAYER = LlamaLayer

    def __init__(self, config):
        super().__init__()
        self.embedding = nn.Embedding(config.words, config.width)
        self.layers = nn.ModuleList(self.LAYER(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.width)
        self.head = nn.Linear(config.width, config.words, bias=False)
        cosine, sine = rotary_table(config)
        self.register_buffer("cosine", cosine, persistent=False)
        self.register_buffer("sine", sine, persistent=False)

    def forward(self, words):
        x = self.embedding(words)
        length = words.shape[1]
        cosine, sine = self.cosine[:length].to(x.dtype), self.sine[:length].to(x.dtype)
        for layer in self.layers:
            x = layer(x, cosine, sine)
        return self.head(self.norm(x))


class Mixture(Llama):
    LAYER = MixtureLayer


class GPT2Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads, self.dropout = config.heads, config.dropout
        self.attention_norm, self.norm = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.mix, self.output = nn.Linear(config.width, 3 * config.width), nn.Linear(config.width, config.width)
        self.up, self.down = nn.Linear(config.width, 4 * config.width), nn.Linear(4 * config.width, config.width)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x):
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                             for part in self.mix(self.attention_norm(x)).chunk(3, -1))
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True,
                                              dropout_p=self.dropout if self.training else 0.0)
        x = x + self.drop(self.output(seen.transpose(1, 2).flatten(2)))
        return x + self.drop(self.down(F.gelu(self.up(self.norm(x)), approximate="tanh")))


class GPT2(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embedding = nn.Embedding(config.words, config.width)
        self.positions = nn.Embedding(config.length, config.width)
        self.drop = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(GPT2Layer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.words, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, words):
        x = self.drop(self.embedding(words) + self.positions(torch.arange(words.shape[1], device=words.device)))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Encoder(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embedding, self.positions = nn.Embedding(config.words, config.width), nn.Embedding(config.length, config.width)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(config.width, config.heads, config.hidden, config.dropout, F.gelu,
                                                               batch_first=True)
                                    for _ in range(config.layers))
        self.head = nn.Linear(config.width, config.words)

    def forward(self, words):
        length = words.shape[1]
        x = self.embedding(words) + self.positions(torch.arange(length, device=words.device))
        later = torch.full((length, length), float("-inf"), device=words.device).triu(1)
        for layer in self.layers:
            x = layer(x, src_mask=later)
        return self.head(x)


def initialise(model, device):
    """What Llama's constructors do, in their order: parameters are what to_empty() has left, buffers are on the device."""
    for module in model.modules():
        if isinstance(module, RMSNorm):
            nn.init.ones_(module.weight)
        elif hasattr(module, "reset_parameters"):
            module.reset_parameters()
    cosine, sine = rotary_table(Config())
    model.cosine, model.sine = cosine.to(device), sine.to(device)


KINDS = {"llama": Llama, "gpt2": GPT2, "mixture": Mixture, "encoder": Encoder}
LAYERS = (LlamaLayer, MixtureLayer, GPT2Layer, nn.TransformerEncoderLayer)
