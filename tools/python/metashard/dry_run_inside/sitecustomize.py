# SPDX-License-Identifier: Apache-2.0
"""Runs at the start of each Python of a dry run: PYTHONPATH has this folder first. Changes
PyTorch when a program imports it, and runs the user's own sitecustomize, which this file hides."""
import importlib.machinery
import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def run_hidden():
    """The sitecustomize that would have been found without this one."""
    places = [path for path in sys.path if os.path.abspath(path or ".") != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", places)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


class AfterImport:
    """Finds nothing by itself: changes the modules of `changes` as soon as they are there. Programs ask for a specification, too,
    only to see whether a module is installed."""

    def __init__(self, changes):
        self.changes = changes
        self.is_asking = False

    def find_spec(self, name, path=None, target=None):
        if name not in self.changes or self.is_asking:
            return None
        self.is_asking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.is_asking = False
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                change = self.changes.pop(name, None)
                execute(module)
                if change is not None:
                    change(module)
            spec.loader.exec_module = exec_module
        return spec


def change_torch(module):
    import metashard_dry_numbers
    import metashard_dry_watch
    if not int(os.environ.get("DRY_RUN_RANKS_HERE") or 0):
        import metashard_dry_peers
        metashard_dry_peers.change(module)
    metashard_dry_numbers.change(module)
    metashard_dry_watch.start(module)


def change_launcher(module):
    import metashard_dry_launch
    metashard_dry_launch.change_launcher(module)


def change_spawn(module):
    import metashard_dry_launch
    metashard_dry_launch.change_spawn(module)


def change_stages(module):
    if not int(os.environ.get("DRY_RUN_RANKS_HERE") or 0):
        import metashard_dry_peers
        metashard_dry_peers.change_stages(module)


def change_generation(module):
    import metashard_dry_generation
    metashard_dry_generation.change(module)


if "DRY_RUN_FOLDER" in os.environ:
    import metashard_dry_failure
    metashard_dry_failure.watch()
    sys.meta_path.insert(0, AfterImport({"torch": change_torch, "torch.distributed.launcher.api": change_launcher,
                                         "torch.multiprocessing.spawn": change_spawn,
                                         "torch.distributed.pipelining.stage": change_stages,
                                         "transformers.generation.utils": change_generation}))
try:
    run_hidden()
except Exception as error:  # as Python itself does with a sitecustomize
    print(f"metashard: the hidden sitecustomize: {error}", file=sys.stderr)
