# SPDX-License-Identifier: Apache-2.0
"""The other ranks, which are not there: every store is the one of the command (dry_run_store.py), whose waits end, and groups on
the CPU and objects give back what one rank has. The simulated NCCL does its part without them (SIMNCCL_MIRROR)."""
import copy
import os
import pickle
import subprocess
import sys
import tempfile

HOST, PORT = "127.0.0.1", int(os.environ.get("DRY_RUN_STORE") or 0)


def change_objects(distributed, c10d):
    """Collectives of Python objects: each rank has the same. They would travel through device memory, which has no numbers."""

    def world(group):
        return c10d.get_world_size(group)

    def all_gather_object(object_list, obj, group=None, **named):
        object_list[:] = [copy.deepcopy(obj) for _ in range(world(group))]

    def gather_object(obj, object_gather_list=None, dst=None, group=None, group_dst=None, **named):
        if object_gather_list:
            all_gather_object(object_gather_list, obj, group)

    def broadcast_object_list(object_list, src=None, group=None, device=None, group_src=None, **named):
        return None

    def scatter_object_list(scatter_object_output_list, scatter_object_input_list=None, src=None, group=None, **named):
        if scatter_object_input_list:
            scatter_object_output_list[0] = scatter_object_input_list[c10d.get_rank(group)]

    for function in (all_gather_object, gather_object, broadcast_object_list, scatter_object_list):
        setattr(c10d, function.__name__, function)
        setattr(distributed, function.__name__, function)


