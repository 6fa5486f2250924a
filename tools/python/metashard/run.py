# SPDX-License-Identifier: Apache-2.0
"""`metashard run`: runs a command under MetaShard, and prints its peak of device memory, without and with MetaShard."""
from __future__ import annotations

import argparse
import ctypes
import glob
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from typing import Mapping

from . import beforehand, installed, kernel, preload_order
from .options import Parser

USAGE = """metashard run [--plan FILE] [--log LEVEL[:FILE]] [--state-dir DIR] [--control SOCKET] [--explain] [--json] [--quiet] -- COMMAND [ARGUMENT...]
       metashard run --kernel [--prefix DIR] [--remove] [--plan FILE] [--log LEVEL[:FILE]] [--state-dir DIR]"""
EPILOGUE = """All variables of MetaShard (docs/environment.md) may also be set as usual: the command gets the whole environment.
The exit status and signals are the command's; 127: there is no such program, 126: it cannot be started, 2: wrong usage."""

NOT_FOUND, NOT_STARTED = 127, 126  # as shells have them
LEVELS = ("error", "warn", "info", "debug", "trace")  # as runtime/base/log.c has them
PR_SET_PDEATHSIG = 1
# Not SIGTSTP and its kin: a terminal stops the command and this process together. Nor what the kernel sends for a fault.
NOT_FORWARDED = {signal.SIGKILL, signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGCHLD, signal.SIGSEGV,
                 signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP, signal.SIGSYS, signal.SIGABRT}
FORWARDED = signal.valid_signals() - NOT_FORWARDED


def say(text: str) -> None:
    print(f"metashard: {text}", file=sys.stderr, flush=True)


def log(text: str) -> str:
    if text.partition(":")[0].lower() not in LEVELS:
        levels = f"{', '.join(LEVELS[:-1])} or {LEVELS[-1]}"
        raise argparse.ArgumentTypeError(f"expected {levels}, optionally followed by :FILE, found {text}")
    return text


