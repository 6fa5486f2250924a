# SPDX-License-Identifier: Apache-2.0
"""load.py FOLDER LOADER TENSORS ROWS COLUMNS RANKS RANK: loads a whole checkpoint to the device, as LOADER does it.

Then it keeps this rank's rows of each tensor. FOLDER is where loaders/run has made the checkpoint. Prints what it came to as
one line of JSON. Nothing in it knows of MetaShard.
"""
import hashlib
import io
import json
import os
import resource
import sys
import threading
import time

import torch

folder, loader, *numbers = sys.argv[1:]
TENSORS, ROWS, COLUMNS, RANKS, RANK = map(int, numbers)
SAFE, TORCH, DCP = (os.path.join(folder, name) for name in ("model.safetensors", "model.pt", "dcp"))


def load_safe(**how):
    from safetensors.torch import load_file
    return load_file(SAFE, device="cuda", **how)


def load_slices(backend):
    from safetensors import safe_open
    with safe_open(SAFE, framework="pt", device="cpu", backend=backend) as file:
        return {name: file.get_slice(name)[:].to("cuda") for name in file.keys()}


def load_ahead(backend):
    from safetensors import safe_open
    with safe_open(SAFE, framework="pt", device="cuda:0", backend=backend) as file:
        return dict(iter(file.prefetch()))


def load_fast():
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup
    files = SafeTensorsFileLoader(SingleGroup(), torch.device("cuda:0"), nogds=True)
    files.add_filenames({0: [SAFE]})
    buffers = files.copy_files_to_device()
    return {name: buffers.get_tensor(name).clone() for name in buffers.key_to_rank_lidx}


def load_streamed():
    from runai_model_streamer import SafetensorsStreamer
    with SafetensorsStreamer() as streamer:
        streamer.stream_file(SAFE)
        return {name: tensor.to("cuda") for name, tensor in streamer.get_tensors()}


def load_instant():
    import instanttensor
    with instanttensor.safe_open(SAFE, framework="pt", device=0) as file:
        return {name: tensor.clone() for name, tensor in file.tensors()}


def to_device(state, pin=False):
    return {name: (tensor.pin_memory() if pin else tensor).to("cuda", non_blocking=pin) for name, tensor in state.items()}


def load_bytes():
    with open(TORCH, "rb") as file:
        return to_device(torch.load(io.BytesIO(file.read())))


def load_dcp():
    import torch.distributed.checkpoint as dcp
    state = {name: torch.empty_like(value, device="cuda") for name, value in shapes().items()}
    dcp.load(state, checkpoint_id=DCP)
    return state


def shapes():
    return {f"layers.{i:02}.weight": torch.empty(ROWS, COLUMNS, device="meta") for i in range(TENSORS)}


def make():
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import save_file
    torch.manual_seed(1)
    state = {name: torch.randn(value.shape) for name, value in shapes().items()}
    save_file(state, SAFE)
    torch.save(state, TORCH)
    dcp.save(state, checkpoint_id=DCP)


LOADERS = {
    "safetensors-mmap": lambda: load_safe(backend="mmap"),
    "safetensors-pread": lambda: load_safe(backend="pread"),
    "slices-mmap": lambda: load_slices("mmap"),
    "slices-pread": lambda: load_slices("pread"),
    "prefetch-mmap": lambda: load_ahead("mmap"),
    "prefetch-pread": lambda: load_ahead("pread"),
    "fastsafetensors": load_fast,
    "streamer": load_streamed,
    "instant": load_instant,
    "torch-mmap": lambda: to_device(torch.load(TORCH, mmap=True)),
    "torch": lambda: to_device(torch.load(TORCH)),
    "torch-device": lambda: torch.load(TORCH, map_location="cuda"),
    "torch-pinned": lambda: to_device(torch.load(TORCH), pin=True),
    "torch-bytes": load_bytes,
    "dcp": load_dcp,
}


def own(path, name):
    with open(path, encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name + ":"))


def processor_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Host(threading.Thread):
    """Samples what the process grows by: without pages of files, and without the simulated device, whose memory is shared."""

    def __init__(self):
        super().__init__(daemon=True)
        self.before, self.peak_kib = own("/proc/self/status", "RssAnon"), 0
        self.start()

    def run(self):
        while True:
            self.peak_kib = max(self.peak_kib, own("/proc/self/status", "RssAnon") - self.before)
            time.sleep(0.005)


if loader == "make":
    make()
    sys.exit(0)
torch.zeros(1, device="cuda")
host = Host()
disk, began = own("/proc/self/io", "read_bytes"), processor_seconds()
state = LOADERS[loader]()
rows = slice(ROWS * RANK // RANKS, ROWS * (RANK + 1) // RANKS)
kept = {name: tensor[rows].clone() for name, tensor in sorted(state.items())}
del state
digest = hashlib.sha256()
for tensor in kept.values():
    digest.update(tensor.cpu().view(torch.uint8).numpy())
print(json.dumps({"digest": digest.hexdigest(), "cpu_seconds": processor_seconds() - began,
                  "disk_bytes": own("/proc/self/io", "read_bytes") - disk,
                  "host_bytes": host.peak_kib << 10}))
