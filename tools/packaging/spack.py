# SPDX-License-Identifier: Apache-2.0
"""A Spack recipe, for packages/metashard/package.py of a repository of yours:

    spack repo create mine && spack repo add mine && spack create --skip-editor --name metashard

`tools/packaging/package recipes` fills in what stands between @s.
"""
from spack.package import *


class Metashard(MesonPackage):
    """Device memory only where bytes are needed, for unmodified CUDA programs."""

    homepage = "@source@"
    url = "@source@/releases/download/v@version@/metashard-@version@.tar.xz"
    git = "@source@.git"

    license("Apache-2.0")
    version("main", branch="main")
    version("@version@", sha256="@sha256@")

    depends_on("c", type="build")
    depends_on("meson@1.0:", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("python@3:", type=("build", "run"))
    depends_on("cuda@12.4:", type="build")  # cuda.h

    def meson_args(self):
        # libc's heap: Spack's jemalloc has no archive without its own names.
        return ["-Dtests=false", "-Dheap=libc", f"-Dcuda-headers={self.spec['cuda'].prefix.include}"]

    def setup_run_environment(self, env):
        # Not LD_PRELOAD: each program of the shell would have it.
        env.set("LIBMETASHARD", join_path(self.prefix.lib, "libmetashard.so"))
