#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_mistakes.py [--write] TABLE JOB KERNELS PRELOAD TOOL...: what is printed for the mistakes of a table. TAP.

A row of the table is a command line behind "$ ", what it prints, and "= STATUS" unless that is 0. `job` is a CUDA program
under the shim (tests/state/job.c). In what is printed, N stands for a process id, HERE for the folder where all is done, VERSION for the version.
--write: writes what is printed now into the table.
"""
import json
import os
import re
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
from tap import check, end, skip  # noqa: E402

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MIB = 1 << 20


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(text if isinstance(text, bytes) else text.encode())
    return path


def safetensors(tensors):
    header = json.dumps({name: {"dtype": "U8", "shape": [count], "data_offsets": [at, at + count]}
                         for name, at, count in tensors}).encode()
    return struct.pack("<Q", 4088) + header.ljust(4088) + bytes(sum(count for _, _, count in tensors))


def plan(**more):
    return json.dumps({"format": "metashard-plan/1", "mesh": {"dp": 2}, "tensors": [
        {"name": "first.weight", "placements": {"dp": {"shard": 0}}}], **more})


def make_place(folder, job, kernels, preload, tools):
    """The files that the commands name; a folder of the programs."""
    data = write(folder + "/model/model.safetensors",
                 safetensors([("first.weight", 0, 8 * MIB), ("second.weight", 8 * MIB, 8 * MIB)]))
    write(folder + "/plan.json", plan())
    write(folder + "/broken.json", '{"format": "metashard-plan/1",\n "mesh": {"dp": 2}\n "tensors": []}\n')
    write(folder + "/negative.json", plan(tensors=[{"name": "*", "placements": {"dp": {"shard": -1}}}]))
    write(folder + "/other.json", plan(tensors=[{"name": "third.weight", "placements": {"dp": {"shard": 0}}}]))
    write(folder + "/rules.txt", "write-only\tfill32\nwrite-mostly\tfill64\n")
    os.mkfifo(folder + "/pipe")
    with open(write(folder + "/long.txt", "run\tfill32\n"), "ab") as file:
        file.truncate(1 << 40)
    write(folder + "/notes.txt", "no checkpoint\n")
    write(folder + "/old.state", b"nonsense")
    write(folder + "/pointer.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 49766\n")
    write(folder + "/model.gguf", b"GGUF\3\0\0\0" + bytes(64))
    for name in ("empty", "hub", "dcp", "gguf"):
        os.makedirs(folder + "/" + name)
    write(folder + "/gguf/model.gguf", b"GGUF\3\0\0\0" + bytes(64))
    write(folder + "/dcp/__0_0.distcp", b"")
    write(folder + "/hub/config.json", '{"architectures": ["LlamaForCausalLM"]}\n')
    write(folder + "/dcp/.metadata", b"")
    os.makedirs(folder + "/state", mode=0o700)
    start = write(folder + "/bin/job", f'#!/bin/sh\nexec env LD_PRELOAD="{preload}" "{job}" "{data}" "{kernels}" >/dev/null\n')
    os.chmod(start, stat.S_IRWXU)
    for tool in tools:
        os.symlink(tool, os.path.join(folder, "bin", os.path.basename(tool)))
    install(folder, preload, tools)
    make_programs(folder)
    time.sleep(0.05)  # a file that was changed just now is not trusted yet


def install(folder, preload, tools):
    """`metashard` as pip would install it, without pip: the package, what it finds beside it, and its list of files."""
    place = os.path.join(folder, "package")
    shutil.copytree(os.path.join(SOURCE, "tools", "python", "metashard"), os.path.join(place, "metashard"), ignore=shutil.ignore_patterns("__pycache__"))
    write(place + "/metashard-9.9.9.dist-info/METADATA", "Metadata-Version: 2.1\nName: metashard\nVersion: 9.9.9\n")
    os.makedirs(place + "/bin")
    for path in (preload.split(":")[-1], *tools):
        os.symlink(os.path.abspath(path), os.path.join(place, "bin", os.path.basename(path)))
    start = write(folder + "/bin/metashard", f'#!/bin/sh\nPYTHONPATH={place} PYTHONDONTWRITEBYTECODE=1 exec {sys.executable} -m metashard "$@"\n')
    os.chmod(start, stat.S_IRWXU)


def make_programs(folder):
    """Programs that a preload does not reach."""
    head = struct.Struct("<4sBBBB8xHHIQQQIHHHHHH")
    for name, bits, machine, interpreter in (("static", 2, os.uname().machine, None), ("small", 1, os.uname().machine, None),
                                             ("musl", 2, os.uname().machine, b"/lib/ld-musl-x86_64.so.1\0"),
                                             ("foreign", 2, "aarch64" if os.uname().machine == "x86_64" else "x86_64", b"/lib/ld.so\0")):
        number = {"x86_64": 62, "aarch64": 183}[machine]
        text = interpreter or b""
        data = head.pack(b"\x7fELF", bits, 1, 1, 0, 2, number, 1, 0x400000, 64, 0, 0, 64, 56, 1, 64, 0, 0) + \
            struct.pack("<IIQQQQQQ", 3 if text else 1, 5, 120, 0, 0, len(text), len(text), 1) + text
        os.chmod(write(f"{folder}/bin/{name}", data), stat.S_IRWXU)
    for name in ("sudo", "docker", "torchrun", "python", "srun", "deepspeed"):
        os.chmod(write(f"{folder}/bin/{name}", "#!/bin/sh\nexit 0\n"), stat.S_IRWXU)
    shutil.copy("/bin/true", folder + "/bin/raised")
    os.chmod(folder + "/bin/raised", 0o4755)


def rows_of(text):
    """(the command, what is expected: all lines up to an empty one, and what else stands before the next command)"""
    for command, lines in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.M):
        expected = re.match(r"(?:.+\n)*", lines)[0]
        yield command, expected, lines[len(expected):]


def run(command, folder, preload):
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith("METASHARD") and name not in ("RANK", "WORLD_SIZE", "LD_PRELOAD")}
    environment.update(PATH=f"{folder}/bin:{os.environ['PATH']}", PRELOAD=preload, HERE=folder, METASHARD_SELFCHECK="off",
                       METASHARD_STATE_DIR=folder + "/state", LC_ALL="C")
    done = subprocess.run(["sh", "-c", command], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          stdin=subprocess.DEVNULL, text=True, timeout=120)
    text = done.stdout.replace(folder, "HERE")
    text = re.sub(r"\bpid \d+", "pid N", text)
    text = re.sub(r"MetaShard \d+\.\d+\.\d+", "MetaShard VERSION", text)
    text = re.sub(r"metashard-\d+\.state", "metashard-N.state", text)
    return text + (f"= {done.returncode}\n" if done.returncode != 0 else "")


def main():
    is_written = sys.argv[1] == "--write"
    table, job, kernels, preload, *tools = sys.argv[1 + is_written:]
    job, kernels, *tools = map(os.path.abspath, (job, kernels, *tools))
    with open(table) as file:
        text = file.read()
    names = {os.path.basename(tool) for tool in tools}
    out = [text[:text.index("$ ")]]
    with tempfile.TemporaryDirectory() as folder:
        make_place(folder, job, kernels, preload, tools)
        for command, expected, rest in rows_of(text):
            missing = set(re.findall(r"\bmetashard-(?:plan|dump|verify)\b", command)) - names
            if "metashard run --plan" in command:
                missing |= {"metashard-plan"} - names
            if missing:
                skip(command.replace("#", ""), f"{missing.pop()} is not built")
                continue
            seen = run(command, folder, preload)
            if ":" in preload and "runtime does not come first" in seen:
                skip(command.replace("#", ""), "the library of the sanitizer would have to stand first in the preload")
                continue
            out += [f"$ {command}\n", seen, rest]
            check(command.replace("#", ""), seen == expected, f"{seen}\nexpected\n{expected}")
    if is_written:
        with open(table, "w") as file:
            file.write("".join(out))
    return 0 if is_written else end()


if __name__ == "__main__":
    sys.exit(main())
