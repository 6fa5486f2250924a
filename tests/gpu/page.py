#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""page.py [GPU] [--write]: docs/results/gpu-GPU.md, from the files of docs/results that tests/gpu/run wrote there.

GPU is how the files call it, as nvidia-h200; without it, each that has a page. Without --write the page is compared with the
files, and is a fault if it differs.
"""
import argparse
import glob
import os
import sys

sys.dont_write_bytecode = True
sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness")]

import result_page  # noqa: E402
from parts import PARTS  # noqa: E402
from run_tools import SOURCE, read_json  # noqa: E402

RESULTS = os.path.join(SOURCE, "docs", "results")
MOST_DETAILS = 12
SETTINGS = result_page.DEFAULTS + ", but for flows and systems: METASHARD_SETTLE_MS=0, METASHARD_IDLE_MS=5000"
HEAD = """From the files `*-{name}.json` beside this page, which `tests/gpu/run` wrote ([what each part asks](../../tests/gpu/README.md)). One
GPU: several ranks share it, or are one of many whose process group does nothing.

"""
LARGE = """## One rank of large models

Scripts of `tests/frameworks/flows`, as people write them: the model is built and initialised on the device, or loaded from
mapped safetensors files, and then cut by `fully_shard`. The files are sparse: only this rank's rows of each tensor are on the disk. *In use*: the most that the device had, as `nvidia-smi` says 20 times a
second, less what it had before; CUDA's context is a part of it, some 500 MiB. *Allocated*: what the program asked the driver for.
From scratch, all tensors of the rank are compared with those of a run without the shim; from files, with the files.

"""
OTHERS = """## Beside the parts

Run by hand, with an earlier version.

"""
LOADING = """## Loading

`tests/gpu/load_time.py`: bf16 tensors of {mib} MiB in the page cache; all of them are kept, or an eighth of each. Seconds until every byte
that is kept was read on the device.

"""
PARTS_HEAD = """## What each part said

The parts took {seconds:.0f} seconds together, what ran without the shim included. *Code*: a hash of the sources; *commit*: of
them, with a + where they differed from it. Parts of other versions than the newest were not run again. Where the simulated driver or
NCCL answered otherwise, they and their tests were corrected in the change that brought the answer, or `tests/gpu/conformance_rows.py` says why not.

"""
SYSTEMS = """## Systems, one rank

`tests/frameworks/systems/run --gpu --ranks 1 --scale 2`, as their scripts are. In MiB; *peak*: without, what the program had from the
driver; with, what was behind it.

"""
FLOWS = """## Flows, ranks 0 and 5 of 8

`tests/frameworks/flows/run`. In MiB, the worse of the two ranks; *peak* as above.

