# SPDX-License-Identifier: Apache-2.0
"""Runs the probe on the simulated driver and checks the answers that the design relies on.

    check_probe.py --probe PROBE --kernels libprobe_sim_kernels.so [--json FILE]

With --json a result that is already there is checked instead, as one from a GPU: what fails then is
a difference between that driver and what the design assumes.
"""
import argparse
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "static"))
from check_entries import read_rows  # noqa: E402

OK = "CUDA_SUCCESS"
ILLEGAL = "CUDA_ERROR_ILLEGAL_ADDRESS"
INVALID = "CUDA_ERROR_INVALID_VALUE"
NOT_READY = "CUDA_ERROR_NOT_READY"
NOT_SUPPORTED = "CUDA_ERROR_NOT_SUPPORTED"

# Parts that may fail: (path, text in the error, why).
ALLOWED_ERRORS = [
    ("alias.partial", "cuMemMap: CUDA_ERROR_NOT_SUPPORTED",
     "an earlier probe maps a part of a handle once more, also where that is refused"),
    *((f"unmapped.{call}", "ended by signal 11", "where no memory of the device is, an address is one of the host")
      for call in ("cuMemcpy_to", "cuMemcpy_from", "cuMemcpyAsync_to")),
]


def one_of(*values):
    return lambda seen: seen in values


def is_not(value):
    return lambda seen: seen != value


def have_rows(names):
    """As the table is now. A debugger's functions need no rows: no program calls them, and they take no memory."""
    return set(names) - {row.symbol for row in read_rows()} == {name for name in names if name.startswith("cudbg")}


WAITING = ["cuMemFree_64_mib", "cuMemFreeHost", "cuCtxSynchronize", "cuEventSynchronize_of_context"]
NOT_WAITING = ["cuMemAddressReserve", "cuMemCreate_64_mib", "cuMemMap", "cuMemSetAccess",
               "cuMemUnmap", "cuMemRelease", "cuMemAddressFree", "cuMemGetInfo",
               "cuPointerGetAttribute", "cuMemsetD8Async_other_stream",
               "cuMemcpyHtoDAsync_pageable_other_stream"]

