# SPDX-License-Identifier: Apache-2.0
"""Launchers start one rank of those that they were asked for: that of DRY_RUN_RANK."""
import os
import sys


def variables(world, local_world):
    """The variables by which a launcher tells a rank its place. The world of the command line (DRY_RUN_WORLD) comes first."""
    world = int(os.environ.get("DRY_RUN_WORLD") or world)
    rank = int(os.environ.get("DRY_RUN_RANK") or 0)
    if not 0 <= rank < world:
        sys.exit(f"metashard: cannot say: there is no rank {rank} in {world} ranks")
    local_world = max(1, min(local_world, world))
    return {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank % local_world, "LOCAL_WORLD_SIZE": local_world,
            "GROUP_RANK": rank // local_world, "GROUP_WORLD_SIZE": -(-world // local_world), "ROLE_RANK": rank,
            "ROLE_WORLD_SIZE": world, "ROLE_NAME": "default", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29500,
            "TORCHELASTIC_RUN_ID": "dry-run", "TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 0}


def change_launcher(module):
    """torchrun, accelerate launch and all that use torch.distributed.run: no agent, no rendezvous, one rank. Commands for
    many nodes are no other: the ranks of the other nodes are those that do what this one does."""

    here = int(os.environ.get("DRY_RUN_RANKS_HERE") or 0)

    class elastic_launch(module.elastic_launch):
        def __call__(self, *arguments):
            config = self._config
            if here:
                config.min_nodes = config.max_nodes = 1
                config.nproc_per_node = here
                return super().__call__(*arguments)
            os.environ.update({name: str(value) for name, value in
                               variables(config.max_nodes * config.nproc_per_node, config.nproc_per_node).items()})
            os.environ.setdefault("OMP_NUM_THREADS", "1")
            sys.stdout.flush()
            sys.stderr.flush()
            if callable(self._entrypoint):
                return {int(os.environ["RANK"]): self._entrypoint(*arguments)}
            return os.execvp(self._entrypoint, [self._entrypoint, *map(str, arguments)])

    module.elastic_launch = elastic_launch


def change_spawn(module):
    """torch.multiprocessing.spawn: the function itself, for one of its processes."""

    def start_processes(fn, args=(), nprocs=1, join=True, daemon=False, start_method="spawn", **others):
        fn(int(os.environ.get("DRY_RUN_RANK") or 0) % nprocs, *args)

    def spawn(fn, args=(), nprocs=1, join=True, daemon=False, start_method="spawn"):
        start_processes(fn, args, nprocs)

    if not int(os.environ.get("DRY_RUN_RANKS_HERE") or 0):
        module.start_processes, module.spawn = start_processes, spawn
