# SPDX-License-Identifier: Apache-2.0
"""`metashard dry-run`: runs your own job with real PyTorch on a simulated driver that computes nothing, and says whether its
memory fits."""
from __future__ import annotations

import argparse
import ctypes
import glob
import json
import os
import shutil
import signal
import sys
import tempfile

from . import dry_run_answer, dry_run_gpus, dry_run_page, dry_run_simulator, dry_run_store, installed, run
from .options import Parser

USAGE = ("metashard dry-run [--gpu NAME|MIB] [--world N] [--rank R] [--ranks-here K] [--gpus-per-node N]\n"
         "                         [--steps N] [--compute] [--json] [--quiet] [--with-metashard] [--with-expandable-segments]\n"
         "                         [--html FILE] [--snapshot FILE] -- python|torchrun|accelerate launch TRAIN.PY [ARGUMENT...]")
EPILOGUE = """The exit status is 0 if the job fits, 1 if it does not, and 2 if there is no answer.
GPUs: """ + ", ".join(dry_run_gpus.GPUS) + ". docs/dry-run.md says what is simulated, and how accurate it is."
FITS, DOES_NOT_FIT, CANNOT_SAY = 0, 1, 2
GPUS_PER_NODE = 8
OTHER_LAUNCHERS = ("deepspeed", "mpirun", "mpiexec", "srun", "sbatch", "horovodrun", "ray", "colossalai", "composer")
STEPS = 3
MOST_GPUS = 16  # of a node
NOTHING = "nothing is computed, and every number that the program prints is without meaning"
LITTLE = "kernels without a version for the CPU compute nothing, and numbers that the program prints may be without meaning"
AS_IT_IS, WITH_METASHARD, EXPANDABLE = "as it is", dry_run_answer.WITH_METASHARD, "expandable segments"
JSON_NAMES = {AS_IT_IS: "without", WITH_METASHARD: "with", EXPANDABLE: "expandable"}
PR_SET_CHILD_SUBREAPER = 36
MOVED_MIB = 1  # by an operation of NCCL between processes; of more nobody looks at what is in it


def number(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"expected a number, found {text}")
    return int(text)


def add_job(parser: argparse.ArgumentParser) -> None:
    """The machine, and the rank that is run on it."""
    parser.add_argument("--gpu", metavar="NAME|MIB", default=dry_run_gpus.DEFAULT,
                        help=f"the GPU of each rank ({dry_run_gpus.DEFAULT}), or its memory in MiB")
    parser.add_argument("--world", metavar="N", type=number, help="number of ranks, instead of the command's")
    parser.add_argument("--rank", metavar="R", type=number, default=0, help="the rank that runs (0); the others are assumed to behave like it")
    parser.add_argument("--steps", metavar="N", type=number, default=STEPS,
                        help=f"optimizer steps after which the run ends ({STEPS}); 0: the program ends by itself")
    parser.add_argument("--gpus-per-node", metavar="N", type=number, default=GPUS_PER_NODE, help=f"GPUs of a node, at most {MOST_GPUS} ({GPUS_PER_NODE})")


