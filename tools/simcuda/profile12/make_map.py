# SPDX-License-Identifier: Apache-2.0
"""Writes the version script of a simulated driver that is older than 13.0: every export that it has,
and the hooks for other stand-ins.

    make_map.py functions.def VERSION output.map

A program that looks for names with plain dlsym, newest suffix first, takes the CUDA 13 signature
of cuCtxGetDevice_v2 for an older one. Exports cannot be hidden at run time, hence a library.
"""
import re
import sys

ROW = re.compile(r"^SIM_FUNCTION\((\w+), \w+, (\d+), [01]\)", re.M)


def main():
    with open(sys.argv[1], encoding="utf-8") as table:
        rows = ROW.findall(table.read())
    names = [name for name, version in rows if int(version) <= int(sys.argv[2])]
    if not names or len(names) == len(rows):
        sys.exit("make_map.py: the list of functions was not understood")
    names += ["simcuda_*"]  # driver/gl.h, driver/hook.h
    with open(sys.argv[3], "w", encoding="utf-8") as script:
        script.write("{\n  global:\n")
        script.writelines(f"    {name};\n" for name in names)
        script.write("  local: *;\n};\n")


main()
