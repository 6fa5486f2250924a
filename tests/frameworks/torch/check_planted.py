#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_planted.py: check_wheel.py notices each of these changes of the installed PyTorch. TAP."""
import check_wheel
import wheels
from torch_check import fatbin, promises

LOOP = "29vectorized_elementwise_kernel"
NCCL = "ncclAllGather"
ARRAY_OF_TWO = "St5arrayIPcLm2E"


class Silent:
    """A check_wheel.Tap that keeps what fails."""

    def __init__(self):
        self.failed = []

    def check(self, name, good, detail="", is_harmless=False):
        del detail, is_harmless
        self.failed += [] if good else [name]


class Changed:
    """The wheel, with other symbols in one of its libraries."""

    def __init__(self, wheel, library, defined=None, undefined=None):
        self.wheel, self.library_changed, self.changes = wheel, library, (defined, undefined)

    def __getattr__(self, name):
        return getattr(self.wheel, name)

    def changed(self, name, which, found):
        change = self.changes[which] if name == self.library_changed else None
        return change(found) if change is not None else found

    def defined(self, name):
        return self.changed(name, 0, self.wheel.defined(name))

    def undefined(self, name):
        return self.changed(name, 1, self.wheel.undefined(name))


def without(piece):
    return lambda symbols: {name for name in symbols if piece not in name}


def renamed(kernels, piece, by):
    return {name.replace(piece, by): parameters for name, parameters in kernels.items()}


def resized(kernels, piece, number, by):
    """Parameter `number` of one kernel has `by` bytes more."""
    name = next(name for name in kernels if piece in name)
    parameters = [tuple(parameter) for parameter in kernels[name]]
    parameters[number] = (parameters[number][0], parameters[number][1] + by)
    return {**kernels, name: parameters}


def plants(wheel, kernels):
    """(what is changed, the wheel then, its kernels then, a part of the check's name that must fail)"""
    loop = next(name for name in kernels if LOOP in name and ARRAY_OF_TWO in name)
    yield "random kernels draw from a larger state", wheel, resized(kernels, "43distribution_elementwise_grid", 1, 8), \
        "parameters are"
    yield "a loop has a third pointer", wheel, resized(kernels, loop, 2, 8), "parameters are"
    yield "a strided copy has fewer dimensions", wheel, resized(kernels, "23direct_copy_kernel_cuda", 1, -104), \
        "parameters are"
    yield "a strided fill has more dimensions", wheel, resized(kernels, "22gpu_kernel_impl_nocastINS0_11FillFunctor", 1, -40), \
        "parameters are"
    yield "lists have room for more tensors", wheel, resized(kernels, "21BinaryOpScalarFunctor", 0, 16), "parameters are"
    yield "cat knows more of its inputs", wheel, resized(kernels, "CatArrayBatchedCopy_contig", 1, 128), "parameters are"
    yield "arange has a further parameter", wheel, resized(kernels, "29elementwise_kernel_with_index", 2, 8), "parameters are"
    yield "loops have another name", wheel, renamed(kernels, LOOP, "30vectorized_elementwise_kernel2"), LOOP
    yield "a functor with pointers has another name", wheel, renamed(kernels, "39_amp_non_finite_check_and_unscale_cuda_",
        "12_amp_unscale"), "_amp_non"
    yield "a loop that a rule names reads several tensors", wheel, {**kernels, loop + ARRAY_OF_TWO.replace("2", "3"):
        kernels[loop]}, "no rule records"
    yield "there is a new kernel that copies", wheel, {**kernels, "_ZN2at6native17block_copy_kernelIfEEvPT_PKS2_l":
        [(0, 8)]}, "families"
    yield "results are not checked by a symbol", Changed(wheel, "libtorch_cuda.so", undefined=without(promises.CHECK)), kernels, "calls it through"
    yield "the check of results has a further parameter", Changed(wheel, "libc10_cuda.so", defined=lambda symbols: without(promises.CHECK)(symbols) | {promises.CHECK + "EiPKcS2_jbPvS3_"}), kernels, \
        "the check of results"
    yield "blocks are not reported", Changed(wheel, "libc10_cuda.so", undefined=without(promises.OBSERVER)), kernels, "the allocator calls it"
    yield "the report is within the allocator's library", Changed(wheel, "libc10_cuda.so", defined=lambda symbols: symbols | {promises.OBSERVER}), kernels, "defines none"
    yield "NCCL is linked in", Changed(wheel, "libtorch_cuda.so", undefined=without(NCCL)), kernels, NCCL


def main():
    tap = check_wheel.Tap()
    wheel = wheels.installed()
    kernels = fatbin.kernels(wheel.library("libtorch_cuda.so"))
    rules = promises.read_rules(check_wheel.RULES)
    as_it_is = Silent()
    check_wheel.check(as_it_is, wheel, kernels, rules)
    tap.check("nothing is wrong with the wheel", not as_it_is.failed, as_it_is.failed)
    for what, changed, others, wanted in plants(wheel, kernels):
        silent = Silent()
        check_wheel.check(silent, changed, others, rules)
        tap.check(f"noticed: {what}", any(wanted in name for name in silent.failed), silent.failed)
    tap.end()


if __name__ == "__main__":
    main()
