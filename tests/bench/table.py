#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""table.py --folder DIR [--write PAGE] [--run BUILD]: one table of what the benchmarks have printed (keep.py).

--run: all benchmarks first, with meson. --write: a page with the table, for docs/results. Benchmarks that were not run are named, and
have no figure; figures of PyTorch's flows are those of docs/results/flows-simulated.md, which tests/frameworks/torch/run made.
"""
import argparse
import math
import os
import re
import subprocess
import sys

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(SOURCE, "tests", "harness"))
import result_page  # noqa: E402
BENCHMARKS = ("quickstart", "main job", "ways", "verify mode", "init, then shard", "flows over NCCL", "instructions over NCCL",
              "fill", "snapshots", "loads", "state page", "start-up", "start", "calls", "instructions", "self-check",
              "plan resolve", "footprint", "growth")
WAYS = ["without", "with", "with a plan"]
HEAD = ["what", "ranks", "over", "by hand", *WAYS]
MIB_HEAD = ["what", "ranks", "shard", *WAYS]


def row(what, ranks, over, *figures):
    return [what, str(ranks), over, *figures, *[""] * (4 - len(figures))]


# --- one function for each benchmark: its text to rows


def main_job(text):
    for line in text.splitlines():
        words = line.split()
        if len(words) == 10 and words[0].isdigit():
            what = f"main job, {words[1]} MiB"
            yield row(f"{what}: peak memory", words[0], "shard", "", words[4], words[3])
            yield row(f"{what}: bytes copied", words[0], "shard", "", words[6], words[5])
            yield row(f"{what}: seconds", words[0], "without", "", "1", f"{float(words[7]) / max(float(words[8]), .1):.2f}")


def ways(text):
    seen = {}
    for line in text.splitlines():
        match = re.match(r"(.+?)\s+(by hand|without|with)\s+shard MiB\s+\S+\s+peak/shard\s+(\S+)\s+copied/shard\s+(\S+)\s+"
                         r"instructions M\s+(\S+)", line)
        if match:
            seen.setdefault(match[1], {})[match[2]] = match.groups()[2:]
    for name, by_way in seen.items():
        for at, what in enumerate(("peak memory", "bytes copied")):
            yield row(f"{name}: {what}", "1 of 8", "shard", *(by_way[way][at] if way in by_way else ""
                                                              for way in ("by hand", "without", "with")))
        base = next(iter(by_way))
        if by_way[base][2] != "-":
            yield row(f"{name}: instructions of shim, driver and libc", "1 of 8", base,
                      *(f"{float(by_way[way][2]) / float(by_way[base][2]):.2f}" if way in by_way else ""
                        for way in ("by hand", "without", "with")))


def verify(text):
    for match in re.finditer(r"^(.+?)\s+ratio ([\d.]+)$", text, flags=re.M):
        yield row(f"METASHARD=verify, {match[1]}", "1 of 8", "without", "", "1", match[2])


def from_scratch(text):
    worst = {}
    for line in text.splitlines():
        match = re.match(r"# +(\d+) +(\d+) +([\d.]+) +([\d.]+) +([\d.]+) +[\d.]+ ", line)
        if match:
            shard, without, with_shim = (float(word) for word in match.groups()[2:])
            pair = (without / shard, with_shim / shard)
            worst[match[1]] = max(worst.get(match[1], (0, 0)), pair, key=lambda one: one[1])
    for ranks, (without, with_shim) in worst.items():
        yield row("initialise whole tensors, then shard: peak memory", ranks, "shard", "", f"{without:.3f}",
                  f"{with_shim:.3f}")


def over_shard(figures):
    """Rows of ratios from what is in MiB: (what, ranks, shard, figures)."""
    for what, ranks, shard, in_mib in figures:
        yield row(what, ranks, "shard", "", *(f"{float(one) / float(shard):.3f}" for one in in_mib))


def nccl_in_mib(text):
    lines = [re.split(r"\s{2,}", line[2:].strip()) for line in text.splitlines() if line.startswith("# ")]
    heads = [words for words in lines if words[0] == "flow"]
    for words in lines:
        if not heads or len(words) != len(heads[0]) or words[0] == "flow":
            continue
        # Figures with slashes between them, or one that is that of all ways.
        for column, what in (("peak of others", "peak memory of a rank but 0"), ("into one", "bytes received by one")):
            figures = words[heads[0].index(column)].split(" / ")
            yield f"{words[0]}: {what}", words[1], words[2], figures * len(WAYS) if len(figures) == 1 else figures


def nccl(text):
    return over_shard(nccl_in_mib(text))


def nccl_instructions(text):
    for line in text.splitlines()[1:]:
        words = re.split(r"\s{2,}", line.strip())
        figures = [f"{float(word) / float(words[2]):.2f}" for word in words[2:]]
        yield row(f"{words[0]}: instructions of shim, driver, NCCL and libc", words[1], "without", "", *figures)


def fill(text):
    for state in re.split(r"^(?=cold|warm)", text, flags=re.M)[1:]:
        match = re.search(r"fill/read ([\d.]+), fill/\(mmap\+copy\) ([\d.]+)", state)
        if match:
            kind = "not in the page cache" if state.startswith("cold") else "in the page cache"
            yield row(f"filling memory from a file {kind}: bytes a second", "", "best read(), copied nowhere", "", "", match[1])
            yield row(f"filling memory from a file {kind}: bytes a second", "", "mmap and cuMemcpyHtoD", "", "1", match[2])


def snapshots(text):
    for match in re.finditer(r"^(.+?)\s+without .*ratio ([\d.]+)$", text, flags=re.M):
        yield row(f"copy of {match[1]}, until a kernel has it: processor time", "", "without", "", "1", match[2])


def loads(text):
    by_hand = {}
    for match in re.finditer(r"^(.+?)\s+tensors of +(\d+) MiB, (with|without)\s*: +(\d+) system calls a GiB, "
                             r"processor seconds a GiB: ([\d.]+) loading, ([\d.]+) copying back$", text, flags=re.M):
        way, size, kind, *figures = match.groups()
        if way == "by hand":
            by_hand[size] = figures
        elif kind == "without":
            without = figures
        else:
            for what, *three in zip(("system calls", "processor seconds, loading", "processor seconds, copying back"),
                                    by_hand[size], without, figures):
                yield row(f"loader, {way}, tensors of {size} MiB: {what}", "1", "GiB", *three)


def state_page(text):
    for match in re.finditer(r"^  (.+?)\s+with .*ratio ([\d.]+)$", text, flags=re.M):
        yield row(f"state page, {match[1]}: time", "", "no page", "", "1", match[2])


def start_up(text):
    for match in re.finditer(r"^(\S+), median of \d+ starts: .*ratio ([\d.]+)$", text, flags=re.M):
        yield row(f"start of {match[1]}: time", "", "without", "", "1", match[2])


def start(text):
    for match in re.finditer(r"^(.+?)\s{2,}(instructions|system calls)\s+([\d,]+)\s+([\d,]+)\s+(-?[\d,]+)$", text, flags=re.M):
        what = f"start, {match[1]}: {match[2]} of shim, driver, libc and linker"
        ratio = int(match[4].replace(",", "")) / int(match[3].replace(",", ""))
        yield row(what, "", "added", "", "", match[5])
        yield row(what, "", "without", "", "1", f"{ratio:.2f}")


def calls(text):
    for match in re.finditer(r"^(.+?)\s+without .*ratio ([\d.]+)$", text, flags=re.M):
        yield row(f"{match[1]}: time", "", "without", "", "1", match[2])


def self_check(text):
    for line in text.splitlines()[1:]:
        words = line.split()
        if len(words) == 5 and words[0] in ("kept", "run"):
            what = f"first allocation, self-check {words[0]}"
            yield row(f"{what}: instructions of the shim", "", "added", "", "", words[1])
            yield row(f"{what}: driver calls, and questions to the resolver", "", "added", "", "", f"{words[2]} + {words[3]}")


def plan_resolve(text):
    head = re.match(r"(\d+) tensors, (\d+) ranks; goals: one rank (\d+) ms, all ranks (\d+) s", text)
    for line in text.splitlines():
        match = re.match(r"(.+?)\s+((?:[\d.]+\s*){7})$", line)
        if head and match:
            words = match[2].split()
            what = f"plan of {int(head[1]):,} tensors, {match[1]}"
            yield row(f"{what}: one rank's ranges", f"{int(head[2]):,}", f"{head[3]} ms", "", "", "", words[3])
            yield row(f"{what}: bytes of all ranks", f"{int(head[2]):,}", f"{head[4]} s", "", "", "", words[5])


def torch_in_mib():
    """PyTorch's, from their page: it takes several GB to run them."""
    with open(os.path.join(SOURCE, "docs", "results", "flows-simulated.md")) as file:
        lines = file.read().splitlines()
    name = ""
    for line in lines:
        words = [word.strip().replace("`", "") for word in line.strip("|").split("|")]
        if len(words) != 8 or not words[1].isdigit():
            continue
        name = words[0] or name
        shard, without, with_shim, sent, sent_with = words[2:7]
        if float(shard) > 0:
            yield f"PyTorch, {name}: peak memory", words[1], shard, [without, with_shim]
            yield f"PyTorch, {name}: bytes copied", words[1], shard, [sent, sent_with]


