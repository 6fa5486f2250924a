# SPDX-License-Identifier: Apache-2.0
"""`metashard completion`: what a shell completes behind `metashard`. bash: . <(metashard completion bash); fish: metashard completion
fish | source; zsh: a file _metashard in a folder of fpath."""
from __future__ import annotations

from . import installed
from .options import Parser

FILES = {"bash": "bash-completion/completions/metashard", "fish": "fish/vendor_completions.d/metashard.fish",
         "zsh": "zsh/site-functions/_metashard"}


def make_parser() -> Parser:
    parser = Parser(prog="metashard completion", description=__doc__, allow_abbrev=False,
                    epilog="The exit status is 0, or 2 for another shell or if the file is not there.")
    parser.add_argument("shell", metavar="SHELL", choices=sorted(FILES), help="bash, fish or zsh")
    return parser


def main(arguments: list[str]) -> int:
    with open(installed.find(FILES[make_parser().parse_args(arguments).shell]), encoding="utf-8") as file:
        print(file.read(), end="")
    return 0
