# SPDX-License-Identifier: Apache-2.0
"""Plans and headers with any number of tensors, shaped like a mixture of experts. Files are sparse where nothing reads."""
EXPERTS, PARTS = 128, (("gate_proj", (2048, 7168)), ("up_proj", (2048, 7168)), ("down_proj", (7168, 2048)))
SMALLER = 16  # of a header, whose file would else be larger than file systems allow
BYTES = 2048 * 7168 * 2 // SMALLER ** 2


def tensors(count):
    """(name, shape), one after the other."""
    for number in range(count):
        part, shape = PARTS[number % 3]
        yield f"model.layers.{number // 3 // EXPERTS}.mlp.experts.{number // 3 % EXPERTS}.{part}.weight", shape


def write_plan(path, count):
    """As `metashard-plan make` writes them: an entry for each tensor. Returns the bytes."""
    with open(path, "w", encoding="utf-8") as file:
        file.write('{\n "format": "metashard-plan/1",\n "mesh": {\n  "dp": 64,\n  "tp": 8\n },\n "tensors": [\n')
        for number, (name, (rows, columns)) in enumerate(tensors(count)):
            file.write(f'{"," if number else ""}  {{\n   "name": "{name}",\n   "dtype": "BF16",\n   "shape": [\n    {rows},\n'
                       f'    {columns}\n   ],\n   "placements": {{\n    "tp": {{\n     "shard": {number % 3 // 2}\n    }},\n'
                       '    "dp": {\n     "shard": 0\n    }\n   }\n  }\n')
        file.write(" ]\n}\n")
        return file.tell()


def write_header(path, count):
    """A safetensors file, its data a hole. Returns the bytes of its header."""
    pieces = [f'"{name}":{{"dtype":"BF16","shape":[{rows // SMALLER},{columns // SMALLER}],'
              f'"data_offsets":[{number * BYTES},{(number + 1) * BYTES}]}}'
              for number, (name, (rows, columns)) in enumerate(tensors(count))]
    text = ("{" + ",".join(pieces) + "}").encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + count * BYTES)
    return len(text)