"""


def table(head, rows):
    return "".join("| " + " | ".join(line) + " |\n" for line in [head, ["---"] * len(head), *rows]) + "\n"


def mib(size):
    return "" if size is None else f"{size / 2**20:,.0f}"


def gib(size):
    return "" if size is None else f"{size / 2**30:.2f}"


def large_table(result):
    def values(case):
        if "different" not in case:
            return "not compared: it is more than the device"
        return f"{case['tensors_compared']} tensors the same" if not case["different"] else f"{len(case['different'])} differ"
    return table(["model", "ranks", "allocated, GiB", "this rank's shard, GiB", "in use without, MiB", "in use with, MiB",
                  "behind deferred memory, GiB", "seconds without", "with", "values"],
                 [[case["case"], str(case["ranks"]), gib(case["with"].get("shim", {}).get("live_bytes_peak")),
                   gib(case["with"]["shard_bytes"]), f"{case['without']['device_mib']:,}" if "without" in case else "",
                   f"{case['with']['device_mib']:,}", gib(case["with"].get("shim", {}).get("backed_bytes_peak")),
                   f"{case['without']['seconds']:.0f}" if "without" in case else "", f"{case['with']['seconds']:.0f}",
                   values(case)] for case in result["cases"]])


def systems_table(result):
    rows = []
    for record in result["records"]:
        alone, under = record["ways"]["without"][0], record["ways"]["with"][0]
        rows.append([record["system"], mib(record["ranks"][0]["shard_bytes"]), mib(alone["peak_bytes"]), mib(under["peak_bytes"]),
                     f"{alone['seconds']:.1f}", f"{under['seconds']:.1f}", "the same" if record["equal"]["with"] else "differ"])
    return table(["system", "shard", "peak without", "with", "seconds without", "with", "values"], rows)


def flows_table(result):
    rows = []
    for flow in result["flows"]:
        records = flow["records"]
        most = {way: max(record[way]["peak_bytes"] for record in records) for way in ("without", "with")}
        rows.append([flow["flow"], mib(max(record["ideal_bytes"] for record in records)), mib(most["without"]), mib(most["with"]),
                     mib(max(record["with"]["h2d_bytes"] or 0 for record in records)),
                     "the same" if all(record["equal"] for record in records) else "differ"])
    return table(["flow", "shard", "peak without", "with", "sent with", "values"], rows)


def loading_table(result):
    names = {"load_file": "`safetensors.torch.load_file`", "fastsafetensors": "fastsafetensors", "dcp": "DCP"}
    rows = []
    for case, summary in result["summary"].items():
        loader, kept = case.split(", ")
        seconds, what = summary["ready_seconds"], [names[loader], "an eighth" if kept == "shard" else kept]
        if seconds["with"] is None:
            rows.append([*what, f"{seconds['without']:.2f}", "not measured: no time left", "", ""])
        else:
            rows.append([*what, f"{seconds['without']:.2f}", f"{seconds['with']:.2f}", f"{seconds['ratio']:.2f}",
                         "the same" if summary["sums_equal"] else "differ"])
    return table(["loader", "kept", "seconds without", "with", "ratio", "sums"], rows)


def others(name):
    """Lines for what is no part of tests/gpu/run, or was run beside it."""
    lines = []
    result = read_json(os.path.join(RESULTS, f"nccl-receive-{name}.json"))
    for run in result.get("shim", []):
        peaks = [f"{mib(row['backed_bytes_peak'])}" for row in run["rows"] if "backed_bytes_peak" in row]
        wrong = sum(row.get("wrong_bytes", 0) for row in run["rows"])
        if peaks:
            lines.append(f"- `nccl-receive`: a broadcast of {mib(run['bytes'])} MiB from rank 0 by NCCL {result['nccl']['version']} over "
                         f"sockets, 3 ranks on this GPU, {run['preload']}: {wrong} wrong bytes; behind deferred memory at most "
                         f"{', '.join(peaks)} MiB.")
    return "\n".join(lines) + "\n\n" if lines else ""


def short(commit):
    return commit[:8] + commit[40:]


def part_rows(results):
    rows, notes = [], []
    for part, result in results:
        about = result["run"]
        rows.append([f"`{part.name}`", "whole" if about["complete"] else "in part", f"{about['seconds']:.0f}",
                     about["code"].removeprefix("sources-"), short(about["commit"]), about["date"],
                     part.in_short(result).replace("|", "/")])
        details = part.details(result)
        notes += [f"- `{part.name}`: {line}" for line in details[:MOST_DETAILS]]
        if len(details) > MOST_DETAILS:
            notes.append(f"- `{part.name}`: {len(details) - MOST_DETAILS} more, in its file")
    return table(["part", "", "seconds", "code", "commit", "day", "in short"], rows) + "\n".join(notes) + ("\n\n" if notes else "")


def make_page(name):
    results = [(part, read_json(os.path.join(RESULTS, f"{part.name}-{name}.json"))) for part in PARTS]
    found = {part.name: result for part, result in results if "run" in result}
    if not found:
        raise SystemExit(f"page.py: no file of {name} in docs/results")
    about = [result["run"] for result in found.values()]
    latest = max(about, key=lambda one: one["date"])
    cuda = f"{latest['cuda'] // 1000}.{latest['cuda'] % 1000 // 10}"
    where = f"{latest['gpu']}, driver {latest['driver']}, CUDA {cuda}, {latest['cores']} cores, Python {latest['python']}, PyTorch {latest['torch']}"
    text = result_page.table(f"On a GPU: {latest['gpu']}", ("tests/gpu/run", f"tests/gpu/page.py {name} --write"),
                             f"0.2.0, commit {short(latest['commit'])}, {latest['date']}; the code of each part stands in its row", where, SETTINGS)
    text += HEAD.format(name=name)
    for part, head, make in (("large", LARGE, large_table), ("systems-first", SYSTEMS, systems_table),
                             ("flows-first", FLOWS, flows_table)):
        text += head + make(found[part]) if part in found else ""
    if "load-time" in found:
        text += LOADING.format(mib=mib(found["load-time"]["bytes"])) + loading_table(found["load-time"])
    more = others(name)
    text += OTHERS + more if more else ""
    missing = [f"`{part.name}`" for part, result in results if not result]
    text += PARTS_HEAD.format(seconds=sum(one["seconds"] for one in about))
    return text + part_rows([(part, found[part.name]) for part, _ in results if part.name in found]) + \
        f"Not run: {', '.join(missing)}.\n"


def is_as_it_should_be(name, writes):
    path, text = os.path.join(RESULTS, f"gpu-{name}.md"), make_page(name)
    if writes:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return True
    with open(path, encoding="utf-8") as file:
        is_same = file.read() == text
    if not is_same:
        print(f"docs/results/gpu-{name}.md is not what the files say: tests/gpu/page.py {name} --write")
    return is_same


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("gpu", nargs="?")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    pages = [os.path.basename(path)[4:-3] for path in sorted(glob.glob(os.path.join(RESULTS, "gpu-*.md"))) if "rehearsal" not in path]
    names = [options.gpu] if options.gpu else pages
    return int(not all([is_as_it_should_be(name, options.write) for name in names]))


if __name__ == "__main__":
    sys.exit(main())
