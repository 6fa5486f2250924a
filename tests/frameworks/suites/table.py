# SPDX-License-Identifier: Apache-2.0
"""The suites: where they come from, what of them runs, and what cannot pass without a GPU."""
from collections import namedtuple

# packages: exact versions, without their dependencies. tests: in site-packages. driver: 12 or 13, whose exports.
# options: pytest's own. impossible: (part of a test's name, or of what it failed with; why), for tests that fail on any
# driver without a GPU. module: the name of the package of the tests, where that is not their place. source: a package that
# is compiled, and has the tests. tag: the tests are in a clone of CLONE, as it was then. scripts: the tests are programs,
# each of which has to exit with 0.
Suite = namedtuple("Suite", "name title packages tests driver options impossible module source tag scripts",
                   defaults=("", None, "", False))

# An archive of PyPI, the program that compiling and running it takes, and files that say how it is compiled.
Source = namedtuple("Source", "url sha256 program files")

CLONE = "https://github.com/NVIDIA/cuda-python"

PYTEST = ("pytest==8.4.2", "pluggy==1.6.0", "iniconfig==2.1.0", "packaging==25.0", "Pygments==2.19.2")

RUNTIME = "it calls NVIDIA's CUDA runtime, which does not start on the simulated driver"

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
    Suite("pycuda", "pycuda 2026.1, test_driver",
          ("numpy==2.3.5", "pytools==2025.2.4", "platformdirs==4.4.0", "siphash24==1.8", "typing_extensions==4.15.0",
           "Mako==1.3.10", "MarkupSafe==3.0.2", "setuptools==80.9.0", "wheel==0.45.1"),
          ("test/test_driver.py",), 13, (),
          (("test_recursive_launch", "it links code for a GPU"), ("test_jit_link_module", "it links code for a GPU")),
          source=Source("https://files.pythonhosted.org/packages/75/93/"
                        "36ffd54430924dcb03a88c97519d56589e573d0dcc999c77a4c4d8a90306/pycuda-2026.1.tar.gz",
                        "759516160628ba06f32ce7e563e3f5b9214691dc9528a03ea99ea1073f4e14ba", "nvcc",
                        {"siteconf.py": "CUDA_ENABLE_CURAND = False\n"})),
    Suite("cuda-bindings-13", "cuda-bindings 13.0.3",
          ("cuda-bindings==13.0.3", "cuda-pathfinder==1.4.0", "nvidia-cuda-nvrtc==13.0.88", "numpy==2.3.5"),
          ("cuda_bindings/tests",), 13, (),
          (("cudaErrorSymbolNotFound", RUNTIME), ("Cudart Error: 500", RUNTIME), ("test_cudart_list_access", RUNTIME)),
          tag="v13.0.3"),
    Suite("cuda-core-examples", "cuda-core 1.2.2, examples",
          ("cuda-core==1.2.2", "cuda-bindings==13.0.3", "cuda-pathfinder==1.9.0", "nvidia-cuda-nvrtc==13.0.88",
           "numpy==2.3.5", "cffi==2.0.0", "pycparser==2.23", "setuptools==80.9.0"),
          ("cuda_core/examples",), 13, (),
          (("CUDA_ERROR_NOT_FOUND", "it compiles a kernel of its own, which only a GPU runs"),),
          tag="cuda-core-v1.2.2", scripts=True),
)
