# SPDX-License-Identifier: Apache-2.0
"""Finds the origins of the addresses of a kernel's loads and stores.

Each register has the set of origins of its value: words of the parameters, loaded values, tables of the
module. The sets grow along the kernel's control flow until nothing changes. So they may hold too much, and never too little,
but for values that go through predicates alone: no pointer is computed from predicates.
"""
import collections
import functools
import re
from typing import NamedTuple

from . import disassembly

# Nothing else may be in a kernel that is recorded: no atomics, no reductions, no memory of a block or cluster (but for a class
# that transposes), no texture, no copies by the engine, no values of other threads.
ARITHMETIC = frozenset(
    "BMSK BREV DADD DFMA DMUL F2F F2FP F2I F2IP FADD FADD2 FCHK FFMA FFMA2 FLO FMNMX FMNMX3 FMUL FMUL2 FRND FSEL FSET FSWZADD "
    "HADD2 HFMA2 HMNMX2 HMUL2 HSET2 I2F I2FP I2I I2IP IABS IADD IADD3 IADD32I IDP IMAD IMNMX IMUL ISCADD LEA LOP LOP3 MOV MOV32I "
    "MUFU POPC PRMT SEL SGXT SHF SHL SHR UBMSK UBREV UFLO UIADD3 UIMAD UIMNMX ULEA ULOP3 UMOV UPOPC UPRMT USEL USGXT USHF "
    "USHL USHR VABSDIFF VIADD VIADDMNMX VIMNMX VIMNMX3 VHMNMX UVIADD UVIMNMX UF2F UFADD UFFMA UFMUL UF2FP UI2F UF2I UI2FP UF2IP "
    "UFSEL UFMNMX UFRND UIABS CS2R CS2UR S2R S2UR R2UR P2R UP2UR".split())
PREDICATES = frozenset("DSETP FSETP HSETP2 ISETP LOP3P PLOP3 PSETP R2P UISETP UPLOP3 UPSETP UFSETP VOTE VOTEU UR2UP".split())
CONTROL = frozenset("BMOV BRA BRX BREAK BSSY BSYNC CALL EXIT JMP LEPC NANOSLEEP NOP RET WARPSYNC YIELD BPT "
                    "BAR DEPBAR".split())
CONSTANTS = frozenset(("LDC", "LDCU", "ULDC"))
LOADS, STORES = frozenset(("LD", "LDG")), frozenset(("ST", "STG"))
LOCAL = frozenset(("LDL", "STL"))
OPCODES = ARITHMETIC | PREDICATES | CONTROL | CONSTANTS | LOADS | STORES | LOCAL
TILE = frozenset(("LDS", "STS"))  # memory of a block, through which a transposition goes

# Origins of a value, beside words of parameters.
MODULE, LOADED, INDEXED, STACK = (1 << n for n in range(4))
FIRST_WORD = 4

UNIFORM, LOCAL_MEMORY = 256, 512  # places: registers, uniform ones, local memory by index, and behind it words that are spilled
SPILLED = re.compile(r"\[R1(?:\+(0x[0-9a-f]+))?\]")
SYMBOL = re.compile(r"32@(lo|hi)\(")
ALL_PREDICATES = tuple(f"{kind}{number}" for kind in ("P", "UP") for number in range(8))
WORDS = {"64": 2, "128": 4, "256": 8}
STEPS = 4000000  # a minute or two; kernels of PyTorch 2.15 take 220,000 at most, of those that were counted (750)


def word(number):
    """The origin that stands for this word of the parameters."""
    return 1 << FIRST_WORD + number


class Access(NamedTuple):
    """A load or a store, with the origins of its address."""
    instruction: disassembly.Instruction
    origins: int


def places(text, words=1):
    """Registers that are named in an operand, and `words` from each on."""
    found = []
    for kind, number in disassembly.REGISTER.findall(text):
        if number != "Z":
            first = int(number) + (UNIFORM if kind == "UR" else 0)
            found += range(first, first + words)
    return found


def width_of(opcode):
    """Registers that a load or store moves."""
    return next((WORDS[word] for word in opcode.split(".") if word in WORDS), 1)