def check_job(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if options.world == 0:
        parser.error("--world: expected a number of ranks, at least 1")
    if options.world is not None and options.rank >= options.world:
        parser.error(f"there is no rank {options.rank} of {options.world}")
    if not 1 <= options.gpus_per_node <= MOST_GPUS:
        parser.error(f"--gpus-per-node is from 1 to {MOST_GPUS}")


def make_parser() -> Parser:
    parser = Parser(prog="metashard dry-run", usage=USAGE, description=__doc__, epilog=EPILOGUE, allow_abbrev=False)
    add_job(parser)
    parser.add_argument("--ranks-here", metavar="K", type=number, default=0,
                        help="run all K ranks of a job as processes of this machine, as one node")
    parser.add_argument("--compute", action="store_true", help="run the kernels that have versions for the CPU")
    parser.add_json()
    parser.add_quiet()
    parser.add_argument("--with-metashard", action="store_true", help="run a second time under MetaShard, and show both")
    parser.add_argument("--with-expandable-segments", action="store_true", help="run once more with PyTorch's expandable segments, and show both")
    parser.add_argument("--html", metavar="FILE", help="write the answer as a page, with the memory curve")
    parser.add_argument("--snapshot", metavar="FILE", help="write PyTorch's memory snapshot, for pytorch.org/memory_viz")
    parser.add_argument("command", metavar="COMMAND", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.command[:1] == ["--"]:
        del options.command[0]
    if not options.command:
        parser.error("expected a command after --")
    check_job(parser, options)
    for path in (options.html, options.snapshot):
        if path is not None and not os.path.isdir(os.path.dirname(os.path.abspath(path))):
            parser.error(f"{path}: there is no such folder")
    if options.ranks_here:
        check_ranks_here(parser, options)
    return options


def check_ranks_here(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Sets the number of GPUs, which is that of the ranks."""
    if options.world is not None or options.rank != 0:
        parser.error("--ranks-here K is a job of K ranks: --world and --rank are of a job of which one rank is run")
    if options.ranks_here > MOST_GPUS:
        parser.error(f"--ranks-here is at most {MOST_GPUS}")
    if not is_launcher(options.command):
        parser.error("--ranks-here needs torchrun or accelerate launch, which start the ranks")
    options.gpus_per_node = options.ranks_here


def is_launcher(command: list[str]) -> bool:
    """Will it start ranks by itself?"""
    return os.path.basename(command[0]) in ("torchrun", "accelerate") or \
        ("-m" in command and command[command.index("-m") + 1:][:1] in (["torch.distributed.run"], ["torch.distributed.launch"],
                                                                       ["accelerate.commands.launch"]))


def check_command(command: list[str]) -> None:
    name = os.path.basename(command[0])
    if name in OTHER_LAUNCHERS:
        raise installed.Fault(f"cannot say: {name} starts ranks by itself, which is not understood: name the program as torchrun "
                              "or accelerate launch start it, or python with --world")
    if shutil.which(command[0]) is None:
        raise installed.Fault(f"cannot say: {command[0]}: {run.why_not(command[0])[1]}")
    script = next((word for word in command[1:] if word.endswith(".py")), None)
    if name.startswith("python") and script is not None and command[1] == script and not os.path.exists(script):
        raise installed.Fault(f"cannot say: {script}: no such program")


def settings_of(options: argparse.Namespace, gpu: dry_run_gpus.Gpu, folder: str) -> dict[str, str]:
    """Variables for the simulated machine, and for the modules that watch the program."""
    many = is_launcher(options.command) or (options.world or 1) > 1
    found = {"SIMCUDA_DRY": "1", "SIMCUDA_EAGER": "1", "SIMCUDA_BEHIND": "1", "SIMCUDA_NAME": gpu.name,
             "SIMCUDA_MEMORY_MIB": str(gpu.mebibytes),
             "SIMCUDA_CAPABILITY": str(gpu.capability), "SIMCUDA_MULTIPROCESSORS": str(gpu.multiprocessors),
             "SIMCUDA_CONTEXT_MIB": str(gpu.context), "SIMCUDA_DEVICES": str(options.gpus_per_node if many else 1),
             "SIMCUDA_STATS": os.path.join(folder, "driver-%p.json"), "SIMNCCL_MIRROR_MIB": str(dry_run_gpus.NCCL_MIB),
             "TORCH_NCCL_ENABLE_MONITORING": "0",
             "DRY_RUN_FOLDER": folder, "DRY_RUN_RANK": str(options.rank), "DRY_RUN_STEPS": str(options.steps)}
    found.update({"DRY_RUN_RANKS_HERE": str(options.ranks_here), "SIMNCCL_MOVED_MIB": str(MOVED_MIB)} if options.ranks_here
                 else {"SIMNCCL_MIRROR": "1", "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": "1"})
    if options.world is not None:
        found["DRY_RUN_WORLD"] = str(options.world)
    if options.snapshot is not None:
        found["DRY_RUN_SNAPSHOT"] = os.path.abspath(options.snapshot)
    return found


def world_of(options: argparse.Namespace) -> dict[str, str]:
    """Variables for a plain `python train.py`, which no launcher tells its rank."""
    if options.world is None or is_launcher(options.command):
        return {}
    local = min(options.world, options.gpus_per_node)
    return {"RANK": str(options.rank), "WORLD_SIZE": str(options.world), "LOCAL_RANK": str(options.rank % local),
            "LOCAL_WORLD_SIZE": str(local), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def allocator_of(environment: dict[str, str]) -> dict[str, str]:
    """The user's settings of PyTorch's allocator, with expandable segments."""
    name = "PYTORCH_ALLOC_CONF" if "PYTORCH_ALLOC_CONF" in environment else "PYTORCH_CUDA_ALLOC_CONF"
    kept = [part for part in environment.get(name, "").split(",") if part and not part.strip().startswith("expandable_segments")]
    return {name: ",".join([*kept, "expandable_segments:True"])}


def environment_of(options: argparse.Namespace, folder: str, ports: list[int], way: str) -> dict[str, str]:
    simulator = dry_run_simulator.find(options.command[0])
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SIMCUDA_", "SIMNCCL_", "DRY_RUN_"))}
    inside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "dry_run_inside")
    paths = {"LD_LIBRARY_PATH": ":".join(simulator.folders), "PYTHONPATH": inside}
    before = {name: ":".join(filter(None, [value, kept.get(name, "")])) for name, value in paths.items()}
    # The check of the driver sees where large sets are left out.
    unchecked = {"METASHARD_SELFCHECK": "off"} if way == WITH_METASHARD and not options.compute else {}
    computing = dry_run_simulator.host_versions(simulator.torch_version) if options.compute else {}
    shim = [os.environ.get("DRY_RUN_LIBRARY") or installed.library()] if way == WITH_METASHARD else []
    preloads = shim + simulator.preloads + [kept.get("LD_PRELOAD", "")]
    return {**kept, **before, **settings_of(options, dry_run_gpus.find(options.gpu), folder), **world_of(options),
            "DRY_RUN_STORE": str(ports[0]), "DRY_RUN_SECOND_STORE": str(ports[1]), "SIMNCCL_VERSION": simulator.nccl_version,
            "LD_PRELOAD": ":".join(filter(None, preloads)),
            "PYTHONDONTWRITEBYTECODE": kept.get("PYTHONDONTWRITEBYTECODE", "1"), **unchecked, **computing,
            **(allocator_of(kept) if way == EXPANDABLE else {})}


def read_folder(folder: str) -> list[dict]:
    """The results of each process with a device, with the counts of its driver."""
    found = []
    for path in glob.glob(os.path.join(glob.escape(folder), "rank-*.json")):
        with open(path, encoding="utf-8") as file:
            result = json.load(file)
        counted = path.replace("rank-", "driver-")
        if os.path.exists(counted):
            with open(counted, encoding="utf-8") as file:
                result["driver"] = json.load(file)
        found.append(result)
    return sorted(found, key=lambda result: -result["peak_reserved"])


def failure_of(folder: str) -> dict:
    """The error of the first process that failed; {} if no process left one."""
    paths = sorted(glob.glob(os.path.join(glob.escape(folder), "failure-*.json")), key=os.path.getmtime)
    if not paths:
        return {}
    with open(paths[0], encoding="utf-8") as file:
        return json.load(file)


def reason_of(status: int, results: list[dict], failure: str | None) -> str | None:
    """Why there is no answer."""
    if os.WIFSIGNALED(status):
        hints = {signal.SIGKILL: ": the machine's own memory may be too small for what the program builds on the CPU",
                 signal.SIGINT: ": --steps is the number of optimizer steps after which a run ends by itself"}
        return f"the command was ended by {signal.Signals(os.WTERMSIG(status)).name}" + hints.get(os.WTERMSIG(status), "")
    code = os.waitstatus_to_exitcode(status)
    if code in (run.NOT_FOUND, run.NOT_STARTED):
        return "the command could not be started"
    if code != 0:
        return failure or f"the command failed with exit status {code}; what it said is above"
    return None if results else "the command did not use a GPU with PyTorch"


def own_children() -> list[int]:
    found = []
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            with open(path, encoding="ascii", errors="replace") as file:
                text = file.read()
        except OSError:  # it has ended
            continue
        if int(text.rpartition(")")[2].split()[1]) == os.getpid():
            found.append(int(text.split()[0]))
    return found


def end_children() -> None:
    """Ranks that have sessions of their own are this process's children when the launcher that started them has ended, as by Ctrl-C."""
    for left in iter(own_children, []):
        for process in left:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)


def adopt() -> None:
    """Makes this process the parent of what its children leave."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def run_once(options: argparse.Namespace, way: str) -> dict:
    adopt()
    stores = [dry_run_store.start() for _ in range(2)]  # the second for a rank that is asked (metashard_dry_peers.py)
    with tempfile.TemporaryDirectory(prefix="metashard-dry-") as folder:
        status = run.run_command(options.command, environment_of(options, folder, [port for _, port in stores], way), has_stdout=not options.json)
        results, failure = read_folder(folder), failure_of(folder)
    for store, _ in stores:
        dry_run_store.stop(store)
    end_children()
    answer = {"gpu": options.gpu, "processes": len(results), **(results[0] if results else {})}
    if options.ranks_here:
        answer["ranks"] = sorted(({name: result[name] for name in ("rank", "peak_reserved", "peak_allocated")} for result in results),
                                 key=lambda row: int(row["rank"]))
    answer["shortages"] = [shortage for result in results for shortage in result["shortages"]]
    reason = reason_of(status, results, failure.get("reason"))
    reads = sum(result.get("driver", {}).get("unknown_reads", 0) for result in results)
    if reason is not None and reason.startswith(dry_run_answer.FAILED) and reads > 0:
        at = f", the last at {failure['last_read']}" if failure.get("last_read") else ""
        reason += f", after {reads} reads from the device{at}, where nothing was computed: that may be why"
    shortages = answer.get("shortages", [])
    answer["status"] = CANNOT_SAY if reason and not shortages else DOES_NOT_FIT if shortages and reason else FITS
    answer["reason"] = reason
    return answer


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    gpu = dry_run_gpus.find(options.gpu)
    check_command(options.command)
    if not options.quiet:
        run.say(f"dry run on {gpu.name} ({gpu.mebibytes / 1024:.2f} GiB), simulated: {NOTHING if not options.compute else LITTLE}")
    ways = [AS_IT_IS] + [WITH_METASHARD] * options.with_metashard + [EXPANDABLE] * options.with_expandable_segments
    answers = {}
    for way in ways:
        if not answers or answers[AS_IT_IS]["status"] != CANNOT_SAY:
            answers[way] = run_once(options, way)
    statuses = [answer["status"] for answer in answers.values()]
    status = CANNOT_SAY if CANNOT_SAY in statuses else statuses[0]
    if options.html is not None:
        with open(options.html, "w", encoding="utf-8") as file:
            file.write(dry_run_page.text(answers))
    if options.json:
        print(json.dumps(answers[AS_IT_IS] if len(answers) == 1 else {JSON_NAMES[way]: answer for way, answer in answers.items()},
                         indent=2))
    elif not options.quiet or status == CANNOT_SAY:
        print(dry_run_answer.text(answers), file=sys.stderr)
    return status
