# SPDX-License-Identifier: Apache-2.0
"""What the machine code of a kernel shows of the promise of its class: the opcodes, and which parameters make the addresses of
its loads and stores (data_flow.py).
"""
import collections
from typing import NamedTuple

from . import disassembly, fatbin, promises
from .data_flow import INDEXED, LOADED, LOADS, MODULE, OPCODES, STACK, TILE, Access, Flow, Reader, Unclear, follow


def allowed(class_):
    return OPCODES | TILE if class_ == "from-first" else OPCODES


def words_of(parameters, *numbers):
    found = 0
    for number in numbers:
        if number < len(parameters):
            offset, size = parameters[number]
            for word in range(offset // 4, (offset + size + 3) // 4):
                found |= 1 << word
    return found


def pair(offset):
    return 3 << (offset // 4)


class Promise(NamedTuple):
    """Which words addresses may have: of each load one of `inputs`, of each store `output`, and besides `numbers` of sizes,
    strides and types. Another word is a pointer or a number that the class does not have."""
    output: int
    inputs: tuple
    numbers: int


def promises_of(class_, name, parameters):
    """What the class promises of a kernel with these parameters; several, where closures may lie in either order."""
    count = len(parameters)
    if class_ == "concatenate":
        return [Promise(words_of(parameters, 0), (INDEXED | words_of(parameters, 1),),
                        INDEXED | words_of(parameters, *range(1, count)))]
    if "43distribution_elementwise_grid_stride_kernel" in name:
        state, closure = parameters[1][0], parameters[3]
        # The pointer is somewhere in the closure.
        return [Promise(pair(closure[0] + at), (pair(state), pair(state + 8)), words_of(parameters, 0, 3) & ~pair(closure[0] + at))
                for at in range(0, closure[1] - 4, 8)]
    if class_ == "from-first":
        return [Promise(words_of(parameters, 1), (words_of(parameters, 0),), words_of(parameters, *range(2, count)))]
    if class_ == "from-other":
        numbers, closure = words_of(parameters, 0, 1), parameters[1][0]
        return [Promise(pair(at), (pair(at + 8),), numbers & ~pair(at) & ~pair(at + 8))
                for at in (closure, closure + promises.CALCULATOR_OF_TWO)]
    numbers, out = words_of(parameters, 0, *range(3, count)), parameters[2][0]
    return [Promise(pair(out), (pair(out + 8),) if class_ == "in-place" else (), numbers)]


def shown(origins):
    named = [name for bit, name in ((MODULE, "a table of the module"), (LOADED, "what was loaded"), (INDEXED, "a parameter by index"),
                                    (STACK, "the stack")) if origins & bit]
    return " and ".join([f"word {word} of the parameters" for word in range(1024) if origins >> word & 1] + named) or "nothing"


def breaks(promise, access):
    """What is wrong with a load or a store, or None."""
    origins, is_load = access.origins, access.instruction.base in LOADS
    pointers = promise.output
    for pointer in promise.inputs:
        pointers |= pointer
    if origins == STACK or (is_load and origins & MODULE and not origins & pointers & ~promise.numbers):
        return None
    for pointer in promise.inputs if is_load else (promise.output,):
        if origins & pointer and not origins & ~(pointer | promise.numbers):
            return None
    return f"{access.instruction.opcode} {access.instruction.text}: its address is made of {shown(origins)}"


class Kernel(NamedTuple):
    name: str
    class_: str
    parameters: list
    base: int  # where parameters begin in the bank of constants
    size: int


def check_kernel(kernel, code):
    """(opcodes, what is wrong or None)"""
    opcodes = {read.base for read in code.instructions}
    if opcodes - allowed(kernel.class_):
        return opcodes, f"opcodes {' '.join(sorted(opcodes - allowed(kernel.class_)))}"
    try:
        accesses = follow(Flow(code, Reader(kernel.base, kernel.size)))
    except Unclear as error:
        return opcodes, str(error)
    fault = None
    for promise in promises_of(kernel.class_, kernel.name, kernel.parameters):
        fault = next((found for access in accesses if (found := breaks(promise, access)) is not None), None)
        if fault is None:
            break
    return opcodes, fault


def check_image(nvdisasm, image, recorded):
    """Yields (kernel, its class, opcodes, what is wrong) of the recorded kernels in an image."""
    found = {name: info for name, info in fatbin.kernels_in(image) if name in recorded}
    for name, code in disassembly.read(nvdisasm, image, set(found)) if found else ():
        base, size = fatbin.constants(found[name])
        yield name, recorded[name], *check_kernel(Kernel(name, recorded[name], fatbin.parameters(found[name]), base, size), code)


def check(findings, nvdisasm, path, architecture, recorded):
    """Holds all kernels of `recorded` ({name: class}) against their promises. Returns {class: opcodes}."""
    opcodes, wrong, read = collections.defaultdict(set), collections.defaultdict(list), collections.Counter()
    for image in fatbin.images_of(path, architecture):
        for name, class_, found, fault in check_image(nvdisasm, image, recorded):
            opcodes[class_] |= found
            read[class_] += 1
            if fault is not None:
                wrong[class_].append(f"{name}: {fault}")
    for class_, wanted in sorted(collections.Counter(recorded.values()).items()):
        findings.check(f"machine code of {wanted} {class_} kernels", read[class_] == wanted, f"only {read[class_]} were found")
        findings.check(f"each {class_} kernel loads and stores as it should", not wrong[class_],
                       f"{len(wrong[class_])} kernels:\n" + "\n".join(wrong[class_][:3]))
    return {class_: sorted(found) for class_, found in sorted(opcodes.items())}
