#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""zig_cc.py TARGET JEMALLOC [ARGUMENT...]: zig's C compiler (the wheel ziglang) as meson.build wants a compiler, for build_wheel.

It answers where libjemalloc_pic.a is (JEMALLOC, empty: nowhere), and which compiler's runtime is linked in. `zig cc` does not hand --dynamic-list and --exclude-libs on
to its linker, LLD: so such a link is done once without them, which prints LLD's command, and then by LLD itself.
"""
import os
import shlex
import subprocess
import sys
import tempfile

ZIG = [sys.executable, "-m", "ziglang"]
# Paths of this build, which meson-python would have to take out again.
DROPPED = ("-Wl,-rpath",)


def link(command, further):
    # zig neither links a result that its cache has nor prints the command: this cache is new.
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(command, env=dict(os.environ, ZIG_VERBOSE_LINK="1", ZIG_LOCAL_CACHE_DIR=cache),
                              stderr=subprocess.PIPE, text=True, check=False)
        lines = [line for line in done.stderr.splitlines() if line.startswith("ld.lld ")]
        if done.returncode != 0 or not lines:
            sys.stderr.write(done.stderr)
            return done.returncode or 1
        # The first ones make what stands for glibc. --dynamic-list implies -Bsymbolic, which alone marks the library: the
        # dynamic linker would look up all its names inside.
        words = [word for word in shlex.split(lines[-1]) if word != "-Bsymbolic"]
        return subprocess.run([*ZIG, *words, *further], check=False).returncode


def main():
    target, jemalloc, *arguments = sys.argv[1:]
    if arguments[:1] == ["-print-file-name=libjemalloc_pic.a"]:
        print(jemalloc or "libjemalloc_pic.a")
        return 0
    if arguments == ["-print-libgcc-file-name"]:
        print("zig-" + subprocess.run([*ZIG, "version"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip())
        return 0
    if "-Wl,--version" in arguments:
        return subprocess.run([*ZIG, "ld.lld", "--version"], check=False).returncode
    further = ["--" + argument[len("-Wl,--"):].replace(",", "=") for argument in arguments
               if argument.startswith(("-Wl,--dynamic-list", "-Wl,--exclude-libs"))]
    kept = [argument for argument in arguments
            if not argument.startswith((*DROPPED, "-Wl,--dynamic-list", "-Wl,--exclude-libs"))]
    command = [*ZIG, "cc", "-target", target, *kept]
    if not further:
        return subprocess.run(command, check=False).returncode
    # GNU's linker takes names of a version script that nobody defines.
    return link([*command, "-Wl,--undefined-version"], further)


if __name__ == "__main__":
    sys.exit(main())
