#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""drive.py: tests/frameworks/training/drive.py, with what models.py imports imported once for all ranks."""
import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import digest  # noqa: E402,F401
import models  # noqa: E402

specification = importlib.util.spec_from_file_location("ranks", os.path.join(HERE, "..", "training", "drive.py"))
ranks = importlib.util.module_from_spec(specification)
specification.loader.exec_module(ranks)

for definition in models.DEFINITIONS.values():  # transformers imports a model's own module when it is first built
    if not definition.asks_for_device:
        with models.torch.device("meta"):
            definition.build()
ranks.main()
