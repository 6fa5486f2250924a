#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_commands.py: what ./quickstart and ./check say, before and while they install and build, and of what ran. TAP.

Wrong arguments are answered by a shell that finds no other program: nothing can be installed or built by then. Building
is that of tests/setup/common.sh, with a ninja that only talks, on no terminal.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
from tap import check, end, equal  # noqa: E402

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BASH = shutil.which("bash")
WRONG = {"quickstart": [["--rank"], ["--ranks"], ["--ranks", "0"], ["--ranks", "two"], ["--ranks=65"], ["--size-mib", "7"],
                        ["--size-mib", "65537"], ["--folder", "/nowhere"], ["16"], ["--build", "build"]],
         "check": [["--quick"], ["--fast", "--long"], ["fast"]]}


def run(*command, path="/nowhere", **settings):
    return subprocess.run([BASH, *command], cwd=SOURCE, env={"PATH": path, **settings}, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=60, check=False)


def check_arguments(script, arguments):
    done = run(f"./{script}", *arguments)
    lines = done.stderr.splitlines()
    check(f"./{script} {' '.join(arguments)} is refused at once",
          done.returncode == 2 and done.stdout == "" and len(lines) == 2 and lines[0].startswith(f"{script}: ") and
          lines[1].startswith(f"usage: ./{script} "), f"{done.returncode}\n{done.stdout}{done.stderr}")


def options_in(text):
    return set(re.findall(r"--[a-z][a-z-]*", text))


def check_help():
    for script in WRONG:
        done = run(f"./{script}", "--help")
        check(f"./{script} --help answers at once",
              done.returncode == 0 and done.stderr == "" and done.stdout.startswith(f"usage: ./{script} "),
              f"{done.returncode}\n{done.stdout}{done.stderr}")
        if script == "quickstart":
            program = subprocess.run([sys.executable, os.path.join(SOURCE, "tests", "demo", "quickstart.py"), "--help"],
                                     capture_output=True, text=True, check=True).stdout
            check("quickstart has the options of the program that it starts",
                  options_in(done.stdout) == options_in(program) - {"--build"}, (done.stdout, program))


def build_with(folder, ninja, built="build"):
    """./quickstart's build of a folder that is configured already, with a ninja of our own."""
    path = os.path.join(folder, "ninja")
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"#!{BASH}\n{ninja}\n")
    os.chmod(path, 0o755)
    os.makedirs(os.path.join(folder, built), exist_ok=True)
    if built != "fresh":
        open(os.path.join(folder, built, "build.ninja"), "w", encoding="utf-8").close()
    return run("-c", f". tests/setup/common.sh; set -euo pipefail; meson=true; build {folder}/{built}",
               path=f"{folder}:{os.environ['PATH']}")


def check_progress():
    with tempfile.TemporaryDirectory() as folder:
        first = "echo '[1/30] Compiling'; sleep 11; for i in {2..30}; do echo \"[$i/30] Compiling\"; done"
        lines = build_with(folder, first, "fresh").stderr.splitlines()
        check("a first build says what it does, and how far it is, in lines and not many",
              lines == [f"configuring {folder}/fresh", f"building {folder}/fresh: 1 of 30",
                        f"building {folder}/fresh: 2 of 30"], lines)
        done = build_with(folder, "echo 'ninja: no work to do.'")
        check("a build with nothing to do says nothing", done.returncode == 0 and done.stderr == "", done.stderr)
        done = build_with(folder, "echo '[1/2] Compiling'; echo 'x.c:1: error: what'; exit 1")
        check("a build that fails shows the compiler's words",
              done.returncode == 1 and "x.c:1: error: what" in done.stderr and
              f"cannot build {folder}/build" in done.stderr, done.stderr)


def check_purpose():
    """Before packages are installed, a line says what for."""
    script = (". tests/setup/common.sh; can_install() { :; }; as_root() { :; }; needed_packages='gcc false'; wanted_packages=; "
              "find_ninja() { :; }; find_meson() { :; }; find_cuda_headers() { :; }; (prepare_build); want_packages 'strace false'")
    lines = run("-c", script, path=os.environ["PATH"]).stderr.splitlines()
    equal("before packages are installed, one line says what for", [line for line in lines if line.startswith("installing")], [
        "installing with apt-get, to build MetaShard: gcc", "installing with apt-get, to run tests that need them: strace"])


PIP = """import sys, types
sys.modules["package_page"] = sys.modules["mesonpy"] = types.SimpleNamespace(
    build_editable=0, build_sdist=0, get_requires_for_build_editable=0, get_requires_for_build_sdist=0,
    get_requires_for_build_wheel=lambda _: ["ninja"])
sys.path.insert(0, sys.argv[1])
import wheel_backend
print(*wheel_backend.get_requires_for_build_wheel())
"""