def torch_flows():
    return over_shard(one for one in torch_in_mib() if float(one[3][0]) > 0)


def quickstart(text):
    """The output of quickstart, but for the line that is for programs."""
    return "\n".join(line for line in text.splitlines() if not line.startswith("RESULT ")).strip("\n") + "\n"


READERS = {"main job": main_job, "ways": ways, "verify mode": verify, "init, then shard": from_scratch, "flows over NCCL": nccl,
           "instructions over NCCL": nccl_instructions, "fill": fill, "snapshots": snapshots, "loads": loads,
           "state page": state_page, "start-up": start_up, "start": start, "calls": calls, "self-check": self_check,
           "plan resolve": plan_resolve}


# --- tables with columns of their own


def instructions(text):
    lines = text.splitlines()
    if len(lines) < 3:
        return []
    return [["call", *lines[1].split()]] + [re.split(r"\s{2,}", line.strip()) for line in lines[2:]]


def growth(text):
    lines = text.splitlines()
    if len(lines) < 3:
        return []
    sizes = lines[1].split()[3:]
    rows = [["work", "of", "exponent", "of the larger half", *(f"{int(size):,}" for size in sizes)]]
    for line in lines[2:]:
        match = re.match(r"(.+?)\s+(all|call)\s+(-?[\d.]+\s.*)$", line)
        rows.append([match[1], match[2], *match[3].split()])
    return [cells + [""] * (len(rows[0]) - len(cells)) for cells in rows]


