#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""releases.py [--write]: the releases of PyTorch that check_wheel.py --keep has proved (releases.json), as the shim knows
them (shim/torch_releases.def) and as a page (docs/results/torch-releases.md). Without --write: are both up to date?
"""
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
KEPT = os.path.join(HERE, "releases.json")
OTHERS = os.path.join(HERE, "others.json")
LIST = os.path.join(SOURCE, "shim", "torch_releases.def")
PAGE = os.path.join(SOURCE, "docs", "results", "torch-releases.md")
sys.path.insert(0, os.path.join(SOURCE, "tools", "check_torch"))
from torch_check import machine_code  # noqa: E402

sys.path.insert(0, os.path.join(SOURCE, "tests", "harness"))
import result_page  # noqa: E402

CLASSES = ("write-only", "in-place", "from-other", "from-first", "concatenate", "each")


def number(release):
    return tuple(int(part) for part in release.split("."))


def read(path=KEPT):
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def keep(release, found):
    """Writes a check's findings beside those of another check of the same libraries; each release is a line."""
    before = read()
    kept = dict(before, **{release: {**before.get(release, {}), **found}})
    lines = [f"  {json.dumps(name)}: {json.dumps(kept[name])}" for name in sorted(kept, key=number)]
    with open(KEPT, "w", encoding="utf-8") as file:
        file.write("{\n" + ",\n".join(lines) + "\n}\n")


def list_of(kept):
    rows = "".join(f'MS_RELEASE("{release}", "{found["commit"]}",\n           "{found["build_id"]}")\n'
                   for release, found in kept.items())
    return ("/* SPDX-License-Identifier: Apache-2.0 */\n"
            "/* The releases of PyTorch whose kernels the rules are true of. tests/frameworks/torch/releases.py\n"
            " * writes this list.\n"
            " *\n"
            " *     MS_RELEASE(version, commit of its sources, build-id of libtorch_cuda.so in PyPI's wheel)\n"
            " */\n" + rows)


def ran(found):
    """The findings of run_releases.py, in a cell."""
    flows = found.get("flows")
    if flows is None:
        return "not run"
    if "reason" in flows:
        return "not here: " + flows["reason"].replace("|", "/")
    same = [sizes for sizes in flows["programs"].values() if isinstance(sizes, list)]
    scratch = flows["programs"].get("from_scratch")
    peaks = f", from scratch {scratch[2]:.0f} MiB instead of {scratch[1]:.0f} (scale {flows['scale']:g})" if isinstance(scratch, list) else ""
    return f"{len(same)} of {len(flows['programs'])} the same{peaks}"


def code_of(found):
    """The kernels whose machine code was read, in a cell."""
    if "code" not in found:
        return "names and layouts alone"
    return "read" if set(found["rules"]) - {"run"} <= set(found["code"]) else "read, but for lists and parts of tensors"


def other(package, found):
    """A row of the page: what other_wheels.py has found in the wheel of another library."""
    return (f"| {package.replace('_', '-')} {found['version']} | {len(found['libraries'])} | "
            f"{sum(found['libraries'].values()):,} | 0 |")


def page_of(kept):
    rows = []
    for release, found in kept.items():
        counts = " | ".join(f"{found['rules'].get(name, 0):,}" for name in CLASSES)
        code = code_of(found)
        rows.append(f"| {release} | {found['cuda']} | {found['kernels']:,} | {counts} | {code} | {ran(found)} | "
                    f"`{found['check']}` |")
    return f"""What
[check_wheel.py](../../tests/frameworks/torch/check_wheel.py) has found in each release's wheel on PyPI (x86-64), in its
code for sm_90. Of all of them it holds that

- the allocator reports its blocks through the symbol that MetaShard interposes, so blocks are the unit of deferral;
- results are checked through the symbol in the last column, so that a shortage within a launch is a
  `torch.OutOfMemoryError`;
- each [rule](../../runtime/kernel/kernel-rules.txt) names kernels whose parameters lie where its class expects them, and
  none that reads several inputs, a whole tensor, or pointers in device memory;
- kernels that copy, fill, draw or initialise without a rule are in
  [families.txt](../../tests/frameworks/torch/families.txt): their blocks come into memory whole.

The columns in the middle count kernels that are recorded, by class. Where the machine code was read (`--code`, with
nvdisasm), each of them has none but known opcodes, no atomics, no textures, no asynchronous copies, and, but for
from-first, no memory of a block; and the addresses of its loads and stores are made of the pointers of its class, its sizes
and strides, and tables of its module alone: a write-only kernel loads through the two pointers of the random state, an
in-place, a from-other and a from-first one through `in`, and each stores through `out`; a kernel over lists of tensors loads
through the pointers of the first list, and stores through those of the last
([machine_code.py](../../tools/check_torch/torch_check/machine_code.py)).

*Programs*: those of [tests/frameworks/flows](../../tests/frameworks/flows) ran with the release from PyPI on the simulated driver,
rank 0 of 8, without and with MetaShard ([run_releases.py](../../tests/frameworks/torch/run_releases.py)): how many hold the same
values, and the peak of a model that is built on the device and sharded. *not run*: nobody tried.

| release | CUDA | kernels | {" | ".join(CLASSES)} | machine code | programs | check of results |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
{chr(10).join(rows)}

Another build of the same sources, for another Python or CUDA, counts as the release. With a PyTorch that is not in this
table no kernel is recorded by a built-in rule, and [a line](../troubleshooting.md#a-pytorch-that-was-not-checked) says so.

## Other libraries

No rule names a kernel of these wheels ([other_wheels.py](../../tests/frameworks/torch/other_wheels.py)), so each is unknown: what its
parameters point to comes into memory before it runs, whole. How it is launched does not matter: in clusters, cooperatively, before
the last kernel has ended, with packed parameters, or where the driver does not tell how they lie
([launches.c](../../tests/driver/groups/launches.c)). Triton's kernels are compiled on the user's machine, and launched in these ways;
FlashAttention 2 and 3 are in vLLM's wheel.

| wheel | libraries with kernels | kernels | named by a rule |
| --- | --- | --- | --- |
{chr(10).join(other(package, found) for package, found in sorted(read(OTHERS).items()))}
"""


def main():
    kept = read()
    stale = [f"{release}: {class_} kernels with the opcodes {sorted(set(opcodes) - machine_code.allowed(class_))}"
             for release, found in kept.items() for class_, opcodes in found.get("code", {}).items()
             if not set(opcodes) <= machine_code.allowed(class_)]
    made_by = ("tests/frameworks/torch/check_wheel.py --keep", "tests/frameworks/torch/releases.py --write")
    with open(PAGE, encoding="utf-8") as file:
        page = file.read()
    head = result_page.replace(page, made_by) if "--write" in sys.argv else page
    head = head[:result_page.HEAD.match(head).end()]
    for path, text in ((LIST, list_of(kept)), (PAGE, head + page_of(kept))):
        if "--write" in sys.argv:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            continue
        with open(path, encoding="utf-8") as file:
            if file.read() != text:
                stale.append(f"{os.path.relpath(path, SOURCE)} is stale: python3 tests/frameworks/torch/releases.py --write")
    print("\n".join(stale) or f"{len(kept)} releases")
    return len(stale) > 0


if __name__ == "__main__":
    sys.exit(main())
