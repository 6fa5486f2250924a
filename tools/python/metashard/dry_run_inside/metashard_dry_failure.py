# SPDX-License-Identifier: Apache-2.0
"""Says in a line why a program failed: the error that ended it, for the command to print. Data, the network and a token, which a dry run
cannot give, have lines of their own."""
import json
import os
import sys

NETWORK = {"gaierror", "URLError", "ConnectionError", "ConnectError", "ConnectTimeout", "ConnectionRefusedError", "MaxRetryError",
           "NewConnectionError", "NameResolutionError", "LocalEntryNotFoundError", "OfflineModeIsEnabled", "ProxyError",
           "ClientConnectorError", "ReadTimeout"}
TOKEN = {"GatedRepoError", "RepositoryNotFoundError", "LocalTokenNotFoundError"}
DATA = {"FileNotFoundError", "NotADirectoryError", "DatasetNotFoundError", "DataFilesNotFoundError"}
CPU_WORDS = ("DefaultCPUAllocator", "can't allocate memory")
NETWORK_WORDS = ("couldn't connect to", "connection error", "max retries exceeded", "offline mode is enabled",
                 "name resolution", "name or service not known")
COMPILER_WORDS = ("cuda_home", "nvcc")
LIBRARIES = ("cuDNN", "cuSOLVER", "cuFFT", "cuSPARSE")
MOST = 200  # characters of a message


def causes(error):
    """The error, and those that it came from."""
    seen = []
    while error is not None and error not in seen:
        seen.append(error)
        error = error.__cause__ or error.__context__
    return seen


def has(errors, names):
    return any(kind.__name__ in names for error in errors for kind in type(error).__mro__)


def reason(error):
    """One line, of the last error and of what caused it."""
    errors = causes(error)
    texts = [str(one) for one in errors]
    words = (texts[0].strip().splitlines() or [""])[0][:MOST]
    what = f"{type(error).__name__}: {words}" if words else type(error).__name__
    if has(errors, TOKEN):
        return f"the program wants a model or a token that are not here ({what})"
    if has(errors, NETWORK) or any(part in text.lower() for text in texts for part in NETWORK_WORDS):
        return f"the program wants the network ({what}): have its files here first, any that look the same do"
    if isinstance(error, MemoryError) or any(part in text for text in texts[:1] for part in CPU_WORDS):
        return f"the machine's own memory is too small for what the program builds on the CPU ({what})"
    library = next((name for name in LIBRARIES if words.startswith((f"{name} error", f"{name.lower()} error"))
                    or "dlopen" in words and f"lib{name.lower()}" in words), None)
    if library is not None:
        return f"the program wants {library}, which has no stand-in ({what})"
    if any(part in text.lower() for text in texts for part in COMPILER_WORDS):
        return f"the program wants CUDA's compiler, to build code of its own ({what})"
    if isinstance(error, ModuleNotFoundError):
        return f"a package that the program needs is not here ({what})"
    if has(errors[:1], DATA):
        return f"the program wants data that are not here ({what}): any that look the same do"
    return f"the program failed with {what}"


def last_read():
    """Where the program read a number of the device last."""
    numbers = sys.modules.get("metashard_dry_numbers")
    return numbers.last_read if numbers is not None else None


def watch():
    """Writes the reason into the folder of the dry run, where an error ends this process."""
    before = sys.excepthook

    def hook(kind, error, trace):
        path = os.path.join(os.environ["DRY_RUN_FOLDER"], f"failure-{os.getpid()}.json")
        try:
            with open(path, "w", encoding="utf-8") as file:
                json.dump({"reason": reason(error), "last_read": last_read()}, file)
        except OSError:
            pass  # the command says then what it knows
        before(kind, error, trace)
    sys.excepthook = hook