# Path in the JSON -> the value, or a test of it.
FACTS = {
    "device.attributes.virtual_memory_management": 1,
    # With it a kernel reads memory of the host at its own address: told, and the design is ready for both.
    "device.attributes.pageable_memory_access": one_of(0, 1),
    "device.granularity.minimum": 2 << 20,
    "device.granularity.minimum_posix_fd_rdma": 2 << 20,
    # The shim's own calls, with its properties and at its addresses.
    "shim.granularity.minimum": 2 << 20,
    "shim.granularity.recommended": 2 << 20,
    "shim.granularity.create_of_one": OK,
    "shim.hints.shim.honoured": True,
    "shim.hints.shim_for_programs.honoured": True,
    "shim.hints.low_1_tib.result": OK,
    "shim.hints.far_126_tib.result": OK,
    "shim.no_current_context.cuMemAlloc": "CUDA_ERROR_INVALID_CONTEXT",
    "shim.no_current_context.synchronize_at_the_end": OK,
    # The answers of cuGetProcAddress are the exported symbols.
    "resolver.before_init.other_address": 0,
    "resolver.before_init.only_resolved": 0,
    "resolver.after_init.other_address": 0,
    "resolver.after_init.only_resolved": 0,
    "resolver.exports.not_in_the_table": have_rows,
    "resolver.odd_questions.alloc_newest.symbol": "cuMemAlloc_v2",
    "resolver.odd_questions.suffix_in_the_name.symbol": "",
    "resolver.odd_questions.copy_per_thread.symbol": "cuMemcpyHtoD_v2_ptds",
    "resolver.odd_questions.resolver_12000.symbol": "cuGetProcAddress_v2",
    "resolver.odd_questions.copy_per_thread_version_3020.symbol": "",
    "resolver.odd_questions.copy_per_thread_version_3020.query_status": 2,
    "resolver.odd_questions.unknown.query_status": 1,
    # Large blocks have granules of their own; a freed block gives its memory back.
    "accounting.20_mib.physical_first": 20 << 20,
    "accounting.20_mib.kept_after_free": 0,
    "accounting.20_mib.range_base_minus_address": 0,
    "accounting.20_mib.range_bytes": 20 << 20,
    "accounting.vmm.reserve_of_1_gib": 0,
    "accounting.vmm.create_64_granules": 128 << 20,
    "accounting.vmm.kept_after_release": 0,
    "accounting.alloc_of_zero_bytes": INVALID,
    "accounting.free_of_null": OK,
    "reserve.16_tib.result": OK,
    "reserve.16_tib.free_result": OK,
    "reserve.hints.free_hint_honoured": True,
    "reserve.hints.taken_hint_moved_elsewhere": True,
    # The sink.
    "alias.sink_of_2_mib.physical": 2 << 20,
    "alias.sink_of_2_mib.memset_seen_through_last": True,
    "alias.sink_of_2_mib.memset_seen_through_first": True,
    "alias.sink_of_2_mib.copy_seen_through_all": True,
    "alias.sink_of_2_mib.kernel_store_seen": True,
    # Handles are mapped whole.
    "alias.partial.whole": OK,
    "alias.partial.first_2_of_64_mib": NOT_SUPPORTED,
    "alias.partial.first_62_of_64_mib": NOT_SUPPORTED,
    "alias.partial.offset_2_mib": NOT_SUPPORTED,
    "alias.partial.offset_of_half": NOT_SUPPORTED,
    "alias.partial.more_than_the_handle": NOT_SUPPORTED,
    "alias.partial.half_a_granule": NOT_SUPPORTED,
    "alias.interleaved.owned_words_wrong": 0,
    # Attributes that tell memory that is not there, mapped memory and cuMemAlloc memory apart.
    "attributes.MAPPED.mapped_first_handle.value": "0x1",
    "attributes.MAPPED.alloc_large.value": "0x1",
    "attributes.IS_LEGACY_CUDA_IPC_CAPABLE.mapped_first_handle.value": "0x0",
    "attributes.IS_LEGACY_CUDA_IPC_CAPABLE.alloc_large.value": "0x1",
    "attributes.cuMemGetAddressRange.alloc_large.bytes": 20 << 20,
    "attributes.cuMemGetAddressRange.reserved_never_mapped.result": is_not(OK),
    "attributes.cuIpcGetMemHandle.mapped_first_handle": is_not(OK),
    "attributes.cuIpcGetMemHandle.alloc_large": OK,
    "attributes.synchronize_at_the_end": OK,
    # Memory that is not there: sticky from a kernel.
    "unmapped.kernel_store.result": OK,
    "unmapped.kernel_store.synchronize": ILLEGAL,
    "unmapped.kernel_store.synchronize_again": ILLEGAL,
    "unmapped.kernel_store.sticky": True,
    # A copy or fill of what is not there is refused, and ends nothing.
    **{f"unmapped.{call}.{what}": value for what, value in (("result", INVALID), ("sticky", False))
       for call in ("cuMemcpyHtoD", "cuMemcpyHtoDAsync", "cuMemcpyDtoH", "cuMemcpyDtoHAsync", "cuMemcpyDtoD_to", "cuMemcpyDtoD_from",
                    "cuMemcpyDtoDAsync_to", "cuMemcpyDtoDAsync_from", "cuMemcpy2D_to", "cuMemsetD8", "cuMemsetD8Async", "cuMemsetD2D8",
                    "cuMemcpyHtoD_mapped_then_not", "cuMemcpyDtoH_mapped_then_not", "cuMemsetD8_mapped_then_not")},
    "unmapped.cuMemFree.result": is_not(OK),
    "unmapped.cuMemUnmap.result": OK,
    "unmapped.cuMemSetAccess.result": is_not(OK),
    "access_flags.read_only_cuMemcpyDtoH.result": OK,
    **{f"access_flags.{call}.result": INVALID for call in ("read_only_cuMemcpyHtoD", "read_only_cuMemsetD8", "no_access_cuMemcpyDtoH",
                                                           "no_access_cuMemcpyHtoD", "no_access_cuMemsetD8")},
    "access_flags.no_access_kernel_store.sticky": True,
    "past_end.alloc_cuMemFree_inside.result": INVALID,
    "past_end.vmm_cuMemFree.result": is_not(OK),
    "mappings.cost_of_4.handles": 4,
    "mappings.room_between_granules.granules": 256,
    "mappings.late_on_a_busy_device.waited_for_the_device": False,
    # A pool's figures, to which the shim adds its own.
    "pools.figures_with_threshold_of_everything.with_3_blocks.used": 96 << 20,
    "pools.figures_with_threshold_of_everything.synchronized.used": 64 << 20,
    "pools.figures_with_threshold_of_everything.synchronized.reserved": lambda seen: seen >= 96 << 20,
    "pools.figures_with_threshold_of_everything.trimmed_to_80_mib.reserved": lambda seen: seen >= 80 << 20,
    "pools.figures_with_threshold_of_everything.trimmed_to_0.used": 64 << 20,
    "pools.figures_with_threshold_of_everything.all_trimmed.reserved": 0,
    "pools.figures_with_threshold_0.all_freed.reserved": 0,
    "pools.addresses.default_pool_20_mib.range_bytes": 20 << 20,
    # The legacy stream speaks for the blocking ones.
    "order.blocking_stream_busy.query_0": NOT_READY,
    "order.blocking_stream_busy.query_legacy": NOT_READY,
    "order.blocking_stream_busy.event_on_0": NOT_READY,
    "order.nonblocking_stream_busy.query_0": OK,
    "order.nonblocking_stream_busy.event_on_0": OK,
    "order.implicit_order.blocking_after_legacy": NOT_READY,
    "order.implicit_order.legacy_after_blocking": NOT_READY,
    "edges.map_corners.unmap_a_part": is_not(OK),
    "edges.map_corners.map_over_a_mapping": is_not(OK),
    "edges.map_corners.release_while_mapped": OK,
    "edges.map_corners.unmap_with_a_hole_behind": OK,
    "edges.handle_exports.not_requested": is_not(OK),
    "edges.handle_exports.requested": OK,
    "edges.free_corners.free_inside": INVALID,
    "edges.free_corners.free_twice": is_not(OK),
    "edges.synchronize_at_the_end": OK,
    "parameters.layout.parameters": ["0+8", "8+4", "16+24", "40+1"],
    "parameters.layout.past_the_last": INVALID,
    "parameters.packed_launch.stored": True,
    "parameters.packed_launch.buffer_of_12": OK,
    "parameters.packed_launch.buffer_of_16": "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
    # Captures: nothing of the shim's own may end one.
    "capture.global.nothing.capture": "active",
    "capture.global.cuMemAlloc.result": is_not(OK),
    "capture.global.cuMemAlloc.capture": "invalidated",
    "capture.global_other_thread.cuMemAlloc.result": is_not(OK),
    "capture.thread_local_other_thread.cuMemAlloc.result": OK,
    "capture.thread_local_other_thread.cuMemFree.result": OK,
    "capture.thread_local_other_thread.cuMemFree.capture": "active",
    "capture.thread_local_other_thread.cuCtxSynchronize.capture": "invalidated",
    "capture.thread_local_other_thread.cuCtxRecordEvent.capture": "invalidated",
    "capture.relaxed.cuMemAlloc.result": OK,
    "capture.global_relaxed_around.cuMemAlloc.result": OK,
    "capture.global_relaxed_around.cuMemAlloc.capture": "active",
    # A capture that begins while another thread waits in cuMemFree (NOT_ASKED).
    "capture.thread_local_during_a_free.free": OK,
    "capture.thread_local_during_a_free.capture": "active",
    "capture.relaxed_during_a_free.free": OK,
    "capture.relaxed_during_a_free.capture": "active",
}
# A fact -> what its result lacks if an older probe wrote it, whose own question ended the capture (it asked a stream).
NOT_ASKED = {"capture.thread_local_during_a_free.capture": "capture.thread_local_during_a_free.began_after_ms"}
for mode in ("global", "global_other_thread", "thread_local"):
    for call in ("cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease",
                 "cuMemcpyHtoD", "cuMemsetD8"):
        FACTS[f"capture.{mode}.{call}.capture"] = "active"
    for call in ("cuStreamQuery_other_stream", "cuStreamSynchronize_other_stream", "cuEventQuery_other_stream"):
        FACTS[f"capture.{mode}.{call}.capture"] = "invalidated"