class Messages:
    """Objects that ranks send each other, as the stages of a pipeline do the shapes of what they will send. A rank that has sent some
    gets such; one that has not asks the first of its group, which is run until it sends."""

    def __init__(self, c10d):
        self.c10d, self.sent = c10d, None
        self.given = os.environ.get("DRY_RUN_GIVE")

    def send_object_list(self, object_list, *arguments, **named):
        self.sent = copy.deepcopy(object_list)
        if self.given:
            with open(self.given, "wb") as file:
                pickle.dump(self.sent, file)
            os._exit(0)

    def recv_object_list(self, object_list, src=None, group=None, *arguments, group_src=None, **named):
        group = group or self.c10d._get_default_group()
        if self.sent is None and self.c10d.get_rank(group) > 0:
            self.sent = self.ask(self.c10d.get_global_rank(group, 0))
        if self.sent is not None:
            object_list[:] = copy.deepcopy(self.sent)
        return src if src is not None else self.c10d.get_global_rank(group, group_src or 0)

    def ask(self, rank):
        """The first object that the rank sends."""
        if self.given:
            return None  # it has not got far enough to say
        print(f"metashard: rank {os.environ.get('RANK', 0)} wants an object of another: rank {rank} is run until it sends one",
              file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="metashard-dry-") as folder:
            path = os.path.join(folder, "given")
            kept = {name: value for name, value in os.environ.items() if name not in ("SIMCUDA_STATS", "DRY_RUN_SNAPSHOT")}
            changed = {"DRY_RUN_GIVE": path, "DRY_RUN_FOLDER": folder, "DRY_RUN_STORE": os.environ["DRY_RUN_SECOND_STORE"],
                       "DRY_RUN_RANK": rank, "RANK": rank, "ROLE_RANK": rank,
                       "LOCAL_RANK": rank % int(os.environ["LOCAL_WORLD_SIZE"]),
                       "GROUP_RANK": rank // int(os.environ["LOCAL_WORLD_SIZE"])}
            subprocess.run([sys.executable, *sys.orig_argv[1:]], env={**kept, **{name: str(value) for name, value in changed.items()}},
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
            if not os.path.exists(path):
                return None
            with open(path, "rb") as file:
                return pickle.load(file)


def change_messages(distributed, c10d):
    messages = Messages(c10d)
    for function in (messages.send_object_list, messages.recv_object_list):
        setattr(c10d, function.__name__, function)
        setattr(distributed, function.__name__, function)


def change_stages(module):
    """Stages of a pipeline: the gradients that the next one gives back are like what this one gave it."""
    if not hasattr(module, "_derive_grad_metas"):
        return  # releases that send no gradients' shapes
    for kind in [kind for kind in vars(module).values() if isinstance(kind, type) and "_recv_meta" in vars(kind)]:
        def receive(self, src_stage, before=kind._recv_meta):
            if src_stage < self.stage_index:
                return before(self, src_stage)
            return module._StageBackwardMeta(backward_metas=module._derive_grad_metas(self._stage_meta.outputs))
        kind._recv_meta = receive


def change_splits(distributed, c10d):
    """Groups that are split from another: NCCL learns their sizes from what the other ranks say, so they are made anew, of as many
    ranks as PyTorch knows that they have."""

    def split_group(parent_pg=None, split_ranks=None, timeout=None, pg_options=None, group_desc=None, backend=None):
        parent = parent_pg or c10d._get_default_group()
        own = next((ranks for ranks in split_ranks if parent.rank() in ranks), None)
        if own is None:
            return c10d.GroupMember.NON_GROUP_MEMBER
        return c10d.new_group([c10d.get_global_rank(parent, rank) for rank in own], timeout=timeout, pg_options=pg_options,
                              backend=backend or c10d._world.pg_map[parent][0], use_local_synchronization=True,
                              group_desc=group_desc)

    for module in (c10d, distributed, sys.modules.get("torch.distributed.device_mesh")):
        if hasattr(module, "split_group"):
            module.split_group = split_group
    if hasattr(c10d, "_get_split_source"):
        c10d._get_split_source = lambda *arguments: None


def change_logger(distributed):
    """DDP's logger asks a group of gloo for its threads, as if it were PyTorch's own, and a fake one has none."""

    class Logger(distributed.Logger):
        def set_construction_data_and_log(self, *arguments):
            pass
    distributed.Logger = Logger


def change(torch):
    distributed = torch.distributed
    if not distributed.is_available():
        return
    from torch._C._distributed_c10d import FakeProcessGroup
    from torch.distributed import distributed_c10d as c10d
    rendezvous = sys.modules["torch.distributed.rendezvous"]  # the package has a function of that name
    TCPStore = distributed.TCPStore

    def store_of(world, timeout=None):
        store = TCPStore(host_name=HOST, port=PORT, world_size=None, is_master=False,
                         **({"timeout": timeout} if timeout is not None else {}))
        if world:
            store.set("metashard/world", str(world))
        return store

    def create_store(hostname, port, rank, world_size, timeout, use_libuv=True):
        return store_of(world_size, timeout)

    class OwnStore:
        """In the place of a TCPStore or FileStore that a program makes by itself."""

        def __new__(cls, *arguments, **named):
            return store_of(int(os.environ.get("WORLD_SIZE", 1)))

    class OfGloo(type):
        def __instancecheck__(cls, group):
            return isinstance(group, FakeProcessGroup)

    class Gloo(metaclass=OfGloo):
        """In the place of ProcessGroupGloo."""

        def __new__(cls, store, rank, size, *arguments, **named):
            options = FakeProcessGroup.Options()
            if hasattr(options, "simulate_uniform_ranks"):
                options.simulate_uniform_ranks = True
            return getattr(FakeProcessGroup, "_create_internal", FakeProcessGroup)(rank, size, options)

    rendezvous._create_c10d_store = create_store
    rendezvous.FileStore = distributed.TCPStore = distributed.FileStore = OwnStore
    c10d.ProcessGroupGloo = Gloo
    FakeProcessGroup._set_sequence_number_for_group = lambda group: None  # PyTorch 2.11 wants it of gloo
    # DDP compares the shapes of parameters, which it gets from its peers by the device.
    distributed._verify_params_across_processes = lambda *arguments, **named: None
    c10d.monitored_barrier = distributed.monitored_barrier = lambda *arguments, **named: None
    change_logger(distributed)
    change_objects(distributed, c10d)
    change_messages(distributed, c10d)
    change_splits(distributed, c10d)
