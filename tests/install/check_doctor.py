#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_doctor.py: what `metashard doctor`, and the options of `metashard`, say; on the simulated driver, without the wheel. TAP."""
import json
import os
import stat
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
from tap import check, end, equal  # noqa: E402

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
STATIC = struct.pack("<4sBBBB8xHHIQQQIHHHHHH", b"\x7fELF", 2, 1, 1, 0, 2, 62, 1, 0x400000, 64, 0, 0, 64, 56, 1, 64, 0, 0) + \
    struct.pack("<II48x", 1, 5)


def metashard(*arguments, **settings):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("METASHARD") and name != "LD_PRELOAD"}
    done = subprocess.run([sys.executable, "-m", "metashard", *arguments], capture_output=True, text=True, check=False, timeout=60, env={
        **kept, "PYTHONPATH": os.path.join(SOURCE, "tools", "python"), "PYTHONDONTWRITEBYTECODE": "1", **settings})
    return done.returncode, done.stdout, done.stderr


def line_of(name, *arguments, **settings):
    """The line of the doctor about one thing."""
    status, out, errors = metashard("doctor", *arguments, **settings)
    found = [line for line in out.splitlines() if line[5:].startswith(name + " ")]
    return found[0] if len(found) == 1 else f"{status}\n{out}{errors}"


def check_doctor(folder):
    for name in ("system", "kernel", "/proc", "driver", "preloads", "switch", "state", "leases", "memory", "cache", "PyTorch"):
        seen = line_of(name, METASHARD_STATE_DIR=folder)
        check(f"a line about {name}, which does not say no", seen.startswith(("ok ", "note ")), seen)
    check("metashard doctor without the package finds no library", line_of("library").startswith("no "), line_of("library"))
    equal("a line with no is an exit status", metashard("doctor")[0], 1)
    status, out, errors = metashard("doctor", "--json", "sh")
    lines = [f"{found['outcome']:<5}{found['about']:<9} {found['text']}" for found in json.loads(out)["findings"]]
    equal("the same as JSON", (status, errors, lines), (1, "", metashard("doctor", "sh")[1].splitlines()))
    check("no driver", "there is no CUDA driver" in line_of("driver", LD_LIBRARY_PATH="") or
          line_of("driver", LD_LIBRARY_PATH="").startswith("ok "), line_of("driver", LD_LIBRARY_PATH=""))
    check("METASHARD=off", line_of("switch", METASHARD="off").startswith("no "), line_of("switch", METASHARD="off"))
    file = os.path.join(folder, "file")
    with open(file, "wb") as opened:
        opened.write(b"x")
    seen = line_of("state", METASHARD_STATE_DIR=os.path.join(file, "below"))
    check("a folder for pages that cannot be", seen.startswith("no ") and "set METASHARD_STATE_DIR" in seen, seen)
    seen = line_of("preloads", LD_PRELOAD="/nowhere/libvgpu.so")
    check("a quota", seen.startswith("no ") and "/nowhere/libvgpu.so" in seen, seen)


def check_programs(folder):
    check("a program that a preload reaches", line_of("command", "sh").startswith("ok "), line_of("command", "sh"))
    seen = line_of("command", "no-such-program")
    check("a program that is not there", seen.startswith("no ") and "no such program" in seen, seen)
    path = os.path.join(folder, "program")
    with open(path, "wb") as file:
        file.write(STATIC)
    os.chmod(path, 0o755)
    check("a program that is linked statically", "linked statically" in line_of("command", path), line_of("command", path))
    os.chmod(path, 0o755 | stat.S_ISUID)
    check("a program with raised privileges", "setuid" in line_of("command", path), line_of("command", path))


