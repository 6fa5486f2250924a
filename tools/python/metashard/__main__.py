# SPDX-License-Identifier: Apache-2.0
"""usage: metashard run [OPTION...] -- COMMAND [ARGUMENT...]
       metashard show|list|diff|metrics [ARGUMENT...]
       metashard suspend PID|JOB [--to DIR] [--timeout SECONDS] [--json] [--quiet]
       metashard resume PID|JOB [--timeout SECONDS] [--json] [--quiet]
       metashard dry-run [OPTION...] -- COMMAND [ARGUMENT...]
       metashard fit --vary NAME=VALUE,VALUE... [OPTION...] -- COMMAND [ARGUMENT...]
       metashard plan|dump|verify|check-torch [ARGUMENT...]
       metashard doctor [--json] [--quiet] [COMMAND [ARGUMENT...]]
       metashard completion bash|fish|zsh
       metashard path
       metashard --version

run     runs a command and its children under MetaShard: metashard run -- torchrun train.py
show    shows what MetaShard did in the last run, or in a process: metashard-dump(1)
list    lists the processes that ran under MetaShard
diff    compares two processes, or two copies of one process's page: metashard diff PID|FILE PID|FILE
metrics prints figures of running processes, as OpenMetrics text
suspend frees the device memory of a living process, or of all processes of a job
resume  restores suspended memory
dry-run says whether the memory of a training job fits, without a GPU: metashard dry-run -- torchrun train.py
fit     says which batch size or number of ranks fits: metashard fit --vary batch=1,2,4 -- python train.py --batch {batch}
plan    makes, checks and explains sharding plans: metashard-plan(1)
dump    is metashard-dump(1): show, list and diff
verify  runs a command, and compares the bytes loaded into its device memory: metashard-verify(1)
doctor  says whether this machine, driver, Python and command would work, and why not
path    prints the path of libmetashard.so, for LD_PRELOAD

completion   prints what a shell completes: . <(metashard completion bash)
check-torch  checks a PyTorch that this MetaShard does not know, once: metashard-check-torch(1)

Each takes --help."""
from __future__ import annotations

import difflib
import os
import shutil
import signal
import sys
from typing import Optional

from . import beforehand, completion, doctor, dry_run, fit, installed, run, suspension

WRONG_USAGE = 2
TOOLS = ("plan", "dump", "verify", "check-torch")
SCRIPTS = ("verify", "check-torch")
OF_DUMP = ("show", "list", "diff", "metrics")
COMMANDS = ("run", *OF_DUMP, "suspend", "resume", "dry-run", "fit", *TOOLS, "doctor", "completion")
# They go on when a reader of their output or of a socket has gone.
WAITING = ("run", "suspend", "resume", "dry-run", "fit")
# Words that people try, and the command that they mean.
MEANT = {**{word: f"plan {word}" for word in ("make", "estimate", "check", "explain", "send")}, "events": "show --events",
         **dict.fromkeys(("status", "ps", "top", "ls"), "list"), **dict.fromkeys(("info", "log", "report", "last"), "show"),
         "stop": "suspend", "pause": "suspend"}


def run_tool(name: str, arguments: list[str]) -> int:
    path = installed.find(f"metashard-{name}")
    # A script is run by this Python: there may be no other, and PyTorch is this one's.
    before = [sys.executable] if name in SCRIPTS else []
    os.execv((before or [path])[0], [*before, path, *arguments])


def is_program(word: str) -> bool:
    """A program, or what stands before one, where `run` belongs."""
    return word in ("--", *beforehand.LAUNCHERS) or word.startswith("python") or word.endswith(".py")


def say_wrong(arguments: list[str]) -> None:
    """Says why the typed words are no command, with the nearest command."""
    known = [*COMMANDS, "path", "--help", "--version"]
    command = arguments[0] if arguments else ""
    near = [f"--{command}"] if f"--{command}" in known else difflib.get_close_matches(command, known, 1)
    near = [MEANT[command]] if command in MEANT else near
    if is_program(command) or not near and shutil.which(command) is not None:
        words = " ".join(word for word in arguments if word != "--")
        run.say(f"{command} is no command; did you mean metashard run -- {'python ' if command.endswith('.py') else ''}{words}?")
    elif command == "path":
        run.say(f"path takes no argument, found {' '.join(arguments[1:])}")
    elif near:
        run.say(f"{command} is no command; did you mean {near[0]}?")
    else:
        run.say(f"{command} is no command; metashard --help lists them")


def main(arguments: Optional[list[str]] = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    command, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if command not in WAITING:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `metashard list | head` ends with head
    try:
        if command in ("--help", "-h", ""):
            print(__doc__)
            return 0 if command else WRONG_USAGE
        elif command == "--version":
            print(f"metashard {installed.version()}")
        elif command == "path" and rest in (["--help"], ["-h"]):
            print("usage: metashard path\n\nPrints the path of libmetashard.so, for LD_PRELOAD. The exit status is 2 if the library is not there.")
        elif command == "path" and not rest:
            print(installed.library())
        elif command == "run":
            return run.main(rest)
        elif command == "dry-run":
            return dry_run.main(rest)
        elif command == "fit":
            return fit.main(rest)
        elif command == "doctor":
            return doctor.main(rest)
        elif command == "completion":
            return completion.main(rest)
        elif command in ("suspend", "resume"):
            return suspension.main(command, rest)
        elif command in OF_DUMP:
            return run_tool("dump", arguments)
        elif command in TOOLS:
            return run_tool(command, rest)
        else:
            say_wrong(arguments)
            return WRONG_USAGE
    except (installed.Fault, OSError) as error:
        run.say(str(error))
        return WRONG_USAGE
    return 0


if __name__ == "__main__":
    sys.exit(main())
