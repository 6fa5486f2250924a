# SPDX-License-Identifier: Apache-2.0
"""Prints where the CUDA runtime 13 is: the dynamic library and the static one, a line each.

    find_cudart.py folder-of-headers

An empty line stands for one that was not found. Looks beside the headers, in the usual places of
the toolkit, and in the Python wheel nvidia-cuda-runtime.
"""
import glob
import os
import sys

NAMES = ("libcudart.so.13", "libcudart_static.a")
include = sys.argv[1]
prefixes = [os.path.dirname(include), "/usr/local/cuda", "/usr/local/cuda-13.0", "/opt/cuda",
            "/usr/local", "/usr"]
folders = [os.path.join(prefix, tail) for prefix in prefixes
           for tail in ("lib", "lib64", "targets/x86_64-linux/lib", "lib/x86_64-linux-gnu")]
for place in sys.path:
    folders += glob.glob(os.path.join(place, "nvidia", "*", "lib"))
for name in NAMES:
    found = [os.path.join(folder, name) for folder in folders
             if os.path.exists(os.path.join(folder, name))]
    print(os.path.realpath(found[0]) if found else "")