@functools.lru_cache(maxsize=None)
def destination_words(opcode):
    """Registers that a result takes."""
    base, *others = opcode.split(".")
    if base == "CS2R":
        return 1 if "32" in others else 2
    if base in ("F2F", "I2F", "FRND"):
        return 2 if others[:1] == ["F64"] else 1
    if base == "F2I":
        return 2 if {"S64", "U64"} & set(others) else 1
    if base in ("DADD", "DMUL", "DFMA") or (base in ("IMAD", "UIMAD") and "WIDE" in others):
        return 2
    if base in CONSTANTS or base in ("IADD", "UIADD", "UIADD3", "IADD3", "MOV", "UMOV", "LEA", "ULEA", "FADD2", "FMUL2", "FFMA2", "SEL",
                                     "USEL", "R2UR", "UMOV64"):
        return next((WORDS[word] for word in others if word in WORDS), 1)
    return 1


def source_words(opcode, number):
    """Registers of a source; too many do no harm."""
    base, *others = opcode.split(".")
    if base in ("IMAD", "UIMAD"):  # the factors of IMAD.WIDE are of one word, its addend of two
        return 2 if "WIDE" in others and number == 2 else 1
    if base in ("DADD", "DMUL", "DFMA") or base in ("F2F", "F2I", "I2F", "FRND"):
        return 2 if base[0] == "D" or {"F64", "S64", "U64"} & set(others) else 1
    return destination_words(opcode)


class Step(NamedTuple):
    """An instruction as it moves sets: from registers and constants to registers."""
    read: disassembly.Instruction
    to: tuple
    sources: tuple  # registers
    constants: int  # origins that come from constants
    address: tuple  # of a load or store
    predicates: tuple = ()  # that are written
    saved: tuple = ()  # predicates that are kept in the register `to`, or taken from the one in `sources`


