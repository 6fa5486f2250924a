#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""sbom.py [--name NAME] --version V [--jemalloc ARCHIVE] [--unwinder FILE] --compiler 'ID VERSION' --runtime FILE --glibc VERSION: prints
what is linked into the programs of a wheel, as CycloneDX, for its .dist-info/sboms (PEP 770).

Only what is inside of them: they need libc at run time, and no other library. The same input gives the same bytes.
"""
import argparse
import json
import re

# jemalloc's version, a text in each build.
JEMALLOC = re.compile(rb"\b(\d+\.\d+\.\d+)-\d+-g[0-9a-f]{40}\b")


def component(name, version, licence, purl, description):
    return {"type": "library", "bom-ref": name, "name": name, "version": version, "description": description, "purl": purl,
            "licenses": [{"expression" if " " in licence else "license": licence if " " in licence else {"id": licence}}]}


def jemalloc(archive):
    with open(archive, "rb") as file:
        found = JEMALLOC.search(file.read())
    if found is None:
        raise SystemExit(f"sbom.py: {archive} does not say which jemalloc it is")
    version = found[1].decode()
    return component("jemalloc", version, "BSD-2-Clause", f"pkg:github/jemalloc/jemalloc@{version}",
                     "The heap of libmetashard.so and of the tools, with names of its own")


def compiler_runtime(path, compiler):
    """The code that a compiler adds to each program: helpers for arithmetic, and startup before main. The compiler has it at `path`."""
    version = compiler.split()[-1]
    if "libgcc" in path:
        # Another compiler takes gcc's as well; the folder says of which version.
        version = version if compiler.startswith("gcc ") else re.search(r"/(\d[\d.]*)/[^/]*$", path)[1]
        return component("libgcc", version, "GPL-3.0-or-later WITH GCC-exception-3.1", f"pkg:generic/libgcc@{version}",
                         "The compiler's runtime: libgcc.a, crtbegin.o and crtend.o")
    zig = re.match(r"zig-([\d.]+)", path)
    if zig is not None:
        return component("compiler_rt", zig[1], "MIT", f"pkg:github/ziglang/zig@{zig[1]}", "The compiler's runtime, zig's")
    return component("compiler-rt", version, "Apache-2.0 WITH LLVM-exception", f"pkg:generic/compiler-rt@{version}",
                     "The compiler's runtime, LLVM's")


def unwinder(path, compiler):
    """The unwinder of the compiler's own LLVM, linked into a library in place of libgcc_s.so.1, if the library has libunwind's messages."""
    with open(path, "rb") as file:
        if b"libunwind: " not in file.read():
            return []
    version = compiler.split()[-1]
    return [component("libunwind", version, "Apache-2.0 WITH LLVM-exception", f"pkg:generic/libunwind@{version}",
                      "The unwinder of LLVM, with which the simulated driver finds its caller")]


def glibc(version):
    return component("glibc", version, "LGPL-2.1-or-later", f"pkg:generic/glibc@{version}",
                     "Only what each program has of it: crt1.o, crti.o, crtn.o and libc_nonshared.a")


WHOLES = {"metashard": "libmetashard.so, metashard-dump and metashard-plan",
          "metashard-simulator": "The simulated CUDA driver, and stand-ins for libraries of CUDA"}


def main():
    parser = argparse.ArgumentParser()
    for option in ("version", "compiler", "runtime", "glibc"):
        parser.add_argument("--" + option, required=True)
    parser.add_argument("--name", default="metashard", choices=WHOLES)
    parser.add_argument("--jemalloc", default="")
    parser.add_argument("--unwinder")
    options = parser.parse_args()
    inside = [jemalloc(options.jemalloc)] if options.jemalloc else []
    inside += unwinder(options.unwinder, options.compiler) if options.unwinder else []
    inside += [compiler_runtime(options.runtime, options.compiler), glibc(options.glibc)]
    purl = f"pkg:pypi/{options.name}@{options.version}"
    whole = component(options.name, options.version, "Apache-2.0", purl, WHOLES[options.name])
    print(json.dumps({
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json", "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
        "metadata": {"lifecycles": [{"phase": "build"}], "component": whole,
                     "tools": {"components": [{"type": "application", "name": options.compiler.split()[0],
                                               "version": options.compiler.split()[-1]}]}},
        "components": inside,
        "dependencies": [{"ref": options.name, "dependsOn": [part["bom-ref"] for part in inside]},
                         *({"ref": part["bom-ref"]} for part in inside)]}, indent=1))


if __name__ == "__main__":
    main()
