#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_machine_code.py: what tools/check_torch notices in the machine code of a kernel, without nvdisasm: a loop over
{out, in} as it prints it, and changes of it. TAP."""
import os
import sys

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
sys.path.insert(0, os.path.join(SOURCE, "tools", "check_torch"))
from torch_check import disassembly, machine_code  # noqa: E402

# (numel, functor, {out, in}) from 0x210 on.
PARAMETERS, BASE = [(0, 4), (4, 4), (8, 16)], 0x210
LOOP = """
.text.loop:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   S2R R0, SR_CTAID.X ;
        /*0020*/                   LDC R5, c[0x0][0x210] ;
        /*0030*/                   ULDC.64 UR4, c[0x0][0x208] ;
        /*0040*/                   S2R R3, SR_TID.X ;
        /*0050*/                   IMAD R2, R0, -0x200, R5 ;
        /*0060*/                   ULDC UR6, c[0x0][0x214] ;
        /*0070*/                   ISETP.GE.AND P0, PT, R3, R2, PT ;
        /*0080*/                   LDC.64 R8, c[0x0][0x218] ;
        /*0090*/              @!P0 LDC.64 R6, c[0x0][0x220] ;
        /*00a0*/              @!P0 IMAD R9, R0, 0x200, R3 ;
        /*00b0*/              @!P0 IMAD.WIDE.U32 R6, R9, 0x4, R6 ;
        /*00c0*/              @!P0 LDG.E R4, desc[UR4][R6.64] ;
        /*00d0*/               @P0 BRA `(.L_x_1) ;
        /*00e0*/                   LDC.64 R6, c[0x0][0x218] ;
        /*00f0*/                   IMAD R9, R0, 0x200, R3 ;
        /*0100*/                   FADD R4, R4, UR6 ;
        /*0110*/                   IMAD.WIDE.U32 R8, R9, 0x4, R6 ;
        /*0120*/                   STG.E desc[UR4][R8.64], R4 ;
.L_x_1:
        /*0130*/                   EXIT ;
"""
# (in, out, count): what a thread loads, another one stores.
TRANSPOSITION = """
.text.transposition:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   S2R R0, SR_TID.X ;
        /*0020*/                   ULDC.64 UR4, c[0x0][0x208] ;
        /*0030*/                   LDC.64 R2, c[0x0][0x210] ;
        /*0040*/                   LDC.64 R4, c[0x0][0x218] ;
        /*0050*/                   IMAD.WIDE.U32 R2, R0, 0x4, R2 ;
        /*0060*/                   LDG.E.CONSTANT R6, desc[UR4][R2.64] ;
        /*0070*/                   STS [R0], R6 ;
        /*0080*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*0090*/                   LDS R7, [R0+0x4] ;
        /*00a0*/                   IMAD.WIDE.U32 R4, R0, 0x4, R4 ;
        /*00b0*/                   STG.E desc[UR4][R4.64], R7 ;
        /*00c0*/                   EXIT ;
"""
# One list of 110 tensors, and two of 64, in place and from the first to the second: pointers by the number of a tensor.
LIST = """
.text._Z25multi_tensor_apply_kernelI18TensorListMetadataILi2EE:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   S2R R0, SR_CTAID.X ;
        /*0020*/                   ULDC.64 UR4, c[0x0][0x208] ;
        /*0030*/                   LDC.U8 R2, c[0x0][R0+0x810] ;
        /*0040*/                   IMAD.SHL.U32 R3, R2, 0x8, RZ ;
        /*0050*/                   LDC.64 R4, c[0x0][R3+0x210] ;
        /*0060*/                   LDC.64 R6, c[0x0][R3+0x410] ;
        /*0070*/                   LDC R8, c[0x0][R0+0x950] ;
        /*0080*/                   IMAD.WIDE.U32 R4, R8, 0x4, R4 ;
        /*0090*/                   IMAD.WIDE.U32 R6, R8, 0x4, R6 ;
        /*00a0*/                   LDG.E R9, desc[UR4][R4.64] ;
        /*00b0*/                   STG.E desc[UR4][R6.64], R9 ;
        /*00c0*/                   EXIT ;
"""
RELOCATED = "MOV R6, 32@lo(__cudart_i2opi_f) ;\n        /*0098*/              @!P0 MOV R7, 32@hi(__cudart_i2opi_f) ;"
STRIDED = LOOP.replace("text.loop", "text._Z18elementwise_kernelI").replace("c[0x0][0x218]", "c[0x0][0x3b0]").replace(
    "LDG.E R4, desc[UR4][R6.64]", "MOV R4, 0x1")
LISTS = [(0, 3144), (3144, 1), (3145, 1), (3148, 4)]
FILLED = [(0, 4), (8, 432)]  # (numel, {OffsetCalculator<1>, out, number})
CLASSES = {"each": LIST, "strided": STRIDED, "in-place": LOOP, "from-first": TRANSPOSITION, "write-only": LOOP.replace("LDG.E R4, desc[UR4][R6.64]", "MOV R4, 0x1")}
# (what is changed, in which class, a piece of the code, what takes its place, what must be said)
PLANTS = [
    ("an atomic", "in-place", "STG.E desc[UR4][R8.64], R4", "ATOMG.E.ADD PT, R4, desc[UR4][R8.64], R4", "opcodes ATOMG"),
    ("a reduction", "in-place", "STG.E desc[UR4]", "REDG.E.ADD desc[UR4]", "opcodes REDG"),
    ("memory of the block", "in-place", "FADD R4, R4, UR6", "LDS R4, [R9]", "opcodes LDS"),
    ("a value of another thread", "in-place", "FADD R4, R4, UR6", "SHFL.BFLY PT, R4, R4, 0x1, 0x1f", "opcodes SHFL"),
    ("a texture", "in-place", "FADD R4, R4, UR6", "TEX.SCR.LL RZ, R4, R4, R5, 0x0, 0x0, 1D", "opcodes TEX"),
    ("an asynchronous copy", "in-place", "FADD R4, R4, UR6", "LDGSTS.E [R9], desc[UR4][R6.64]", "opcodes LDGSTS"),
    ("a pointer in the functor", "in-place", "LDC.64 R6, c[0x0][0x220]", "LDC.64 R6, c[0x0][0x214]", "word 1 of"),
    ("a load from what is stored to", "in-place", "LDC.64 R6, c[0x0][0x220]", "LDC.64 R6, c[0x0][0x218]", "LDG.E"),
    ("a store to what is loaded from", "in-place", "IMAD.WIDE.U32 R8, R9, 0x4, R6", "IMAD.WIDE.U32 R8, R9, 0x4, R10", "STG.E"),
    ("an index that is loaded", "in-place", "IMAD R9, R0, 0x200, R3 ;\n        /*0100*/", "IMAD R9, R0, 0x200, R4 ;\n        /*0100*/",
     "what was loaded"),
    ("a store to a table of the module", "in-place", "LDC.64 R6, c[0x0][0x218]", "MOV R6, 32@lo(table)", "a table of the module"),
    ("another place of the pointers", "in-place", "c[0x0][0x218]", "c[0x0][0x228]", "STG.E"),
    ("a load", "write-only", "MOV R4, 0x1", "LDG.E R4, desc[UR4][R6.64]", "LDG.E"),
    ("an index that was exchanged", "from-first", "IMAD.WIDE.U32 R4, R0, 0x4, R4", "IMAD.WIDE.U32 R4, R7, 0x4, R4", "what was loaded"),
    ("the pointers in the other order", "from-first", "c[0x0][0x210]", "c[0x0][0x218]", "LDG.E"),
    ("a store through the first list", "each", "IMAD.WIDE.U32 R6, R8, 0x4, R6", "IMAD.WIDE.U32 R6, R8, 0x4, R4", "STG.E"),
    ("a load through the second list", "each", "IMAD.WIDE.U32 R4, R8, 0x4, R4", "IMAD.WIDE.U32 R4, R8, 0x4, R6", "LDG.E"),
    ("a pointer behind the lists", "each", "LDC.64 R6, c[0x0][R3+0x410]", "LDC.64 R6, c[0x0][0xe58]", "STG.E"),
    ("an index of tensors that is loaded", "each", "LDC R8, c[0x0][R0+0x950]", "LDG.E R8, desc[UR4][R4.64]", "what was loaded"),
    ("another place of the pointer", "strided", "c[0x0][0x3b0]", "c[0x0][0x3a8]", "STG.E"),
    ("a load", "strided", "MOV R4, 0x1", "LDG.E R4, desc[UR4][R6.64]", "LDG.E"),
    ("a branch that leads nowhere", "in-place", "BRA `(.L_x_1)", "BRX R6 -0x10", "where it leads is unknown"),
]


