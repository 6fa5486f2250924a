#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_nccl.py [NCCL_HEADER]: shim/nccl.def and nccl_api.h against a real nccl.h, and against the functions of a newer one.

Every hooked function has the parameters that it has there, and every function there that is given memory is hooked. Each hooked
function is one of the newer NCCL.
"""
import os
import re
import sys

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
NEWEST = "nccl-2.32.3-functions.txt"  # the prototypes of its nccl.h
# These are given memory, and do not touch what is behind it.
NOT_HOOKED = {"ncclMemAlloc", "ncclMemFree", "ncclCommDeregister", "ncclWinGetUserPtr", "ncclParamGet"}


def types_of(parameters):
    """Types without the parameters' names; a const of a handle makes no difference."""
    types = []
    for parameter in re.sub(r"\s+", " ", parameters).strip().split(","):
        parameter = parameter.strip()
        if parameter in ("", "void"):
            continue
        words = re.match(r"(.*?)(\w+)$", parameter)
        kind = (words.group(1) if words else parameter).replace(" *", "*").strip()
        types.append(re.sub(r"^const (?=nccl)", "", kind))
    return types


def read(path):
    with open(path, encoding="utf-8") as file:
        return re.sub(r"/\*.*?\*/|//[^\n]*", "", file.read(), flags=re.S)


def functions_of(text):
    return {name: types_of(parameters) for name, parameters in re.findall(r"ncclResult_t\s+(nccl\w+)\s*\(([^)]*)\)", text)}


def check_functions(real, hooked, where):
    faults = [f"{name}{tuple(types)}: {where} has {tuple(real[name])}" for name, types in hooked.items()
              if name in real and types != real[name]]
    faults += [f"{name}{tuple(types)} of {where} is given memory and is not hooked" for name, types in real.items()
               if any(re.match(r"(const )?void\*+$", kind) for kind in types) and name not in hooked and name not in NOT_HOOKED]
    if len(real) < 30:
        faults.append(f"{len(real)} functions in {where}, that cannot be right")
    return faults


def check_values(header):
    values = dict(re.findall(r"\b(nccl\w+)\s*=\s*(\d+)", header))
    ours = dict(re.findall(r"\b(nccl\w+)\s*=\s*(\d+)", read(os.path.join(SOURCE, "shim", "nccl_api.h"))))
    faults = [f"{name} is {value} here, {values.get(name)} in nccl.h" for name, value in ours.items()
               if values.get(name) != value]
    sizes = {"int8": 1, "char": 1, "uint8": 1, "int32": 4, "int": 4, "uint32": 4, "int64": 8, "uint64": 8, "float16": 2,
             "half": 2, "float32": 4, "float": 4, "float64": 8, "double": 8, "bfloat16": 2, "float8e4m3": 1, "float8e5m2": 1}
    listed = re.search(r"MS_NCCL_TYPE_BYTES\s*\\?\s*\{?([^}]*)\}",
                       read(os.path.join(SOURCE, "shim", "nccl_api.h"))).group(1)
    listed = [int(number) for number in re.findall(r"\d+", listed)]
    types = re.search(r"enum\s*{([^}]*ncclBfloat16[^}]*)}", header).group(1)
    for name, value in re.findall(r"nccl(\w+)\s*=\s*(\d+)", types):
        if name.lower() in sizes and (int(value) >= len(listed) or listed[int(value)] != sizes[name.lower()]):
            faults.append(f"nccl{name}: {sizes[name.lower()]} bytes, ours {listed[int(value):int(value) + 1]}")
    return faults


def main():
    table = read(os.path.join(SOURCE, "shim", "nccl.def"))
    rows = re.findall(r"^MS_NCCL(_COLLECTIVE|_WITH_CONFIG)?\((nccl\w+),\s*\(([^)]*)\)", table, flags=re.M)
    hooked = {name: types_of(parameters) for _, name, parameters in rows}
    hooked |= {name + "Config": types_of(parameters + ", const ncclCollConfig_t *config") for kind, name, parameters in rows
               if kind == "_WITH_CONFIG"}
    newest = functions_of(read(os.path.join(SOURCE, "tools", "simcuda", "data", NEWEST)))
    faults = check_functions(newest, hooked, NEWEST)
    faults += [f"{name} is not in {NEWEST}" for name in hooked if name not in newest]
    if len(sys.argv) > 1:
        header = read(sys.argv[1])
        faults += check_functions(functions_of(header), hooked, "nccl.h") + check_values(header)
    if len(hooked) < 20:
        faults.append(f"{len(hooked)} functions are hooked, that cannot be right")
    print("\n".join(faults) or f"{len(hooked)} of {len(newest)} functions are hooked")
    return len(faults) > 0


if __name__ == "__main__":
    sys.exit(main())
