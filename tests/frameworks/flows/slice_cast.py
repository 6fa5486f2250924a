# SPDX-License-Identifier: Apache-2.0
"""The line of many weight loaders: parameter.copy_(loaded[rows of this rank]), where the checkpoint has float32 and the model
bfloat16; and three more ways to write it."""
import os
import tempfile
import time

import torch
from common import finish, parser
from safetensors.torch import load_file, save_file


def copy_into(parameter_device, rows):
    kept = torch.empty(rows.shape, dtype=torch.bfloat16, device=parameter_device)
    return kept.copy_(rows)


WAYS = {
    "slice_copy": lambda loaded, rows: copy_into(loaded.device, loaded[rows]),
    "slice_to": lambda loaded, rows: loaded[rows].to(torch.bfloat16),
    "to_slice": lambda loaded, rows: loaded.to(torch.bfloat16)[rows].clone(),
    "clone_to": lambda loaded, rows: loaded[rows].clone().to(torch.bfloat16),
}


def load(options, path):
    """The rank's rows of each tensor; the whole of each is dropped at once."""
    generator = torch.Generator().manual_seed(1)
    save_file({f"w{i}": torch.randn(options.shape, generator=generator) for i in range(8)}, path)
    time.sleep(0.1)  # longer than a tick of the file system's clock: younger files are not trusted
    part, parts = options.part
    loaded, kept = load_file(path, device=options.device), {}
    for name in list(loaded):
        whole = loaded.pop(name)
        rows = slice(part * len(whole) // parts, (part + 1) * len(whole) // parts)
        kept[name] = WAYS[options.how](whole, rows)
        del whole
    torch.cuda.empty_cache()
    return kept


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--how", choices=WAYS, required=True)
    arguments.add_argument("--part", type=int, nargs=2, required=True, metavar=("PART", "PARTS"))
    arguments.add_argument("--shape", type=int, nargs=2, required=True)
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        kept = load(options, os.path.join(folder, "weights"))
        source_bytes = sum(tensor.numel() * torch.float32.itemsize for tensor in kept.values())
        finish(kept.items(), options, kept={"bytes": source_bytes, "tensors": len(kept)})


main()
