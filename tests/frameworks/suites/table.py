# SPDX-License-Identifier: Apache-2.0
"""The suites: which wheels they come in, what of them runs, and what cannot pass without a GPU."""
from collections import namedtuple

# packages: exact versions, without their dependencies. tests: in site-packages. driver: 12 or 13, whose exports.
# options: pytest's own. impossible: (part of a test's name, or of what it failed with; why), for tests that fail on any
# driver without a GPU. module: the name of the package of the tests, where that is not their place.
Suite = namedtuple("Suite", "name title packages tests driver options impossible module", defaults=("",))

PYTEST = ("pytest==8.4.2", "pluggy==1.6.0", "iniconfig==2.1.0", "packaging==25.0", "Pygments==2.19.2")

SUITES = (
    Suite("cuda-python-12.3", "cuda-python 12.3.0",
          ("cuda-python==12.3.0", "nvidia-cuda-nvrtc-cu12==12.6.77", "numpy==1.26.4"),
          ("cuda/tests",), 12, (), ()),
    Suite("cuda-python-12.6", "cuda-python 12.6.0",
          ("cuda-python==12.6.0", "nvidia-cuda-nvrtc-cu12==12.6.77", "numpy==1.26.4"),
          ("cuda/tests",), 12, (), ()),
    Suite("numba-cuda", "numba-cuda 0.30.0, cudadrv",
          ("numba-cuda==0.30.0", "numba==0.62.1", "llvmlite==0.45.1", "cuda-bindings==13.0.3", "cuda-core==0.5.1",
           "cuda-pathfinder==1.4.0", "numpy==2.3.5", "filecheck==1.0.3", "cffi==2.0.0", "pycparser==2.23"),
          ("numba_cuda/numba/cuda/tests/cudadrv",), 13,
          ("--pyargs", "--import-mode=importlib", "--continue-on-collection-errors", "-o",
           "consider_namespace_packages=true"),
          (("CUDA_ERROR_NOT_FOUND", "numba compiles a kernel of its own, which only a GPU runs"),
           ("TestMultithreadedCallbacks", "the same, in threads"),
           ("test_device_functions_ltoir", "it needs objects that nvcc makes")),
          "numba.cuda.tests.cudadrv"),
    Suite("numba", "numba 0.62.1, cudadrv",
          ("numba==0.62.1", "llvmlite==0.45.1", "numpy==2.3.5", "cffi==2.0.0", "pycparser==2.23"),
          ("numba/cuda/tests/cudadrv",), 12, ("--continue-on-collection-errors",),
          (("Call to cuLinkCreate results in CUDA_ERROR_NOT_SUPPORTED", "it links code for a GPU"),
           ("test_ptds", "the same, in a process of its own"),
           ("Failed to verify", "libnvvm of CUDA 13 has no code for the old devices that it asks for"))),
)
