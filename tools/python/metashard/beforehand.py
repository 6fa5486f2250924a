# SPDX-License-Identifier: Apache-2.0
"""What `metashard run` says before it starts the command, because a job that ends with it would have run in vain."""
from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
from typing import Iterator, Mapping, NamedTuple, Optional

from . import installed, programs

LONGEST_SOCKET = 107  # bytes, of sun_path
LAUNCHERS = {"torchrun": ("--nproc-per-node", "--nproc_per_node"), "accelerate": ("--num-processes", "--num_processes"),
             "mpirun": ("-n", "-np"), "mpiexec": ("-n", "-np"), "srun": ("-n", "--ntasks"),
             "deepspeed": ("--num_gpus", "--num-gpus")}
NODES = ("--nnodes", "--num_nodes", "--num-nodes")
HOLDER = re.compile("%[a-z]")
OF_RANK = re.compile("%[pr]")


class Plan(NamedTuple):
    path: str
    world: int


def why_not_writable(folder: str) -> Optional[str]:
    """Why no file can be made in the folder."""
    if not os.path.exists(folder):
        return "no such folder"
    if not os.path.isdir(folder):
        return "no folder"
    return None if os.access(folder, os.W_OK | os.X_OK) else "not writable"


def state_folder(environment: Mapping[str, str]) -> Iterator[str]:
    folder = environment.get("METASHARD_STATE_DIR", "auto")
    if folder in ("", "auto"):
        return
    # MetaShard makes the last folder of the path.
    place = folder if os.path.exists(folder) else os.path.dirname(os.path.abspath(folder))
    why = why_not_writable(place)
    if why:
        yield f"METASHARD_STATE_DIR={folder}: {place} is {why}: no state page will be kept, and metashard show will have nothing"


def files(environment: Mapping[str, str]) -> Iterator[str]:
    """Files that MetaShard would make."""
    named = {"METASHARD_LOG": environment.get("METASHARD_LOG", "").partition(":")[2]}
    named.update((name, environment.get(name, "")) for name in ("METASHARD_CONTROL", "METASHARD_DUMP"))
    for name, path in named.items():
        folder = os.path.dirname(os.path.abspath(path))
        why = why_not_writable(folder) if path and not HOLDER.search(folder) else None
        if why:
            yield f"{name}: {path} cannot be made: {folder} is {why}"
        elif name == "METASHARD_CONTROL" and len(os.fsencode(path)) > LONGEST_SOCKET:
            yield f"{name}: {path} is too long for a socket: at most {LONGEST_SOCKET} bytes"


def shared_names(command: list[str], environment: Mapping[str, str]) -> Iterator[str]:
    """Files of which each rank needs its own."""
    ranks = world_of(command, environment) or 1
    for name in ("METASHARD_CONTROL", "METASHARD_DUMP"):
        path = environment.get(name, "")
        if path and ranks > 1 and not OF_RANK.search(path):
            yield f"{name}: {path} is one name for {ranks} ranks: put %p, the process id, or %r, the rank, into the name"


def words_of_launcher(command: list[str]) -> tuple[str, list[str]]:
    """The launcher's name, and its options: what stands behind a script is the script's."""
    name, words = os.path.basename(command[0]), command[1:]
    if name.startswith("python") and words[:2] in (["-m", "torch.distributed.run"], ["-m", "torch.distributed.launch"]):
        name, words = "torchrun", words[2:]
    return name, list(itertools.takewhile(lambda word: not word.endswith(".py"), words))


def number_behind(options: tuple[str, ...], words: list[str]) -> Optional[int]:
    """The number that an option gives."""
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in options:
            value = value if equals else (words[at + 1] if at + 1 < len(words) else "")
            return int(value) if value.isdigit() else None
    return None


def world_of(command: list[str], environment: Mapping[str, str]) -> Optional[int]:
    """How many ranks the command starts, as far as that can be seen."""
    name, words = words_of_launcher(command)
    if name in LAUNCHERS:
        ranks, nodes = number_behind(LAUNCHERS[name], words), number_behind(NODES, [*words, "--nnodes=1"])
        return None if ranks is None or nodes is None else ranks * nodes
    world = environment.get("WORLD_SIZE", "")
    return int(world) if world.isdigit() and "RANK" in environment else None


def ask_plan(*words: str) -> tuple[int, str, str]:
    """The check of a plan by metashard-plan: its status, output and errors."""
    done = subprocess.run([installed.find("metashard-plan"), "check", *words, "--json"], capture_output=True, text=True, check=False,
                          env={name: value for name, value in os.environ.items() if name != "LD_PRELOAD"})
    return done.returncode, done.stdout, done.stderr


def checkpoints_of(command: list[str]) -> Iterator[str]:
    """Checkpoints that the command names."""
    for word in command[1:]:
        path = word.rpartition("=")[2]
        if path.endswith(".safetensors") and os.path.isfile(path):
            yield path
        elif os.path.isdir(path) and any(name.endswith(".safetensors") for name in os.listdir(path)):
            yield path


def is_of_other_model(plan: str, checkpoint: str) -> bool:
    _, out, _ = ask_plan(plan, checkpoint)
    try:
        found = json.loads(out)
    except ValueError:  # no checkpoint, or one that cannot be read: the program says more of it
        return False
    return found["tensors"] > 0 and len(found["not_placed"]) == found["tensors"]


def plan(command: list[str], environment: Mapping[str, str]) -> Iterator[str]:
    path = environment.get("METASHARD_PLAN", "")
    if not path or HOLDER.search(path):
        return
    if not os.path.exists(path):
        yield f"METASHARD_PLAN: {path}: no such file yet: the plan counts from when the file is there"
        return
    status, out, errors = ask_plan(path)
    if status != 0:
        yield f"METASHARD_PLAN: {errors.strip()}: the plan will not be followed"
        return
    ranks, world = json.loads(out)["world_size"], world_of(command, environment)
    if world not in (None, ranks):
        yield f"METASHARD_PLAN: {path} is for {ranks} ranks, and the command starts {world}: the plan will not be followed"
    for checkpoint in checkpoints_of(command):
        if is_of_other_model(path, checkpoint):
            yield f"METASHARD_PLAN: {path} is for another model: no tensor of {checkpoint} is in the plan"


def cleared(command: list[str]) -> Iterator[str]:
    """Options by which the command's first program starts the next one without the variables."""
    name, options = os.path.basename(command[0]), list(itertools.takewhile(lambda word: word.startswith("-"), command[1:]))
    if name == "env" and {"-", "-i", "--ignore-environment"} & set(options):
        yield "env -i removes LD_PRELOAD: put env -i before metashard; nothing will be deferred"
    if name in ("srun", "salloc") and "--export=NONE" in options:
        yield f"{name} --export=NONE removes LD_PRELOAD: use --export=ALL; nothing will be deferred"


def lines(command: list[str], path: str, environment: Mapping[str, str]) -> Iterator[str]:
    """path: the program of the command."""
    yield from state_folder(environment)
    yield from files(environment)
    yield from shared_names(command, environment)
    try:
        yield from plan(command, environment)
    except installed.Fault:  # built without metashard-plan
        pass
    if any("LD_PRELOAD" in word for word in command):  # whoever names the variable hands it on
        return
    yield from cleared(command)
    why = programs.why_unreached(path)
    if why:
        yield f"{why}; nothing will be deferred"