def fault(class_, text):
    (name, code), = disassembly.parse(text.splitlines())
    parameters = {"from-first": [(0, 8), (8, 8), (16, 8)], "each": LISTS, "strided": FILLED}.get(class_, PARAMETERS)
    size = parameters[-1][0] + parameters[-1][1]
    seen = machine_code.see(code, machine_code.Reader(BASE, size, class_ == "each"))
    return machine_code.fault_of(name, "write-only" if class_ == "strided" else class_, parameters, seen)


def main():
    results = [(f"{class_}: as it should be", fault(class_, text) is None, fault(class_, text)) for class_, text in CLASSES.items()]
    table = LOOP.replace("LDC.64 R6, c[0x0][0x220]", "LDC.64 R6, c[0x4][0x8]")
    results.append(("write-only: a table of the module", fault("write-only", table) is None, fault("write-only", table)))
    table = LOOP.replace("LDC.64 R6, c[0x0][0x220] ;", RELOCATED)
    results.append(("write-only: a table of the module, as CUDA 12.1 has it", fault("write-only", table) is None, fault("write-only", table)))
    for what, class_, piece, other, wanted in PLANTS:
        assert piece in CLASSES[class_], piece
        said = fault(class_, CLASSES[class_].replace(piece, other)) or ""
        results.append((f"{class_}: noticed: {what}", wanted in said, said))
    for number, (name, good, detail) in enumerate(results, 1):
        print(f"{'ok' if good else 'not ok'} {number} {name}" + ("" if good else f"\n# {detail}"))
    print(f"1..{len(results)}")
    return not all(good for _, good, _ in results)


if __name__ == "__main__":
    sys.exit(main())
