#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""release.py: of the PyTorch that this Python has, the release and the number of the NCCL that it was built with."""
from importlib import metadata


def main():
    nccl = next(package.version for package in metadata.distributions()
                if (package.metadata["Name"] or "").startswith("nvidia-nccl"))
    major, minor, patch = (int(number) for number in nccl.split(".")[:3])
    print(metadata.version("torch").split("+")[0], 10000 * major + 100 * minor + patch)


if __name__ == "__main__":
    main()
