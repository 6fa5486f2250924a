#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""readme_figures.py [--write]: the figures of README.md, from docs/results.

The README's tables stand between marks and are made here, whole. Figures in its sentences are those of SENTENCES. Any other
number in its text must be one of OTHER_NUMBERS, so that no figure stands there that nothing recorded.

Without --write it compares, and fails when a figure is another one.
"""
import json
import os
import re
import sys

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(SOURCE, "tests", "harness"))
import result_page  # noqa: E402
README = "README.md"
RESULTS = os.path.join("docs", "results", "benchmarks-simulated.md")
GPU = os.path.join("docs", "results", "large-nvidia-h200.json")
WIRE = os.path.join("docs", "results", "nccl-simulated.md")
LOADERS = os.path.join("docs", "results", "loaders-simulated.md")
FLOWS = os.path.join("docs", "results", "flows-simulated.md")
TRAINING = os.path.join("docs", "results", "training.md")
BEGIN, END = "<!-- Made by tests/static/readme_figures.py --write: {} -->\n", "<!-- until here -->\n"
RANKS = "8"  # of the tables

# The README's word for a flow, and its rows of PyTorch in the results. Of several the largest figure counts.
TORCH = (
    ("from scratch, as above", ["from scratch on the device, then `fully_shard`"]),
    ("safetensors, mapped or staged through pinned memory",
     ["safetensors, from the mapping", "safetensors, staged through pinned memory"]),
    ("`torch.load(mmap=True)`", ["`torch.load(mmap=True)`, copied into the model", "`torch.load(mmap=True)`, to the device"]),
    ("one-piece allocation as transformers warms up, safetensors", ["one-piece warm-up as transformers does, safetensors"]),
    ("tensor parallel with uneven shards, loaded by DCP", ["tensor parallel, uneven, loaded by DCP"]),
    ("model built on the host", ["model on the host, then `fully_shard`"]),
)
# Flows of the page over NCCL that the README shows, by their names there.
NCCL = ("FSDP1, `sync_module_states`, unit by unit", "`set_model_state_dict(broadcast_from_rank0)`",
        "the same, tensor parallel: cut by columns", "accelerate, FSDP2", "DeepSpeed, `zero.Init`",
        "broadcast of each tensor, used in place")
# The README's word for a case of tests/gpu/large.py.
LARGE = (("Llama 70B, initialised on the device", "70B from scratch"), ("Llama 70B, loaded from safetensors", "70B from safetensors"),
         ("Llama 405B, initialised on the device", "405B from scratch"), ("Llama 405B, loaded from safetensors", "405B from safetensors"))
SUSPENDED = "FSDP2, adapters of frozen weights, expandable segments, a CUDA graph of the step"
NUMBER = re.compile(r"(?<![\w.-])\d[\d.,]*")
OTHER_NUMBERS = ("Debian 12 or 13, or Ubuntu 24.04", "C compiler and Python 3;", "imitates 12.9 to 13.5", "meson 1.0", "CUDA\n13, or of 12.4", "Where rank 0 sends", "from rank 0 (FSDP", "receive the model from rank 0,", "Rank 0 takes", "less than 2 MiB, the least", "PyTorch 2.15 on it", "device of 80 GiB", "an NVIDIA H200 (driver 580, PyTorch 2.11)",
                 "the worst rank but 0", "Apache License 2.0")
WORDS = {"4": "four", "8": "Eight"}


def read(path):
    with open(os.path.join(SOURCE, path)) as file:
        return file.read()


class Results:
    def __init__(self):
        self.text = read(RESULTS)
        quickstart = re.search(r"^## The quickstart$.*?^```\n(.*?)^```$", self.text, re.M | re.S)
        if not quickstart:
            sys.exit(f"{RESULTS} has no output of the quickstart: run ninja benchmark-results")
        self.quickstart = quickstart[1]

    def of_quickstart(self, pattern):
        match = re.search(pattern, self.quickstart, re.M)
        if not match:
            sys.exit(f"{RESULTS}: the quickstart's output has nothing like {pattern}")
        return match


def markdown(head, rows):
    return "".join("| " + " | ".join(line) + " |\n" for line in [head, ["---"] * len(head), *rows])



def records_of(path, columns):
    """The rows of the first table behind the page's head, by the words of these columns."""
    text = result_page.HEAD.sub("", read(path))
    found = [[word.strip() for word in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    records = [dict(zip(found[0], line)) for line in found[2:] if len(line) == len(found[0])]
    return {tuple(record[column] for column in columns): record for record in records}


def torch_table(results):
    del results
    records, columns = records_of(FLOWS, ("program", "ranks")), ["peak without", "peak with", "sent without", "sent with", "shard"]
    return markdown(["", *columns[:-1], "ideal"], [
        [name, *[max((records[flow, RANKS][column] for flow in flows), key=float) for column in columns]] for name, flows in TORCH])


def three(figures):
    """Without the preload, with it, and with a plan: one figure is all of them."""
    words = figures.split(" / ")
    return words if len(words) == 3 else 3 * words[:1]


def nccl_table(results):
    del results
    records, rows = records_of(WIRE, ("flow", "ranks")), []
    for flow in NCCL:
        if (flow, RANKS) not in records:
            sys.exit(f"{WIRE} has no row {flow} with {RANKS} ranks")
        record = records[flow, RANKS]
        rows.append([flow, *three(record["peak of others"]), three(record["into one"])[2]])
    return markdown(["", "peak without", "with the preload", "with a plan", "received"], rows)


def gpu_table(results):
    del results
    cases = {case["case"]: case for case in json.loads(read(GPU))["cases"]}
    rows = []
    for name, key in LARGE:
        case = cases[key]
        model = case["with"].get("shim", {}).get("live_bytes_peak")
        values = "not compared" if "different" not in case else "differ" if case["different"] else "the same"
        rows.append([name, str(case["ranks"]), f"{model / 2**30:.0f}" if model else "", f"{case['with']['shard_bytes'] / 2**30:.2f}",
                     f"{case['without']['device_mib'] / 1024:.1f}" if "without" in case else "",
                     f"{case['with']['device_mib'] / 1024:.1f}", values])
    return markdown(["model", "ranks", "allocated", "this rank's shard", "in use without", "in use with", "values"], rows)


def loaders_table(results):
    del results
    rows = [[record["loader"], *(record[column].replace(" / ", " | ") for column in ("device", "disk", "opens", "CPU"))]
            for record in records_of(LOADERS, ("loader",)).values()]
    head = ["", *(f"{what} {how}" for what in ("device", "disk", "opens", "CPU") for how in ("without", "with"))]
    return markdown(head, [" | ".join(row).split(" | ") for row in rows])


def suspended_table(results):
    """Of the row that has all of it, with each number of ranks."""
    del results
    columns = ["ranks", "given back, MiB", "come from files", "wait outside", "the device still has"]
    text = read(TRAINING).partition("\n## Suspended between steps\n")[2]
    found = [[word.strip() for word in line.strip("|").split("|")] for line in text.split("\n\n| ")[1].split("\n\n")[0].splitlines()]
    records = [dict(zip(found[0], line)) for line in found[2:]]
    rows = [[record[column] for column in columns] for record in records if SUSPENDED in record[found[0][0]]]
    if not rows:
        sys.exit(f"{TRAINING} has no row {SUSPENDED}")
    return markdown(columns, rows)


PARTS = {"suspended": suspended_table, "loaders": loaders_table, "gpu": gpu_table, "quickstart": lambda results: f"```\n{results.quickstart}```\n", "PyTorch": torch_table, "NCCL": nccl_table}


def whole(figure):
    return f"{float(figure):.0f}"


def sentences(results):
    """(pattern, what its groups are): a figure in a sentence. Each pattern is found once, or it is a fault."""
    shard = whole(results.of_quickstart(r"^ +0 +([\d.]+) ")[1])
    checkpoint = whole(int(results.of_quickstart(r"^Checkpoint: \d+ tensors, (\d+) bytes")[1]) / 2 ** 20)
    cores = re.search(r"^\| machine \| (\d+) cores", results.text, re.M)
    wheel = re.search(r"PyTorch (\d+\.\d+)\.", read(FLOWS))
    scratch = {int(ranks): record["shard"] for (what, ranks), record in records_of(FLOWS, ("program", "ranks")).items()
               if what == TORCH[0][1][0]}
    counts, size = sorted(scratch), scratch[1]
    wire = re.search(r"^## ([\d.]+) MiB in \d+ tensors", read(WIRE), re.M)
    loaded = re.search(r"checkpoint of (\d+) MiB.*?of each tensor's rows, (\d+) MiB", read(LOADERS), re.S)
    part = records_of(WIRE, ("flow", "ranks"))[NCCL[1], RANKS]["shard"]
    return (
        (r"checkpoint on disk<br>(\d+) MiB", [checkpoint]),
        (r"this rank's rows<br>(\d+) MiB", [shard]),
        (r"On a machine with (\d+) cores", [cores[1]]),
        (r"installs PyTorch ([\d.]+) ", [wheel[1]]),
        (r"checkpoint of (\d+) MiB whole to the device and keeps (\d+)", [loaded[1], loaded[2]]),
        (r"Llama's shape with (\d+) MiB in bfloat16, (\d+) ranks", [whole(size), RANKS]),
        (r"are the\nsame for (\d[\d, ]* and \d+) ranks", [f"{', '.join(map(str, counts[:-1]))} and {counts[-1]}"]),
        (r"(\w+) ranks that do on the wire", [WORDS[RANKS]]),
        (r"(\d+) MiB of Llama's shape, on the simulated driver and", [whole(wire[1])]),
        (r"in MiB \(its shard: ([\d.]+)\)", [part]),
    )


def with_figures(text, results):
    """(the README with the figures that the results have, faults in its shape)"""
    faults = []
    for name, make in PARTS.items():
        begin = BEGIN.format(name)
        if text.count(begin) != 1 or END not in text[text.index(begin):]:
            sys.exit(f"{README}: expected once the lines\n{begin}{END}")
        head, rest = text.split(begin)
        text = head + begin + make(results) + rest[rest.index(END):]
    for pattern, wanted in sentences(results):
        found = list(re.finditer(pattern, text))
        if len(found) != 1:
            faults.append(f"{README}: found {len(found)} times: {pattern}")
            continue
        for group in range(len(wanted), 0, -1):
            text = text[:found[0].start(group)] + wanted[group - 1] + text[found[0].end(group):]
    return text, faults


def other_numbers(text, results):
    """Faults: numbers in the text that come from nowhere."""
    for name in PARTS:
        text = re.sub(re.escape(BEGIN.format(name)) + ".*?" + re.escape(END), "", text, flags=re.S)
    for pattern, _ in sentences(results):
        text = re.sub(pattern, "", text)
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    text = re.sub(r"`[^`\n]*`|\]\([^)\s]*\)", "", text)
    faults = []
    for phrase in OTHER_NUMBERS:
        if phrase not in text:
            faults.append(f"{README}: OTHER_NUMBERS has what is not there: {phrase}")
        text = text.replace(phrase, "")
    return faults + [f"{README}: a number that is not from the results: "
                     f"{' '.join(text[max(0, at.start() - 40):at.end() + 20].split())}" for at in NUMBER.finditer(text)]


def main():
    results, text = Results(), read(README)
    wanted, faults = with_figures(text, results)
    faults += other_numbers(wanted, results)
    if "--write" in sys.argv:
        with open(os.path.join(SOURCE, README), "w") as file:
            file.write(wanted)
    else:
        faults += [f"{README} says\n    {said}\nand docs/results\n    {has}" if said and has else
                   f"{README}: missing or too much: {said or has}"
                   for said, has in differences(text, wanted)]
    if faults and "--write" not in sys.argv:
        faults.append("tests/static/readme_figures.py --write puts in what the results have")
    print("\n".join(faults) or f"the figures of {README} are those of docs/results")
    return len(faults) > 0


def differences(text, wanted):
    said, has = text.splitlines(), wanted.splitlines()
    if len(said) == len(has):
        return [pair for pair in zip(said, has) if pair[0] != pair[1]]
    return [(line, "") for line in said if line not in has] + [("", line) for line in has if line not in said]


if __name__ == "__main__":
    sys.exit(main())
