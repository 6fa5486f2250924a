# SPDX-License-Identifier: Apache-2.0
"""A loaded tensor is worked through in pieces of rows: a kernel scales or casts each piece, another one reduces it. Calibration,
norms, searches for NaN and quantisers do this. It keeps the sums alone."""
import os
import tempfile
import time

import numpy as np
import torch
from common import finish, parser

WORK = {"mul": lambda piece: piece * 0.5, "abs": torch.abs, "cast": torch.Tensor.half, "clone": torch.clone}


def sums_of(options, path):
    rows, width = options.shape
    np.arange(rows * width, dtype=np.float32).tofile(path)
    time.sleep(0.1)  # longer than a tick of the file system's clock: younger files are not trusted
    loaded = torch.from_numpy(np.memmap(path, np.float32, "c", shape=(rows, width))).to(options.device)
    return [WORK[options.how](piece).sum(-1).sum().item() for piece in loaded.chunk(options.pieces)]


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--how", choices=WORK, required=True)
    arguments.add_argument("--pieces", type=int, required=True)
    arguments.add_argument("--shape", type=int, nargs=2, required=True)
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sums = sums_of(options, os.path.join(folder, "weights"))
    finish([("sums", torch.tensor(sums, dtype=torch.float64))], options)


main()
