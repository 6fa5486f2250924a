#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_install.py --meson 'COMMAND introspect' --build DIR --prefix DIR ... --tools SOURCE...: installs into an empty
folder, and looks at what is there: nothing missing and nothing more, found by man, pkg-config and the shells, and the
library does its work from there. TAP."""
import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
from state_page import read_dump  # noqa: E402
from tap import check, end, equal, skip  # noqa: E402

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(SOURCE, "tools", "completions"))
import shells  # noqa: E402
from tool_table import table  # noqa: E402

# Files that belong to a tool beside the program, its manual page and its completions.
BESIDE = {"metashard-plan": {"{mandir}/man5/metashard-plan.5", "{datadir}/metashard/plan-schema.json"},
          "metashard-dump": {"{datadir}/metashard/state-schema.json"}, "metashard-verify": set(), "metashard-check-torch": set()}
FILES = {"{datadir}/metashard/tool_options.py", "{libdir}/libmetashard.so", "{libdir}/pkgconfig/metashard.pc", "{includedir}/metashard.h",
         "{datadir}/metashard/kernel-rules.txt", "{mandir}/man3/metashard.3", "{mandir}/man7/metashard.7"}
MODULES = os.path.join(SOURCE, "tools", "check_torch", "torch_check")
FILES |= {"{datadir}/metashard/torch_check/" + name for name in os.listdir(MODULES) if name.endswith(".py")}
DOCUMENTS = ("LICENSE", "NOTICE", "administrators.md", "design.md", "entry-points.md", "environment.md", "examples/plan_ctypes.py", "faq.md", "launchers.md",
             "limits.md", "locking.md", "plan-format.md", "security.md", "suspend.md", "troubleshooting.md",
             *(f"design/{name}" for name in os.listdir(os.path.join(SOURCE, "docs", "design")) if name.endswith(".md")))
run = shells.run


def files_below(folder):
    return {os.path.relpath(os.path.join(place, name), folder)
            for place, _, names in os.walk(folder) for name in names}


def wanted_files(options, tools):
    wanted = FILES | {"{datadir}/doc/metashard/" + name for name in DOCUMENTS}
    for tool in tools:
        wanted |= {"{bindir}/" + tool, f"{{mandir}}/man1/{tool}.1", "{datadir}/bash-completion/completions/" + tool,
                   f"{{datadir}}/fish/vendor_completions.d/{tool}.fish", "{datadir}/zsh/site-functions/_" + tool}
        wanted |= BESIDE[tool]
    # An absolute place stands as it is.
    return {os.path.relpath(os.path.join(options.prefix, path.format(**vars(options))), "/") for path in wanted}


def install(options, root):
    command = shlex.split(options.meson)
    if command[-1] != "introspect":
        sys.exit(f"expected meson's command for introspection, found {options.meson}")
    # Sanitizers and a preload are not for meson.
    output = run([*command[:-1], "install", "-C", options.build, "--no-rebuild", "--destdir", root])
    check("meson install succeeds", "status" not in output.splitlines()[0] if output else False)
    if "status" in output:
        print(output)


def check_manuals(mandir, tools):
    if shutil.which("man") is None:
        skip("man finds the pages in MANPATH", "man is not installed")
        return
    pages = [("3", "metashard"), ("7", "metashard")] + [("1", tool) for tool in tools]
    pages += [("5", "metashard-plan")] if "metashard-plan" in tools else []
    found = [run(["man", "-w", section, name], MANPATH=mandir).strip() for section, name in pages]
    equal("man finds the pages in MANPATH", found,
          [os.path.join(mandir, "man" + section, f"{name}.{section}") for section, name in pages])


def check_links(folder):
    dead = []
    for page in (name for name in files_below(folder) if name.endswith(".md")):
        with open(os.path.join(folder, page), encoding="utf-8") as file:
            links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", file.read())
        dead += [(page, link) for link in links
                 if "://" not in link and not os.path.exists(os.path.join(folder, os.path.dirname(page), link))]
    equal("no link of the installed pages is dead", dead, [])


def check_pkg_config(options, root):
    """The preload as pkg-config tells it, below the folder; None without pkg-config."""
    if shutil.which("pkg-config") is None:
        skip("pkg-config tells the preload, the header and the version", "pkg-config is not installed")
        return None
    places = {"PKG_CONFIG_LIBDIR": options.libdir_below + "/pkgconfig", "PKG_CONFIG_SYSROOT_DIR": "",
              "PKG_CONFIG_PATH": ""}
    preload = run(["pkg-config", "--variable=preload", "metashard"], **places).strip()
    data = run(["pkg-config", "--variable=pkgdatadir", "metashard"], **places).strip()
    flags = run(["pkg-config", "--cflags", "--libs", "metashard"], PKG_CONFIG_ALLOW_SYSTEM_CFLAGS="1", **places)
    include = os.path.join(options.prefix, options.includedir)
    equal("pkg-config tells the preload, the header and the version",
          [preload, data, flags.split(), run(["pkg-config", "--modversion", "metashard"], **places).strip()],
          [os.path.join(options.prefix, options.libdir, "libmetashard.so"),
           os.path.join(options.prefix, options.datadir, "metashard"), ["-I" + include], options.version])
    check("the header is where it tells", os.path.exists(root + include + "/metashard.h"))
    return root + preload


def check_files(folder, tools):
    if "metashard-plan" not in tools:
        return
    with tempfile.TemporaryDirectory() as place:
        open(os.path.join(place, "a plan.json"), "w").close()
        text = run(["bash", "-c", 'cd "$2" && . "$1" && compopt() { :; }; COMP_WORDS=(metashard-plan check a); '
                    'COMP_CWORD=2; _metashard_plan; printf "%s\\n" "${COMPREPLY[@]}"', "bash",
                    os.path.join(folder, "metashard-plan"), place])
        equal("files are completed, also with spaces in their names", text, "a plan.json\n")


def check_library(options, library, folder):
    """The main job, small, with the installed library."""
    demo = os.path.join(options.build, "tests", "demo")
    run([os.path.join(demo, "make_checkpoint"), folder, "16", "2"])
    client = [os.path.join(demo, "client"), "1", "2", folder]
    preload = options.preload.split(":")[:-1] + [library]
    dump = os.path.join(folder, "dump")
    without = json.loads(run(client))
    output = run(client, LD_PRELOAD=":".join(preload), METASHARD_DUMP=dump)
    try:
        same = json.loads(output)["hash"] == without["hash"]
        counters = read_dump(dump)
    except (OSError, ValueError) as error:
        check("the installed library loads the demo's shard", f"{error}: {output}")
        return
    check("the installed library loads the demo's shard", same and without["hash"] == without["file_hash"])
    check("and defers its allocations", counters["deferred_allocations"] > 0)
    asks = "import ctypes; ask = ctypes.CDLL(None).metashard_version; ask.restype = ctypes.c_char_p; print(ask().decode())"
    equal("and has a version", run([sys.executable, "-c", asks], LD_PRELOAD=":".join(preload)), options.version + "\n")


def check_example(options, root, library, mandir, folder):
    """The program that metashard(3) shows: compiled as it says there, without the library and with it."""
    with open(os.path.join(mandir, "man3", "metashard.3"), encoding="utf-8") as file:
        text, _ = re.findall(r"^\.Bd -literal\n(.*?)^\.Ed", file.read(), re.M | re.S)
    program = os.path.join(folder, "example")
    with open(program + ".c", "w", encoding="utf-8") as file:
        file.write(text.replace("\\e", "\\"))
    include = root + os.path.join(options.prefix, options.includedir)
    equal("the example in C compiles", run(["cc", "-Wall", "-Wextra", "-Werror", "-I" + include, program + ".c", "-o", program]), "")
    equal("the example runs without MetaShard", run(program), "without MetaShard\n")
    output = run(program, LD_PRELOAD=":".join(options.preload.split(":")[:-1] + [library]))
    check("and with it", re.match(r"MetaShard " + re.escape(options.version) + r': \{"pid": \d+, .*\}\n$', output) is not None, output)


def check_verify(options, bindir, folder):
    """With the library that is installed beside it. A sanitizer's runtime would have to come first."""
    if len(options.preload.split(":")) > 1:
        skip("metashard-verify finds the installed library", "built with a sanitizer")
        return
    client = [os.path.join(options.build, "tests", "demo", "client"), "1", "2", folder]
    done = subprocess.run([os.path.join(bindir, "metashard-verify"), "--", *client], capture_output=True, text=True, timeout=60)
    check("metashard-verify finds the installed library", "libmetashard.so" not in done.stderr and
          "metashard-verify: 1 process: " in done.stderr and done.returncode == 0)


