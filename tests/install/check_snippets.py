#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_snippets.py --meson 'COMMAND introspect' --client CLIENT --maker MAKER --driver DIR
--cuda DIR: what tools/packaging gives to administrators, used: the module file, the batch job for Slurm, the drop-in for systemd and the job for Kubernetes, each with a build that is installed by
the command of docs/administrators.md, in a folder that stands for /. Parts that a machine lacks are skipped. TAP."""
import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
from tap import check, end  # noqa: E402
from text import read  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(HERE))
SRUN = os.path.join(SOURCE, "tests", "frameworks", "launchers", "srun.py")
# What Lmod gives a module file; each prints what it was asked for.
LUA = """function help() end
function whatis() end
function myModuleVersion() return "1" end
function pathJoin(...) return table.concat({...}, "/") end
function prepend_path(name, path) print(name, path) end
function append_path(name, path) print("behind " .. name, path) end
function setenv(name, path) print(name, path) end
"""
UNIT = "[Unit]\nDescription=train\n[Service]\nExecStart=/bin/true\n"


def skip(name, why):
    check(f"{name} # SKIP {why}", True)


def install(options, root):
    command = re.search(r"`(meson setup build --prefix=/opt/metashard [^`]*?) && ", read(SOURCE, "docs", "administrators.md"))[1]
    meson = shlex.split(options.meson)[:-1]
    words = [*meson, *shlex.split(command)[1:]]
    build = os.path.join(root, "build")
    words[words.index("build")] = build
    headers = ["-Dcuda-headers=" + options.cuda]
    logs = [subprocess.run(step, cwd=SOURCE, capture_output=True, text=True, check=False) for step in (
        [*words, *headers, "-Doptimization=0"], [*meson, "install", "-C", build, "--destdir", root])]
    check("the command of docs/administrators.md installs", all(done.returncode == 0 for done in logs),
          "".join(done.stdout[-1500:] + done.stderr[-500:] for done in logs))


def moved(text, root):
    """A snippet, where / is the folder."""
    return text.replace("/opt/metashard", root + "/opt/metashard")


def environment_of(options, **settings):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("METASHARD", "SLURM", "LD_"))}
    return {**kept, "LD_LIBRARY_PATH": options.driver, **settings}


def check_module(root):
    lua = next(filter(None, map(shutil.which, ("lua", "lua5.4", "lua5.3", "texlua", "luajit"))), None)
    if lua is None:
        skip("the module file names what is installed", "there is no lua")
        return
    text = LUA + moved(read(SOURCE, "tools", "packaging", "metashard.lua"), root)
    done = subprocess.run([lua, "-"], input=text, capture_output=True, text=True, check=False)
    paths = dict(line.split("\t") for line in done.stdout.splitlines())
    check("and leaves the system's manual pages", paths.pop("behind MANPATH", None) == "", done.stdout)
    check("the module file names what is installed", len(paths) == 4 and all(map(os.path.exists, paths.values())), f"{paths}\n{done.stderr}")


def check_slurm(options, root):
    """With the stand-in for srun. train.py is the main job's client."""
    place = os.path.join(root, "job")
    os.makedirs(os.path.join(place, "bin"))
    os.makedirs(os.path.join(root, "local"))
    with open(os.path.join(place, "bin", "srun"), "w", encoding="utf-8") as file:
        file.write(f'#!/bin/sh\ntasks=2\n[ "$1" != --ntasks-per-node=1 ] || {{ tasks=1; shift; }}\nexec python {SRUN} -n $tasks "$@"\n')
    os.chmod(file.name, 0o755)
    with open(os.path.join(place, "train.py"), "w", encoding="utf-8") as file:
        file.write(f"import subprocess, sys\nsys.exit(subprocess.run({[options.client, '1', '4', options.checkpoint]!r}).returncode)\n")
    os.symlink(sys.executable, os.path.join(place, "bin", "python"))
    with open(os.path.join(place, "slurm.sh"), "w", encoding="utf-8") as file:
        file.write(moved(read(SOURCE, "tools", "packaging", "slurm.sh"), root))
    done = subprocess.run(["bash", "slurm.sh"], cwd=place, capture_output=True, text=True, check=False, env=environment_of(
        options, PATH=f"{place}/bin:{root}/opt/metashard/bin:{os.environ['PATH']}", USER="someone", SLURM_JOB_ID="7", SLURM_SUBMIT_DIR=place,
        SLURM_TMPDIR=os.path.join(root, "local")))
    files = os.listdir(place)
    said = "".join(read(place, name) for name in files if name.endswith(".log"))
    check("the batch job leaves a page for the node and a log of each rank",
          done.returncode == 0 and sum(name.endswith(".html") for name in files) == 1 and "] info: " in said,
          f"{files}\n{said}\n{done.stderr}")