def make_parser() -> Parser:
    parser = Parser(prog="metashard run", usage=USAGE, description=__doc__, epilog=EPILOGUE, allow_abbrev=False)
    parser.add_argument("--plan", metavar="FILE", help="the sharding plan (METASHARD_PLAN)")
    parser.add_argument("--log", metavar="LEVEL[:FILE]", type=log, help="error, warn, info, debug or trace (METASHARD_LOG)")
    parser.add_argument("--state-dir", metavar="DIR", help="folder for state pages (METASHARD_STATE_DIR)")
    parser.add_argument("--control", metavar="SOCKET",
                        help="a socket for metashard suspend and for later plans; %%p is the process id (METASHARD_CONTROL)")
    parser.add_argument("--explain", action="store_true",
                        help="print at the end of each process what could not be deferred, and why (METASHARD_EXPLAIN)")
    parser.add_json()
    parser.add_quiet("print no figures at the end")
    parser.add_argument("--kernel", action="store_true",
                        help="run nothing, but install a Jupyter kernel of this Python that runs under MetaShard")
    parser.add_argument("--prefix", metavar="DIR", help="where to install the kernel, as sys.prefix; default: the user's own folder")
    parser.add_argument("--remove", action="store_true", help="uninstall the Jupyter kernel")
    parser.add_argument("command", metavar="COMMAND", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.command[:1] == ["--"]:
        del options.command[0]
    if not options.kernel and (options.prefix is not None or options.remove):
        parser.error("--prefix and --remove belong to --kernel")
    if bool(options.command) == options.kernel:
        parser.error("--kernel takes no command" if options.kernel else "expected a command after --")
    return options


def settings_of(options: argparse.Namespace) -> dict[str, str]:
    """The variables that the options set. Paths are absolute: a launcher may change the folder."""
    found = {}
    if options.plan is not None:
        if not os.path.exists(options.plan):
            raise installed.Fault(f"{options.plan}: no such file")
        found["METASHARD_PLAN"] = os.path.abspath(options.plan)
    if options.log is not None:
        level, colon, path = options.log.partition(":")
        found["METASHARD_LOG"] = level + colon + (os.path.abspath(path) if path else "")
    if options.state_dir is not None:
        found["METASHARD_STATE_DIR"] = os.path.abspath(options.state_dir)
    if options.control is not None:
        found["METASHARD_CONTROL"] = os.path.abspath(options.control)
    if options.explain:
        found["METASHARD_EXPLAIN"] = "on"
    return found


def job_of() -> dict[str, str]:
    """A name for this run, by which `metashard show` finds its processes, unless a scheduler has one for all nodes."""
    if any(os.environ.get(name) for name in ("METASHARD_JOB", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")):
        return {}
    return {"METASHARD_JOB": f"{time.strftime('%m%d-%H%M%S')}-{os.getpid()}"}


def preloads_of(environment: Mapping[str, str]) -> list[str]:
    return [path for path in re.split("[ :]+", environment.get("LD_PRELOAD", "")) if path]


def environment_of(settings: dict[str, str]) -> dict[str, str]:
    preloads = preloads_of(os.environ)
    library = installed.library()
    if library not in map(os.path.realpath, preloads):
        preloads.insert(0, library)
    return {**os.environ, **job_of(), **settings, "LD_PRELOAD": ":".join(preloads)}


def start(command: list[str], environment: dict[str, str], mask: set[int | signal.Signals], has_stdout: bool) -> int:
    """The process id of the command. It is killed if this process is."""
    prctl = ctypes.CDLL(None).prctl
    child = os.fork()
    if child != 0:
        return child
    try:
        prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if not has_stdout:
            os.dup2(2, 1)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores from its start
            signal.signal(number, signal.SIG_DFL)
        os.execvpe(command[0], command, environment)
    except OSError as error:
        say(f"{command[0]}: {error.strerror}")
        os._exit(NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_STARTED)
    finally:
        os._exit(NOT_STARTED)


def wait(child: int) -> int:
    """The command's wait status. Hands on signals that a process sent. Signals of the terminal have reached the command
    already, because the command is in the same group."""
    while True:
        info = signal.sigwaitinfo(FORWARDED | {signal.SIGCHLD})
        if info.si_signo == signal.SIGCHLD:
            done, status = os.waitpid(child, os.WNOHANG)
            if done == child:
                return status
        elif info.si_code <= 0 and info.si_pid != child:  # SI_USER, SI_QUEUE, SI_TKILL
            os.kill(child, info.si_signo)


def run_command(command: list[str], environment: dict[str, str], has_stdout: bool = True) -> int:
    """has_stdout: else standard output is of a document, and the command's goes to standard error."""
    # Blocked before the command exists, so that none is missed. Whoever started this process may ignore SIGCHLD.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED | {signal.SIGCHLD})
    return wait(start(command, environment, mask, has_stdout))


def state_folders(environment: dict[str, str]) -> list[str]:
    """Where pages can be, as runtime/state/page.c has it."""
    folder = environment.get("METASHARD_STATE_DIR", "auto")
    if folder != "auto":
        return [folder] if folder else []
    run = environment.get("XDG_RUNTIME_DIR", "")
    return [*([run + "/metashard"] if run.startswith("/") else []), f"/run/user/{os.geteuid()}/metashard",
            f"/tmp/metashard-{os.geteuid()}"]


def list_pages(environment: dict[str, str]) -> set[tuple[str, int]]:
    """The state pages that are there: path and inode. A process that gets the number of an earlier one has a new inode."""
    found = set()
    for folder in state_folders(environment):
        for path in glob.glob(glob.escape(folder) + "/metashard-*.state"):
            try:
                found.add((os.path.realpath(path), os.stat(path).st_ino))
            except FileNotFoundError:
                pass
    return found


def has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def without_pages(environment: dict[str, str]) -> str:
    """Why there is nothing to show."""
    folders = state_folders(environment)
    if environment.get("METASHARD", "").lower() in ("off", "0", "false", "no"):
        return "METASHARD=off: the command ran without it"
    if not folders:
        return "METASHARD_STATE_DIR is empty, so no process has left a state page to show"
    if not any(os.access(path if os.path.isdir(path) else os.path.dirname(path), os.W_OK) for path in folders):
        is_set = environment.get("METASHARD_STATE_DIR", "auto") != "auto"
        return f"no state page can be written in {' or '.join(folders)}: " + (
            "METASHARD_STATE_DIR has to name a folder that you can write" if is_set else "set METASHARD_STATE_DIR")
    if not has_driver():
        return "there is no CUDA driver here (libcuda.so.1), so nothing was deferred; metashard dry-run needs none"
    return "no process of the command deferred device memory; METASHARD_LOG=info says more of each"


def environment_of_tools(environment: dict[str, str]) -> dict[str, str]:
    """Without the preload."""
    return {**environment, "LD_PRELOAD": os.environ.get("LD_PRELOAD", "")}


def own_job(environment: dict[str, str]) -> str:
    """Another program may have made pages meanwhile: a name that this run has given itself tells them apart."""
    return environment.get("METASHARD_JOB", "") if "METASHARD_JOB" not in os.environ else ""


def show(environment: dict[str, str], pages: list[str], *options: str) -> subprocess.CompletedProcess[str]:
    """metashard-dump show for the run. Raises Fault where there is nothing to show: the text says why."""
    job = own_job(environment)
    if not pages:
        raise installed.Fault(without_pages(environment))
    try:
        done = subprocess.run([installed.find("metashard-dump"), "show", *options, *(["--job", job] if job else pages)],
                              capture_output=True, text=True, check=False, env=environment_of_tools(environment))
    except OSError as error:
        raise installed.Fault(str(error))
    if done.returncode != 0:
        raise installed.Fault(without_pages(environment) if job else done.stderr.strip())
    return done


def last_lines(environment: dict[str, str], pages: list[str]) -> list[str]:
    """The saving of the run, and the command that shows more."""
    job = own_job(environment)
    try:
        done = show(environment, pages, "--brief", "--width", "0")
    except installed.Fault as fault:  # the exit status is the command's
        return [str(fault)]
    is_usual = environment.get("METASHARD_STATE_DIR", "auto") == "auto"
    prefix = "" if is_usual else f"METASHARD_STATE_DIR={os.path.dirname(pages[0])} "
    which = f" --job {job}" if job else ""
    return [*(done.stdout + done.stderr).splitlines(), f"more: {prefix}metashard show{which}"]


def document(environment: dict[str, str], pages: list[str], status: int) -> dict[str, object]:
    found = {"format": "metashard-run/1", "command_status": os.waitstatus_to_exitcode(status), "reason": None, "show": None}
    try:
        found["show"] = json.loads(show(environment, pages, "--json").stdout)
    except installed.Fault as fault:
        found["reason"] = str(fault)
    return found


def end_as(status: int) -> int:
    """Ends this process as the command ended."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the command has left one
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    return os.waitstatus_to_exitcode(status)


def why_not(program: str) -> tuple[int, str]:
    """The exit status for a program that cannot be started, and why."""
    if re.match(r"[A-Za-z_]\w*=", program):
        return NOT_FOUND, "a variable belongs before metashard, or behind env: metashard run -- env NAME=VALUE program"
    if " " in program and not os.path.exists(program):
        return NOT_FOUND, "no such program in PATH; write the program and its arguments without quotes around them all"
    if os.path.isdir(program):
        return NOT_STARTED, "is a folder"
    if os.path.isfile(program):
        interpreter = "python " if program.endswith(".py") else "an interpreter's name "
        if "/" not in program:
            return NOT_FOUND, f"no such program in PATH; to run the file of this folder, put {interpreter}before it, or ./"
        return NOT_STARTED, f"not executable: put {interpreter}before it, or chmod +x"
    return NOT_FOUND, "no such file" if "/" in program else "no such program in PATH"


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    settings = settings_of(options)
    if options.kernel:
        return kernel.main(settings, options.prefix, options.remove)
    environment = environment_of(settings)
    program = options.command[0]
    path = shutil.which(program, path=environment.get("PATH"))
    if path is None:
        status, reason = why_not(program)
        say(f"{program}: {reason}")
        return status
    for line in (*beforehand.lines(options.command, path, environment),
                 *preload_order.say_before(preloads_of(environment), installed.library())):
        say(line)
    before = list_pages(environment)
    status = run_command(options.command, environment, has_stdout=not options.json)
    pages = sorted(path for path, _ in list_pages(environment) - before)
    if options.json:
        print(json.dumps(document(environment, pages, status)), flush=True)
    elif not options.quiet:
        for line in last_lines(environment, pages):
            say(line)
    return end_as(status)