def said(code, *arguments):
    """What Python prints that has the package."""
    done = subprocess.run([*arguments, sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60, env={
        **os.environ, "PYTHONPATH": os.path.join(SOURCE, "tools", "python"), "PYTHONDONTWRITEBYTECODE": "1"})
    return (done.stdout + done.stderr).strip()


def check_mistakes(folder):
    """Mistakes that a table of commands cannot show (tests/messages/mistakes.txt)."""
    seen = said("import os.path; os.path.isdir = lambda path: path != '/dev/shm'; from metashard import doctor; print(doctor.memory()[1])")
    check("no /dev/shm", seen.startswith("there is no /dev/shm that you can write:") and "--shm-size" in seen, seen)
    seen = said("from metashard import doctor; print(doctor.memory()[1])", "sh", "-c", 'ulimit -v 4194304; exec "$@"', "sh")
    check("a limit of the address space", seen.startswith("the address space has a limit of 4096 MiB (ulimit -v)"), seen)
    seen = said("import platform; platform.libc_ver = lambda: ('', ''); from metashard import doctor; print(doctor.system())")
    check("musl", "musl" in seen and "use an image with glibc" in seen and seen.startswith("('no'"), seen)
    seen = said("import sys, warnings; sys.modules['ipykernel'] = sys; import metashard; metashard.materialise()")
    check("in a notebook", "`metashard run --kernel` makes a Jupyter kernel that has it" in seen, seen)
    seen = said("import metashard; metashard.materialise()")
    check("in another Python", "start the program with `metashard run -- python ...`" in seen, seen)
    other = os.path.join(folder, "other", "python3")
    os.makedirs(os.path.dirname(other))
    with open(other, "w", encoding="utf-8") as file:
        file.write("#!/bin/sh\n")
    os.chmod(other, 0o755)
    seen = line_of("command", other)
    check("another Python", seen.startswith(f"note command   {other} is another Python than this, {sys.executable}:"), seen)
    launcher = os.path.join(folder, "torchrun")
    for first, is_other in ((f"#!{other}\n", True), ("#!/bin/sh\n", False), ("", False), (f"#!{sys.executable}\n", False), (f"#!/usr/bin/env {other}\n", True)):
        with open(launcher, "w", encoding="utf-8") as file:
            file.write(first)
        os.chmod(launcher, 0o755)
        seen = line_of("command", launcher)
        check(f"a launcher, as of another environment of conda: {first[:15]!r}", (f"{other} is another Python" in seen) == is_other, seen)
    seen = said("import os; os.access = lambda path, mode: mode != os.R_OK; from metashard import programs; "
                "print(programs.elf_of('/bin/sh'), programs.python_of('pip3'))")
    equal("a program that may be executed and not read", seen, "None None")
    seen = line_of("command", sys.executable)
    check("not this one", seen.startswith("ok "), seen)


PEAK = """import sys, types
sys.modules["pytest"] = types.SimpleNamespace(hookimpl=lambda **_: lambda f: f, UsageError=ValueError)
from metashard import pytest_peak
for most in (None, 1):
    print(pytest_peak.pytest_report_header(types.SimpleNamespace(metashard_most=most)))"""


def check_header():
    """A bound that no test can break."""
    equal("pytest, also with xdist, says that a bound has no effect", said(PEAK).splitlines(), ["[]", str([
        "metashard: --metashard-peak has no effect, because MetaShard is not loaded: start it as metashard run -- pytest ..."])])


def check_words():
    status, out, errors = metashard()
    check("alone, the command prints its help", (status, errors) == (2, "") and out.startswith("usage: metashard run"), (status, out, errors))
    equal("a command that is none", metashard("zzzzzz"), (2, "", "metashard: zzzzzz is no command; metashard --help lists them\n"))
    for words, said in ((["run", "--paln", "x", "--", "true"], "metashard run: --paln is no option; did you mean --plan?"),
                        (["suspend", "--tp", "x", "1"], "metashard suspend: --tp is no option; did you mean --to?"),
                        (["dry-run", "--zzzzzz", "--", "python"], "metashard dry-run: --zzzzzz is no option; metashard dry-run --help lists them"),
                        (["resume", "1", "2"], "metashard resume: expected nothing more, found 2"),
                        (["completion"], "metashard completion: the following arguments are required: SHELL")):
        equal(f"{' '.join(words)} is answered in one line", metashard(*words), (2, "", said + "\n"))


def check_scripts():
    """Tools that need neither a build nor this package have one front end of their own (tools/tool_options.py)."""
    tools = os.path.join(SOURCE, "tools")
    scripts = {"verify": "import runpy, sys; runpy.run_path(sys.argv.pop(1), run_name='__main__')",
               "check-torch": "import sys; from torch_check import command; del sys.argv[1]; sys.exit(command.main(sys.argv[1:], 'V'))"}
    for name, code in scripts.items():
        def tool(*arguments):
            done = subprocess.run([sys.executable, "-c", code, os.path.join(tools, name, f"metashard-{name}"), *arguments], capture_output=True,
                                  text=True, check=False, timeout=60, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1",
                                                                           "PYTHONPATH": f"{tools}:{os.path.join(tools, 'check_torch')}"})
            return done.returncode, done.stdout, done.stderr
        for word, said in (("--hlep", "--hlep is no option; did you mean --help?"), ("--josn", "--josn is no option; did you mean --json?"),
                           ("--zzzzzz", f"--zzzzzz is no option; metashard-{name} --help lists them"), ("--json=x", "expected no value behind --json")):
            equal(f"metashard-{name} {word}", tool(word), (2, "", f"metashard-{name}: {said}\n"))
        equal(f"metashard-{name} -h", tool("-h"), tool("--help"))
        check(f"metashard-{name} explains its options", tool("-h")[1].startswith(f"usage: metashard-{name} ") and "\n  --json  " in tool("-h")[1], tool("-h"))


def main():
    with tempfile.TemporaryDirectory() as folder:
        check_doctor(folder)
        check_programs(folder)
        check_mistakes(folder)
    check_header()
    check_words()
    check_scripts()
    return end()


if __name__ == "__main__":
    sys.exit(main())
