# SPDX-License-Identifier: Apache-2.0
"""The options of a command: what is wrong with them is one line, with the option that may be meant."""
from __future__ import annotations

import argparse
import difflib
import sys
from typing import NoReturn, Optional, Sequence

WRONG_USAGE = 2
MISSING = "the following arguments are required"  # argparse's words
# Options of torchrun that people type before the command.
OF_TORCHRUN = {"--standalone", "--nproc-per-node", "--nproc_per_node", "--nnodes", "--node-rank", "--node_rank", "--master-addr",
               "--master_addr", "--master-port", "--master_port", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--max-restarts"}
# Options that people type behind another command than theirs.
OF_COMMANDS = {"--verify": "metashard verify", "--vary": "metashard fit", "--to": "metashard suspend", "--html": "metashard show",
               "--trace": "metashard show", "--strategy": "metashard plan make", "--mesh": "metashard plan make",
               **dict.fromkeys(("--gpu", "--world", "--rank", "--ranks-here", "--steps", "--compute"), "metashard dry-run")}
LEAST_ALIKE = 0.7  # of a misspelt option and the one that is meant


class Parser(argparse.ArgumentParser):
    typed: list[str] = []

    def add_json(self) -> None:
        self.add_argument("--json", action="store_true", help="print one JSON document")

    def add_quiet(self, explained: str = "print only faults: the exit status is the result") -> None:
        self.add_argument("--quiet", action="store_true", help=explained)

    def error(self, message: str) -> NoReturn:
        if message.startswith(MISSING):  # an option that there is not says more, as where a word is misspelt
            self.refuse_unknown()
        print(f"{self.prog}: {message}", file=sys.stderr)
        sys.exit(WRONG_USAGE)

    def refuse_unknown(self) -> None:
        for word in self.typed[:self.typed.index("--")] if "--" in self.typed else self.typed:
            if word.startswith("--") and word.partition("=")[0] not in self._option_string_actions:
                self.refuse(word)

    def refuse(self, word: str) -> NoReturn:
        """An option that there is not."""
        name = word.partition("=")[0]
        if name in OF_TORCHRUN:
            self.error(f"{name} is an option of torchrun: type it behind torchrun, as: {self.prog} -- torchrun {name} ...")
        near = difflib.get_close_matches(name, self._option_string_actions, 1, LEAST_ALIKE)
        if near:
            self.error(f"{name} is no option; did you mean {near[0]}?")
        if name in OF_COMMANDS:
            self.error(f"{name} is no option; did you mean the command {OF_COMMANDS[name]}?")
        self.error(f"{name} is no option; {self.prog} --help lists them")

    def parse_args(self, args: Optional[Sequence[str]] = None,  # type: ignore[override]
                   namespace: Optional[argparse.Namespace] = None) -> argparse.Namespace:
        self.typed = list(sys.argv[1:] if args is None else args)
        found, others = self.parse_known_args(args, namespace)
        if others:
            self.refuse(others[0]) if others[0].startswith("-") else self.error(f"expected nothing more, found {others[0]}")
        return found
