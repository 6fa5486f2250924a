# SPDX-License-Identifier: Apache-2.0
"""Training a Llama as torchtitan's recipes have it, in plain PyTorch: fp32 parameters, FSDP1 or FSDP2 with bf16, selective or full
checkpointing, AdamW, clipping. --recipe 2024-03 is that of March 2024: norms of several operations, an optimizer of foreach, the
whole model compiled. Nothing here knows that nothing is computed."""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

# width, layers, heads, heads of keys, hidden width, words; Llama 3 and 3.1, and Llama 2 7B
MODELS = {"8b": (4096, 32, 32, 8, 14336, 128256), "70b": (8192, 80, 64, 8, 28672, 128256),
          "405b": (16384, 126, 128, 8, 53248, 128256), "2-7b": (4096, 32, 32, 32, 11008, 32000),
          "small": (256, 2, 4, 2, 512, 128256)}
WORDS = 5  # of a row


def turn(x, angles):
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * angles[:, None, :]).flatten(3).type_as(x)


class PlainNorm(nn.Module):
    """A norm that leaves each of its operations' results to the backward pass, in fp32."""

    def __init__(self, width, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).type_as(x) * self.weight


class Attention(nn.Module):
    def __init__(self, width, heads, key_heads):
        super().__init__()
        self.size, self.repeats = width // heads, heads // key_heads
        self.wq, self.wo = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.wk, self.wv = (nn.Linear(width, key_heads * self.size, bias=False) for _ in range(2))

    def forward(self, x, angles):
        batch, length, _ = x.shape
        q, k, v = (layer(x).view(batch, length, -1, self.size) for layer in (self.wq, self.wk, self.wv))
        q, k = turn(q, angles), turn(k, angles)
        k, v = (t[:, :, :, None, :].expand(-1, -1, -1, self.repeats, -1).reshape(batch, length, -1, self.size) for t in (k, v))
        out = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True)
        return self.wo(out.transpose(1, 2).contiguous().view(batch, length, -1))


class Hidden(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.w1, self.w3 = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.w2 = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, width, heads, key_heads, hidden, norm):
        super().__init__()
        self.attention, self.feed_forward = Attention(width, heads, key_heads), Hidden(width, hidden)
        self.attention_norm, self.ffn_norm = (norm(width, eps=1e-5) for _ in range(2))

    def forward(self, x, angles):
        h = x + self.attention(self.attention_norm(x), angles)
        return h + self.feed_forward(self.ffn_norm(h))


class Llama(nn.Module):
    def __init__(self, width, layers, heads, key_heads, hidden, words, length, norm):
        super().__init__()
        self.tok_embeddings = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Block(width, heads, key_heads, hidden, norm) for _ in range(layers))
        self.norm, self.output = norm(width, eps=1e-5), nn.Linear(width, words, bias=False)
        self.register_buffer("angles", torch.empty(length, width // heads // 2, dtype=torch.complex64), persistent=False)

    def forward(self, tokens):
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x, self.angles[:x.shape[1]])
        return self.output(self.norm(x))


SAVED = {torch.ops.aten.mm.default, torch.ops.aten._scaled_dot_product_flash_attention.default,
         torch.ops.aten._scaled_dot_product_efficient_attention.default, torch.ops._c10d_functional.reduce_scatter_tensor.default}


def selective():
    """Saves every second product, attention and reduce-scatters."""
    counts = {False: 0, True: 0}

    def policy(context, function, *arguments, **named):
        if function == torch.ops.aten.mm.default:
            counts[context.is_recompute] += 1
        keep = function in SAVED and not (function == torch.ops.aten.mm.default and counts[context.is_recompute] % 2 == 0)
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE
    return create_selective_checkpoint_contexts(policy)


def whole(module):
    """Parameters of fp32 on the device, for FSDP1, which shards them then."""
    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False):
            if parameter.is_meta:
                setattr(part, name, nn.Parameter(torch.randn_like(parameter, device="cuda")))


def shard_flat(model, mesh):
    wrap = {"mixed_precision": MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32), "use_orig_params": True,
            "device_mesh": mesh, "param_init_fn": whole}
    for number, block in enumerate(model.layers):
        model.layers[number] = FullyShardedDataParallel(block, **wrap)
    return FullyShardedDataParallel(model, **wrap)


def shard(model, mesh):
    policy = {"mesh": mesh, "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}
    for number, block in enumerate(model.layers):
        fully_shard(block, reshard_after_forward=number < len(model.layers) - 1, **policy)
    fully_shard(model, **policy)
    model.to_empty(device="cuda")
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.02)
    return model


def build(options, mesh):
    is_old = options.recipe == "2024-03"
    with torch.device("meta"):
        model = Llama(*MODELS[options.model], options.length, PlainNorm if is_old else nn.RMSNorm)
    if options.fsdp == 1:
        model.angles = torch.empty(model.angles.shape, dtype=torch.complex64, device="cuda")
    if options.checkpointing != "none":
        for number, block in enumerate(model.layers):
            model.layers[number] = checkpoint_wrapper(
                block, preserve_rng_state=False, **({"context_fn": selective} if options.checkpointing == "selective" else {}))
    if options.compile and not is_old:
        for number, block in enumerate(model.layers):
            model.layers[number] = torch.compile(block, fullgraph=True)
    model = (shard_flat if options.fsdp == 1 else shard)(model, mesh)
    return torch.compile(model) if options.compile and is_old else model


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, default="8b")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--checkpointing", choices=["none", "selective", "full"], default="selective")
    parser.add_argument("--compile", action="store_true", help="by torch.compile")
    parser.add_argument("--fsdp", type=int, choices=[1, 2], default=2)
    parser.add_argument("--recipe", choices=["2024-03", "2024-12"], default="2024-12")
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    model = build(options, init_device_mesh("cuda", (dist.get_world_size(),)))
    kind = "foreach" if options.recipe == "2024-03" else "fused"
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, **{kind: True})
    words = MODELS[options.model][WORDS]
    for _ in range(options.steps):
        tokens = torch.randint(words, (options.batch, options.length + 1)).cuda()
        optimizer.zero_grad()
        if options.recipe == "2024-03":  # the last step's are there until there are new ones
            scores = model(tokens[:, :-1]).float()
            loss = F.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        else:
            scores = model(tokens[:, :-1])
            loss = F.cross_entropy(scores.flatten(0, 1).float(), tokens[:, 1:].flatten())
            del scores
        loss.backward()
        if options.fsdp == 1:
            model.clip_grad_norm_(1.0)
        else:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        print("loss", loss.item(), "reserved GiB", torch.cuda.max_memory_reserved() / 2**30)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
