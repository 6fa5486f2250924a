# SPDX-License-Identifier: Apache-2.0
"""`metashard fit`: finds the batch size, number of ranks or other value of a training job that fits on a GPU, by few dry runs."""
from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import tempfile

from . import dry_run, dry_run_answer, dry_run_gpus, fit_run, fit_search, installed, run
from .options import Parser

USAGE = ("metashard fit --vary NAME=VALUE,VALUE... [--vary ...] [--gpu NAME|MIB] [--world N] [--rank R] [--gpus-per-node N]\n"
         "                     [--steps N] [--timeout SECONDS] [--json] [--quiet] -- python|torchrun|accelerate launch TRAIN.PY [ARGUMENT...]")
EPILOGUE = """A value takes the place of {NAME} in the command; {{NAME}} stands for {NAME}. The name `world` changes the number of ranks.
List values in order of memory, least first: the last value that fits is the answer, for an earlier --vary before a later one.
Numbers of ranks may have any order: the fewest that fit are the answer. The exit status is 0 if something fits, 1 if nothing does,
and 2 if there is no answer. docs/dry-run.md says how accurate it is."""
WORLD = "world"
SECONDS = 1800
VARIED = re.compile(r"([A-Za-z][\w-]*)=(.+)")
PLACE = re.compile(r"\{\{([A-Za-z][\w-]*)\}\}|\{([A-Za-z][\w-]*)\}")
VERDICTS = {dry_run.FITS: "fits", dry_run.DOES_NOT_FIT: "does not fit", dry_run.CANNOT_SAY: "cannot say"}


def varied(text: str) -> tuple[str, list[str]]:
    found = VARIED.fullmatch(text)
    values = found[2].split(",") if found is not None else []
    if found is None or "" in values:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE,VALUE..., found {text}")
    if any(".." in value for value in values):
        raise argparse.ArgumentTypeError(f"expected the values themselves, as {found[1]}=1,2,4,8, found {text}")
    if len(set(values)) < len(values):
        raise argparse.ArgumentTypeError(f"a value stands twice in {text}")
    if found[1] != WORLD:
        return found[1], values
    if not all(value.isdigit() and int(value) > 0 for value in values):
        raise argparse.ArgumentTypeError(f"expected numbers of ranks, found {text}")
    return WORLD, sorted(values, key=int, reverse=True)


