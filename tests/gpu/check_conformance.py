# SPDX-License-Identifier: Apache-2.0
"""Checks conformance.py on the simulated driver: compared with itself nothing differs, and an answer that was
changed, a call that never returns and a driver that was not meant are seen.

    check_conformance.py --build DIR
"""
import os

from run_tools import run_checks, run_script


def run(build, *arguments, **environment):
    return run_script(build, "conformance.py", *arguments, **environment)


def different(result):
    return {record["test"]: record["differences"] for record in result["tests"] if not record["same"]}


def check_nothing_differs(build):
    _, error, result = run(build, "--simulated", "SIMCUDA_DEVICES=1")
    assert result and different(result) == {}, error or different(result)
    assert result["complete"] and result["stale_rows"] == [], result["stale_rows"]
    assert result["counts"]["same"] > 100 and result["counts"]["not_run"] == 0, result["counts"]
    assert all(record["checks"] > 0 for record in result["tests"])


def check_changed_answer(build):
    """One call answers otherwise; what comes after it in the test is still compared."""
    _, _, result = run(build, "--simulated", "SIMCUDA_FAULTS=cuStreamGetFlags:1=999")
    seen = different(result)
    assert list(seen) == ["stream.streams_tell_their_flags_and_priority"], seen
    first = seen["stream.streams_tell_their_flags_and_priority"][0]
    assert first["check"].startswith("cuStreamGetFlags("), first
    assert (first["simulated"], first["real"]) == ("CUDA_SUCCESS", "CUDA_ERROR_UNKNOWN"), first
    assert result["counts"]["different"] == 1 and result["complete"]


def check_changed_setting(build):
    _, _, result = run(build, "--simulated", "SIMCUDA_GRANULE_KIB=64", "--only", "vmm.granularity")
    [differences] = different(result).values()
    assert [(one["simulated"], one["real"]) for one in differences] == [("2 * MIB", "65536 (0x10000)")] * 2, differences


def check_hang(build):
    """The write that the stream waits for does not happen."""
    _, _, result = run(build, "--simulated", "SIMCUDA_FAULTS=cuStreamWriteValue32_v2:2=1", "--limit", "3",
                       "--only", "stream.streams_wait_for_values")
    [differences] = different(result).values()
    texts = [one["real"] for one in differences]
    assert "CUDA_ERROR_INVALID_VALUE" in texts, texts
    assert any(text.startswith("no end in 3 s") for text in texts), texts
    assert any(text.startswith("not reached") for text in texts), texts


def check_wrong_driver(build):
    """The simulated driver must never pass for the real one."""
    status, error, _ = run(build, "--only", "vmm.granularity", LD_LIBRARY_PATH=os.path.join(build, "tools", "simcuda"))
    assert status != 0 and "the real driver was wanted" in error, (status, error)


if __name__ == "__main__":
    run_checks(check_nothing_differs, check_changed_answer, check_changed_setting, check_hang, check_wrong_driver)
