#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""no_files.py: a program whose tensors are in no file. A JSON object on its standard input says what it does:

    "blocks"  a list of {"bytes", "name"?, "dtype"?, "shape"?}: each is allocated, filled with random bytes from the
              host and, if it has a name, named
    "names"   a list of [block, offset, bytes, name, dtype, shape] for metashard_name, after that
    "unnames" a list of [block, offset, bytes] for metashard_unname, after that
    "reads"   a list of [block, begin, end], after metashard_materialise

It prints an object: "addresses"; "names", with what metashard_name returned for each of "names" and what
metashard_error said; "unnames", what metashard_unname returned; "materialise"; "reads", a list of [CUresult, whether the bytes are right].
"""
import ctypes
import json
import os
import random
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "docs", "examples"))
from plan_ctypes import Cuda, MetaShard  # noqa: E402


def name(metashard, address, size, text, dtype, shape):
    """(result, error); without the preload everything is fine."""
    if not metashard.is_there:
        return [0, ""]
    dims = (ctypes.c_uint64 * max(1, len(shape)))(*shape)
    result = metashard.library.metashard_name(address, size, None if text is None else text.encode(),
                                              None if dtype is None else dtype.encode(), dims, len(shape))
    return [result, metashard.library.metashard_error().decode() if result else ""]


def main():
    wanted = json.load(sys.stdin)
    cuda, metashard = Cuda(), MetaShard()
    addresses, contents, named = [], [], []
    for number, block in enumerate(wanted["blocks"]):
        contents.append(random.Random(number).randbytes(block["bytes"]))
        addresses.append(cuda.to_device(contents[-1]))
        if "name" in block:
            named.append(name(metashard, addresses[-1], block["bytes"], block["name"], block["dtype"], block["shape"]))
    for number, offset, size, text, dtype, shape in wanted.get("names", []):
        named.append(name(metashard, addresses[number] + offset, size, text, dtype, shape))
    unnamed = [metashard.library.metashard_unname(addresses[number] + offset, size) if metashard.is_there else 0
               for number, offset, size in wanted.get("unnames", [])]
    materialised = metashard.library.metashard_materialise() if metashard.is_there else 0
    reads = []
    for number, begin, end in wanted["reads"]:
        data = ctypes.create_string_buffer(end - begin)
        result = cuda.library.cuMemcpyDtoH_v2(data, ctypes.c_uint64(addresses[number] + begin),
                                              ctypes.c_size_t(end - begin))
        reads.append([result, result == 0 and data.raw == contents[number][begin:end]])
    print(json.dumps({"addresses": addresses, "names": named, "unnames": unnamed, "materialise": materialised, "reads": reads}))


if __name__ == "__main__":
    main()
