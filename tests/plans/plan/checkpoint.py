# SPDX-License-Identifier: Apache-2.0
"""Small safetensors files, of tensors as in oracle.py."""
import json
import os


def header_of(tensors, metadata=None):
    entries, offset = {}, 0
    if metadata is not None:
        entries["__metadata__"] = metadata
    for tensor in tensors:
        end = offset + tensor.bytes()
        entries[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape),
                                "data_offsets": [offset, end]}
        offset = end
    return entries, offset


def file_bytes(header, data_bytes):
    """A header, as text or as an object, with its length before and data behind it."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + bytes(data_bytes)


def write_file(path, tensors, shuffle=None, metadata=None):
    """The order of the keys in the header need not be that of the data."""
    header, data_bytes = header_of(tensors, metadata)
    keys = list(header)
    if shuffle is not None:
        shuffle(keys)
    with open(path, "wb") as file:
        file.write(file_bytes({key: header[key] for key in keys}, data_bytes))


def write_index(folder, files, name="model.safetensors.index.json"):
    weight_map = {tensor.name: file for file, tensors in files.items() for tensor in tensors}
    total = sum(tensor.bytes() for tensors in files.values() for tensor in tensors)
    with open(os.path.join(folder, name), "w") as file:
        json.dump({"metadata": {"total_size": total}, "weight_map": weight_map}, file)


def in_order(files):
    """The tensors in the order of the checkpoint: files by name, then offsets, equal offsets by name."""
    out = []
    for _, tensors in sorted(files.items(), key=lambda item: item[0].encode()):
        header, _ = header_of(tensors)
        out += sorted(tensors, key=lambda tensor: (header[tensor.name]["data_offsets"],
                                                   tensor.name.encode()))
    return out
