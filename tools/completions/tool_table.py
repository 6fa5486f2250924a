# SPDX-License-Identifier: Apache-2.0
"""The commands and options of a tool, from its tables in C: for its completions and for the check of its manual page."""
import os
import re

COMMAND = re.compile(r'\{"([\w-]+)", (\w+), run_\w+, (\d+), (\w+)\}')
OPTION = re.compile(r"\{TO\((\w+)\), (no|required|optional)_argument, ([^{},]+)(?:, '(\w)')?\}")
VALUE = r"\w(?:[\w|=,]*\w)?"


class Tool:
    """`options` is by name: whether it has an argument, the commands that take it, its letter or None. `values` is by
    option what the usage says of its argument, `operands` by command what it says of the rest."""

    def __init__(self, path):
        with open(path) as file:
            text = file.read()
        self.name = "metashard-" + os.path.basename(os.path.dirname(path))
        self.bits = {bit: name for name, bit, _, _ in self._rows(path, text, "commands", COMMAND, '{"')}
        self.commands = list(self.bits.values())
        self.options = {}
        for name, argument, commands, letter in self._rows(path, text, "rows", OPTION, "{TO("):
            self.options[name] = (argument != "no", self._commands_of(path, commands), letter or None)
        self._read_usage(path, text)

    @staticmethod
    def _rows(path, text, name, pattern, start):
        table = re.search(rf"{name}\[\] = \{{\n(.*?)\n\}};", text, re.S)
        rows = pattern.findall(table[1]) if table else []
        if not rows or len(rows) != table[1].count(start):
            raise SystemExit(f"{path}: the table `{name}` is written in another way than is read here")
        return rows

    def _commands_of(self, path, bits):
        if bits == "~0u":
            return set(self.commands)
        words = [word.strip() for word in bits.split("|")]
        if not set(words) <= set(self.bits):
            raise SystemExit(f"{path}: not a sum of commands: {bits}")
        return {self.bits[word] for word in words}

    def _read_usage(self, path, text):
        usage = re.search(r'usage\[\] =\s*((?:"(?:[^"\\]|\\.)*"\s*)+);', text)
        if usage is None:
            raise SystemExit(f"{path}: no text `usage`")
        self.usage = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', usage[1])).replace("\\n", "\n")
        self.values = {}
        names = {letter: name for name, (_, _, letter) in self.options.items()}
        for name, value in re.findall(r"\B--?(\w+) (" + VALUE + ")", self.usage):
            self.values.setdefault(names.get(name, name), value)
        self.operands = {command: set() for command in self.commands}
        for command, rest in re.findall(rf"{self.name} (\w+)([^\n]*)", self.usage):
            rest = re.sub(r"\B--?\w+ " + VALUE, "", rest)
            self.operands[command] |= set(re.findall(r"\b[A-Z]+\b", rest))

    def options_of(self, command):
        return {name for name, (_, commands, _) in self.options.items() if command in commands}