def footprint(text):
    """Bytes of one thing, by how many there are."""
    by_name, bounds = {}, {}
    if not text:
        return []
    for line in text.splitlines():
        name, count, figure, bound = line.split("\t")[:4]
        by_name.setdefault(name, {})[10 ** round(math.log10(int(count)))] = f"{int(figure):,}"
        bounds[name] = bound
    sizes = sorted({size for figures in by_name.values() for size in figures})
    return [["thing", "bound", *(f"{size:,}" for size in sizes)]] + [
        [name, bounds[name], *(figures.get(size, "") for size in sizes)] for name, figures in by_name.items()]


def in_mib(kept):
    rows = [*nccl_in_mib(kept.get("flows over NCCL", "")), *torch_in_mib()]
    return [MIB_HEAD] + [[what, ranks, shard, *figures, *[""] * (len(WAYS) - len(figures))]
                         for what, ranks, shard, figures in rows]


def show(rows):
    widths = [max(len(line[column]) for line in rows) for column in range(len(rows[0]))]
    for line in rows:
        print("  ".join(word.ljust(width) if column == 0 else word.rjust(width)
                        for column, (word, width) in enumerate(zip(line, widths))).rstrip())


def markdown(rows):
    return "".join("| " + " | ".join(line) + " |\n" for line in [rows[0], ["---"] * len(rows[0]), *rows[1:]])


# --- the page


PAGE = """The simulated driver and the simulated NCCL are both of this repository; no figure here is one of a GPU, and most are
ratios. Where times or rates are compared, the machine did other work as well: on average {load:.0f} threads wanted its cores.
What uses several threads, as filling memory does, then looks worse than it is.

## Against the ideal

*By hand* is the least that a rank can do: it allocates and reads the rows that it keeps, and nothing else. *Without* is what
people write, as it runs without MetaShard: map the file and copy everything, or initialise everything, and slice. *Over*
says what figures are divided by; *shard* is what the rank keeps in the end. Instructions of whole programs are those of all
threads, and what waits polls: they differ by some hundredths from run to run.

Rows of a *loader* are not ratios. A checkpoint is copied to the device as a whole, then back, and each GiB takes so many
system calls and processor seconds of all threads, with the driver's. *By hand* it is read into two buffers of pinned memory by
turns.

{ratios}
{snapshots}## The quickstart

What `./quickstart` prints where there is no GPU.

{quickstart}
## In MiB

Of the rows above that are of frameworks: the same figures, before they were divided by the shard.

{mib}
## Instructions of one call

Instructions that the shim adds to a call on the calling thread, by the number of deferred blocks, none of which it touches;
the parameters of launches are full of addresses. Where the call goes straight on, with no deferred block, the count is the same
on every run. A call that waits for its stream polls, and its count has that in it.

{instructions}
## Host memory

Bytes of host memory that the shim takes for one thing, by how many there are, and the bound that a test holds them to: pages
of the private heap that are in use, and its own records. The state page, of a size of its own, is not in it.

{footprint}
## Growth

Processor time by the number n of things, over that at the smallest n; *of all* of them, or of one *call*. The exponent is that of
the line with the least squares through the logarithms: 0 does not grow, 1 grows in proportion. Where a cell has "-" that size
was left out, because it would have taken longer than `GROWTH_SECONDS` allows, by the sizes before: the exponent says how it goes on.
Where it has "<" it took less than can be told. Rows of memory are bytes that are resident, in place of time; a header of a
million such tensors would be longer than a header may be.

{growth}
{notes}"""

