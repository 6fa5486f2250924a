# SPDX-License-Identifier: Apache-2.0
"""A Jupyter kernel of this Python that runs under MetaShard: one file, kernel.json, in a folder of its own.
https://jupyter-client.readthedocs.io/en/stable/kernels.html"""
from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from typing import Optional

from . import installed

NAME = "metashard"


def folder_of(prefix: Optional[str]) -> str:
    if prefix is not None:
        return os.path.join(os.path.abspath(prefix), "share", "jupyter", "kernels", NAME)
    data = os.environ.get("JUPYTER_DATA_DIR") or os.path.join(
        os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share"), "jupyter")
    return os.path.join(data, "kernels", NAME)


def specification(settings: dict[str, str]) -> dict[str, object]:
    return {"argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
            "display_name": "Python 3 (MetaShard)", "language": "python",
            "env": {"LD_PRELOAD": installed.library(), **settings}, "metadata": {"debugger": True}}


def main(settings: dict[str, str], prefix: Optional[str], is_removal: bool) -> int:
    folder = folder_of(prefix)
    if is_removal:
        if not os.path.exists(folder):
            raise installed.Fault(f"{folder}: there is no such kernel")
        shutil.rmtree(folder)
        print(f"removed {folder}")
        return 0
    text = json.dumps(specification(settings), indent=1) + "\n"
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "kernel.json"), "w", encoding="utf-8") as file:
        file.write(text)
    print(f"wrote {folder}/kernel.json; `metashard run --kernel --remove` removes it")
    if importlib.util.find_spec("ipykernel") is None:
        print(f"metashard: the kernel needs ipykernel, which {sys.executable} does not have: pip install ipykernel",
              file=sys.stderr)
    return 0
