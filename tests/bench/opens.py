#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""opens.py CLIENT DRIVER PRELOAD [--check]: what a rank asks the file system for, by tensors, files and ranks.

The main job (tests/demo/client.c) over sparse checkpoints, under strace: what the shim adds to the opens, look-ups (O_PATH),
questions and reads of the checkpoint's files, and of what the kernel says of the process (maps, pagemap). Questions about
mappings are two for each copied tensor, and one for each file. Others are of files: their attributes, leases, cached pages; the lease thread asks
some, 20 times a second. --check: the first case alone, compared with LIMITS. Without strace the exit status is 77.
"""
import collections
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROWS, ROW_BYTES = 64, 4096
CASES = [(100, 4, 8), (1000, 4, 8), (1000, 16, 8), (1000, 4, 64)]  # tensors, files, ranks
# Two of the kernel's files are opened, once each.
LIMITS = {"opens": lambda tensors, files: files, "look-ups": lambda tensors, files: files,
          "kernel's": lambda tensors, files: 2, "mappings": lambda tensors, files: 2 * tensors + files}
COLUMNS = ["opens", "look-ups", "kernel's", "mappings", "questions", "reads", "read MiB"]
CALL = re.compile(r"\d+ +(?:<\.\.\. )?(\w+)(?:\(| resumed>)(.*)")
KERNELS = re.compile(r"/proc/(?:self|\d+)/(?:maps|pagemap)\b")


def make_checkpoint(folder, tensors, files):
    for file in range(files):
        header, at = {}, 0
        for tensor in range(file * tensors // files, (file + 1) * tensors // files):
            header[f"t{tensor}"] = {"dtype": "U8", "shape": [ROWS, ROW_BYTES], "data_offsets": [at, at + ROWS * ROW_BYTES]}
            at += ROWS * ROW_BYTES
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(os.path.join(folder, f"model-{file:05}.safetensors"), "wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            out.truncate(8 + len(text) + at)


def count(trace, folder):
    """Calls on the checkpoint's files, and on the kernel's about the process."""
    seen = collections.Counter()
    with open(trace, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            call = CALL.match(line)
            is_kernels = KERNELS.search(line) is not None
            if call is None or not (folder in line or is_kernels) or line.rstrip().endswith("<unfinished ...>"):
                continue
            name, result = call[1], re.search(r"= (\d+)", line)
            if name == "openat":
                seen["kernel's" if is_kernels else "look-ups" if "O_PATH" in line else "opens"] += 1
            elif name == "pread64" and not is_kernels:
                seen["reads"] += 1
                seen["read MiB"] += int(result[1]) / (1 << 20) if result else 0
            elif is_kernels and name in ("ioctl", "pread64"):
                seen["mappings"] += 1
            elif name != "close":
                seen["questions"] += 1
    return seen


def run(client, environment, preload, case, folder):
    tensors, files, ranks = case
    trace = os.path.join(folder, "trace")
    tool = ["strace", "-f", "-qq", "-y", "-o", trace, "-e", "trace=%file,%desc"] + (["-E", f"LD_PRELOAD={preload}"] if preload else [])
    checkpoint = os.path.join(folder, f"checkpoint-{tensors}-{files}")
    if not os.path.isdir(checkpoint):
        os.mkdir(checkpoint)
        make_checkpoint(checkpoint, tensors, files)
    done = subprocess.run([*tool, client, str(ranks // 2), str(ranks), checkpoint], env=environment, capture_output=True, text=True)
    said = json.loads(done.stdout) if done.returncode == 0 else {}
    if not said or said["hash"] != said["file_hash"]:
        sys.exit(f"{case}: exit {done.returncode}, {said}\n{done.stderr}")
    return count(trace, checkpoint), said["shard_bytes"] / (1 << 20)


def main():
    if shutil.which("strace") is None or subprocess.run(["strace", "-o", "/dev/null", "/bin/true"],
                                                        capture_output=True).returncode != 0:
        print("skipped: strace is not installed, or does not work here")
        return 77
    client, driver, preload = map(os.path.abspath, sys.argv[1:4])
    is_check, faults = "--check" in sys.argv, 0
    print(f"{'tensors':>8}{'files':>7}{'ranks':>7}{'shard MiB':>11}" + "".join(f"{name:>11}" for name in COLUMNS))
    with tempfile.TemporaryDirectory() as folder:
        environment = {name: value for name, value in os.environ.items()
                       if name != "LD_PRELOAD" and not name.startswith("METASHARD")}
        environment.update(LD_LIBRARY_PATH=os.path.dirname(driver), SIMCUDA_GRANULE_KIB="64", METASHARD_MIN_BYTES="128K",
                           METASHARD_SETTLE_MS="0", METASHARD_STATE_DIR=os.path.join(folder, "state"))
        for case in CASES[:1] if is_check else CASES:
            without, _ = run(client, environment, None, case, folder)
            seen, shard = run(client, environment, preload, case, folder)
            seen.subtract(without)
            print(f"{case[0]:8}{case[1]:7}{case[2]:7}{shard:11.1f}"
                  + "".join(f"{seen[name]:11.1f}" if "MiB" in name else f"{seen[name]:11}" for name in COLUMNS), flush=True)
            for name, limit in LIMITS.items() if is_check else ():
                if seen[name] > limit(*case[:2]):
                    print(f"TOO MANY {name}: {seen[name]}, at most {limit(*case[:2])}")
                    faults += 1
    return faults > 0


if __name__ == "__main__":
    sys.exit(main())
