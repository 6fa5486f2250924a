#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_structure.py BUILD: no circles and no arrows up in the runtime, the shim, the tools and what is simulated.

A file depends on another one when its object needs a symbol that the other one's defines, as `nm` has them. So a strongly
connected component of more than one file is a knot: none of its files can be understood, tested or left out alone.
Necessary circles stand in EXCEPTIONS; a row there that no circle needs is an error, so the table only shrinks. The
code under MS_DEBUG_CHECKS is looked at too, whatever BUILD has: the files that have any are compiled with it, not linked.

Folders have an order, FLOORS: a file includes, and needs symbols of, its own folder and of floors below it. The map in
docs/design.md has each of them. None holds more than MOST of all lines. The contents of a header named x_internal.h, such as the
inside of an allocation, are its folder's own.
"""
import collections
import concurrent.futures
import json
import os
import re
import subprocess
import sys
import tempfile

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

RUNTIME = "runtime/libmetashard-runtime.a.p"
# Objects that are linked with the runtime. Nothing of the runtime is bound to them: the exports of the shim have names of others.
OVER_RUNTIME = ("shim/libmetashard.so.p", "tools/metashard-dump.p", "tools/metashard-plan.p")

# Nobody of these needs the runtime, and each has its symbols for itself: the programs that are linked with them are tests.
SIMULATED = ("tools/simcuda/libsimcuda.a.p", "tools/simcuda/nccl/libnccl.so.2.p", "tools/simcuda/cudart/libcudart.so.13.p",
             "tools/simcuda/cublas/libcublas.so.13.p", "tools/simcuda/cublas/libcublasLt.so.13.p",
             "tools/simcuda/torch/torch_host.so.p")
# What MS_DEBUG_CHECKS changes: its code, compiled only with it, and files that name it or the functions of its header.
CHECKS, CHECKS_HEADER = "runtime/base/lock.c", "runtime/base/lock.h"
HAS_CHECKS = re.compile(r"MS_DEBUG_CHECKS|\bms_(?:lock_\w+|claim_(?:check|add|remove))\(")

# (who needs it, who defines it): why it cannot be otherwise.
EXCEPTIONS = {
    ("shim/lookup.c", "shim/substitute.c"):
        "what a program looks up is answered from the table of our functions, in which cuGetProcAddress and, in the file that "
        "has dlsym, the thunks stand themselves",
}

# From above to below. Folders of one floor know nothing of each other.
FLOORS = [["shim"], ["runtime/start"], ["runtime/control"], ["runtime/collective"], ["runtime/calls"], ["runtime/selfcheck"], ["runtime/fill"],
          ["runtime/shard"], ["runtime/memory"], ["runtime/order", "runtime/plan", "runtime/finding", "runtime/loading"], ["runtime/files"],
          ["runtime/checkpoint", "runtime/state", "runtime/kernel"],
          ["runtime/document", "runtime/config", "runtime/driver"], ["runtime/base"]]
FLOOR = {folder: floor for floor, folders in enumerate(FLOORS) for folder in folders}
# The tools stand beside: they read formats.
TOOLS_MAY = {"runtime/plan", "runtime/checkpoint", "runtime/state", "runtime/document", "runtime/config", "runtime/base"}
MOST = 0.16


def read_commands(build):
    """[(object, its source, how to compile it)], as paths from the root of the project or of the build."""
    rows = []
    with open(os.path.join(build, "compile_commands.json")) as file:
        for command in json.load(file):
            path = os.path.join(command["directory"], command["file"])
            source = os.path.relpath(path, build)
            if source.startswith(".."):
                source = os.path.relpath(path, SOURCE)
            rows.append((command["output"], source, command["command"]))
    return rows


def list_objects(build):
    """By the folder of their target: {object: its source}."""
    objects = collections.defaultdict(dict)
    for output, source, _ in read_commands(build):
        objects[os.path.dirname(output)][output] = source
    return objects


def read_symbols(build, objects):
    """{source: (what it defines for others, what it needs of them, what it defines weakly)}"""
    symbols = {source: (set(), set(), set()) for source in objects.values()}
    text = subprocess.run(["nm", "-A", *objects], cwd=build, check=True, capture_output=True, text=True).stdout
    for line in text.splitlines():
        path, symbol = line.split(":", 1)
        kind, name = symbol.split()[-2:]
        defined, needed, weak = symbols[objects[path]]
        if kind in "Uwv":
            needed.add(name)
        elif kind in "WV":
            weak.add(name)
        elif kind.isupper():
            defined.add(name)
    return symbols


def find_owners(symbols):
    """{symbol: source}: where it is defined, or where it is defined weakly, if nobody else defines it."""
    owners = {name: source for source, (_, _, weak) in symbols.items() for name in weak}
    owners.update((name, source) for source, (defined, _, _) in symbols.items() for name in defined)
    return owners


def add_references(references, symbols, *owners):
    """Adds {(from, to): symbols}; of several tables of owners the first that has a symbol counts."""
    for source, (_, needed, _) in symbols.items():
        for name in needed:
            owner = next((found[name] for found in owners if name in found), source)
            if owner != source:
                references[source, owner].add(name)


def read_references(build, objects=None):
    """{(from, to): symbols} of what is linked with the runtime, and all sources."""
    objects = objects or list_objects(build)
    references, sources = collections.defaultdict(set), set()
    symbols = read_symbols(build, objects[RUNTIME])
    owners = find_owners(symbols)
    add_references(references, symbols, owners)
    sources |= set(symbols)
    for folder in (folder for folder in OVER_RUNTIME if folder in objects):
        symbols = read_symbols(build, objects[folder])
        add_references(references, symbols, find_owners(symbols), owners)
        sources |= set(symbols)
    return dict(references), sources


def read_simulated(build):
    """The same of what is simulated."""
    objects, references = list_objects(build), collections.defaultdict(set)
    for folder in (folder for folder in SIMULATED if folder in objects):
        symbols = read_symbols(build, objects[folder])
        add_references(references, symbols, find_owners(symbols))
    return dict(references)


def list_checked(build, texts):
    """The files of the runtime and the shim that MS_DEBUG_CHECKS changes, as read_commands() has them."""
    rows = [row for row in read_commands(build) if os.path.dirname(row[0]) in (RUNTIME, OVER_RUNTIME[0])]
    if CHECKS not in (source for _, source, _ in rows):
        log = next(command for _, source, command in rows if source == "runtime/base/log.c")
        rows.append((f"{RUNTIME}/base_lock.c.o", CHECKS, log.replace("base/log.c", "base/lock.c")))
    return [row for row in rows if HAS_CHECKS.search(texts.get(row[1], ""))]


def compile_checked(build, texts, folder):
    """The objects as they are with MS_DEBUG_CHECKS, those that differ in this folder: by their target {object: its source}."""
    objects, work = list_objects(build), []
    for output, source, command in list_checked(build, texts):
        path = os.path.join(folder, source.replace("/", "_") + ".o")
        target = objects[os.path.dirname(output)]
        target.pop(output, None)
        target[path] = source
        command = re.sub(r" -MD -MQ \S+ -MF \S+ -o \S+", "", command)
        work.append(command.replace("-DMS_DEBUG_CHECKS=0", "-DMS_DEBUG_CHECKS=1") + f" -O0 -g0 -o {path}")
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(lambda command: subprocess.run(command, shell=True, cwd=build, check=True), work))
    return objects


def read_checked(build, texts):
    with tempfile.TemporaryDirectory() as folder:
        return read_references(build, compile_checked(build, texts, folder))[0]


def find_components(edges):
    """The strongly connected components of more than one node (Tarjan): {node: component}."""
    following = collections.defaultdict(list)
    for begin, end in sorted(edges):
        following[begin].append(end)
    order, low, stack, components = {}, {}, [], {}

    def visit(node):
        order[node] = low[node] = len(order)
        stack.append(node)
        for other in following[node]:
            if other not in order:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == order[node]:
            component = stack[stack.index(node):]
            del stack[stack.index(node):]
            if len(component) > 1:
                components.update((member, frozenset(component)) for member in component)

    for node in list(following):
        if node not in order:
            visit(node)
    return components


def check_circles(references, exceptions):
    faults = []
    components = find_components(set(references) - set(exceptions))
    for component in sorted(set(components.values()), key=sorted):
        faults.append(f"{len(component)} files need each other:")
        for (begin, end), names in sorted(references.items()):
            if begin in component and end in component and (begin, end) not in exceptions:
                few = sorted(names)[:4] + ["..."] * (len(names) > 4)
                faults.append(f"    {begin} needs {end}: {', '.join(few)}")
    for row in exceptions:
        components = find_components(set(references) - (set(exceptions) - {row}))
        if row not in references or components.get(row[0]) is None or \
                components[row[0]] != components.get(row[1]):
            faults.append(f"the exception {row[0]} -> {row[1]} is not needed any more: take it out")
    return faults


def list_files():
    """The files of the shim, the runtime and the tools: {path from the root: text}."""
    texts = {}
    for top in ("shim", "runtime", "tools"):
        for folder, folders, names in os.walk(os.path.join(SOURCE, top)):
            folders[:] = [name for name in folders if name != "simcuda"]  # it knows nobody (check_layers.py)
            for name in names:
                if name.endswith((".c", ".h", ".S", ".def", ".js", ".css")):
                    path = os.path.join(folder, name)
                    with open(path, encoding="utf-8") as file:
                        texts[os.path.relpath(path, SOURCE)] = file.read()
    return texts


def folder_of(path):
    return "tools" if path.startswith("tools/") else os.path.dirname(path)


def is_down(begin, end):
    if begin == end:
        return True
    if begin == "tools":
        return end in TOOLS_MAY
    return end in FLOOR and begin in FLOOR and FLOOR[begin] < FLOOR[end]


def check_floors(texts, references):
    faults = []
    for path, text in sorted(texts.items()):
        for included in re.findall(r'#include "((?:shim|runtime|tools)/[^"]+)"', text):
            if not is_down(folder_of(path), folder_of(included)):
                faults.append(f"{path} includes {included}, which is not below it")
            if included.endswith("_internal.h") and folder_of(path) != folder_of(included):
                faults.append(f"{path} includes {included}, which is the own of {folder_of(included)}/")
    for (begin, end), names in sorted(references.items()):
        if begin in texts and end in texts and not is_down(folder_of(begin), folder_of(end)):
            faults.append(f"{begin} needs {end}, which is not below it: {', '.join(sorted(names)[:4])}")
    return faults


def check_sizes(texts):
    lines = collections.Counter()
    for path, text in texts.items():
        lines[os.path.dirname(path)] += text.count("\n")
    whole = sum(lines.values())
    return [f"{folder} has {100 * count / whole:.1f} % of the lines; at most {100 * MOST:.0f} % are wanted"
            for folder, count in lines.items() if count > MOST * whole]


def check_map(texts):
    """The table in docs/design.md has a row for each folder, in the order of FLOORS."""
    with open(os.path.join(SOURCE, "docs", "design.md"), encoding="utf-8") as file:
        rows = re.findall(r"^\| `((?:shim|runtime/\w+|tools)/)` \| \S", file.read(), re.M)
    wanted = [folder + "/" for folders in FLOORS for folder in folders] + ["tools/"]
    there = {folder_of(path) + "/" for path in texts}
    faults = [] if rows == wanted else [f"the map in docs/design.md has {', '.join(rows)}; expected {', '.join(wanted)}"]
    return faults + [f"{folder} has no floor" for folder in sorted(there - set(wanted))]


def main():
    build = sys.argv[1]
    texts = list_files()
    references, sources = read_references(build)
    checked, simulated = read_checked(build, texts), read_simulated(build)
    faults = check_circles(references, EXCEPTIONS) + check_floors(texts, references) + check_sizes(texts) + check_map(texts)
    faults += [f"with MS_DEBUG_CHECKS: {fault}" for fault in check_circles(checked, EXCEPTIONS) + check_floors(texts, checked)]
    faults += check_circles(simulated, {})
    if len(sources) < 100 or ("shim/memory.c", "shim/real.c") not in references:
        faults.append(f"only {len(sources)} objects found, or their symbols are not, that cannot be right")
    if ("tools/simcuda/driver/copy.c", "tools/simcuda/driver/stream.c") not in simulated:
        faults.append("the symbols of the simulated driver are not found, that cannot be right")
    if ("runtime/memory/space.c", CHECKS) not in checked:
        faults.append("what is compiled with MS_DEBUG_CHECKS does not check, that cannot be right")
    faults += [f"{path} has code under MS_DEBUG_CHECKS, which {CHECKS_HEADER} alone of the headers may"
               for path, text in texts.items() if path.endswith(".h") and path != CHECKS_HEADER and HAS_CHECKS.search(text)]
    print("\n".join(faults) or
          f"{len(sources)} files, {len(references)} dependencies, and {len(simulated)} of what is simulated: no circle")
    return len(faults) > 0


if __name__ == "__main__":
    sys.exit(main())
