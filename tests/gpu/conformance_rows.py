# SPDX-License-Identifier: Apache-2.0
"""What conformance.py does not compare: tests of tools/simcuda that are about the simulated driver itself.

A row is (tests, check, reason). `tests` is program.test, with * for any. With a check, as it stands in the
test's source, only its answer is left out; without one the test is not run at all.
"""
TWO_DEVICES = "SIMCUDA_DEVICES makes a second device"
NO_HANDLE = "the real driver does not look whether a handle is one: the process ends, or the answer is any"
NOT_COMPARED = [
    ("vmm.wrong_handles", "cuMemRelease(12345)", NO_HANDLE),
    ("vmm.mapping_rules", "cuMemMap(address, 4 * MIB, 0, 77, 0)", NO_HANDLE),
    ("memory.what_is_no_context", None, NO_HANDLE),
    ("copy.what_is_no_array", None, NO_HANDLE),
    ("stream.what_is_no_stream_or_event", None, NO_HANDLE),
    ("copy.what_the_documentation_forbids", None,
     "the real driver takes it, and the device faults later; the simulated one refuses"),
    ("vmm.a_mapping_ends_before_its_reservation_does", None,
     "the real driver sees no end of a reservation within an area of 32 MiB; the simulated one refuses"),
    ("torch_kernels.*", None, "kernels of the simulated driver under PyTorch's names, with a generator of "
                              "its own; PyTorch's are measured by the parts probe-torch and flow-torch"),
    ("copy.copies_between_devices", None, TWO_DEVICES),
    ("vmm.other_devices_need_access_of_their_own", None, TWO_DEVICES),
    ("vmm.peer_access_is_for_allocations", None, TWO_DEVICES),
    ("query.devices", None, "SIMCUDA_DEVICES and SIMCUDA_MEMORY_MIB, and the simulated device's name"),
    ("environment.statistics", None, "SIMCUDA_STATS"),
    ("environment.races_and_illegal_accesses_are_counted_and_told", None, "SIMCUDA_STATS"),
    ("environment.log_of_calls", None, "SIMCUDA_LOG"),
    ("environment.faults_on_request", None, "SIMCUDA_FAULTS"),
    ("environment.calls_of_*", None, "SIMCUDA_FAULTS"),
    ("environment.bad_values_are_told_and_not_used", None, "SIMCUDA_ variables"),
    ("environment.the_granule_can_be_smaller", None, "SIMCUDA_GRANULE_KIB"),
    ("environment.wanted_addresses_may_be_declined_or_refused", None, "SIMCUDA_HINTS"),
    ("memory.memory_is_limited", None, "SIMCUDA_MEMORY_MIB"),
    ("memory.fresh_memory_is_poisoned_on_request", None,
     "SIMCUDA_POISON; what a real driver does is in the probe's section fresh_memory"),
    ("memory.nothing_works_before_init", "version", "the version of the driver"),
    ("launch.ways_to_load", None, "images that only the simulated driver has (SIMCUDA:)"),
    ("launch.parameter_layouts", 'cuFuncGetParamInfo(get(module, "unknown_layout"),*',
     "every kernel that is compiled from PTX has a layout"),
    ("launch.kernels_without_parameters_or_layout", "cuLaunchKernel(unknown,*params, *",
     "every kernel that is compiled from PTX has a layout"),
    ("vmm.dma_buf_of_a_range", "read(file,*", "the simulated driver's dma-buf is a plain file"),
    ("vmm.dma_buf_of_a_range", "seen", "the simulated driver's dma-buf is a plain file"),
    ("lookup.calls_that_nobody_simulates_are_refused", None, "what the simulated driver lacks"),
    ("lookup.the_older_library", None, "the simulated driver of CUDA 12"),
    ("lookup.the_older_profile_by_environment", None, "SIMCUDA_PROFILE"),
    ("lookup.the_oldest_*", None, "the simulated driver of CUDA 12.4"),
    ("lookup.an_older_library_stays_older", None, "SIMCUDA_PROFILE"),
    ("lookup.the_newer_profile_by_environment", None, "SIMCUDA_PROFILE"),
    ("lookup.the_driver_of_13_*", None, "SIMCUDA_PROFILE"),
    ("lookup.failed_lookups", 'get("cuInit", NULL,*', "undefined: driver 580 touches the address that is none"),
    ("lookup.failed_lookups", 'get(NULL,*', "undefined: driver 580 touches the name that is none"),
    ("lookup.the_newest_functions_are_not_in_older_drivers", None, "the simulated driver of CUDA 13.0"),
]
