# SPDX-License-Identifier: Apache-2.0
"""The parts of tests/gpu/run, in their order: what each runs, and what it comes to in a line."""
import os
import sys
from collections import namedtuple

import build_all
import check_probe
import compile_torch
import conformance
import large
import nccl_alias
import suspend
from run_tools import SOURCE

HERE = os.path.join(SOURCE, "tests", "gpu")
SYSTEMS = os.path.join(SOURCE, "tests", "frameworks", "systems", "run")
# The flows and systems that say most in little time. One rank: NCCL is for the
# second call.
FIRST_FLOWS = ["from_scratch", "safetensors_load:mapping", "torch_load:assign", "warm_up"]
FIRST_SYSTEMS = ["plain-scratch", "plain-load", "plain-fsdp1-load", "dcp-real", "plain-pretrained", "lora",
                 "training-plain", "training-graph"]

# group: which call runs it. needs: what has to be built. torch: needs PyTorch on the device.
# seconds: the most it may take. own: it chooses between the simulated driver and the real one
# itself. details: lines that someone should look at.
Part = namedtuple("Part", "name group seconds needs torch command in_short details own",
                  defaults=(lambda result: [], False))


def script(name, *arguments):
    return [os.path.join(HERE, name), *arguments]


# --- what is run: (run, file of the result, seconds) -> command


def probe_torch_command(run, out, seconds):
    return [run.python, *script("probe_torch.py"), "--recorder", run.built.path(build_all.RECORDER), "--out", out]


def under_shim_command(name, *more, small=(), log=None):
    """small: instead, on a simulated device. log: the name of a folder for what it leaves beside its result."""
    return lambda run, out, seconds: [run.python, *script(name), "--shim", run.built.path(build_all.SHIM), "--out", out,
                                      "--seconds", str(seconds), *(["--keep", run.log_path(log)] if log else []), *more,
                                      *(small if run.simulated else [])]


def systems_command(ranks, *rows):
    def command(run, out, seconds):
        how = ["--scale", "0.2", "--slack-mib", "16"] if run.simulated else ["--gpu", "--scale", "2"]
        return [sys.executable, SYSTEMS, "--build", run.built.folder, "--python", run.python, "--ranks", ranks,
                "--json", out, "--seconds", str(seconds), "--timeout", str(max(20, seconds / 3)), *how,
                *(word for row in rows for word in ("--only", row))]
    return command


def build_command(name, *more, simulated=("--simulated",)):
    """Scripts that choose between the real libraries and the simulated ones themselves."""
    return lambda run, out, seconds: [sys.executable, *script(name), *more, "--build", run.built.folder, "--out", out,
                                      "--seconds", str(seconds), *(simulated if run.simulated else [])]


def nccl_command(name, *more):
    """Those that look for the NCCL of PyTorch."""
    return lambda run, out, seconds: [*build_command(name, *more)(run, out, seconds), "--python", run.python]


# --- in a line, and in more of them


def probe_torch_in_short(result):
    replays = [one for one in result.get("replay", {}).values() if isinstance(one, dict)]
    errors = sum(1 for _ in check_probe.errors_in(result))
    return f"{len(replays)} kernels replayed, {errors} measurements failed"


def flow_torch_in_short(result):
    ended = [f"{name} the shim: {result.get(name, {'error': 'not run'})['error']}" for name in ("without", "with")
             if "hashes" not in result.get(name, {})]
    if ended:
        return "; ".join(ended)
    equal = "all values the same" if result["values_equal"] else f"values differ: {', '.join(result['different'])}"
    shim = result["with"].get("shim", {})
    checks = [f"self-check {check['state']}" + "".join(f", not {fact}" for fact in check["unmet"])
              for check in shim.get("self_checks", [])]
    verified = f"{shim['verify_ranges']} ranges verified, {shim['verify_differing_ranges']} differ" \
        if shim.get("verify_ranges") else None
    return "; ".join(filter(None, [f"{equal}, {mib(shim.get('backed_bytes_peak'))} MiB at most behind deferred allocations",
                                   verified, *checks]))


def step_time_in_short(result):
    step, start = result["summary"]["step_ms"], result["summary"]["start_seconds"]
    return f"step {step['without']} ms, with the shim {step['with']} ({step['ratio']}); " \
           f"start {start['without']} s, {start['with']}"


def systems_in_short(result):
    skipped = sum(record["skipped"] is not None for record in result["records"])
    return f"{len(result['records'])} rows, {skipped} skipped; " \
           f"{result['checks']['passed']} checks passed, {result['checks']['failed']} failed"


def systems_details(result):
    return [name for record in result["records"] for name, good in record.get("checks", {}).items() if not good]


def load_time_in_short(result):
    cases = [f"{name}: {case['ready_seconds']['without']} s, {case['ready_seconds']['with']}"
             for name, case in result["summary"].items()]
    return f"{mib(result['bytes'])} MiB; " + "; ".join(cases)


