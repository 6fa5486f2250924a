# SPDX-License-Identifier: Apache-2.0
"""The page of a run of the flows (run --results PAGE)."""
import os
import sys

from figures import MIB, SETTINGS

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "harness"))
import result_page  # noqa: E402

# The page's words for a flow.
WORDS = {
    "from_scratch": "from scratch on the device, then `fully_shard`", "safetensors_load:mapping": "safetensors, from the mapping",
    "safetensors_load:pinned": "safetensors, staged through pinned memory",
    "torch_load:copy": "`torch.load(mmap=True)`, copied into the model",
    "torch_load:assign": "`torch.load(mmap=True)`, to the device", "cpu_model": "model on the host, then `fully_shard`",
    "tensor_parallel:wide": "tensor parallel, uneven, loaded by DCP",
    "tensor_parallel:small": "the same, PyTorch's 5-10-15-1 model",
    "warm_up": "one-piece warm-up as transformers does, safetensors", "details:tied": "tied weights",
    "details:buffers": "buffers, persistent and not", "details:padding": "`padding_idx`",
    "details:again": "initialised several times, in place", "details:cast": "drawn as float32, kept as bfloat16",
    "details:copied": "a copy of another part", "details:trunc_normal": "`trunc_normal_`, bounds of two deviations",
    "details:trunc_normal_far": "eight layers, `trunc_normal_` with its own bounds",
    "single:tensors": "one device, no sharding", "single:prefetched": "one device, prefetched",
    "single:mapped": "one device, from a mapped file", "single:parted": "one device, parts of a mapped file",
}

PAGE = """{passed} checks passed, {failed} failed, {skipped} skipped. The simulated driver and the stand-in for the CUDA runtime are both of
this repository. No figure here is one of a GPU.

Each program of `tests/frameworks/flows` ran without and with the preload, each rank as a process of its own, one after the
other, in a process group that does nothing (`fake`), which sharding does not notice. The model has Llama's shape in
bfloat16; `details` and `single` have small models of their own. Figures in MiB are of the worst rank that ran; *peak* is all
memory of the device, *sent* what was copied to it, *read* what the shim read of files. In every row, every parameter and
buffer holds the same bytes without and with.

A run in which a stream was busy for longer than METASHARD_IDLE_MS, as its dump says, was repeated, up to four times: {repeated} in all.

| program | ranks | shard | peak without | peak with | sent without | sent with | read |
| --- | --- | --- | --- | --- | --- | --- | --- |
{table}
What a program sends that copies nothing is the self-check, which runs once for each driver and build.

Bounds that the run holds for 8 ranks: peak at most 1.05 x shard + the largest tensor's shard + {slack:g} MiB, and bytes sent at
most 1.02 x shard, of the programs that load; and nowhere more memory or bytes than without the preload.

Skipped:

{skips}
## What stays as it is, and why

- A model on the host has its bytes in no file. They are kept as snapshots up to `METASHARD_SNAPSHOT_BYTES`
  (256 MiB); the rest is sent.
- `trunc_normal_` of PyTorch 2.12 and newer looks at what it has drawn, on the host. Where something lies out of bounds it draws
  again and composes, so the tensor must be there. With the bounds that it has of its own, nothing does for the deviations that
  models use: it is drawn once, restored for the look, and given back.
- A cast restores what it reads, whole, for the moment of the replay.
- cuSOLVER and cuBLAS contain the real CUDA runtime, which does not start on a simulated driver.
"""


def mib(size):
    return "-" if size is None else f"{size / MIB:.1f}"


def worst(records, way, figure):
    found = [record[way][figure] for record in records if record[way] and record[way][figure] is not None]
    return mib(max(found, default=None))


def row(flow, world, records):
    return [WORDS.get(flow, flow), str(world), mib(max(record["ideal_bytes"] for record in records)),
            worst(records, "without", "peak_bytes"), worst(records, "with", "peak_bytes"), worst(records, "without", "h2d_bytes"),
            worst(records, "with", "h2d_bytes"), worst(records, "with", "file_bytes")]


def table(records):
    cases = {}
    for record in records:
        if record["equal"]:
            cases.setdefault((record["flow"], record["world"]), []).append(record)
    return "".join("| " + " | ".join(row(flow, world, ranks)) + " |\n" for (flow, world), ranks in cases.items())


def write(options, checks):
    report = checks.report
    ranks = "all" if options.ranks is None else ",".join(map(str, sorted(options.ranks)))
    gather = " --gather" if options.gather else ""
    command = (f"tests/frameworks/flows/run --world {options.world} --ranks {ranks}{gather} --settings {options.settings} "
               "--results PAGE")
    with open(options.results, "w", encoding="utf-8") as file:
        file.write(result_page.head("PyTorch programs, simulated driver", command,
                                    result_page.settings_of(SETTINGS[options.settings]), options.python))
        file.write(PAGE.format(
            repeated=checks.repeated, passed=report.number - report.failed - len(report.skipped), failed=report.failed or "none",
            skipped=len(report.skipped) or "none", table=table(checks.records), slack=options.slack_mib,
            skips="".join(f"- {name}: {reason}\n" for name, reason in report.skipped)))
