#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""completions.py bash|fish|zsh TOOL/main.c: what a shell completes behind the tool's name, from the tool's own tables."""
import sys

from tool_table import Tool

# What the usage calls a file. PID is a process that has a state page; anything else is the user's to know.
FILES = {"CHECKPOINT", "FILE", "OUT", "PAGE", "PLAN", "SOCKET"}


def value_words(tool, option):
    """The words that the usage has for the option's argument; none where it may be anything."""
    value = tool.values.get(option, "")
    return value.split("|") if "|" in value and not value.isupper() else []


def is_file(tool, option):
    return bool(set(tool.values.get(option, "").split("|")) & FILES)


def spellings(tool, option):
    letter = tool.options[option][2]
    return [f"--{option}"] + ([f"-{letter}"] if letter is not None else [])


def bash(tool):
    function = "_" + tool.name.replace("-", "_")
    valued = [option for option, (has_value, _, _) in tool.options.items() if has_value]
    case = []
    for option in valued:
        action = "return"
        if value_words(tool, option):
            action = f'mapfile -t COMPREPLY < <(compgen -W "{" ".join(value_words(tool, option))}" -- "$word")'
        elif is_file(tool, option):
            action = 'compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- "$word")'
        end = "" if action == "return" else "; return"
        case.append(f"    {'|'.join(spellings(tool, option))}) {action}{end} ;;")
    options, operands = [], []
    for command in tool.commands:
        words = " ".join(word for option in tool.options if option in tool.options_of(command)
                         for word in spellings(tool, option))
        options.append(f"    {command}) options=\"{words}\" ;;")
        if tool.operands[command] & FILES and "PID" not in tool.operands[command]:
            operands.append(f"    {command}) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- \"$word\") ;;")
    pids = [command for command in tool.commands if "PID" in tool.operands[command]]
    if pids:
        operands += ["    " + "|".join(pids) + ")",
                     '        while read -r id _; do',
                     '            [[ $id == [0-9]* ]] && ids+=" $id"',
                     '        done < <("${COMP_WORDS[0]}" list 2>/dev/null)',
                     '        compopt -o filenames',
                     '        mapfile -t COMPREPLY < <(compgen -W "$ids" -- "$word"; compgen -f -- "$word")',
                     '        ;;']
    return f"""# bash completion of {tool.name}
{function}() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}}
    local command= options="--help -h" i id ids=
    COMPREPLY=()
    # --option=value comes as three words.
    if [[ $word == = ]]; then
        word=
    elif [[ $before == = ]]; then
        before=${{COMP_WORDS[COMP_CWORD - 2]}}
    fi
    case $before in
{chr(10).join(case)}
    esac
    for ((i = 1; i < COMP_CWORD; i++)); do
        case ${{COMP_WORDS[i]}} in
        {"|".join(word for option in valued for word in spellings(tool, option))}) ((i++)) ;;
        {"|".join(tool.commands)}) command=${{COMP_WORDS[i]}}; break ;;
        esac
    done
    case $command in
{chr(10).join(options)}
    esac
    if [[ $word == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$options" -- "$word")
        return
    fi
    case $command in
    "") mapfile -t COMPREPLY < <(compgen -W "{" ".join(tool.commands)}" -- "$word") ;;
{chr(10).join(operands)}
    esac
}}
complete -F {function} {tool.name}
"""


def fish(tool):
    lines = [f"# fish completion of {tool.name}", f"complete -c {tool.name} -f",
             f"complete -c {tool.name} -n __fish_use_subcommand -a '{' '.join(tool.commands)}'"]
    for option, (has_value, commands, letter) in tool.options.items():
        seen = " ".join(command for command in tool.commands if command in commands)
        line = f"complete -c {tool.name}"
        if option != "help":
            line += f" -n '__fish_seen_subcommand_from {seen}'"
        line += f" -l {option}" + (f" -s {letter}" if letter is not None else "")
        if value_words(tool, option):
            line += f" -x -a '{' '.join(value_words(tool, option))}'"
        elif has_value:
            line += " -r -F" if is_file(tool, option) else " -x"
        lines.append(line)
    for kind, rest in (("FILE", "-F"), ("PID", f"-a '({tool.name} list 2>/dev/null | string match -rg \"^ *(\\d+)\")'")):
        wanted = FILES if kind == "FILE" else {"PID"}
        seen = [command for command in tool.commands if tool.operands[command] & wanted]
        if seen:
            lines.append(f"complete -c {tool.name} -n '__fish_seen_subcommand_from {' '.join(seen)}' {rest}")
    return "\n".join(lines) + "\n"


def zsh(tool):
    cases = []
    for command in tool.commands:
        specs = []
        for option in (option for option in tool.options if option in tool.options_of(command)):
            value = ""
            if tool.options[option][0]:
                words, name = value_words(tool, option), option
                value = f":{name}:" + (f"({' '.join(words)})" if words else
                                       "_files" if is_file(tool, option) else " ")
            equals = "=" if value else ""
            specs += [f"'--{option}{equals}{value}'"]
            if tool.options[option][2] is not None:
                specs += [f"'-{tool.options[option][2]}{'+' if value else ''}{value}'"]
        if "PID" in tool.operands[command]:
            specs += ["'*:process:_metashard_processes'"]
        elif tool.operands[command] & FILES:
            specs += ["'*:file:_files'"]
        cases.append(f"{command}) _arguments {' '.join(specs)} ;;")
    return f"""#compdef {tool.name}
# zsh completion of {tool.name}
_metashard_processes() {{
    local -a ids
    ids=(${{${{(f)"$(metashard-dump list 2>/dev/null)"}}//(#s) ##/}})
    compadd -- ${{(M)${{ids%% *}}:#[0-9]##}}
    _files
}}
setopt localoptions extendedglob
local command=$words[2]
if (( CURRENT == 2 )); then
    compadd -- {" ".join(tool.commands)} --help
    return
fi
shift words
(( CURRENT-- ))
case $command in
{chr(10).join(cases)}
esac
"""


if __name__ == "__main__":
    makers = {"bash": bash, "fish": fish, "zsh": zsh}
    if len(sys.argv) != 3 or sys.argv[1] not in makers:
        sys.exit(__doc__)
    sys.stdout.write(makers[sys.argv[1]](Tool(sys.argv[2])))
