#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""srun.py [-n TASKS] [--export=LIST] COMMAND...: stands in for Slurm's srun where there is no Slurm.

The part of srun(1) that concerns a preload: every task gets the environment that --export says, and the variables of
Slurm that say which task it is. --export=ALL, which is the default, is the whole environment of srun; NAME is
that variable of srun's environment, NAME=VALUE a new one; without ALL among them, nothing else is passed on
but SLURM_*. NONE is only SLURM_*. The same checks run with the real srun where there is one.
"""
import argparse
import os
import subprocess
import sys

PASSED_ALWAYS = ("SLURM_",)


def exported(wanted, own):
    names = wanted.split(",")
    if "ALL" in names:
        result = dict(own)
    else:
        result = {name: value for name, value in own.items() if name.startswith(PASSED_ALWAYS)}
    for name in names:
        if name in ("ALL", "NONE", "NIL"):
            continue
        name, is_set, value = name.partition("=")
        if is_set:
            result[name] = value
        elif name in own:
            result[name] = own[name]
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", "--ntasks", type=int, default=1)
    parser.add_argument("--export", default="ALL")
    parser.add_argument("--overcommit", action="store_true")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    environment = exported(options.export, dict(os.environ))
    tasks = [subprocess.Popen(options.command,
                              env=environment | {"SLURM_PROCID": str(task), "SLURM_LOCALID": str(task),
                                                 "SLURM_NTASKS": str(options.ntasks), "SLURM_NODEID": "0"})
             for task in range(options.ntasks)]
    return max([task.wait() for task in tasks], default=0)


if __name__ == "__main__":
    sys.exit(main())
