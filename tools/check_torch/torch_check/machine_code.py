# SPDX-License-Identifier: Apache-2.0
"""Checks the machine code of a kernel against the promise of its class: the opcodes, and which parameters make the addresses of
its loads and stores (data_flow.py).
"""
import collections
import hashlib
import json
import os
from typing import NamedTuple

from . import disassembly, elf, fatbin, promises, untrusted
from .data_flow import FIRST_WORD, INDEXED, LOADED, LOADS, MODULE, OPCODES, STACK, TILE, Flow, Reader, Unclear, follow, word


def allowed(class_):
    return OPCODES | TILE if class_ == "from-first" else OPCODES


def words_of(parameters, *numbers):
    found = 0
    for number in numbers:
        if number < len(parameters):
            offset, size = parameters[number]
            for place in range(offset // 4, (offset + size + 3) // 4):
                found |= word(place)
    return found


def pair(offset):
    return word(offset // 4) | word(offset // 4 + 1)


class Promise(NamedTuple):
    """Which words addresses may have: of each load one of `inputs`, of each store `output`, and besides `numbers` of sizes,
    strides and types. Another word is a pointer or a number that the class does not have."""
    output: int
    inputs: tuple
    numbers: int


def strided_promises(class_, parameters):
    """The closure has a calculator, and behind it or before it the pointers."""
    numbers, closure = words_of(parameters, 0, 1), parameters[1][0]
    if class_ == "write-only":
        return [Promise(pair(at), (), numbers & ~pair(at)) for at in (closure, closure + promises.CALCULATOR_OF_ONE)]
    return [Promise(pair(at), (pair(at + 8),), numbers & ~pair(at) & ~pair(at + 8))
            for at in (closure, closure + promises.CALCULATOR_OF_TWO)]


def promise_of_lists(parameters):
    """Pointers and numbers are read by index. That of the first list begins where the parameters do, and so may be the one
    of numbers."""
    (begin, size), *_ = parameters
    lists, tensors = promises.LISTS[size]
    numbers = words_of([(begin + 8 * tensors * lists, size - 8 * tensors * lists)], 0) | words_of(parameters, *range(1, len(parameters)))
    first, last = word(begin // 4), word(begin // 4 + 2 * tensors * (lists - 1))
    return [Promise(last, (first,), numbers | first | INDEXED)]


def promises_of(class_, name, parameters):
    """The promise of the class for a kernel with these parameters; several, where closures may lie in either order."""
    count = len(parameters)
    if class_ == "concatenate":
        return [Promise(words_of(parameters, 0), (INDEXED | words_of(parameters, 1),),
                        INDEXED | words_of(parameters, *range(1, count)))]
    if "43distribution_elementwise_grid_stride_kernel" in name:
        state, closure = parameters[1][0], parameters[3]
        # The pointer is somewhere in the closure.
        return [Promise(pair(closure[0] + at), (pair(state), pair(state + 8)), words_of(parameters, 0, 3) & ~pair(closure[0] + at))
                for at in range(0, closure[1] - 4, 8)]
    if class_ == "each":
        return promise_of_lists(parameters)
    if class_ == "from-first":
        return [Promise(words_of(parameters, 1), (words_of(parameters, 0),), words_of(parameters, *range(2, count)))]
    if promises.STRIDED in name:
        return strided_promises(class_, parameters)
    numbers, out = words_of(parameters, 0, *range(3, count)), parameters[2][0]
    return [Promise(pair(out), (pair(out + 8),) if class_ == "in-place" else (), numbers)]


def shown(origins):
    named = [name for bit, name in ((MODULE, "a table of the module"), (LOADED, "what was loaded"), (INDEXED, "a parameter by index"),
                                    (STACK, "the stack")) if origins & bit]
    words = origins >> FIRST_WORD
    return " and ".join([f"word {place} of the parameters" for place in range(words.bit_length()) if words >> place & 1] +
                        named) or "nothing"


class Seen(NamedTuple):
    """Facts read from a kernel's code, whatever its class."""
    opcodes: frozenset
    accesses: tuple  # (opcode, operands, origins)
    unclear: str  # empty: the code could be followed


def see(code, reader):
    opcodes = frozenset(read.base for read in code.instructions)
    if opcodes - OPCODES - TILE:
        return Seen(opcodes, (), "")
    try:
        found = {(access.instruction.base in LOADS, access.origins): access.instruction for access in follow(Flow(code, reader))}
    except Unclear as error:
        return Seen(opcodes, (), str(error))
    except (LookupError, ValueError, StopIteration, RecursionError) as error:  # text of another nvdisasm, or made to be hard
        return Seen(opcodes, (), f"its code cannot be followed: {type(error).__name__} {error}")
    return Seen(opcodes, tuple((read.opcode, read.text, origins) for (_, origins), read in found.items()), "")


def breaks(promise, access):
    """The fault of a load or a store, or None."""
    opcode, text, origins = access
    is_load = opcode.partition(".")[0] in LOADS
    pointers = promise.output
    for pointer in promise.inputs:
        pointers |= pointer
    if origins == STACK or (is_load and origins & MODULE and not origins & pointers & ~promise.numbers):
        return None
    for pointer in promise.inputs if is_load else (promise.output,):
        if origins & pointer and not origins & ~(pointer | promise.numbers):
            return None
    return f"{opcode} {text}: its address is made of {shown(origins)}"


def fault_of(name, class_, parameters, seen):
    """The fault of a kernel, or None."""
    if seen.opcodes - allowed(class_):
        return f"opcodes {' '.join(sorted(seen.opcodes - allowed(class_)))}"
    fault = seen.unclear or None
    try:
        promised = promises_of(class_, name, parameters) if fault is None else ()
    except (IndexError, KeyError):
        return f"its {len(parameters)} parameters are not those of its class"
    for promise in promised:
        fault = next((found for access in seen.accesses if (found := breaks(promise, access)) is not None), None)
        if fault is None:
            break
    return fault


class Known:
    """Facts about kernels, by their bytes: successive releases share many kernels. A file keeps the facts, if `path` names one."""

    def __init__(self, path=None):
        self.found, self.path = {}, path
        sources = [os.path.join(os.path.dirname(os.path.abspath(__file__)), name) for name in ("data_flow.py", "disassembly.py")]
        self.version = hashlib.sha256()
        for source in sources:
            with open(source, "rb") as file:
                self.version.update(file.read())
        if path is not None and os.path.exists(path):
            with open(path, encoding="ascii") as file:
                for line in file:
                    key, opcodes, accesses, unclear = json.loads(line)
                    self.found[key] = Seen(frozenset(opcodes), tuple((opcode, text, int(origins, 16))
                                                                     for opcode, text, origins in accesses), unclear)

    def key(self, sections, has_lists):
        """The hash of a kernel's sections in an image: code, tables, layouts."""
        digest = self.version.copy()
        digest.update(b"lists" if has_lists else b"")
        for kind, content in sorted(sections):
            digest.update(b"%s %d " % (kind.encode(), len(content)) + content)
        return digest.hexdigest()

    def add(self, key, seen):
        self.found[key] = seen
        if self.path is not None:
            row = [key, sorted(seen.opcodes), [(opcode, text, f"{origins:x}") for opcode, text, origins in seen.accesses], seen.unclear]
            with open(self.path, "a", encoding="ascii") as file:
                file.write(json.dumps(row) + "\n")
        return seen


def sections_of(image, names):
    """{kernel: [(kind of section, its bytes)]}"""
    found = {name: [] for name in names}
    for section in elf.sections(image):
        kind, _, name = section.name.partition("._Z")
        if "_Z" + name in found:
            found["_Z" + name].append((kind, image[section.offset:section.offset + section.size]))
    return found


def look(nvdisasm, image, infos, known):
    """Yields (kernel, Seen)"""
    keys = {name: known.key(sections, promises.LISTED in name) for name, sections in sections_of(image, infos).items()}
    missing = {name for name in infos if keys[name] not in known.found}
    for name in infos.keys() - missing:
        yield name, known.found[keys[name]]
    for name, code in disassembly.read(nvdisasm, image, missing) if missing else ():
        yield name, known.add(keys[name], see(code, Reader(*fatbin.constants(infos[name]), promises.LISTED in name)))


def check(findings, nvdisasm, path, architecture, recorded, known=None):
    """Holds all kernels of `recorded` ({name: class}) against their promises. Returns {class: opcodes}."""
    opcodes, wrong, read = collections.defaultdict(set), collections.defaultdict(list), collections.Counter()
    known = known or Known()
    for place, image in fatbin.images_of(path, architecture):
        with untrusted.place(place):
            infos = {name: info for name, info in fatbin.kernels_in(image) if name in recorded}
            for name, seen in look(nvdisasm, image, infos, known):
                class_ = recorded[name]
                opcodes[class_] |= seen.opcodes
                read[class_] += 1
                fault = fault_of(name, class_, fatbin.parameters(infos[name]), seen)
                if fault is not None:
                    wrong[class_].append(f"{name}: {fault}")
    for class_, wanted in sorted(collections.Counter(recorded.values()).items()):
        findings.check(f"machine code of {wanted} {class_} kernels", read[class_] == wanted, f"only {read[class_]} were found")
        findings.check(f"each {class_} kernel loads and stores as it should", not wrong[class_],
                       f"{len(wrong[class_])} kernels:\n" + "\n".join(wrong[class_][:3]))
    return {class_: sorted(found) for class_, found in sorted(opcodes.items())}
