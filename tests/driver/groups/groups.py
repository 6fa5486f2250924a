#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""groups.py PROGRAM KERNELS SHIM UNHOOKED ENTRIES [--compare]: every entry, and what it is without its hook.

Compares: each scenario (groups.h) prints the same alone and under the shim, also when everything is
deferred, and on a slow device. Proves: with the one hook taken away (unhook.c) something else is seen; so each
row of the table that is not FORWARD has a test that needs it, or is in EXCEPTIONS. --compare does the first
only. TAP.
"""
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "harness"))
from tap import check, end  # noqa: E402

MIB = 1 << 20
MOST_SECONDS = 120

# Functions that the shim answers otherwise, on purpose (docs/design/memory.md): memory behind a block is mapped memory.
OTHERWISE = {"cuPointerSetAttribute", "cuMemGetHandleForAddressRange", "cuMulticastBindAddr",
             "cuMulticastBindAddr_v2", "cuLogicalEndpointBindAddr"}

# Without the hook more memory is needed, and nothing else is different.
SAVES = {"cuMemAlloc_v2", "cuMemAddressReserve", "cuInit", "cuMemPoolCreate", "cuStreamEndCapture",
         "cuStreamEndCapture_ptsz", "cuMemFreeHost", "cuMemHostUnregister", "cuLibraryGetKernel",
         "cuLibraryEnumerateKernels", "cuMemUnmap:host", "cuStreamEndCapture:unjoined",
         "cuStreamEndCapture_ptsz:unjoined", "cuMemFreeAsync:host", "cuMemFreeAsync_ptsz:host"}

# The device is too small for what is cached and what is asked for.
SMALL = {"cuMemAllocPitch_v2", "cuMemAllocAsync", "cuMemAllocAsync_ptsz", "cuMemAllocFromPoolAsync",
         "cuMemAllocFromPoolAsync_ptsz", "cuMemCreate"}

# Functions whose own wrapper seals: a scenario proves the bounds, and a proof as for a row that is SEAL proves the sealing.
SEALS_TOO = re.compile(r"cuStream(BatchMemOp|WaitValue|WriteValue)|cuGraph\w*Node(_v2|SetParams)?$")

# Exit statuses where an older driver lacks the function, or another one of the scenario (by the dynamic linker).
LACKING = (4, 127)

EXCEPTIONS = {
    "cuIpcCloseMemHandle": "what was opened is another process's: tests/driver/differential/ipc.c",
    "cuStreamBeginCaptureToCig": "no graphics API is simulated: it is refused",
    "cuStreamBeginCaptureToCig_ptsz": "no graphics API is simulated: it is refused",
}


def is_other_driver():
    """Where results are compared, and no more: there other memory, time, or functions change what a hook saves."""
    return bool(re.search(r"SIMCUDA_(PAGEABLE=1|PROFILE|JITTER_US|OTHERS|GRANULE_KIB)", os.environ.get("SIM_SETTINGS", "")))


class Groups:
    def __init__(self, folder):
        self.program, self.kernels, self.shim, self.unhooked, entries = sys.argv[1:6]
        self.folder = folder
        self.evidence = {}  # by scenario: what was seen where taking the hook away changed nothing
        self.errors = {}  # by scenario: what its last run that failed wrote to standard error
        self.rules = os.path.join(folder, "rules")
        with open(self.rules, "w") as file:
            file.write("write-only uniform32\n")
        with open(entries) as file:
            rows = re.findall(r"^MS_ENTRY(?:_PLAIN)?(?:_TWINS)?\((\w+), (\w+), (?:\w+, )?\d+,\s+(\w*)", file.read(), re.M)
        self.classes = {symbol: class_ for class_, symbol, _ in rows}
        self.classes.update((symbol + suffix, class_) for class_, symbol, suffix in rows if suffix.startswith("_"))
        listed = subprocess.run([self.program, "list"], capture_output=True, text=True, check=True)
        self.scenarios = dict((line.split(" ", 1) for line in listed.stdout.splitlines()))

    def run(self, arguments, preload, **settings):
        """The observations: exit status, output, and whether the device needed 8 and 64 MiB."""
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            stats = os.path.join(folder, "stats")
            environment = dict(os.environ, SIMCUDA_STATS=stats, SIMCUDA_DEVICES="2",
                               SIMCUDA_POISON="1", SIMCUDA_MULTICAST="1", GROUPS_KERNELS=self.kernels,
                               METASHARD_KERNEL_RULES=self.rules, METASHARD_LOG="error")
            if not is_other_driver():  # before what meson adds to the path
                environment["LD_LIBRARY_PATH"] = ":".join(filter(None, map(os.environ.get, ("GROUPS_DRIVER", "LD_LIBRARY_PATH"))))
            if preload is not None:
                environment["LD_PRELOAD"] = preload
            environment.update(settings)
            try:
                done = subprocess.run([self.program, self.kernels, *arguments], env=environment,
                                      capture_output=True, text=True, timeout=MOST_SECONDS)
            except subprocess.TimeoutExpired:
                self.errors[arguments[0]] = ""
                return f"no end in {MOST_SECONDS} s, with {settings}", "", False, False
            peak = 0
            try:
                with open(stats) as file:
                    peak = json.load(file)["physical_bytes_peak"]
            except (FileNotFoundError, ValueError):
                pass  # it crashed, perhaps while it wrote; the exit status tells
            if done.returncode != 0:
                self.errors[arguments[0]] = done.stderr
            return done.returncode, done.stdout, peak >= 8 * MIB, peak >= 64 * MIB

    def hooked(self, scenario):
        return self.run([scenario], self.shim, **self.proving(scenario))

    def proving(self, scenario):
        """Settings for a proof. Host functions write late, but not so late that a self-check may come before. Memory
        alone is measured where the machine is busy, too: a set is recorded however late its stream is seen to be idle."""
        small = {"SIMCUDA_MEMORY_MIB": "64"} if scenario in SMALL else {}
        patient = {"METASHARD_IDLE_MS": "5000"} if scenario in SAVES else {}
        return {"METASHARD_SELFCHECK": "off", **small, **patient}

    def compare(self, scenario):
        """A reason why it is not as it should be, or None."""
        others_use_it = "SIMCUDA_OTHERS" in os.environ.get("SIM_SETTINGS", "")
        if scenario in OTHERWISE or (others_use_it and scenario.startswith("cuMemGetInfo")):
            return None
        wanted = self.run([scenario], None)
        if wanted[0] != 0 and not (wanted[0] in LACKING and is_other_driver()):
            return f"alone: exit status {wanted[0]}\n{wanted[1]}{self.errors[scenario]}"
        settings = [{}, {"METASHARD_MIN_BYTES": "1", "SIMCUDA_DELAY_US": "1500"}]
        if "--compare" not in sys.argv and not is_other_driver():
            settings.append({"METASHARD_MIN_BYTES": "1"})
        for setting in settings:
            if scenario in SMALL:
                setting = dict(setting, SIMCUDA_MEMORY_MIB="64")
            seen = self.run([scenario], self.shim, **setting)
            if seen[:2] != wanted[:2]:
                said = self.errors[scenario] if seen[0] != 0 else ""
                return f"{setting}: exit status {seen[0]}\n{wanted[1]}{seen[1]}{said}"
        return None

    def needs_hook(self, scenario):
        """True when taking the hook away changes what is seen, once in three times: without it a result may
        be right by luck."""
        symbol = scenario.split(":")[0]
        gone = ",".join(filter(None, [symbol, self.scenarios[scenario]]))
        hooked = self.hooked(scenario)
        if hooked[0] != 0:
            self.evidence[scenario] = f"with the hook: {hooked}\n{self.errors[scenario]}"
            return False
        for _ in range(3):
            without = self.run([scenario], self.unhooked, SIM_UNHOOK=gone, **self.proving(scenario))
            if scenario in SAVES and not hooked[3] and without[3]:
                return True
            if scenario not in SAVES and hooked[:2] != without[:2]:
                return True
        self.evidence[scenario] = f"with the hook: {hooked}\nwithout it: {without}"
        return False

    def seals(self, symbol):
        """True when the call materialises what is deferred, and without its hook does not."""
        hooked = self.run([symbol, "seal"], self.shim)
        if hooked[0] != 0:
            self.evidence[f"{symbol}:seal"] = f"with the hook: {hooked}\n{self.errors[symbol]}"
            return False
        without = self.run([symbol, "seal"], self.unhooked, SIM_UNHOOK=symbol)
        return hooked[2] and not without[2]


def main():
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        groups = Groups(folder)
        for scenario, fault in zip(groups.scenarios, pool.map(groups.compare, groups.scenarios)):
            check(f"{scenario}: same", fault is None, fault)
        # A device that reads pageable memory, for one, reaches everything by any address of it, hooked or not.
        if "--compare" not in sys.argv and not is_other_driver():
            proofs = dict(zip(groups.scenarios, pool.map(groups.needs_hook, groups.scenarios)))
            sealed = [symbol for symbol, class_ in groups.classes.items()
                      if class_ == "SEAL" or (class_ == "OBSERVE" and SEALS_TOO.match(symbol))]
            proofs.update(zip((f"{symbol}:seal" for symbol in sealed), pool.map(groups.seals, sealed)))
            proved = {name.split(":")[0] for name, good in proofs.items() if good}
            for symbol, class_ in groups.classes.items():
                if class_ != "FORWARD" and symbol not in EXCEPTIONS:
                    check(f"{symbol}: the hook is needed", symbol in proved,
                           groups.evidence.get(symbol, ""))
            for name, good in proofs.items():
                if ":" in name:
                    check(f"{name}: the hook is needed", good, groups.evidence.get(name, ""))
            for symbol in EXCEPTIONS:
                check(f"{symbol}: still an exception",
                       groups.classes.get(symbol, "FORWARD") != "FORWARD" and symbol not in proved)
    return end()


if __name__ == "__main__":
    sys.exit(main())
