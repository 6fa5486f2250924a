#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""sparse_checkpoint.py SHAPE FOLDER --rank R --world N [--experts SAMPLE]: safetensors files with all tensors of a model, which take next to no disk.

SHAPE is a name of tests/frameworks/flows/large.py. The files are holes, but for the rank's rows of each tensor: there each page
begins with eight bytes that are its tensor's and its own. hashes.json has the SHA-256 of the rank's rows of each tensor.
--experts SAMPLE: of what flows/expert_parallel.py reads back with --sample SAMPLE all rows, and of no other tensor any.
"""
import argparse
import hashlib
import json
import os
import sys

import numpy

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "flows"))
from model import build, shape  # noqa: E402

FILE_BYTES, PAGE, WORD = 5 << 30, 4096, 8


def rows_of(count, rank, world):
    """As torch.chunk cuts: the first row, and how many."""
    part = -(-count // world)
    return min(rank * part, count), max(min((rank + 1) * part, count) - rank * part, 0)


def content(number, size):
    """The rank's bytes of a tensor. Eight of them that begin anywhere are no address of a device: between those that count is
    0xF0, so that two in a row are zero only where all are, or where 0xF0 comes before them."""
    pages = -(-size // PAGE)
    at = numpy.arange(pages, dtype=numpy.uint64)
    bytes_of = [at & 255, at >> 8 & 255, at * 0 + (number & 255), at * 0 + (number >> 8 & 255)]
    words = numpy.zeros((pages, PAGE), dtype=numpy.uint8)
    for place, values in enumerate(bytes_of):
        words[:, 2 * place] = values
        words[:, 2 * place + 1] = 0xF0
    return words.reshape(-1)[:size]


def sample_of(options):
    """Names of what a rank of flows/expert_parallel.py reads back."""
    from expert_parallel import keep_own_experts
    model = build(shape(options.shape), "meta")
    keep_own_experts(model, options)
    return {name for name, _ in list(model.named_parameters())[::options.experts]}


def files_of(tensors):
    files, filled = [[]], 0
    for name, tensor in tensors:
        if filled + tensor.nbytes > FILE_BYTES and filled > 0:
            files.append([])
            filled = 0
        files[-1].append((name, tensor))
        filled += tensor.nbytes
    return files


def write_file(path, tensors, numbers, hashes, options):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, tensor in tensors:
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [at, at + tensor.nbytes]}
        at += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        begin = file.tell()
        file.truncate(begin + at)
        for name, tensor in tensors:
            first, count = options.rows(name, tensor.shape[0])
            row = tensor.nbytes // tensor.shape[0]
            data = content(numbers[name], count * row)
            hashes[name] = hashlib.sha256(data).hexdigest()
            place = begin + header[name]["data_offsets"][0] + first * row
            for page in range(0, len(data), PAGE):
                os.pwrite(file.fileno(), data[page:page + WORD], place + page)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape")
    parser.add_argument("folder")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world", type=int, default=1)
    parser.add_argument("--experts", type=int, metavar="SAMPLE")
    options = parser.parse_args()
    options.rows = lambda name, count: rows_of(count, options.rank, options.world)
    if options.experts:
        whole = sample_of(options)
        options.rows = lambda name, count: (0, count if name in whole else 0)
    os.makedirs(options.folder, exist_ok=True)
    tensors = list(build(shape(options.shape), "meta").named_parameters())
    numbers = {name: number for number, (name, _) in enumerate(tensors)}
    files, hashes, index = files_of(tensors), {}, {}
    for number, part in enumerate(files, 1):
        name = f"model-{number:05}-of-{len(files):05}.safetensors"
        write_file(os.path.join(options.folder, name), part, numbers, hashes, options)
        index.update((tensor, name) for tensor, _ in part)
    for name, value in (("model.safetensors.index.json", {"weight_map": index}), ("hashes.json", hashes)):
        with open(os.path.join(options.folder, name), "w", encoding="utf-8") as file:
            json.dump(value, file)


if __name__ == "__main__":
    main()
