# SPDX-License-Identifier: Apache-2.0
"""usage: metashard-check-torch [--without-code] [--nvdisasm FILE] [--json] [--quiet] [FOLDER]
       metashard-check-torch --help | --version

Checks the PyTorch of this Python, or the one in FOLDER (that has lib/libtorch_cuda.so): may its kernels be recorded, as the
kernel rules say? It is needed once for a PyTorch that is newer than this MetaShard, a nightly, or one's own build. The
result is kept in a file that MetaShard reads (METASHARD_TORCH_CHECKS). No kernel runs, and no GPU is needed.

  --without-code   believes names and the layouts of parameters, and does not read machine code
  --nvdisasm FILE  the disassembler (that of Triton, of the package nvidia-cuda-nvdisasm, or in PATH)
  --json           prints one JSON document, and everything else on standard error
  --quiet          prints only faults: the exit status is the result
  -h, --help       prints this
  --version        prints the version

The exit status is 0 if all holds; 1 if something does not, which is said; 2 if nothing could be checked, because something is
missing, a file is malformed, or four hours were not enough."""
import collections
import contextlib
import json
import os
import signal
import sys

import tool_options

from . import compression, disassembly, fatbin, kept, library, machine_code, promises
from .untrusted import Malformed, printable

DIFFERS, NOT_CHECKED = 1, 2
HOURS = 4  # all of PyTorch takes a few minutes
PREFERRED = 90  # which all wheels have


class Fault(Exception):
    """Nothing can be checked; the text says why."""


class Findings:
    """Prints what is not as it should be."""

    def __init__(self, out):
        self.wrong, self.out = 0, out

    def check(self, name, good, detail="", is_harmless=False):
        if good:
            return
        self.wrong += not is_harmless
        lines = str(detail)[:2000].splitlines() or [""]
        print(printable(f"{'note' if is_harmless else 'WRONG'}: not so: {name}: {lines[0]}"), file=self.out)
        print("".join(f"    {printable(line)}\n" for line in lines[1:]), end="", file=self.out, flush=True)


def say(text):
    print(printable(f"metashard-check-torch: {text}"), file=sys.stderr, flush=True)


def parse(arguments, version):
    """{option: value}, with FOLDER as one"""
    found, words, rest = tool_options.parse(__doc__, version, arguments)
    if len(words + rest) > 1:
        tool_options.stop(__doc__, f"expected one FOLDER, found {' '.join(words + rest)}")
    return {**found, **({"FOLDER": (words + rest)[0]} if words + rest else {})}


def architecture_of(path):
    found = fatbin.architectures(path)
    if not found:
        raise Fault(f"{path} has no kernels")
    return PREFERRED if PREFERRED in found else max(found)


def check(torch, options, findings):
    with open(promises.rules_path(), encoding="utf-8") as file:
        text = file.read()
    rules, path = promises.read_rules(promises.rules_path()), torch.library(library.KERNELS)
    architecture, nvdisasm = architecture_of(path), None
    if "--without-code" not in options:
        nvdisasm = disassembly.find(options.get("--nvdisasm"))
        if nvdisasm is None:
            raise Fault("there is no nvdisasm, which reads machine code: pip install nvidia-cuda-nvdisasm, or --without-code")
    kernels = fatbin.kernels(path, architecture)
    _, matched = promises.check(findings, torch, rules, kernels)
    recorded = promises.classes(rules, matched)
    classes = dict(sorted(collections.Counter(recorded.values()).items()))
    counts = ", ".join(f"{count:,} {class_}" for class_, count in classes.items())
    print(f"{len(kernels):,} kernels for sm_{architecture}, of which rules name {len(recorded):,}: {counts or 'none'}", flush=True)
    if nvdisasm is not None:
        print("reading their machine code, which takes a few minutes", flush=True)
        machine_code.check(findings, nvdisasm, path, architecture, recorded)
    return text.encode(), {"architecture": architecture, "kernels": len(kernels), "recorded": classes}


def run(options, out):
    """(the exit status, what --json prints)"""
    torch = library.Torch(options["FOLDER"]) if "FOLDER" in options else library.installed()
    build_id, target = torch.build_id(), kept.default_path()
    print(printable(f"PyTorch {torch.version}, build-id {build_id or 'none'}, in {torch.folder}"), flush=True)
    if not build_id:
        raise Fault("its libtorch_cuda.so has no build-id, by which it could be known again: link it with --build-id")
    findings = Findings(out)
    rules, told = check(torch, options, findings)
    document = {"format": "metashard-check-torch/1", "version": torch.version, "build_id": build_id, **told, "wrong": findings.wrong}
    kept.keep(target, build_id, rules, torch.version, findings.wrong == 0)
    if findings.wrong > 0:
        print("its kernels are not as the rules need them: MetaShard runs them at once, and is right")
        return DIFFERS, document
    print(f"all is as the rules need it, which is kept in {target}: MetaShard records kernels of this PyTorch from now on")
    return 0, document


def give_up(*_):
    raise Fault(f"it is not done within {HOURS} hours")


def main(arguments, version):
    try:
        options = parse(arguments, version)
        signal.signal(signal.SIGALRM, give_up)
        signal.alarm(HOURS * 3600)
        out = sys.stderr if "--json" in options else sys.stdout
        with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere if "--quiet" in options else out):
            status, document = run(options, out)
        if "--json" in options:
            print(json.dumps(document))
        return status
    except MemoryError:
        say("there is not enough memory")
        return NOT_CHECKED
    except (Fault, Malformed, library.Missing, compression.Missing, OSError) as error:
        say(str(error))
        return NOT_CHECKED
