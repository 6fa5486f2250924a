#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long it takes to load a checkpoint from a warm page cache, whole or one rank's eighth of it.

    load_time.py --shim libmetashard.so [--out FILE] [--seconds S]

Makes a checkpoint of 4 GiB (smaller where disk or memory is short) in the temporary folder, as safetensors
files and for torch.distributed.checkpoint, and loads it in processes without and with the preload by turns.
`all`: every tensor is kept. `shard`: every tensor is loaded whole, its eighth cloned, the rest freed. Then
each kept byte is read on the device, so that what was put off counts. Figures are medians. Prints, and
writes after each process, one JSON object.
"""
import importlib.util
import json
import os
import shutil
import struct
import tempfile
import time

from part_script import Turns, free_on_device, medians, run_part

GIB, MIB = 1 << 30, 1 << 20
LARGEST, SMALLEST = 4 * GIB, MIB
PARTS, RANK = 8, 3
ROUNDS = 3
# The tensors of a layer, in bf16, by their shapes; a layer is 128 MiB, and smaller ones have fewer columns.
LAYER = [("q", 2048), ("k", 512), ("v", 512), ("o", 2048), ("gate", 3584), ("up", 3584), ("down", 4096)]
ROWS = sum(rows for _, rows in LAYER)
LAYERS, FILES = 32, 4
# loader, what is kept; the most important first
CASES = [("load_file", "shard"), ("load_file", "all"), ("fastsafetensors", "shard"), ("fastsafetensors", "all"),
         ("dcp", "shard"), ("dcp", "all")]
MODULES = {"load_file": "safetensors.torch", "fastsafetensors": "fastsafetensors",
           "dcp": "torch.distributed.checkpoint"}


def write_file(path, layers, columns):
    """One safetensors file. No two pieces hold the same bytes."""
    header, at = {}, 0
    for layer in layers:
        for name, rows in LAYER:
            size = rows * columns * 2
            header[f"layers.{layer}.{name}.weight"] = {"dtype": "BF16", "shape": [rows, columns],
                                                       "data_offsets": [at, at + size]}
            at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    # Numbers of moderate size: the upper byte of a bf16 is its sign and most of its exponent.
    noise = bytearray(os.urandom(MIB))
    noise[1::2] = bytes(0x3c | byte & 0x83 for byte in noise[1::2])
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for number in range(0, at, MIB):
            struct.pack_into("<Q", noise, 0, (layers[0] << 40) + number)
            file.write(noise[:min(MIB, at - number)])


def make_checkpoint(folder, size):
    """Returns the size in bytes."""
    columns = size // (LAYERS * ROWS * 2) // 8 * 8
    for file in range(FILES):
        layers = range(file * LAYERS // FILES, (file + 1) * LAYERS // FILES)
        write_file(os.path.join(folder, f"model-{file}.safetensors"), list(layers), columns)
    return LAYERS * ROWS * columns * 2


def files_of(folder):
    return sorted(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".safetensors"))


def save_dcp(folder, options):
    """In a process of its own."""
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import load_file
    state = {name: tensor for path in files_of(folder) for name, tensor in load_file(path).items()}
    dcp.save(state, checkpoint_id=os.path.join(folder, "dcp"), no_dist=True)
    return {"saved": len(state)}


def with_load_file(torch, folder, device, what):
    from safetensors.torch import load_file
    for path in files_of(folder):
        yield load_file(path, device=device)


def with_fastsafetensors(torch, folder, device, what):
    from fastsafetensors import SafeTensorsFileLoader
    open_buffers = []
    for path in files_of(folder):
        loader = SafeTensorsFileLoader(None, "cuda:0" if device == "cuda" else device, nogds=True)
        loader.add_filenames({0: [path]})
        names, buffers = loader.get_keys(), loader.copy_files_to_device()
        yield {name: buffers.get_tensor(name) for name in names}
        if what == "shard":
            buffers.close()
        open_buffers.append(buffers)
        loader.close()


def with_dcp(torch, folder, device, what):
    import torch.distributed.checkpoint as dcp
    place = os.path.join(folder, "dcp")
    state = {name: torch.empty(entry.size, dtype=torch.bfloat16, device=device) for name, entry in
             dcp.FileSystemReader(place).read_metadata().state_dict_metadata.items()}
    dcp.load(state, checkpoint_id=place, no_dist=True)
    yield state


LOADERS = {"load_file": with_load_file, "fastsafetensors": with_fastsafetensors, "dcp": with_dcp}


def load(how, what, folder, options):
    """In a process of its own. Seconds are those after the start of CUDA."""
    import torch
    device, on_device = options.device, options.device == "cuda"
    torch.zeros(1, device=device)
    __import__(MODULES[how])

    def wait():
        if on_device:
            torch.cuda.synchronize()

    wait()
    kept, start = {}, time.perf_counter()
    for tensors in LOADERS[how](torch, folder, device, what):
        if what == "shard":
            tensors = {name: tensor.narrow(0, RANK * len(tensor) // PARTS, len(tensor) // PARTS).clone()
                       for name, tensor in tensors.items()}
        kept.update(tensors)
        del tensors
    wait()
    loaded = time.perf_counter()
    sums = {name: tensor.reshape(-1).view(torch.int64).sum() for name, tensor in kept.items()}
    wait()
    used = time.perf_counter()
    values = [sums[name].item() for name in sorted(sums)]
    return {"load_seconds": round(loaded - start, 4), "ready_seconds": round(used - start, 4),
            "tensors": len(kept), "bytes": sum(tensor.nbytes for tensor in kept.values()),
            "sums": hash(tuple(values)),
            "reserved_bytes_peak": torch.cuda.max_memory_reserved() if on_device else None}


def free_memory():
    with open("/proc/meminfo", encoding="utf-8") as file:
        fields = dict(line.split(":") for line in file)
    return int(fields["MemAvailable"].split()[0]) << 10


def affordable(options, folder):
    """Both checkpoints fit on the disk and in the page cache, and one twice on the device."""
    limits = [options.bytes, shutil.disk_usage(folder).free // 3, free_memory() // 4]
    if options.device == "cuda" and (free := free_on_device()) is not None:
        limits.append(free * 2 // 5)
    size = LARGEST
    while size > min(limits):
        size //= 2
    return size


def warm(folder):
    for path, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(path, name), "rb", buffering=0) as file:
                while file.read(16 * MIB):
                    pass


def summary_of(cases):
    summary = {}
    for name, by_mode in cases.items():
        seen = {record.get("sums") for runs in by_mode.values() for record in runs if "sums" in record}
        summary[name] = {**medians(by_mode, ["load_seconds", "ready_seconds"]), "sums_equal": len(seen) == 1}
    return summary


def measure(options):
    with tempfile.TemporaryDirectory() as folder:
        size, script = affordable(options, folder), os.path.abspath(__file__)
        if size < SMALLEST:
            return {"skipped": "no room for a checkpoint"}
        turns = Turns(options, "metashard-load-time-1", bytes=make_checkpoint(folder, size), parts=PARTS, summary={}, left_out={},
                      cases={})
        result, complete = turns.result, False
        cases = [case for case in CASES if is_there(case[0], result)]
        if any(how == "dcp" for how, _ in cases):
            saved = turns.once("dcp", [script, "--save-dcp", folder], "without")
            if "error" in saved:
                result["left_out"]["dcp"] = saved["error"]
                cases = [case for case in cases if case[0] != "dcp"]
        warm(folder)
        for number in range(options.rounds):
            # The others need not wait for a slow case: later rounds go on with the cases that fit.
            finished = [turns.round(how, [script, "--load", how, what, folder, "--device", options.device],
                                    result["cases"].setdefault(f"{how}, {what}", {}))
                        for how, what in cases]
            complete = complete or number == 0 and all(finished)
            result["summary"] = summary_of(result["cases"])
            turns.write()
        return turns.finish(complete)


def is_there(how, result):
    if importlib.util.find_spec(MODULES[how].split(".")[0]) is None:
        result["left_out"][how] = "not installed"
        return False
    return True


if __name__ == "__main__":
    run_part(__doc__, measure, 300, ("--bytes", LARGEST, {"help": "of the checkpoint, at most"}), ("--rounds", ROUNDS),
             children={"--save-dcp": save_dcp, "--load": load}, told=lambda result: result.get("summary", result))
