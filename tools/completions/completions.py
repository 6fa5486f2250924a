#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""completions.py bash|fish|zsh FILE: what a shell completes behind a tool's name, from the tool's own tables. FILE is as
tool_table.py takes it."""
import sys

from tool_table import ALONE, table

# Words of the usage that stand for a file. PID is a process that has a state page; only the user knows the values of other words.
FILES = {"CHECKPOINT", "DIR", "FILE", "FOLDER", "OUT", "PAGE", "PLAN", "SOCKET"}
LABEL = "-"  # of the one command of a tool that has none


def value_words(tool, option):
    """The words that the usage has for the option's argument; none where it may be anything."""
    value = tool.values.get(option, "")
    return value.split("|") if "|" in value and not value.isupper() else []


def is_file(tool, option):
    return bool(set(tool.values.get(option, "").split("|")) & FILES)


def spellings(tool, option):
    letter = tool.options[option][2]
    return [f"--{option}"] + ([f"-{letter}"] if letter is not None else [])


def with_operand(tool, kinds):
    return [command for command in tool.commands if tool.operands[command] & kinds]


def files_too(tool):
    """May a file stand where a process may?"""
    return all(tool.operands[command] & FILES for command in with_operand(tool, {"PID"}))


def runs(tool):
    """Commands behind which another command stands."""
    return with_operand(tool, {"COMMAND"})


def others(tool):
    """(tool that it is, those of the commands that this tool has too, and those that only name it)"""
    for name in dict.fromkeys(tool.others.values()):
        commands = [command for command, other in tool.others.items() if other == name]
        yield name, [command for command in commands if command in tool.kept], [command for command in commands if command not in tool.kept]


def function_of(name):
    return "_" + name.replace("-", "_")


BASH_REST = """    if [[ -n $rest ]]; then
        if declare -F _comp_command_offset >/dev/null; then
            _comp_command_offset "$rest"
        elif declare -F _command_offset >/dev/null; then
            _command_offset "$rest"
        elif ((COMP_CWORD == rest)); then
            mapfile -t COMPREPLY < <(compgen -c -- "$word")
        else
            compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- "$word")
        fi
        return
    fi"""


def bash_values(tool):
    for option in (option for option, (has_value, _, _) in tool.options.items() if has_value):
        action = "return"
        if value_words(tool, option):
            action = f'mapfile -t COMPREPLY < <(compgen -W "{" ".join(value_words(tool, option))}" -- "$word"); return'
        elif is_file(tool, option):
            action = 'compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- "$word"); return'
        yield f"    {'|'.join(spellings(tool, option))}) {action} ;;"


def bash_operands(tool):
    for command in with_operand(tool, FILES):
        if "PID" not in tool.operands[command]:
            yield f"    {command or LABEL}) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- \"$word\") ;;"
    if runs(tool):
        yield f'    {"|".join(command or LABEL for command in runs(tool))}) mapfile -t COMPREPLY < <(compgen -c -- "$word") ;;'
    if with_operand(tool, {"PID"}):
        yield "    " + "|".join(with_operand(tool, {"PID"})) + ")"
        files = 'compgen -f -- "$word"' if files_too(tool) else ""
        if files:
            yield "        compopt -o filenames"
        yield f"""        while read -r id _; do
            [[ $id == [0-9]* ]] && ids+=" $id"
        done < <("${{COMP_WORDS[0]}}" list 2>/dev/null)
        mapfile -t COMPREPLY < <(compgen -W "$ids" -- "$word"{"; " + files if files else ""})
        ;;"""


def bash_others(tool):
    """A tool that has another name here completes by its own function, which sees only its own words."""
    if not tool.others:
        return
    yield "    case $command in"
    for name, kept, named in others(tool):
        for commands, first, back in ((kept, "at", "at - 1"), (named, "at + 1", "at")):
            if commands:
                yield (f'    {"|".join(commands)})\n'
                       f'        declare -F {function_of(name)} >/dev/null || . "${{BASH_SOURCE[0]%/*}}/{name}"\n'
                       f'        COMP_WORDS=("${{COMP_WORDS[0]}}" "${{COMP_WORDS[@]:{first}}}")\n'
                       f"        ((COMP_CWORD -= {back}))\n        {function_of(name)}\n        return\n        ;;")
    yield "    esac"


def bash(tool):
    function = function_of(tool.name)
    valued = [word for option, (has_value, _, _) in tool.options.items() if has_value for word in spellings(tool, option)]
    options = []
    for command in tool.commands:
        words = " ".join(word for option in tool.options if option in tool.options_of(command) for word in spellings(tool, option))
        if command not in tool.others:
            options.append(f"    {command or LABEL}) options=\"{words}\" ;;")
    is_alone = tool.commands == [ALONE]
    taking = "|".join(command or LABEL for command in runs(tool))
    named = "" if is_alone else f"""    "") mapfile -t COMPREPLY < <(compgen -W "{" ".join(tool.commands)}" -- "$word") ;;\n"""
    rest = f"[[ $command == @({taking}) ]] && rest=$i; " if taking else ""
    parts = {"values": bash_values(tool), "options": options, "others": bash_others(tool), "operands": bash_operands(tool)}
    text = {name: "".join(line + "\n" for line in lines) for name, lines in parts.items()}
    return f"""# bash completion of {tool.name}
{function}() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}}
    local command={LABEL if is_alone else ""} options="--help --version" at=0 rest= i id ids=
    COMPREPLY=()
    # --option=value comes as three words.
    if [[ $word == = ]]; then
        word=
    elif [[ $before == = ]]; then
        before=${{COMP_WORDS[COMP_CWORD - 2]}}
    fi
    for ((i = 1; i < COMP_CWORD; i++)); do
        case ${{COMP_WORDS[i]}} in
        {"|".join(valued)}) [[ ${{COMP_WORDS[i + 1]}} == = ]] && ((i++)); ((i++)) ;;
        --) rest=$((i + 1)); break ;;
        -*) ;;
        *)
            if [[ -z $command ]]; then
                command=${{COMP_WORDS[i]}} at=$i
                [[ $command == @({taking or LABEL}) ]] || break
            else
                {rest}break
            fi
            ;;
        esac
    done
{text["others"]}{BASH_REST if taking else "    : $at $rest"}
    case $before in
{text["values"]}    esac
    case $command in
{text["options"]}    esac
    if [[ $word == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$options" -- "$word")
        return
    fi
    case $command in
{named}{text["operands"]}    esac
}}
complete -F {function} {tool.name}
"""