def check_tools(bindir, tools, version):
    for name in tools:
        check(f"{name} runs", run([os.path.join(bindir, name), "--help"]).startswith(f"usage: {name} "))
        equal(f"{name} has a version", run([os.path.join(bindir, name), "--version"]), f"{name} {version}\n")


def main():
    parser = argparse.ArgumentParser()
    for option in ("meson", "build", "prefix", "libdir", "datadir", "mandir", "bindir", "includedir", "preload"):
        parser.add_argument("--" + option, required=True)
    parser.add_argument("--tools", nargs="+", required=True)
    options = parser.parse_args()
    with open(os.path.join(options.build, "meson-info", "intro-projectinfo.json")) as file:
        options.version = json.load(file)["version"]
    tools = {tool.name: tool for tool in map(table, options.tools)}
    with tempfile.TemporaryDirectory() as root:
        below = {name: root + os.path.join(options.prefix, getattr(options, name))
                 for name in ("libdir", "datadir", "mandir", "bindir")}
        options.libdir_below = below["libdir"]
        install(options, root)
        equal("every file is where it should be, and no other", sorted(files_below(root)),
              sorted(wanted_files(options, tools)))
        check_manuals(below["mandir"], tools)
        check_links(os.path.join(below["datadir"], "doc", "metashard"))
        library = check_pkg_config(options, root) or below["libdir"] + "/libmetashard.so"
        completions = below["datadir"] + "/bash-completion/completions"
        shells.check_bash(completions, tools, below["bindir"])
        check_files(completions, tools)
        shells.check_other_shells(below["datadir"], tools, below["bindir"])
        check_tools(below["bindir"], tools, options.version)
        with tempfile.TemporaryDirectory() as folder:
            check_library(options, library, folder)
            check_example(options, root, library, below["mandir"], folder)
            check_verify(options, below["bindir"], folder)
    return end()


if __name__ == "__main__":
    sys.exit(main())
