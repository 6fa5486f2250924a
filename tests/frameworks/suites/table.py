# SPDX-License-Identifier: Apache-2.0
"""The suites: which wheels they come in, what of them runs, and what cannot pass without a GPU."""
from collections import namedtuple

# packages: exact versions, without their dependencies. tests: in site-packages. driver: 12 or 13, whose exports.
# options: pytest's own. impossible: (part of a test's name, why), for tests that fail on any driver without a GPU.
Suite = namedtuple("Suite", "name title packages tests driver options impossible")

PYTEST = ("pytest==8.4.2", "pluggy==1.6.0", "iniconfig==2.1.0", "packaging==25.0", "Pygments==2.19.2")

SUITES = (
    Suite("cuda-python-12.3", "cuda-python 12.3.0",
          ("cuda-python==12.3.0", "nvidia-cuda-nvrtc-cu12==12.6.77", "numpy==1.26.4"),
          ("cuda/tests",), 12, (), ()),
    Suite("cuda-python-12.6", "cuda-python 12.6.0",
          ("cuda-python==12.6.0", "nvidia-cuda-nvrtc-cu12==12.6.77", "numpy==1.26.4"),
          ("cuda/tests",), 12, (), ()),
)
