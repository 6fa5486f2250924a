# SPDX-License-Identifier: Apache-2.0
"""The options of a tool that needs neither a build nor the package `metashard`: its usage, which --help prints, is their table."""
import difflib
import re
import sys

WRONG_USAGE = 2
OPTION = re.compile(r"^  (?:-(\w), )?--([\w-]+)(?: ([A-Z]+))?  ", re.M)


def printable(text):
    """Names may hold what a terminal obeys (runtime/base/utf8.c)."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def tool_of(usage):
    return usage.split()[1]


def stop(usage, text):
    print(printable(f"{tool_of(usage)}: {text}"), file=sys.stderr, flush=True)
    sys.exit(WRONG_USAGE)


def unknown(usage, word, options):
    near = difflib.get_close_matches(word, options, 1)
    stop(usage, f"{word} is no option; {f'did you mean {near[0]}?' if near else f'{tool_of(usage)} --help lists them'}")


def parse(usage, version, arguments):
    """({option: its value, or True}, words before "--", words behind it). Ends the program for --help, --version and what is wrong."""
    options = {"--" + name: value for _, name, value in OPTION.findall(usage)}
    letters = {"-" + letter: "--" + name for letter, name, _ in OPTION.findall(usage) if letter}
    found, words, rest = {}, [], list(arguments)
    while rest and rest[0] != "--":
        word, equals, value = rest.pop(0).partition("=")
        name = letters.get(word, word)
        if not word.startswith("-"):
            words.append(word + equals + value)
        elif name not in options:
            unknown(usage, word, options)
        elif not options[name] and equals:
            stop(usage, f"expected no value behind {name}")
        elif options[name] and not value and (equals or not rest or rest[0] == "--"):
            stop(usage, f"expected a value behind {name}")
        else:
            found[name] = (value or rest.pop(0)) if options[name] else True
        if "--help" in found or "--version" in found:
            print(usage if "--help" in found else f"{tool_of(usage)} {version}")
            sys.exit(0)
    return found, words, rest[1:]