FISH_REST = """function __fish_{function}_rest
    set -l words (commandline -opc)
    set -l at (contains -i -- -- $words)
    if test -n "$at"
        set -e words[1..$at]
        complete -C (string join ' ' -- (string escape -- $words) (commandline -ct | string collect))
    end
end"""
FISH_OTHERS = """function __fish_{function}_is
    set -l words (commandline -opc)
    contains -- "$words[2]" $argv
end
function __fish_{function}_other
    set -l words (commandline -opc)
    set words $argv $words[$argv[1]..]
    complete -C (string join ' ' -- (string escape -- $words[2..]) (commandline -ct | string collect))
end"""


def fish(tool):
    lines = [f"# fish completion of {tool.name}", f"complete -c {tool.name} -f"]
    function = function_of(tool.name)[1:]
    is_alone, has_others = tool.commands == [ALONE], bool(tool.others)
    seen = f"__fish_{function}_is" if has_others else "__fish_seen_subcommand_from"

    def condition(commands):
        return "" if is_alone else f" -n '{seen} {' '.join(commands)}'"

    if has_others:
        lines.append(FISH_OTHERS.format(function=function))
    if not is_alone:
        lines.append(f"complete -c {tool.name} -n __fish_use_subcommand -a '{' '.join(tool.commands)}'")
    for option, (has_value, commands, letter) in tool.options.items():
        line = f"complete -c {tool.name}"
        named = [command for command in tool.commands if command in commands]
        line += " -n __fish_use_subcommand" if not named else condition(named) if option != "help" else ""
        line += f" -l {option}" + (f" -s {letter}" if letter is not None else "")
        if value_words(tool, option):
            line += f" -x -a '{' '.join(value_words(tool, option))}'"
        elif has_value:
            line += " -r -F" if is_file(tool, option) else " -x"
        lines.append(line)
    for kinds, rest in ((FILES, "-F"), ({"PID"}, f"-a '({tool.name} list 2>/dev/null | string match -rg \"^ *(\\d+)\")'")):
        commands = with_operand(tool, kinds)
        if commands:
            lines.append(f"complete -c {tool.name}{condition(commands)} {rest}")
    if runs(tool):
        lines += [FISH_REST.format(function=function), f"complete -c {tool.name}{condition(runs(tool))} -a '(__fish_{function}_rest)'"]
    for name, kept, named in others(tool):
        for commands, first in ((kept, 2), (named, 3)):
            if commands:
                lines.append(f"complete -c {tool.name}{condition(commands)} -a '(__fish_{function}_other {first} {name})'")
    return "\n".join(lines) + "\n"


def zsh_option(tool, option):
    value = ""
    if tool.options[option][0]:
        words = value_words(tool, option)
        value = f":{option}:" + (f"({' '.join(words)})" if words else "_files" if is_file(tool, option) else " ")
    yield f"'--{option}{'=' if value else ''}{value}'"
    if tool.options[option][2] is not None:
        yield f"'-{tool.options[option][2]}{'+' if value else ''}{value}'"


def zsh_arguments(tool, command):
    specs = [spec for option in tool.options if option in tool.options_of(command) for spec in zsh_option(tool, option)]
    if command in runs(tool):
        return f"_arguments -S {' '.join(specs)} '(-):command: _command_names -e' '*::arguments: _normal'"
    if "PID" in tool.operands[command]:
        specs += ["'*:process:{_metashard_processes; _files}'" if files_too(tool) else "'*:process:_metashard_processes'"]
    elif tool.operands[command] & FILES:
        specs += ["'*:file:_files'"]
    return f"_arguments {' '.join(specs)}" if specs else "_message 'no more arguments'"


ZSH_PROCESSES = """_metashard_processes() {
    setopt localoptions extendedglob
    local -a ids
    ids=(${${(f)"$(metashard-dump list 2>/dev/null)"}//(#s) ##/})
    compadd -- ${(M)${ids%% *}:#[0-9]##}
}
"""


def zsh(tool):
    head = f"#compdef {tool.name}\n# zsh completion of {tool.name}\n"
    if tool.commands == [ALONE]:
        return head + zsh_arguments(tool, ALONE) + "\n"
    cases = [f"{command}) {zsh_arguments(tool, command)} ;;" for command in tool.commands if command not in tool.others]
    for name, kept, named in others(tool):
        # `words` is from the command on by now.
        cases += [f"{'|'.join(kept)}) words=({name} $words); (( CURRENT++ )); _{name} ;;"] if kept else []
        cases += [f"{'|'.join(named)}) words[1]={name}; _{name} ;;"] if named else []
    return head + (ZSH_PROCESSES if with_operand(tool, {"PID"}) else "") + f"""local command=$words[2]
if (( CURRENT == 2 )); then
    compadd -- {" ".join(tool.commands)} --help --version
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
    sys.stdout.write(makers[sys.argv[1]](table(sys.argv[2])))