def check_systemd(options, root):
    text = moved(read(SOURCE, "tools", "packaging", "metashard.service.conf"), root)
    folder = os.path.join(root, "units")
    os.makedirs(os.path.join(folder, "train.service.d"))
    for name, content in (("train.service", UNIT), ("train.service.d/metashard.conf", text)):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(content)
    if shutil.which("systemd-analyze") is None:
        skip("systemd takes the drop-in", "there is no systemd-analyze")
    else:
        done = subprocess.run(["systemd-analyze", "verify", os.path.join(folder, "train.service")], capture_output=True, text=True, check=False,
                              env={**os.environ, "SYSTEMD_UNIT_PATH": folder + ":"})
        check("systemd takes the drop-in", "metashard.conf" not in done.stdout + done.stderr, done.stdout + done.stderr)
    settings = dict(line.removeprefix("Environment=").split("=", 1) for line in text.splitlines() if line.startswith("Environment="))
    pages = settings["METASHARD_STATE_DIR"] = os.path.join(root, "run")
    os.makedirs(pages, mode=0o700)
    subprocess.run([options.client, "1", "4", options.checkpoint], capture_output=True, check=False, env=environment_of(options, **settings))
    check("a program with its variables leaves a page", any(name.endswith(".state") for name in os.listdir(pages)), os.listdir(pages))


def check_kubernetes(options, root):
    """Does what the job's two containers do, without containers: the paths are those inside."""
    try:
        import yaml
    except ImportError:
        skip("the job for Kubernetes finds the library", "there is no PyYAML")
        return
    job = yaml.safe_load(read(SOURCE, "tools", "packaging", "kubernetes.yaml"))
    pod = job["spec"]["template"]["spec"]
    volumes = {volume["name"]: os.path.join(root, "volumes", volume["name"]) for volume in pod["volumes"]}
    for path in volumes.values():
        os.makedirs(path)

    def outside(container, text):
        """The path as it is here; the image's own where nothing is mounted."""
        for mount in container["volumeMounts"]:
            if text == mount["mountPath"] or text.startswith(mount["mountPath"] + "/"):
                return volumes[mount["name"]] + text[len(mount["mountPath"]):]
        return moved(text, root)
    first, second = pod["initContainers"][0], pod["containers"][0]
    subprocess.run([outside(first, word) for word in first["command"]], check=True)
    settings = {one["name"]: outside(second, one["value"]) for one in second["env"]}
    done = subprocess.run([options.client, "1", "4", options.checkpoint], capture_output=True, text=True, check=False, env=environment_of(options, **settings))
    check("the job for Kubernetes finds the library, and leaves its pages on the node", os.path.exists(settings["LD_PRELOAD"]) and
          "] info: " in done.stderr and any(name.endswith(".state") for name in os.listdir(volumes["pages"])), done.stderr)


def check_container(root):
    """The image has the paths that it names."""
    text = read(SOURCE, "tools", "packaging", "Containerfile")
    wanted = re.search(r"LIBMETASHARD=(\S+)", text)[1]
    installs = re.search(r"--prefix=(\S+) --libdir=(\S+)", text)
    check("the container's variable names what its build installs", wanted == f"{installs[1]}/{installs[2]}/libmetashard.so" and
          os.path.exists(moved(wanted, root)), wanted)


def main():
    parser = argparse.ArgumentParser()
    for option in ("meson", "client", "driver", "cuda", "maker"):
        parser.add_argument("--" + option, required=True)
    options = parser.parse_args()
    options.client, options.maker = os.path.abspath(options.client), os.path.abspath(options.maker)
    with tempfile.TemporaryDirectory() as root:
        options.checkpoint = os.path.join(root, "checkpoint")
        os.mkdir(options.checkpoint)
        subprocess.run([options.maker, options.checkpoint, "16", "2"], stdout=subprocess.DEVNULL, check=True)
        install(options, root)
        check_module(root)
        check_slurm(options, root)
        check_systemd(options, root)
        check_kubernetes(options, root)
        check_container(root)
    return end()


if __name__ == "__main__":
    sys.exit(main())
