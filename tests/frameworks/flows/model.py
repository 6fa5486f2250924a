# SPDX-License-Identifier: Apache-2.0
"""A model with the tensors of Llama 3, fewer and narrower: 437 MiB in bfloat16 at scale 1.

It has no forward(): these programs build, load and shard, and nobody calls the model.
"""
from collections import namedtuple

import torch
from torch import nn

HEAD_DIM = 128

Shape = namedtuple("Shape", "dim key_value hidden layers vocab")


def shape(scale, uneven=False):
    """Llama 3 8B at half its width, with 3 of its 32 layers and an eighth of its vocabulary; or one of large.py, by name.

    uneven: every dimension a little larger, so that no number of ranks divides it.
    """
    if isinstance(scale, str):
        import large
        return large.SHAPES[scale]
    dim = max(round(2048 * scale / 32), 1) * 32
    extra = 3 if uneven else 0
    vocab = max(round(16032 * scale / 32), 1) * 32
    return Shape(dim + extra, dim // 4 + extra, dim * 7 // 2 + extra, 3, vocab + extra)


class Layer(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.attention_norm = nn.RMSNorm(size.dim)
        self.query = nn.Linear(size.dim, size.dim, bias=False)
        self.key = nn.Linear(size.dim, size.key_value, bias=False)
        self.value = nn.Linear(size.dim, size.key_value, bias=False)
        self.output = nn.Linear(size.dim, size.dim, bias=False)
        self.feed_forward_norm = nn.RMSNorm(size.dim)
        self.gate = nn.Linear(size.dim, size.hidden, bias=False)
        self.up = nn.Linear(size.dim, size.hidden, bias=False)
        self.down = nn.Linear(size.hidden, size.dim, bias=False)


class Llama(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.embedding = nn.Embedding(size.vocab, size.dim)
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.dim)
        self.lm_head = nn.Linear(size.dim, size.vocab, bias=False)
        self.reset_buffers(torch.get_default_device())

    def reset_buffers(self, device):
        """No checkpoint has these: whoever builds on the meta device calls this afterwards."""
        steps = torch.arange(0, HEAD_DIM, 2, dtype=torch.float32, device="cpu")
        frequencies = 500000.0 ** (steps / -HEAD_DIM)
        self.register_buffer("frequencies", frequencies.to(device), persistent=False)

    @torch.no_grad()
    def init_weights(self):
        """On top of what the modules' constructors did, as models commonly have it."""
        for layer in self.layers:
            for linear in (layer.query, layer.key, layer.value, layer.gate, layer.up):
                linear.weight.normal_(0, 0.02)
            for linear in (layer.output, layer.down):
                linear.weight.normal_(0, 0.02 / (2 * len(self.layers)) ** 0.5)
        # The embedding and the head keep their constructors' normal_ and uniform_.


def kind_of(size):
    if isinstance(size, Shape):
        return Llama
    import large
    return large.MODELS[type(size)]


def build(size, device, dtype=torch.bfloat16):
    """The constructors' initialisation only, straight on the device."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return kind_of(size)(size)
    finally:
        torch.set_default_dtype(before)