for what in ("empty_name_version_0", "suffix_in_the_name", "copy_per_thread_version_3020", "unknown"):
    FACTS[f"resolver.odd_questions.{what}.result"] = OK
for what in ("in", "on_the_device", "out", "one_dimension"):
    FACTS[f"shim.copies_over_handles.{what}"] = OK
    FACTS[f"shim.copies_over_handles.{what}_wrong_bytes"] = 0
for call in ("cuMemGetAllocationGranularity", "cuMemAddressReserve", "cuMemAddressFree", "cuMemCreate", "cuMemMap",
             "cuMemSetAccess", "cuMemUnmap", "cuMemRelease", "cuPointerGetAttribute"):
    FACTS[f"shim.no_current_context.{call}"] = OK
for call in NOT_WAITING:
    for way in ("kernel_on_nonblocking_stream", "kernel_on_blocking_stream"):
        FACTS[f"busy.{way}.{call}.waited"] = False
for call in WAITING:
    for way in ("kernel_on_nonblocking_stream", "kernel_on_blocking_stream"):
        FACTS[f"busy.{way}.{call}.waited"] = True
for call in ("cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap",
             "cuMemRelease", "cuMemcpyHtoDAsync_other_stream", "cuStreamSynchronize_other_stream"):
    FACTS[f"capture.global_relaxed_around.{call}.result"] = OK
    FACTS[f"capture.global_relaxed_around.{call}.capture"] = "active"