def make_parser() -> Parser:
    parser = Parser(prog="metashard fit", usage=USAGE, description=__doc__, epilog=EPILOGUE, allow_abbrev=False)
    parser.add_argument("--vary", metavar="NAME=VALUE,VALUE...", type=varied, action="append", default=[],
                        help="a name in the command, or world, and the values to try; may be repeated")
    dry_run.add_job(parser)
    parser.add_argument("--timeout", metavar="SECONDS", type=dry_run.number, default=SECONDS,
                        help=f"longest time of each dry run; beyond it there is no answer ({SECONDS})")
    parser.add_json()
    parser.add_quiet()
    parser.add_argument("command", metavar="COMMAND", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.command[:1] == ["--"]:
        del options.command[0]
    names = [name for name, _ in options.vary]
    if not options.command:
        parser.error("expected a command after --")
    if not names:
        parser.error("expected --vary NAME=VALUE,VALUE...; metashard dry-run answers for a job as it is")
    if len(set(names)) < len(names):
        parser.error("a name stands in --vary twice")
    if WORLD in names and options.world is not None:
        parser.error("--world is the number of ranks, which --vary world changes: leave one out")
    check_places(parser, options.command, set(names))
    # Nothing of these is for a search.
    options.ranks_here, options.compute, options.html, options.snapshot = 0, False, None, None
    for world in (int(value) for name, values in options.vary if name == WORLD for value in values):
        dry_run.check_job(parser, argparse.Namespace(**{**vars(options), "world": world}))
    dry_run.check_job(parser, options)
    return options


def check_places(parser: argparse.ArgumentParser, command: list[str], names: set[str]) -> None:
    """Each place of the command has values, and each name a place."""
    places = {found[2] for word in command for found in PLACE.finditer(word)} - {None}
    for name in sorted(places - names):
        parser.error(f"{{{name}}} in the command has no values: add --vary {name}=VALUE,VALUE..., or write {{{{{name}}}}} if it is "
                     "meant as it is")
    for name in sorted(names - places - {WORLD}):
        parser.error(f"--vary {name}: the command has no {{{name}}}, where the values are put")


def filled(command: list[str], values: dict[str, str]) -> list[str]:
    return [PLACE.sub(lambda found: f"{{{found[1]}}}" if found[1] is not None else values[found[2]], word) for word in command]


def job_of(options: argparse.Namespace, values: dict[str, str]) -> argparse.Namespace:
    """The dry run with these values."""
    job = argparse.Namespace(**vars(options))
    job.command = filled(options.command, values)
    job.world = int(values[WORLD]) if WORLD in values else options.world
    return job


def words(values: dict[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


def whole(answer: dict) -> int:
    """All that the job takes of the device."""
    return answer["peak_reserved"] + answer["outside"]


def left(answer: dict) -> int:
    """Below nothing: what was missing where it ended."""
    shortage = (answer.get("shortages") or [{"free": 0, "wanted": 0}])[-1]
    return answer["total"] - whole(answer) if answer["status"] == dry_run.FITS else shortage["free"] - shortage["wanted"]


def result(answer: dict) -> str:
    if answer["status"] == dry_run.CANNOT_SAY:
        return VERDICTS[answer["status"]]
    gib, is_narrow = dry_run_answer.gib(abs(left(answer))), dry_run_answer.is_narrow(answer)
    return f"{VERDICTS[answer['status']]}{' narrowly' * is_narrow}, {gib} {'left' if answer['status'] == dry_run.FITS else 'missing'}"


class Fit:
    def __init__(self, options: argparse.Namespace, folder: str):
        self.options, self.folder = options, folder
        self.names = [name for name, _ in options.vary]
        self.search = fit_search.Search([len(values) for _, values in options.vary], self.run)
        self.best: fit_search.Place | None = None
        self.reason: str | None = None

    def values(self, place: fit_search.Place) -> dict[str, str]:
        return {name: values[at] for (name, values), at in zip(self.options.vary, place)}

    def say(self, text: str, end: str = "\n") -> None:
        """Of the progress."""
        if not self.options.quiet:
            print(text, end=end, file=sys.stderr, flush=True)

    def run(self, place: fit_search.Place) -> dict:
        values, count = self.values(place), len(self.search.tried)
        most = f"at most {count + self.search.most_runs()}" if self.search.is_ordered else "all"
        self.say(f"metashard: dry run {count + 1} of {most}: {words(values)} ... ", end="")
        try:
            one = fit_run.Run(job_of(self.options, values), self.folder)
            answer = one.measure()
        except KeyboardInterrupt:
            self.say("stopped")
            raise
        self.say(result(answer))
        if answer["status"] == dry_run.CANNOT_SAY:
            for line in one.last_lines():
                print("    " + line, file=sys.stderr)
            self.reason = f"with {words(values)}: {answer['reason']}"
        return answer

    def find(self) -> int:
        """The exit status."""
        try:
            self.best = self.search.find()
        except fit_search.Unsaid:
            return dry_run.CANNOT_SAY
        except KeyboardInterrupt:
            self.reason = "stopped; every process of the dry run has ended"
            return dry_run.CANNOT_SAY
        return dry_run.DOES_NOT_FIT if self.best is None else dry_run.FITS

    # --- the answer

    def verdict(self, status: int) -> str:
        if status == dry_run.CANNOT_SAY:
            return f"cannot say: {self.reason}"
        if self.best is None:
            return f"nothing fits on {dry_run_gpus.find(self.options.gpu).name}"
        answer = self.search.tried[self.best]
        return (f"{words(self.values(self.best))} fits{' narrowly' * dry_run_answer.is_narrow(answer)} on {answer['device']}: "
                f"peak {dry_run_answer.gib(whole(answer))}, {dry_run_answer.gib(left(answer))} left")

    def table(self) -> list[str]:
        rows = [[*self.names, "peak", "left"]]
        for place, answer in sorted(self.search.tried.items()):
            fits, known = answer["status"] == dry_run.FITS, answer["status"] != dry_run.CANNOT_SAY
            rows.append([*self.values(place).values(), dry_run_answer.gib(whole(answer)) if fits else "-",
                         dry_run_answer.gib(left(answer)) if known else "-"])
        widths = [max(map(len, column)) for column in zip(*rows)]
        ends = ["", *(VERDICTS[answer["status"]] + "  <-" * (place == self.best) for place, answer in sorted(self.search.tried.items()))]
        return ["  " + "  ".join([*(text.rjust(width) for text, width in zip(row, widths)), end]).rstrip() for row, end in zip(rows, ends)]

    def notes(self) -> list[str]:
        return [] if self.search.is_ordered else ["  note: the peaks are not in the order of the values, so all of them were run"]

    def row(self, place: fit_search.Place) -> dict:
        answer = self.search.tried[place]
        found = {"values": self.values(place), "verdict": VERDICTS[answer["status"]]}
        if answer["status"] == dry_run.CANNOT_SAY:
            return {**found, "reason": answer["reason"]}
        if answer["status"] == dry_run.FITS:
            found["peak"] = whole(answer)
        return {**found, "left": left(answer), "total": answer["total"]}

    def document(self, status: int) -> dict:
        return {"status": status, "gpu": self.options.gpu, "answer": None if self.best is None else self.row(self.best),
                "reason": self.reason, "ordered": self.search.is_ordered, "tried": [self.row(place) for place in self.search.tried]}


def stop(*_: object) -> None:
    raise KeyboardInterrupt


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    gpu = dry_run_gpus.find(options.gpu)
    dry_run.check_command(job_of(options, {name: values[0] for name, values in options.vary}).command)
    if not options.quiet:
        run.say(f"dry runs on {gpu.name} ({gpu.mebibytes / 1024:.2f} GiB), simulated: {dry_run.NOTHING}")
    for number in fit_run.STOPPING:
        signal.signal(number, stop)
    with tempfile.TemporaryDirectory(prefix="metashard-fit-") as folder:
        fit = Fit(options, folder)
        status = fit.find()
    if options.json:
        print(json.dumps(fit.document(status), indent=2))
    elif not options.quiet or status == dry_run.CANNOT_SAY:
        print("\n".join(["", "metashard fit: " + fit.verdict(status), *fit.table(), *fit.notes()]), file=sys.stderr)
    return status