def check_pip():
    """`pip install .`: what the build backend says first. pip shows that, and no log of meson follows."""
    with tempfile.TemporaryDirectory() as folder:
        broken = os.path.join(folder, "broken-cc")
        with open(broken, "w", encoding="utf-8") as file:
            file.write(f"#!{BASH}\nexit 1\n")
        os.chmod(broken, 0o755)
        for name, path, compiler, said in (
                ("a compiler", os.environ["PATH"], "", "ninja"),
                ("no compiler", folder, "", "metashard: cc: no such compiler: install a C compiler (apt-get install gcc libc6-dev), "
                                            "or set CC"),
                ("no headers", folder, broken, f"metashard: {broken} cannot compile a program with <stdio.h>: "
                                               "install libc's headers (apt-get install libc6-dev)")):
            done = subprocess.run([sys.executable, "-B", "-c", PIP, os.path.join(SOURCE, "tools", "python")], capture_output=True,
                                  env={"PATH": path, "CC": compiler}, text=True, timeout=60, check=False)
            equal(f"pip install . with {name}", (done.returncode, done.stdout + done.stderr), (int(said != "ninja"), said + "\n"))


def check_functions():
    """Scripts that share tests/setup/common.sh call what there is; those beside these two run seldom."""
    common = os.path.join(SOURCE, "tests", "setup", "common.sh")
    with open(common, encoding="utf-8") as file:
        shared = file.read()
    for script in ("quickstart", "check", "tests/frameworks/torch/run"):
        with open(os.path.join(SOURCE, script), encoding="utf-8") as file:
            text = file.read()
        there = re.findall(r"^(\w+)\(\) ", shared + text, re.M) + re.findall(r"\b(\w+)=", shared + text)
        called = re.findall(r"^\s*(?:[A-Za-z_]+=\S+ )*([a-z]+_[a-z_]+)\b", text, re.M)
        check(f"{script} calls only what there is", set(called) <= set(there), set(called) - set(there))


def write_log(folder, name, tests):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        for test, lines in tests.items():
            result = "ERROR" if any(line.startswith("not ok") for line in lines) else "OK"
            file.write(json.dumps({"name": "metashard:unit / " + test, "result": result, "stdout": "\n".join(lines)}) + "\n")
    return os.path.join(folder, name)


def count(*arguments):
    done = subprocess.run([sys.executable, os.path.join(SOURCE, "tests", "setup", "count.py"), *arguments],
                          capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines()


def check_count():
    """A test that is run again is not lost from sight, and one that fails twice has failed."""
    with tempfile.TemporaryDirectory() as folder:
        log = write_log(folder, "log-x.json", {"a": ["ok 1 x", "not ok 2 y", "# why"], "b": ["ok 1 z # SKIP no"]})
        check("a failed case is counted", count("x=" + log) == (1, [
            "skipped x: metashard:unit / b: z", "x: 1 passed, 1 failed, 1 skipped", "FAILED x: metashard:unit / a: y",
            "    # why", "1 passed, 1 failed, 1 skipped"]), count("x=" + log))
        check("a failed case is named, to be run again", count("--again", log) == (0, ["a"]))
        write_log(folder, "again-x.json", {"a": ["ok 1 x", "ok 2 y"]})
        check("a case that passes then is unstable", count("x=" + log) == (0, [
            "skipped x: metashard:unit / b: z", "x: 2 passed, 0 failed, 1 skipped", "UNSTABLE x: metashard:unit / a: y",
            "    # why", "2 passed, 0 failed, 1 skipped"]), count("x=" + log))
        write_log(folder, "again-x.json", {"a": ["not ok 1 x", "ok 2 y"]})
        check("another case that fails then has failed", count("x=" + log)[1][-1] == "1 passed, 1 failed, 1 skipped")
        os.rename(log, os.path.join(folder, "log-gcc.json"))
        check("few cases are a fault", "FAILED gcc: 3 cases, at least 5000 expected" in
              count("gcc=" + os.path.join(folder, "log-gcc.json"))[1])
        many = write_log(folder, "log-many.json", {name: ["not ok 1 x"] for name in "abcd"})
        check("many are not run again", count("--again", many) == (0, []))
        drawn = write_log(folder, "log-drawn.json", {"fuzz, a fresh slice": ["not ok 1 x"]})
        check("nor is what draws something new each time", count("--again", drawn) == (0, []))
        check("nor is what left no log", count("--again", os.path.join(folder, "log-none.json")) == (0, []))


def main():
    check_pip()
    check_functions()
    check_count()
    for script, cases in WRONG.items():
        for arguments in cases:
            check_arguments(script, arguments)
    check_help()
    check_purpose()
    check_progress()
    return end()


if __name__ == "__main__":
    sys.exit(main())