for stream in ("nonblocking_stream", "legacy_stream"):
    for size in ("64_b", "64_kib", "1_mib"):
        FACTS[f"pageable.pageable.{stream}.{size}.in_content"] = "old"
        FACTS[f"pageable.pinned.{stream}.{size}.in_content"] = one_of("new", "old")
    # The program may use its source anew when the call has returned, also above 64 KiB.
    for source in ("pageable", "private_file_mapping"):
        for size in ("64_kib_and_4_b", "128_kib", "256_kib", "16_mib"):
            FACTS[f"pageable.{source}.{stream}.{size}.in_content"] = "old"


def look_up(result, path):
    for key in path.split("."):
        if not isinstance(result, dict) or key not in result:
            raise LookupError(f"{path}: no {key}")
        result = result[key]
    return result


def errors_in(value, path=""):
    if isinstance(value, dict):
        if "error" in value:
            yield path, value["error"]
        for key, inner in value.items():
            yield from errors_in(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for inner in value:
            yield from errors_in(inner, path)


def was_asked(result, path):
    try:
        return path not in NOT_ASKED or look_up(result, NOT_ASKED[path]) is not None
    except LookupError:
        return False


def facts_of(result):
    """Those of the sections that the probe was asked for, whether they are there or not."""
    return {path: wanted for path, wanted in FACTS.items()
            if path.split(".")[0] in result["sections"] and was_asked(result, path)}


def check(result):
    problems = []
    for path, error in errors_in(result):
        if not any(path == allowed and text in error for allowed, text, _ in ALLOWED_ERRORS):
            problems.append(f"{path}: {error}")
    for path, wanted in facts_of(result).items():
        try:
            seen = look_up(result, path)
        except LookupError as error:
            problems.append(str(error))
            continue
        if not (wanted(seen) if callable(wanted) else seen == wanted):
            expected = "" if callable(wanted) else f", not {wanted!r}"
            problems.append(f"{path} is {seen!r}{expected}")
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--probe")
    parser.add_argument("--kernels")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    if arguments.json:
        with open(arguments.json, encoding="utf-8") as file:
            result = json.load(file)
    else:
        ended = subprocess.run([arguments.probe, "--quick", "--kernels", arguments.kernels],
                               stdout=subprocess.PIPE, check=False)
        result = json.loads(ended.stdout)
    if "skipped" in result:
        raise SystemExit("the driver was not started: " + result["skipped"])
    problems = check(result)
    for problem in problems:
        print(problem)
    print(f"{len(facts_of(result))} facts, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
