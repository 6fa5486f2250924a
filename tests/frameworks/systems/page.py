# SPDX-License-Identifier: Apache-2.0
"""The table of the systems, as text and as a page, and the picture."""
import datetime
import os
import platform
import statistics
import subprocess
import sys

from figures import SETTINGS, ledger, mib

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "harness"))
import result_page  # noqa: E402

WAYS = ("without", "with", "plan")


def machine(python):
    with open("/proc/meminfo", encoding="ascii") as file:
        memory = round(int(file.readline().split()[1]) / (1 << 20))
    version = subprocess.run([python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True,
                             check=False).stdout.strip()
    return {"date": datetime.date.today().isoformat(), "cores": os.cpu_count(), "memory_gib": memory,
            "python": platform.python_version(), "torch": version}


def worst(ranks, figure):
    found = [rank[figure] for rank in ranks if rank.get(figure) is not None]
    return max(found) if found else None


def total(ranks, figure):
    found = [rank[figure] for rank in ranks if rank.get(figure) is not None]
    return sum(found) if found else None


def each_way(record, figure):
    """A figure of each way to run it; once, if all are equal."""
    found = [figure(record["ways"][way]) for way in WAYS if way in record["ways"]]
    return found[0] if len(set(found)) == 1 else " / ".join(found)


def seconds(record, figure):
    """The figure of the slowest rank; "-" where nobody measured."""
    def of(ranks):
        slowest = worst(ranks, figure)
        return "-" if slowest is None else f"{slowest:.1f}"
    return each_way(record, of)


def later_steps(record):
    """The median of the steps but the first, of the slowest rank."""
    def of(ranks):
        steps = [statistics.median(rank["step_seconds"]) for rank in ranks if rank.get("step_seconds")]
        return f"{max(steps):.2f}" if steps else ""
    return each_way(record, of)


COLUMNS = (
    ("system", lambda record: record["system"]),
    ("ranks", lambda record: str(record["world"])),
    ("shard", lambda record: mib(max(rank["shard_bytes"] for rank in record["ranks"]))),
    ("device peak", lambda record: each_way(record, lambda ranks: mib(worst(ranks[1:] or ranks, "peak_bytes")))),
    ("of rank 0", lambda record: each_way(record, lambda ranks: mib(ranks[0]["peak_bytes"]))),
    ("host peak", lambda record: each_way(record, lambda ranks: mib(worst(ranks, "host_peak_bytes")))),
    ("read", lambda record: each_way(record, lambda ranks: mib(total(ranks, "read_bytes")))),
    ("bus", lambda record: each_way(record, lambda ranks: mib(total(ranks, "h2d_bytes")))),
    ("wire", lambda record: each_way(record, lambda ranks: mib(total(ranks, "sent_bytes")))),
    ("seconds", lambda record: seconds(record, "seconds")),
    ("read back", lambda record: seconds(record, "read_seconds")),
    ("a later step", later_steps),
    ("values", lambda record: "same" if all(record["equal"].values()) else "DIFFERENT"),
)


def row(record):
    if record["skipped"] is not None:
        return [record["system"], str(record["world"]), "skipped: " + record["skipped"]] + [""] * (len(COLUMNS) - 3)
    return [figure(record) for _, figure in COLUMNS]


def text(result):
    rows = [[name for name, _ in COLUMNS], *map(row, result["records"])]
    widths = [max(len(line[column]) for line in rows) for column in range(len(COLUMNS))]
    return ["  ".join(word.ljust(width) for word, width in zip(line, widths)).rstrip() for line in rows]


# --- the page


PAGE = """{passed} checks passed, {failed} failed, in one run or several; what is not in the tables has not been run. The simulated
driver, the simulated NCCL and the stand-in for the CUDA runtime are all of this repository. No figure here is one of a GPU.

Each row is a script of `tests/frameworks/systems`, as users of that system write it; nothing in it knows of MetaShard. All its
ranks ran at the same time, each a process with a simulated device of its own, and real PyTorch's `nccl` backend
between them: without the preload, with it, and, where a row has three figures, with it and `METASHARD_PLAN`
(`metashard-plan make`, strategy `fsdp1` or `fsdp2`). One figure stands for all of them. *same*: every parameter and
buffer of every rank holds the same bytes in each, buffers that no checkpoint has among them, and the random
generators are in the same state.

The model has Llama's shape: {model} MiB in bfloat16; the device's granules have {granule_kib} KiB. Figures in MiB. *Shard*: what the largest rank holds in the end.
*Device peak*: all memory of the device, of the worst rank but 0; *of rank 0* that of rank 0, which in some systems
has the whole model and sends it. *Host peak*: the most anonymous memory of a process, looked at 100 times a
second, PyTorch's own {host} included, where malloc keeps no freed memory of 1 MiB or more; pages of mapped files can be dropped and are not in it. Here MetaShard saves
nothing: what a program builds on the host is there, and small things are kept beside it. *Read*: by system calls, what
MetaShard asks of `/proc` among it; what a program reads through a mapping is not. *Bus*: copied to the devices; *wire*:
sent between ranks; these three of all ranks together. *Seconds*: the slowest rank's, from the start of the script until
the device has done all that it queued; *read back*: from then on until everything that the script left has been read, which
brings into memory what is still deferred; the sum of both compares. *A later step*: the median of the optimizer steps but the
first, on the device's clock, where there are some. As many ranks ran at a time as the row has, on {cores} cores that others
used as well, and the simulated device computes on these cores too.

"""

PICTURE = "![Device peak of each system, without and with MetaShard](../pictures/systems.svg)\n\n"

HELD = """
## What the test holds

Values, and the ledger: on no rank, rank 0 among them, more than without, of each quantity of `tests/harness/ledger.py`, which has
the tolerances; and with a plan no more memory or bytes over the bus than with the shim alone. What is known to be more is
there too, with the reason, in {known} rows. Peak at most 1.05 x shard + the largest tensor's shard + {slack:g} MiB,
of all ranks: {all}. Of all ranks but 0, with a plan: {but0}.
The {slack:g} MiB are {shares}.
In rows with buckets of FSDP1 or tensor parallelism it is 64 MiB, if that is more.
The other rows have no such bound; below is why those that are above it are.

## What stays as it is, and why

- Rank 0 of a system that sends the model: what NCCL sends lies whole in memory while it does, a bucket of FSDP1 up to 250 MB,
  and so do the tensors that PyTorch copies it back to.
- FSDP1 into which shards of a state dict are loaded (`SHARDED_STATE_DICT`) gathers every parameter, whole, on every
  rank, to cut its own chunk out of them, and keeps them all until the end (PyTorch,
  `torch/distributed/fsdp/_state_dict_utils.py`): what came from other ranks is in no file and cannot be left out, only be
  moved to the host. `gathered.py` does that and nothing else.
- FSDP1 that receives buckets (`sync_module_states`), with a plan, of a small model: parts that are smaller than a granule
  are not left out.
- accelerate's FSDP1 with RAM-efficient loading: what the other ranks have on the host, never written, is copied to the
  device first, and FSDP1 moves whole units.
- Tensor parallel: by default rank 0 of a group sends the others their part of every tensor (`src_data_rank=0`), although
  all have the same; they have it all, a half of the model on a mesh of 2 by N, until FSDP2 has taken its part of it.
"""


def markdown(head, rows):
    return "\n".join("| " + " | ".join(words) + " |" for words in [head, ["---"] * len(head), *rows]) + "\n"


def listed(result, bound):
    return "; ".join(dict.fromkeys(record["system"] for record in result["records"] if record.get("bound") == bound)) \
        or "none"


def slack_shares(result, ran):
    """How much of the shard the slack of the bound is: where it is much, the bound says little."""
    shards = {}
    for record in ran:
        shards.setdefault(record["world"], []).append(max(rank["shard_bytes"] for rank in record["ranks"]))
    return ", ".join(f"{100 * result['slack_bytes'] / statistics.median(found):.0f} % of the shard with {world} ranks"
                     for world, found in sorted(shards.items()))


def options_of(result):
    """The options that decide on the figures, as they are typed."""
    slack = result["slack_bytes"] / (1 << 20)
    settings = "" if result.get("settings", "patient") == "patient" else f"--settings {result['settings']} "
    worlds = ",".join(map(str, sorted({record["world"] for record in result["records"]})))
    return f"{settings}--ranks {worlds} --scale {result['scale']:g} --slack-mib {slack:g} "


def write_page(path, result, has_picture):
    ran = [record for record in result["records"] if record["skipped"] is None]
    model = max(sum(rank["shard_bytes"] for rank in record["ranks"]) for record in ran)
    size = (" at default settings" if result.get("settings") == "default" else ", a larger model" if result["scale"] >= 1 else "")
    granule = result.get("granule_kib", 2048)
    page = result_page.head(f"Systems{size}, simulated driver and NCCL",
                            f"tests/frameworks/systems/run {options_of(result)}--continue --json FILE --results PAGE",
                            result_page.settings_of(SETTINGS[result.get("settings", "patient")], f"{granule / 1024:g} MiB"),
                            more=[f"PyTorch {result['torch']}"], note=f"the first rows of {result['date']}")
    page += PAGE.format(**{"granule_kib": granule, **result}, model=mib(model), host="350", passed=result["checks"]["passed"],
                        failed=result["checks"]["failed"] or "none")
    page += PICTURE if has_picture else ""
    for world in sorted({record["world"] for record in result["records"]}):
        records = [record for record in result["records"] if record["world"] == world]
        page += f"## {world} ranks\n\n" + markdown([name for name, _ in COLUMNS], map(row, records)) + "\n"
    page += HELD.format(slack=result["slack_bytes"] / (1 << 20), shares=slack_shares(result, ran),
                        known=len(ledger.KNOWN), all=listed(result, "all"),
                        but0=listed(result, "but 0")).lstrip()
    with open(path, "w", encoding="utf-8") as file:
        file.write(page)
