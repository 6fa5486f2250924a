# SPDX-License-Identifier: Apache-2.0
"""Evidence of processes that hang, without a debugger: /proc, and state pages."""
import glob
import os
import shutil
import tempfile

from run_tools import members_of

# Files of a process, and of each of its threads. Some are for root alone, or are not there in every
# kernel.
OF_PROCESS = ("cmdline", "status", "limits")
OF_THREAD = ("comm", "status", "wchan", "stack", "syscall")
MOST_PROCESSES = 64


def read(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().replace("\0", " ").rstrip()
    except OSError as error:
        return f"({error.strerror})"


def threads_of(process):
    try:
        return sorted(os.listdir(f"/proc/{process}/task"), key=int)
    except OSError:
        return []


def code_of(process):
    """Where its code lies: what the addresses in `syscall` are to be held against."""
    return "\n".join(line for line in read(f"/proc/{process}/maps").splitlines() if " r-xp " in f" {line} ")


def page_folders():
    """Where METASHARD_STATE_DIR=auto may be."""
    user = os.getuid()
    return [os.path.join(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{user}", "metashard"),
            os.path.join(tempfile.gettempdir(), f"metashard-{user}"), f"/tmp/metashard-{user}"]


def look(leader, folder, page_places=()):
    """Writes a file for each process of the session or process group, and copies their state
    pages."""
    os.makedirs(folder, exist_ok=True)
    for process in list(members_of(leader))[:MOST_PROCESSES]:
        parts = [f"== {name}\n{read(f'/proc/{process}/{name}')}" for name in OF_PROCESS]
        parts += [f"== thread {thread}, {name}\n{read(f'/proc/{process}/task/{thread}/{name}')}"
                  for thread in threads_of(process) for name in OF_THREAD]
        parts.append(f"== code\n{code_of(process)}")
        with open(os.path.join(folder, f"process-{process}.txt"), "w", encoding="utf-8") as file:
            file.write("\n".join(parts) + "\n")
        for place in [*page_places, *page_folders()]:
            for page in glob.glob(os.path.join(place, f"metashard-{process}.state")):
                shutil.copy(page, folder)
