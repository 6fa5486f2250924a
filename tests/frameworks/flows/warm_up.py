#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loads as transformers does: one allocation of all the bytes first, for the caching allocator to keep;
then the tensors, carved from it, by four threads from mapped safetensors files; then shards.
"""
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import torch
from safetensors import safe_open

from common import finish, join, parser, shard, tensors_of
from model import build, shape
from safetensors_load import files_of

THREADS = 4


def warm_up(model, device):
    total_bytes = sum(parameter.nbytes for parameter in model.parameters())
    torch.empty(total_bytes // 2, dtype=torch.float16, device=device, requires_grad=False)


def load(model, options):
    with ExitStack() as stack, ThreadPoolExecutor(THREADS) as pool:
        files = [stack.enter_context(safe_open(path, framework="pt", device="cpu"))
                 for path in files_of(options.checkpoint)]
        futures = {name: pool.submit(lambda file, name: file.get_slice(name)[...].to(options.device),
                                     file, name)
                   for file in files for name in file.keys()}
        state = {name: future.result() for name, future in futures.items()}
    model.load_state_dict(state, assign=True)
    model.reset_buffers(options.device)


def main():
    options = parser(__doc__).parse_args()
    mesh = join(options)
    model = build(shape(options.scale), "meta")
    warm_up(model, options.device)
    load(model, options)
    shard(model, mesh)
    finish(tensors_of(model), options)


if __name__ == "__main__":
    main()
