# SPDX-License-Identifier: Apache-2.0
"""The simulated NCCL's tests that nccl_conformance.py does not run; rows as in conformance_rows.py."""
NOT_NOTICED = "NCCL does not notice it, and hangs"
NOT_COMPARED = [
    ("nccl_collectives.links_count_their_bytes", None, "simncclLinkBytes"),
    ("nccl_comms.all_devices_of_one_process", None, "SIMCUDA_DEVICES makes more devices"),
    ("nccl_comms.ids_that_differ", None, NOT_NOTICED),
    ("nccl_comms.a_rank_that_is_there_twice", None, NOT_NOTICED),
    ("nccl_comms.ranks_of_different_sizes", None, NOT_NOTICED),
    ("nccl_comms.wrong_arguments", None, "an id that is none: NCCL tries to connect to it"),
    ("nccl_comms.an_id_of_a_process_that_is_gone", None, "NCCL tries to connect for minutes"),
    ("nccl_comms.version", None, "SIMNCCL_VERSION"),
    ("nccl_groups.order_inside_a_group_is_shuffled", None, "SIMNCCL_LOG"),
    ("nccl_groups.order_inside_a_group_can_be_by_size", None, "SIMNCCL_LOG"),
    ("nccl_registration.broadcast_into_shared_registered_memory_breaks_the_next_rank", None, "SIMNCCL_CHECK"),
    ("nccl_registration.all_ranks_register_or_none", None, "undefined in NCCL"),
    ("nccl_registration.registered_memory_may_not_be_mapped_anew", None, "undefined in NCCL"),
]
