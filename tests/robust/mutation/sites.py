#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""sites.py COMMANDS OUT: the mutants of shim/ and runtime/, as JSON.

COMMANDS is JSON: {"root": the project, "files": [[file, [argument of the compiler...]]...]}. libclang parses each file, and
a visitor of the functions in it, and in the headers that it is first to include, proposes changes by kinds:

    comparison  another operator         condition  one side of && and || alone, a condition upside down
    bound       one more or less         statement  a call or an assignment is left out
    undo        one that gives back      wait       one that waits
    return      a function returns at once, or a return, break or continue in an if is left out
    swap        two arguments of a type  unit       a factor, a divisor or a shift is left out
    status      another answer: an error, errno, true and false

Nothing that only logs is changed, nor what the compiler must know: those would be no other programs, or none at all.
Needs the Python package libclang (requirements.txt).
"""
import json
import os
import re
import sys

from clang import cindex

K = cindex.CursorKind
EXPRESSIONS = {K.CALL_EXPR, K.BINARY_OPERATOR, K.COMPOUND_ASSIGNMENT_OPERATOR, K.UNARY_OPERATOR, K.PAREN_EXPR}
JUMPS = {K.RETURN_STMT, K.BREAK_STMT, K.CONTINUE_STMT}
LOOPS = {K.WHILE_STMT, K.FOR_STMT, K.DO_STMT}
COMPARISONS = {"<": ("<=", ">="), "<=": ("<", ">"), ">": (">=", "<="), ">=": (">", "<"), "==": ("!=",), "!=": ("==",)}
LOGS = re.compile(r"^(ms_log\w*|ms_fatal|ms_lock_check|ms_claim_check|ms_invariants?_\w*|\w+_log"
                  r"|(log|say|warn|trace|report)_\w+)$")
LOCKS = re.compile(r"^(ms_lock_(take|drop|try)|pthread_(rw|spin|mutex_)(un)?lock\w*|pthread_mutex_\w+)$")
UNDO = re.compile(r"(^|_)(free|release|drop|unmap|munmap|close|destroy|forget|remove|undo|restore|give|end|unlink|cancel|clear"
                  r"|reset|abandon|discard)(_|$)", re.I)
WAIT = re.compile(r"(^|_)(wait|waits|synchronize|sync|poll|join|quiesce|await|nanosleep|sleep|wake|signal|broadcast)(_|$)",
                  re.I)
AMOUNT = re.compile(r"bytes|size|count|length|width|height|depth|begin|end\b|offset|room|most|least|until|limit", re.I)
COMMUTATIVE = re.compile(r"(min|max|equal|same|overlap|cmp|(add|mul)_overflow|unchanged|unwritten|gcd|lcm)", re.I)
INTEGERS = {cindex.TypeKind.UINT, cindex.TypeKind.ULONG, cindex.TypeKind.ULONGLONG, cindex.TypeKind.USHORT,
            cindex.TypeKind.INT, cindex.TypeKind.LONG, cindex.TypeKind.LONGLONG, cindex.TypeKind.SHORT}


def schema(text):
    return re.sub(r"\s|^\((.*)\)$", r"\1", text)


class File:
    """A text, and where macros with arguments stand in it: nothing within them is a place."""

    def __init__(self, root, name):
        self.name = name
        with open(os.path.join(root, name), "rb") as file:
            self.text = file.read()
        self.macros, self.is_done = set(), False

    def is_whole(self, begin, end):
        return all(last <= begin or first >= end or (begin <= first and last <= end) for first, last in self.macros)


class Finder:
    def __init__(self, root):
        self.root, self.files, self.mutants, self.seen = os.path.realpath(root), {}, [], set()

    def file_of(self, cursor):
        at = cursor.location.file
        if at is None:
            return None
        if at.name not in self.files:
            name = os.path.relpath(os.path.realpath(at.name), self.root)
            self.files[at.name] = File(self.root, name) if re.match(r"(shim|runtime)/.*\.[ch]$", name) else None
        return self.files[at.name]

    # --- what is proposed

    def range_of(self, cursor):
        return cursor.extent.start.offset, cursor.extent.end.offset

    def is_here(self, cursor):
        """Not of a file that is included within a function."""
        first, last = self.range_of(self.body)
        begin, end = self.range_of(cursor)
        return (all(at.file is not None and at.file.name == self.path for at in (cursor.extent.start, cursor.extent.end))
                and first <= begin <= end <= last)

    def say(self, at):
        return self.file.text[at[0]:at[1]].decode()

    def add(self, kind, form, at, change, cursor, is_same=False):
        """form: expression, statement (left out) or entry (what is put behind a brace). is_same: it changes nothing."""
        begin, end = at
        key = (self.file.name, begin, end, form, change)
        is_macro = (begin, end) in self.file.macros and self.file.text[end - 1:end] == b")"
        if begin + (form != "entry") > end or form == "expression" and is_macro or key in self.seen:
            return
        if not self.is_here(cursor) or not self.file.is_whole(begin, end):
            return
        self.seen.add(key)
        self.mutants.append({
            "file": self.file.name, "line": self.file.text.count(b"\n", 0, begin) + 1, "function": self.function.spelling,
            "kind": kind, "form": form, "is_same": is_same, "begin": begin, "end": end, "change": change,
            "text": " ".join(self.say(at).split()) if form != "entry" else ""})

    def operator(self, cursor):
        """(left, operator, right) as places and text, or None within a macro."""
        children = list(cursor.get_children())
        if len(children) != 2:
            return None
        left, right = map(self.range_of, children)
        if not left[1] <= right[0] or not left[0] < left[1]:
            return None
        between = re.sub(rb"/\*.*?\*/|//[^\n]*|\s", b"", self.file.text[left[1]:right[0]]).decode()
        return (left, between, right) if re.fullmatch(r"[-+*/%<>=!&|^]+", between) else None

    def binary(self, cursor):
        parts = self.operator(cursor)
        if parts is None:
            return
        left, operator, right = parts
        at, (a, b) = self.range_of(cursor), (self.say(left), self.say(right))
        types = [child.type.get_canonical().kind for child in cursor.get_children()]
        if operator in COMPARISONS:
            for other in COMPARISONS[operator]:
                is_same = at in self.ties and {operator, other} in ({"<", "<="}, {">", ">="})
                self.add("comparison", "expression", at, f"{a} {other} {b}", cursor, is_same)
        elif operator in ("&&", "||"):
            self.add("condition", "expression", at, a, cursor)
            self.add("condition", "expression", at, b, cursor)
        elif operator in ("*", "/", "%", "<<", ">>") and a.strip() not in ("0", "1") and b.strip() != "1":
            self.add("unit", "expression", at, a, cursor)
        elif operator in ("+", "-"):
            if b.strip() == "1":
                self.add("bound", "expression", at, a, cursor)
            elif types[1] != cindex.TypeKind.POINTER:
                self.add("bound", "expression", at, f"{a} {'-' if operator == '+' else '+'} ({b})", cursor)

    def call(self, cursor):
        arguments = list(cursor.get_arguments())
        places = [self.range_of(each) for each in arguments]
        name = cursor.spelling or ""
        for at, (one, place) in enumerate(zip(arguments, places)):
            text = self.say(place)
            if (one.type.get_canonical().kind in INTEGERS and AMOUNT.search(text) and not re.search(r"\bsizeof\b|^\W*\d", text)
                    and self.file.is_whole(*place)):
                self.add("bound", "expression", place, f"({text}) {'-+'[(place[0] + len(text)) % 2]} 1", cursor)
            if at + 1 == len(arguments) or COMMUTATIVE.search(name):
                continue
            other, behind = arguments[at + 1], places[at + 1]
            if (place[1] < behind[0] and self.plain(one) == self.plain(other) and text != self.say(behind)
                    and self.file.is_whole(*place) and self.file.is_whole(*behind)
                    and not (re.match(r"[\d\"]|NULL", text) and re.match(r"[\d\"]|NULL", self.say(behind)))):
                whole = self.range_of(cursor)
                changed = (self.say((whole[0], place[0])) + self.say(behind) + self.say((place[1], behind[0])) + text +
                           self.say((behind[1], whole[1])))
                self.add("swap", "expression", whole, changed, cursor)

    def plain(self, cursor):
        """The type without const and conversions of the call."""
        while cursor.kind == K.UNEXPOSED_EXPR and len(list(cursor.get_children())) == 1:
            cursor = next(cursor.get_children())
        return re.sub(r"\b(const|volatile) ?", "", cursor.type.get_canonical().spelling)

    def condition(self, cursor):
        parts = cursor
        while parts.kind in (K.PAREN_EXPR, K.UNEXPOSED_EXPR) and len(list(parts.get_children())) == 1:
            parts = next(parts.get_children())
        found = self.operator(parts) if parts.kind == K.BINARY_OPERATOR else None
        if found is None or found[1] not in (*COMPARISONS, "&&", "||"):
            at = self.range_of(cursor)
            self.add("condition", "expression", at, f"!({self.say(at)})", cursor)

    def find_tie(self, condition, taken, otherwise):
        """Either of two equal values may be taken: a < b ? a : b, a > b ? a - b : 0, if (a < b) a = b."""
        parts = self.operator(condition) if condition.kind == K.BINARY_OPERATOR else None
        if parts is None:
            return
        a, b = (schema(self.say(parts[at])) for at in (0, 2))
        taken, otherwise = schema(taken), schema(otherwise)
        if {taken, otherwise} == {a, b} or (otherwise == "0" and taken in (f"{a}-{b}", f"{b}-{a}")) or (
                otherwise == "" and taken in (f"{a}={b};", f"{b}={a};")):
            self.ties.add(self.range_of(condition))

    def callee(self, cursor):
        if cursor.kind == K.CALL_EXPR:
            return cursor.spelling or self.say(self.range_of(cursor)).partition("(")[0]
        for child in cursor.get_children():
            if cursor.kind in (K.PAREN_EXPR, K.UNEXPOSED_EXPR, K.CSTYLE_CAST_EXPR):
                found = self.callee(child)
                if found:
                    return found
        return ""

    def only_logs(self, cursor):
        """A statement, or a block of them, that changes nothing."""
        if cursor.kind == K.COMPOUND_STMT:
            children = list(cursor.get_children())
            return bool(children) and all(map(self.only_logs, children))
        if cursor.kind == K.IF_STMT:
            return all(map(self.only_logs, list(cursor.get_children())[1:]))
        return bool(LOGS.match(self.callee(cursor)))

    def statement(self, cursor):
        """Its end is the semicolon."""
        begin, end = self.range_of(cursor)
        found = re.match(rb"\s*;", self.file.text[end:])
        if found is None:
            return None
        return begin, end + found.end()

    def leave_out(self, cursor):
        at = self.statement(cursor)
        if at is None:
            return
        name = self.callee(cursor)
        if cursor.kind in JUMPS and not re.match(r"[A-Z_]+\(", self.say(at)):
            self.add("return", "statement", at, "", cursor)
        if cursor.kind not in EXPRESSIONS and cursor.kind != K.UNEXPOSED_EXPR or LOGS.match(name) or LOCKS.match(name):
            return
        text = self.say(at)
        kind = ("status" if re.match(r"errno\b", text) else "undo" if UNDO.search(name) else
                "wait" if WAIT.search(name) else "statement")
        if not re.match(r"\(void\)\s*\w+;|[A-Z_]+\(", text):  # a macro may declare something
            self.add(kind, "statement", at, "", cursor)

    def answer(self, cursor):
        """The mutants of a return's value."""
        for child in cursor.get_children():
            at = self.range_of(child)
            text = self.say(at)
            for old, new in (("true", "false"), ("false", "true"), ("CUDA_SUCCESS", "CUDA_ERROR_UNKNOWN"), ("-1", "0")):
                if text == old:
                    self.add("status", "expression", at, new, child)
            if re.fullmatch(r"CUDA_ERROR_\w+", text):
                self.add("status", "expression", at, "CUDA_SUCCESS", child)

    # --- the walk

    def visit(self, cursor, is_last):
        """is_last: nothing of the function follows."""
        children = list(cursor.get_children())
        kind = cursor.kind
        if not self.is_here(cursor):
            return
        if kind == K.STATIC_ASSERT or kind == K.CXX_UNARY_EXPR or kind == K.ENUM_DECL or kind == K.STRUCT_DECL:
            return
        if kind == K.VAR_DECL:
            if cursor.storage_class == cindex.StorageClass.STATIC:
                return
            if cursor.type.get_canonical().kind in (cindex.TypeKind.CONSTANTARRAY, cindex.TypeKind.INCOMPLETEARRAY):
                children = [child for child in children if child.kind == K.INIT_LIST_EXPR]
        if kind == K.CASE_STMT:
            children = children[1:]
        if kind == K.CALL_EXPR:
            if LOGS.match(self.callee(cursor)):
                return
            self.call(cursor)
        if kind == K.BINARY_OPERATOR:
            self.binary(cursor)
        if kind == K.UNARY_OPERATOR and self.say(self.range_of(cursor)).startswith("!") and len(children) == 1:
            self.add("condition", "expression", self.range_of(cursor), f"!!({self.say(self.range_of(children[0]))})", cursor)
        if kind == K.CONDITIONAL_OPERATOR and len(children) == 3:
            self.find_tie(children[0], *(self.say(self.range_of(child)) for child in children[1:]))
            self.condition(children[0])
        if kind == K.RETURN_STMT:
            self.answer(cursor)
        bodies = {}
        if kind == K.IF_STMT:
            if all(map(self.only_logs, children[1:])):
                return
            self.condition(children[0])
            if len(children) == 2 and self.statement(children[1]):
                self.find_tie(children[0], self.say(self.statement(children[1])), "")
            bodies = dict.fromkeys(range(1, len(children)))
        elif kind in LOOPS and children:
            body = 0 if kind == K.DO_STMT else len(children) - 1
            bodies = {body: None}
            if kind != K.FOR_STMT and len(children) == 2:
                self.condition(children[1 - body])
        elif kind in (K.COMPOUND_STMT, K.CASE_STMT, K.DEFAULT_STMT, K.LABEL_STMT):
            bodies = dict.fromkeys(range(len(children)))
        for at, child in enumerate(children):
            stays_last = is_last and kind not in LOOPS and (kind != K.COMPOUND_STMT or at + 1 == len(children))
            if at in bodies and child.kind not in (K.COMPOUND_STMT, K.DECL_STMT, K.IF_STMT):
                gives_nothing = self.function.result_type.kind == cindex.TypeKind.VOID
                if child.kind not in JUMPS or (kind == K.IF_STMT or not self.in_switch) and (
                        not stays_last or kind == K.IF_STMT and gives_nothing):
                    self.leave_out(child)
            was = self.in_switch
            self.in_switch = kind == K.SWITCH_STMT or (self.in_switch and kind not in LOOPS)
            self.visit(child, stays_last)
            self.in_switch = was

    def entry(self, cursor, body):
        """The function does nothing."""
        children = list(body.get_children())
        begin = self.range_of(body)[0] + 1
        if self.file.text[begin - 1:begin] != b"{" or len(children) == 0:
            return
        of = cursor.result_type
        kind, canonical = of.get_canonical().kind, of.get_canonical().spelling
        values = []
        if kind == cindex.TypeKind.VOID:
            values = [""]
        elif canonical in ("_Bool", "bool"):
            values = ["false", "true"]
        elif of.spelling == "CUresult":
            values = ["CUDA_SUCCESS"]
        elif kind == cindex.TypeKind.POINTER or kind in INTEGERS:
            values = ["0"]
        text = self.say(self.range_of(body))
        for value in values:
            if not re.fullmatch(r"\{\s*return\s+" + (re.escape(value) or "x") + r"\s*;\s*\}", text):
                self.add("return", "entry", (begin, begin), f"return {value};".replace(" ;", ";"), body)

    def look(self, path, arguments):
        unit = cindex.Index.create().parse(path, args=arguments,
                                           options=cindex.TranslationUnit.PARSE_DETAILED_PROCESSING_RECORD)
        # Not a mere error: the intrinsics may be of another release of clang.
        worst = [each for each in unit.diagnostics if each.severity >= cindex.Diagnostic.Fatal]
        if worst:
            raise SystemExit(f"{path}: {worst[0]}")
        found = []
        for cursor in unit.cursor.get_children():
            if cursor.kind not in (K.FUNCTION_DECL, K.MACRO_INSTANTIATION):
                continue
            file = self.file_of(cursor)
            if file is None or file.is_done:
                continue
            if cursor.kind == K.MACRO_INSTANTIATION:
                begin, end = self.range_of(cursor)
                file.macros.add((begin, end))
            elif cursor.is_definition():
                found.append((cursor, file))
        for cursor, file in found:
            self.file, self.function, self.in_switch = file, cursor, False
            self.path, self.ties = cursor.location.file.name, set()
            body = self.body = next((child for child in cursor.get_children() if child.kind == K.COMPOUND_STMT), None)
            if body is None or not file.is_whole(*self.range_of(body)) or LOGS.match(cursor.spelling):
                continue
            if self.range_of(body) in file.macros:
                continue  # a macro makes it
            self.entry(cursor, body)
            self.visit(body, True)
        for _, file in found:
            file.is_done = True


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        commands = json.load(file)
    finder = Finder(commands["root"])
    for name, arguments in commands["files"]:
        finder.look(os.path.join(commands["root"], name), arguments)
    mutants = sorted(finder.mutants,
                     key=lambda each: (each["file"], each["begin"], -each["end"], each["kind"], each["change"]))
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump(mutants, file, indent=0)


if __name__ == "__main__":
    main()
