-- SPDX-License-Identifier: Apache-2.0
-- A module file for Lmod and for Environment Modules 5: metashard/VERSION.lua. Set root to where it is installed.
-- For versions side by side: pathJoin("/opt/metashard", myModuleVersion()), each built with --prefix=/opt/metashard/VERSION.
help([[MetaShard: device memory only where bytes are needed, for unmodified CUDA programs.
    LD_PRELOAD=$LIBMETASHARD python train.py
    man 7 metashard]])
whatis("Description: device memory only where bytes are needed, for unmodified CUDA programs")
local root = "/opt/metashard"
prepend_path("PATH", pathJoin(root, "bin"))
prepend_path("MANPATH", pathJoin(root, "share/man"))
append_path("MANPATH", "") -- the system's manual pages, which man looks for only behind an empty entry
prepend_path("PKG_CONFIG_PATH", pathJoin(root, "lib/pkgconfig"))
-- Not LD_PRELOAD: each program of the shell would have it.
setenv("LIBMETASHARD", pathJoin(root, "lib/libmetashard.so"))