class Reader:
    """Reads instructions of kernels whose parameters begin at `base` of the bank of constants. A parameter by
    index has the origin INDEXED, and with `tells_array` also the word that the index counts from."""

    def __init__(self, base, size, tells_array=False):
        self.base, self.size, self.tells_array = base, size, tells_array

    def constant_origins(self, text, words):
        """The origins of the constants in an operand. Before CUDA 12.4 the address of a table is half a number of the instruction."""
        found = MODULE if SYMBOL.match(text) else 0
        for bank, uniform, place in disassembly.CONSTANT.findall(text):
            if bank == "0x4":
                found |= MODULE
            if bank != "0x0" and bank != "0x4":
                found |= 0 if re.fullmatch(r"0x[0-9a-f]", bank) else INDEXED
                continue
            offset = sum(int(number, 16) for number in re.findall(r"0x[0-9a-f]+", place))
            if bank == "0x4":
                continue
            is_parameter = self.base <= offset < self.base + self.size
            if uniform or re.search(r"R\d", place):
                found |= INDEXED | (word((offset - self.base) // 4) if self.tells_array and is_parameter else 0)
            elif is_parameter:
                for number in range((offset - self.base) // 4, (offset - self.base) // 4 + words):
                    found |= word(number)
            elif offset in (0x20, 0x24, 0x28):
                found |= STACK
        return found

    def step(self, read):
        operands = read.operands
        if read.base in CONTROL or not operands:
            return Step(read, (), (), 0, ())
        if read.base == "STS":
            return Step(read, (), (), 0, ())
        if read.base == "LDS":  # anything that was stored
            return Step(read, tuple(places(operands[0], width_of(read.opcode))), (), LOADED, ())
        if read.base in LOADS | STORES | LOCAL:
            where = next(operand for operand in operands if "[" in operand and not operand.startswith(("P", "!")))
            where = re.sub(r"^desc\[[^\]]*\]", "", where)
            address = places(where)
            for kind, number in re.findall(r"(U?R)(\d+)(?:\.U32)?\.64", where):
                address.append(int(number) + 1 + (UNIFORM if kind == "UR" else 0))
            address += [place + 1 for place in address if place >= UNIFORM]  # a uniform addend is a pair
            width = width_of(read.opcode)
            spilled = SPILLED.fullmatch(where) if read.base in LOCAL else None
            if spilled is not None:
                first = LOCAL_MEMORY + 1 + int(spilled[1] or "0", 16) // 4
                slots = tuple(range(first, first + width))
                if read.base == "STL":
                    return Step(read, slots, tuple(places(operands[-1], width)), 0, ())
                return Step(read, tuple(places(operands[0], width)), slots, 0, ())
            if read.base in LOADS or read.base == "LDL":
                target = next(operand for operand in operands if disassembly.REGISTER.match(operand) or operand in ("RZ",))
                return Step(read, tuple(places(target, width)), (), 0, tuple(address))
            return Step(read, (), tuple(places(operands[-1], width)), 0, tuple(address))
        words = destination_words(read.opcode)
        # A predicate that is written too stands before or behind: IADD3 R6, P0, ..., and LOP3.LUT P0, R0, ...
        position = next((number for number, operand in enumerate(operands)
                         if not re.fullmatch(r"!?U?P(\d+|T)", operand)), None)
        if read.base == "R2P":
            return Step(read, (), tuple(places(operands[1])), 0, (), *[in_mask(operands[2])] * 2)
        if read.base == "P2R" and len(operands) > 3 and operands[2] in disassembly.ZERO:
            return Step(read, tuple(places(operands[0])), (), 0, (), (), in_mask(operands[3]))
        kept = re.fullmatch(r"(P\d), PT, (R\d+)(?:\.reuse)?, RZ, PT", read.text)
        if read.opcode == "ISETP.NE.AND" and kept is not None:  # P5 again, of a register that has it alone
            return Step(read, (), tuple(places(kept[2])), 0, (), (kept[1],), (kept[1],))
        if read.base in PREDICATES or position is None:
            return Step(read, (), (), 0, (), tuple(operand for operand in operands[:2] if operand in ALL_PREDICATES))
        to = tuple(places(operands[position], words))
        rest = operands[position + 1:]
        sources, constants = [], 0
        for number, operand in enumerate(rest):
            wide = source_words(read.opcode, number)
            constants |= self.constant_origins(operand, wide)
            sources += places(operand, wide) if read.base not in CONSTANTS else places(operand)
        written = list(operands[:position])
        for operand in rest:
            if not re.fullmatch(r"!?U?P(\d+|T)", operand):
                break
            written.append(operand)
        if is_small(read.opcode, rest):
            sources, constants = [], 0
        return Step(read, to, tuple(sources), constants, (), tuple(name for name in written if name in ALL_PREDICATES))


def in_mask(mask):
    """The predicates of bits of a mask; all, if it is no number."""
    if not mask.startswith("0x"):
        return ALL_PREDICATES
    return tuple(f"P{number}" for number in range(8) if int(mask, 16) >> number & 1)


def is_small(opcode, sources):
    """A number below 65536 is no pointer, whatever it was made of: a & 0x8."""
    return opcode in ("LOP3.LUT", "ULOP3.LUT") and len(sources) > 3 and sources[3] == "0xc0" and sources[2] in disassembly.ZERO and \
        re.fullmatch(r"0x[0-9a-f]{1,4}", sources[1]) is not None


def local_target(text):
    found = disassembly.TARGET.findall(text)
    return found[-1] if found else None


class Flow:
    """The control flow of a kernel: blocks of steps."""

    def __init__(self, code, reader):
        self.code, self.steps = code, self.with_spills([reader.step(read) for read in code.instructions])
        count = len(self.steps)
        starts = {0} | {at for at in code.labels.values() if at < count}
        for number, read in enumerate(code.instructions):
            if read.base in ("BRA", "BRX", "JMP", "EXIT", "RET", "CALL"):
                starts.add(number + 1)
        self.starts = sorted(start for start in starts if start < count)
        self.ends = dict(zip(self.starts, self.starts[1:] + [count]))
        self.functions = {}  # entry of a function within the kernel: its blocks
        self.next = {start: self.followers(start) for start in self.starts}
        self.number, self.wanted = self.narrow()

    @staticmethod
    def with_spills(steps):
        """A word of local memory that is stored to at a fixed place is a spilled register, which no index leads to. Other words are
        of arrays: what is loaded from one may be anything that was stored by index."""
        if sum(1 in step.to for step in steps) > 2:  # frames within the frame
            raise Unclear("the stack pointer moves")
        stored = {place for step in steps if step.read.base == "STL" for place in step.to}
        return [step._replace(sources=tuple(place if place in stored else LOCAL_MEMORY for place in step.sources))
                if step.read.base == "LDL" and not step.address else step for step in steps]

    def end(self, start):
        """The end of a block."""
        if start not in self.ends:
            raise Unclear("a branch leads out of the code")
        return self.ends[start]

    def narrow(self):
        """(numbers of the places from which addresses are made, the steps that move those or change predicates)"""
        places_, count = {place for step in self.steps for place in step.address}, 0
        if any(step.read.base == "LDL" for step in self.steps):
            places_.add(LOCAL_MEMORY)
        while len(places_) != count:
            count = len(places_)
            for step in self.steps:
                if (places_.intersection(step.to) and not step.saved) or step.read.base in STORES or step.read.base == "STL":
                    places_.update(step.sources)
        number = {place: at for at, place in enumerate(sorted(places_ | {1, LOCAL_MEMORY}))}
        wanted = [step.address or step.predicates or step.saved or any(place in number for place in step.to) for step in self.steps]
        return number, wanted

    def target(self, read):
        name = local_target(read.text)
        return self.code.labels.get(name) if name is not None else None

    def followers(self, start):
        """Blocks that come behind, but for calls and returns."""
        end = self.ends[start]
        last = self.code.instructions[end - 1]
        behind = [end] if end in self.ends else []
        if last.base == "BRX":
            listed = disassembly.BRANCH_TARGETS.search(last.text)
            if listed is None:
                raise Unclear(f"{last.opcode} {last.text}: where it leads is unknown")
            return [self.code.labels.get(name) for name in listed[1].split(",")]
        if last.base in ("BRA", "JMP"):
            target = self.target(last)
            if target is None:
                raise Unclear(f"{last.opcode} {last.text}: where it leads is unknown")
            has_condition = last.predicate != "" or re.match(r"!?U?P\d|UP\d|DIV|CONV|UR?\d", last.text) is not None
            return [target] + (behind if has_condition else [])
        if last.base in ("EXIT", "RET"):
            return behind if last.predicate else []
        return behind

    def reached(self, entry):
        """Blocks of a function, and what it writes."""
        if entry not in self.functions:
            self.functions[entry] = (set(), set())  # of a function that calls itself: what is known so far
            seen, left, written = {entry}, [entry], set()
            while left:
                start = left.pop()
                for step in self.steps[start:self.end(start)]:
                    written.update(step.to)
                last = self.code.instructions[self.ends[start] - 1]
                called = self.target(last) if last.base == "CALL" else None
                if called is not None:
                    written |= self.reached(called)[1]
                left += [start for start in self.next[start] if start not in seen]
                seen.update(left)
            self.functions[entry] = (seen, written)
        return self.functions[entry]

    def returns(self, entry):
        return [start for start in self.reached(entry)[0] if self.code.instructions[self.ends[start] - 1].base == "RET"]


class Unclear(Exception):
    """The code cannot be followed; the text says where."""


def opposite(predicate):
    return predicate[1:] if predicate.startswith("!") else "!" + predicate


class State:
    """The origins that each place holds, and those it holds if the predicate is true under which it was written. The latter are known until
    the predicate changes, and again when the predicate is restored from a register that kept it: the predicate is then ("P5", place)."""

    def __init__(self, held, under=(), kept=()):
        self.held, self.under = list(held), dict(under)  # place: (predicate, set)
        self.kept = dict(kept)  # place of a register: predicates in it that have not changed since

    def get(self, place, predicate):
        found = self.under.get(place)
        return found[1] if found is not None and predicate and found[0] == predicate else self.held[place]

    def put(self, place, value, predicate):
        if predicate:
            self.held[place] |= value
            self.under[place] = (predicate, value)
        else:
            self.held[place] = value
            self.under.pop(place, None)

    def forget(self, predicates):
        """They change: what was under one is under the register that keeps it, if any does."""
        for place, (predicate, value) in list(self.under.items()):
            if not isinstance(predicate, str) or predicate.lstrip("!") not in predicates:
                continue
            keeper = next((keeper for keeper, kept in self.kept.items() if predicate.lstrip("!") in kept), None)
            del self.under[place]
            if keeper is not None:
                self.under[place] = ((predicate, keeper), value)
        for keeper, kept in self.kept.items():
            self.kept[keeper] = kept - set(predicates)

    def keep(self, keeper, predicates):
        """They are put into a register, whose former content is gone."""
        for place in [place for place, (predicate, _) in self.under.items() if predicate[1:] == (keeper,)]:
            del self.under[place]
        self.kept.pop(keeper, None)
        if predicates:
            self.kept[keeper] = set(predicates)

    def take_back(self, keeper, predicates):
        for place, (predicate, value) in list(self.under.items()):
            if predicate[1:] == (keeper,) and predicate[0].lstrip("!") in predicates:
                self.under[place] = (predicate[0], value)

    def where(self, predicate):
        """The state where a branch has shown that the predicate is true."""
        found = State(self.held, self.under, self.kept)
        for place, (other, value) in self.under.items():
            if other == predicate:
                found.held[place] = value
        return found

    def merge(self, other):
        """Returns whether anything is new."""
        held = [one | two for one, two in zip(self.held, other.held)]
        under = {place: (predicate, value | other.under[place][1]) for place, (predicate, value) in self.under.items()
                 if place in other.under and other.under[place][0] == predicate}
        kept = {place: found & other.kept[place] for place, found in self.kept.items() if place in other.kept}
        is_new = held != self.held or under != self.under or kept != self.kept
        self.held, self.under, self.kept = held, under, kept
        return is_new


class Follower:
    """Follows a kernel until nothing changes."""

    def __init__(self, flow):
        self.flow = flow
        self.number, self.local = flow.number, flow.number[LOCAL_MEMORY]
        self.frame = [at for place, at in self.number.items() if place >= LOCAL_MEMORY]
        blank = State([0] * len(self.number))
        blank.held[self.number[1]] = STACK
        self.before, self.after = {0: blank}, {}
        self.accesses = {}
        self.left = collections.deque([0])
        self.callers = collections.defaultdict(set)  # entry of a function: blocks that call it
        self.owners = collections.defaultdict(set)  # block that returns: entries of its functions

    def send(self, start, state):
        if start not in self.before:
            self.before[start] = State(state.held, state.under, state.kept)
        elif not self.before[start].merge(state):
            return
        if start not in self.left:
            self.left.append(start)

    def come_back(self, block, entry):
        """Behind a call: what the function writes is as at its returns, the rest as it was."""
        states = [self.after[start] for start in self.flow.returns(entry) if start in self.after]
        behind = self.flow.ends[block]
        if not states or behind not in self.flow.ends:
            return
        state = State(self.after[block].held)
        for place in {self.number[place] for place in self.flow.reached(entry)[1] | {LOCAL_MEMORY} if place in self.number}:
            state.held[place] = 0
            for other in states:
                state.held[place] |= other.held[place]
        self.send(behind, state)

    def made_of(self, state, places_, predicate):
        found = 0
        for place in places_:
            if place in self.number:
                found |= state.get(self.number[place], predicate)
        return found

    def access(self, number, step, state, value):
        """Returns what a load brings."""
        read = step.read
        origins = self.made_of(state, step.address, read.predicate)
        if read.base not in LOCAL:
            self.accesses[number] = Access(read, origins)
        is_local = read.base in LOCAL or origins & STACK
        if read.base in STORES or read.base == "STL":
            if is_local:
                state.held[self.local] |= value
            return value
        found = 0 if read.base in LOCAL else LOADED
        for at in self.frame if is_local else ():
            found |= state.held[at]
        return found

    def take(self, number, step, state):
        predicate = step.read.predicate
        value = step.constants | self.made_of(state, step.sources, predicate)
        if step.address:
            value = self.access(number, step, state, value)
        if step.predicates:
            state.forget(step.predicates)
        if step.saved and step.sources and not predicate:
            state.take_back(step.sources[0], step.saved)
        for place in step.to:
            state.keep(place, step.saved if not predicate else ())
            if place not in self.number:
                continue
            if predicate.lstrip("!") in step.predicates:  # it has changed the predicate that it is under
                state.put(self.number[place], value | state.held[self.number[place]], "")
            else:
                state.put(self.number[place], value, predicate)

    def leave(self, start, state):
        """Hands the state on to what comes behind a block."""
        flow, last = self.flow, self.flow.code.instructions[self.flow.ends[start] - 1]
        called = flow.target(last) if last.base == "CALL" else None
        if called is not None:
            self.callers[called].add(start)
            for block in flow.returns(called):
                self.owners[block].add(called)
            self.send(called, State(state.held))
            self.come_back(start, called)
            if last.predicate:
                self.send(flow.ends[start], state.where(opposite(last.predicate)))
        for other in flow.next[start] if called is None else ():
            is_behind = other == flow.ends[start]
            if last.predicate and last.base in ("BRA", "EXIT", "RET"):
                self.send(other, state.where(opposite(last.predicate) if is_behind else last.predicate))
            else:
                self.send(other, state)
        for entry in self.owners[start]:
            for block in list(self.callers[entry]):
                self.come_back(block, entry)

    def follow(self):
        steps = 0
        while self.left:
            start = self.left.popleft()
            steps += self.flow.end(start) - start
            if steps > STEPS:
                raise Unclear(f"more than {STEPS} steps lead nowhere")
            state = State(self.before[start].held, self.before[start].under, self.before[start].kept)
            for number in range(start, self.flow.ends[start]):
                if self.flow.wanted[number]:
                    self.take(number, self.flow.steps[number], state)
            self.after[start] = state
            self.leave(start, state)
        return [self.accesses[number] for number in sorted(self.accesses)]


def follow(flow):
    """The origins of the addresses of all loads and stores: [Access]"""
    return Follower(flow).follow()

