# SPDX-License-Identifier: Apache-2.0
"""Prints the include folders of NVIDIA's Python wheels that hold cuda.h or nccl.h, one a line.

The wheels nvidia-cuda-runtime and nvidia-nccl-cu13 carry the headers, so a machine without the
CUDA toolkit can build. They are looked for in .headers/ of the project and in Python's own places.
"""
import glob
import os
import sys

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
places = [os.path.join(SOURCE, ".headers")] + list(sys.path)
seen = []
for place in places:
    for header in ("cuda.h", "nccl.h"):
        for path in sorted(glob.glob(os.path.join(place, "nvidia", "*", "include", header))):
            folder = os.path.dirname(path)
            if folder not in seen:
                seen.append(folder)
                print(folder)