SNAPSHOTS = """Copies that become snapshots, above, are copied once more than without the shim, into memory that the kernel fills with zeros
first: that takes as long as a copy, or several times as long in a virtual machine. They are also examined for addresses.

"""

NOTES = """What grows faster than it must, and why it stays so:

- *Blocks of one allocation, in any order*: the blocks and the extents of one allocation lie in leaves of 4 KiB, so a change
  moves one leaf's, and a search is binary; but with a million blocks each step waits for memory. *Blocks of segments*
  are the same work as allocators do it.
- *Look up an address*, *which one does a pointer mean*, *memset one again*, *copy from one to another*, *launch, each between
  others*: binary searches, so the number of steps is the logarithm; but with a million things each step waits for memory.
- *Tensors of a plan*: sorted by name.

What costs more than it might, and why:

- *Launch, 256 bytes of pointers*: each of 32 words is looked up, under a lock that guards the index; that is taken twice, and the launch is
  noted for what it may write. Numbers in place of pointers cost a quarter of that, because a comparison with two bounds rejects them.
- *Copies that become snapshots*: see above.

What cannot run here is not in the table: ranks are processes, and of a million there are only plans; and Linux allows 65530
mappings. Tensors of a file have 64 KiB each, and are brought into memory 256 at a time.
"""


def write_page(path, ratios, kept, missing):
    tables = {name: markdown(rows) if rows else "Not run.\n" for name, rows in
              (("instructions", instructions(kept.get("instructions", ""))), ("growth", growth(kept.get("growth", ""))),
               ("footprint", footprint(kept.get("footprint", ""))))}
    tables["mib"] = markdown(in_mib(kept))
    tables["quickstart"] = f"```\n{quickstart(kept['quickstart'])}```\n" if "quickstart" in kept else "Not run.\n"
    changed = ", ".join(f"{name}={value}" for name, value in sorted(os.environ.items())
                        if name.startswith(("BENCH_", "FILL_", "GROWTH_", "STATE_SCALE", "WAYS_")))
    note = "; ".join([f"with {changed}"] * bool(changed) + [f"not run: {', '.join(missing)}"] * bool(missing))
    with open(path, "w") as page:
        page.write(result_page.head("Benchmarks, simulated driver", "ninja -C build benchmark-results",
                                    result_page.settings_of({}), note=note))
        page.write(PAGE.format(load=os.getloadavg()[2], ratios=markdown([HEAD, *ratios]), notes=NOTES, snapshots=SNAPSHOTS, **tables))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True)
    parser.add_argument("--write")
    parser.add_argument("--run")
    options = parser.parse_args()
    failed = 0
    if options.run:
        meson = os.environ.get("MESONINTROSPECT", "meson introspect").rsplit(" ", 1)[0].split()
        failed = subprocess.run([*meson, "test", "-C", options.run, "--benchmark"], check=False).returncode
    kept = {}
    for name in BENCHMARKS:
        path = os.path.join(options.folder, name)
        if os.path.exists(path):
            with open(path) as file:
                kept[name] = file.read()
    missing = [name for name in BENCHMARKS if name not in kept]
    ratios = [line for name, reader in READERS.items() if name in kept for line in reader(kept[name])]
    ratios += torch_flows()
    show([HEAD, *ratios])
    for rows in (instructions(kept.get("instructions", "")), growth(kept.get("growth", "")),
                 footprint(kept.get("footprint", ""))):
        if rows:
            print()
            show(rows)
    for name in missing:
        print(f"not run, or failed: {name}")
    if options.write:
        write_page(options.write, ratios, kept, missing)
    return failed


if __name__ == "__main__":
    sys.exit(main())