def flows_details(result):
    return [f"{flow['flow']}: {failed}" for flow in result["flows"] if flow["result"] == "failed"
            for failed in flow["failed"] or [flow["error"]]]


def mib(value):
    return "?" if value is None else value >> 20


# --- the table

SHIM = [build_all.SHIM]
CONFORMANCE_NEEDS = [build_all.SIMULATOR, build_all.TEST_KERNELS, *build_all.CONFORMANCE]
NCCL_NEEDS = [build_all.SHIM, build_all.SIMULATOR, build_all.PROBE, *build_all.NCCL_TARGETS]
SMALL_FLOW = ["--rows", "1024", "--device", "simulated"]
SMALL_LOAD = ["--bytes", str(64 << 20), "--rounds", "1"]
SMALL_SUSPEND = ["--bytes", str(64 << 20)]
SMALL_STEPS = ["--device", "cpu", "--rounds", "1", "--steps", "20", "--layers", "1", "--width", "128", "--batch", "2",
               "--length", "64"]


def flows(name, group, seconds, *wanted):
    more = ["--flows", *wanted] if wanted else []
    command = under_shim_command("run_flows.py", *more, small=["--scale", "0.1", "--ranks", "5"])
    return Part(name, group, seconds, SHIM, True, command, conformance.counts_in_short, flows_details)


def probe(group, call, seconds):
    return Part(f"probe-{group}", call, seconds, [build_all.PROBE], False, build_command("probe.py", "--group", group),
                check_probe.in_short, check_probe.check)


def drivers_compared(name, group, faults):
    command = build_command("conformance.py", "--faults", faults, simulated=("--simulated", "SIMCUDA_DEVICES=1"))
    return Part(name, group, 90, CONFORMANCE_NEEDS, False, command, conformance.counts_in_short, conformance.details, True)


def flow_torch(name, group, *more):
    command = under_shim_command("flow_torch.py", *more, small=SMALL_FLOW, log=name)
    return Part(name, group, 110, SHIM, True, command, flow_torch_in_short)


PARTS = [
    probe("first", "first", 60),
    flow_torch("flow-torch", "first"),
    Part("load-time", "first", 100, SHIM, True, under_shim_command("load_time.py", small=SMALL_LOAD),
         load_time_in_short),
    flows("flows-first", "first", 110, *FIRST_FLOWS),
    Part("step-time", "first", 70, SHIM, True, under_shim_command("step_time.py", small=SMALL_STEPS),
         step_time_in_short),
    probe("rest", "first", 120),
    Part("probe-torch", "first", 90, [build_all.RECORDER, build_all.PROBE], True, probe_torch_command, probe_torch_in_short),
    Part("systems-first", "first", 130, SHIM, True, systems_command("1", *FIRST_SYSTEMS), systems_in_short,
         systems_details),
    flow_torch("flow-verify", "second", "--verify"),
    flow_torch("flow-expandable", "second", "--allocator", "expandable_segments:True"),
    flow_torch("flow-async", "second", "--allocator", "backend:cudaMallocAsync"),
    Part("compile-torch", "second", 150, SHIM, True, under_shim_command("compile_torch.py", small=["--device", "cpu"]),
         compile_torch.in_short, compile_torch.problems),
    drivers_compared("conformance", "second", "without"),
    Part("nccl-alias", "second", 150, NCCL_NEEDS, False, nccl_command("nccl_alias.py"), nccl_alias.in_short,
         nccl_alias.problems, True),
    Part("nccl-alone", "second", 100, NCCL_NEEDS, False, nccl_command("nccl_conformance.py", "--ranks", "1"),
         conformance.counts_in_short, conformance.details, True),
    Part("nccl-ranks", "second", 150, NCCL_NEEDS, False, nccl_command("nccl_conformance.py", "--ranks", "4"),
         conformance.counts_in_short, conformance.details, True),
    flows("flows", "more", 240),
    Part("suspend", "more", 120, SHIM, True, under_shim_command("suspend.py", small=SMALL_SUSPEND), suspend.in_short),
    Part("large", "more", 240, SHIM, True, under_shim_command("large.py", small=["--tiny"]), large.in_short, large.problems),
    Part("systems", "more", 280, SHIM, True, systems_command("1,2"), systems_in_short, systems_details),
    # Last, and only when they are asked for: what makes the device fault on purpose.
    drivers_compared("conformance-faults", "faults", "only"),
    probe("faults", "faults", 150),
]
# Names for several parts: those of a call, and those about NCCL.
GROUPS = {group: [part.name for part in PARTS if part.group == group]
          for group in ("first", "second", "more", "faults")}
GROUPS["nccl"] = ["nccl-alias", "nccl-alone", "nccl-ranks"]
