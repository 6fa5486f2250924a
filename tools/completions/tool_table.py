# SPDX-License-Identifier: Apache-2.0
"""The commands and options of a tool, from the tables by which it reads its own arguments: for its completions and for the
check of its manual page."""
import ast
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import tool_options  # noqa: E402

COMMAND = re.compile(r'\{"([\w-]+)", (\w+), run_\w+, (\d+), (\w+)\}')
OPTION = re.compile(r"\{TO\((\w+)\), (no|required|optional)_argument, ([^{},]+)(?:, '(\w)')?\}")
VALUE = r"\w(?:[\w|=,]*\w)?"
ALONE = ""  # the one command of a tool that has none


def table(path):
    """Reads main.c of a tool in C, a program or module in Python, or the command `metashard`."""
    if path.endswith(".c"):
        return Tool(path)
    return Package(path) if os.path.basename(path) == "__main__.py" else Script(path)


class Table:
    """`options` is by name: whether it has an argument, the commands that take it, its letter or None. `values` is by option
    what its argument is, `operands` by command what else stands there. `others` is by command the tool that it is, and the
    words of which one is that tool's command, if the user does not name it."""

    def __init__(self, name):
        self.name, self.commands, self.options, self.values, self.operands, self.others = name, [], {}, {}, {}, {}

    def options_of(self, command):
        return {name for name, (_, commands, _) in self.options.items() if command in commands}


class Tool(Table):
    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            text = file.read()
        super().__init__("metashard-" + os.path.basename(os.path.dirname(path)))
        self.bits = {bit: name for name, bit, _, _ in self._rows(path, text, "commands", COMMAND, '{"')}
        self.commands = list(self.bits.values())
        for name, argument, commands, letter in self._rows(path, text, "rows", OPTION, "{TO("):
            self.options[name] = (argument != "no", self._commands_of(path, commands), letter or None)
        self._read_usage(path, text)

    @staticmethod
    def _rows(path, text, name, pattern, start):
        found = re.search(rf"{name}\[\] = \{{\n(.*?)\n\}};", text, re.S)
        rows = pattern.findall(found[1]) if found else []
        if not rows or len(rows) != found[1].count(start):
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
        names = {letter: name for name, (_, _, letter) in self.options.items()}
        for name, value in re.findall(r"\B--?(\w+) (" + VALUE + ")", self.usage):
            self.values.setdefault(names.get(name, name), value)
        self.operands = {command: set() for command in self.commands}
        for command, rest in re.findall(rf"{self.name} (\w+)([^\n]*)", self.usage):
            rest = re.sub(r"\B--?\w+ " + VALUE, "", rest)
            self.operands[command] |= set(re.findall(r"\b[A-Z]+\b", rest))


class Script(Table):
    """Its text of --help, which begins its file, names all that it takes."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            self.usage = ast.get_docstring(ast.parse(file.read()))
        lines = re.fullmatch(r"usage: (metashard-[\w-]+) (.*?)\n\n(.*)", self.usage, re.S)
        super().__init__(lines[1])
        self.commands = [ALONE]
        self.operands[ALONE] = set(re.findall(r"\[?\b([A-Z]+)\b", re.sub(r"\[--[^]]*\]", "", lines[2].split("\n")[0])))
        for letter, name, value in tool_options.OPTION.findall(lines[3]):
            self.options[name] = (bool(value), {ALONE}, letter or None)
            self.values.update({name: value} if value else {})
        said = set(re.findall(r"--([\w-]+)", lines[2]))
        if said != set(self.options):
            raise SystemExit(f"{path}: the first lines have the options {sorted(said)}, the rest {sorted(self.options)}")


class Package(Table):
    """The command `metashard`, of its own parsers."""

    def __init__(self, path):
        sys.dont_write_bytecode = True
        sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(path))))
        from metashard import __main__, completion, doctor, dry_run, dry_run_gpus, fit, run, suspension
        super().__init__("metashard")
        self.usage = __main__.__doc__
        self.commands = [*__main__.COMMANDS, "path"]
        self.others = {command: f"metashard-{command}" for command in __main__.TOOLS}
        self.others.update({command: "metashard-dump" for command in __main__.OF_DUMP})
        self.kept = set(__main__.OF_DUMP)  # `metashard show` is `metashard-dump show`
        self.operands = {command: set() for command in self.commands}
        self._add("run", run.make_parser())
        self._add("dry-run", dry_run.make_parser())
        self._add("fit", fit.make_parser())
        self._add("doctor", doctor.make_parser())
        self._add("completion", completion.make_parser())
        for command in ("suspend", "resume"):
            self._add(command, suspension.make_parser(command))
        self.options["version"] = (False, set(), None)
        # Whatever may be added to it, or stand there in its place.
        self.values.update({"log": "error|warn|info|debug|trace", "gpu": "|".join(dry_run_gpus.GPUS)})

    def _add(self, command, parser):
        for action in parser._actions:
            if not action.option_strings:
                self.operands[command] |= set(re.findall("[A-Z]+", action.metavar))
            for name in (text[2:] for text in action.option_strings if text.startswith("--")):
                has_value = action.nargs != 0
                known = self.options.setdefault(name, (has_value, set(), "h" if name == "help" else None))
                if known[0] != has_value:
                    raise SystemExit(f"--{name} has a value with some commands of {self.name}, and with others not")
                known[1].add(command)
                if has_value:
                    self.values[name] = action.metavar
