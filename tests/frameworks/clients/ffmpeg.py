# SPDX-License-Identifier: Apache-2.0
"""ffmpeg uploads frames to the device and downloads them again: their MD5 must stay what it is.

It finds the driver's functions with dlopen and plain dlsym and copies with pitched copies.
"""
import shutil

from client import Run, Tap, is_clean, skip, skip_under_sanitizers

# The hash of the frames that the filters below make at 320x240, with any driver or with none.
SMALL_MD5 = "MD5=3546927f32d23327af71d4a646aeaa42"

SHIM_SETTINGS = {
    "with the shim": {},
    "deferring everything": {"METASHARD_MIN_BYTES": "1"},
    "deferring nothing": {"METASHARD_MIN_BYTES": "1G"},
    "switched off": {"METASHARD": "off"},
}


def command(size, on_device, device_options=""):
    device = ["-init_hw_device", "cuda=cu:0" + device_options, "-filter_hw_device", "cu"]
    upload = "hwupload_cuda,hwdownload,format=nv12"
    return (["ffmpeg", "-hide_banner", "-loglevel", "error"] + (device if on_device else []) +
            ["-f", "lavfi", "-i", f"testsrc=size={size}:rate=5:duration=1",
             "-vf", "format=nv12" + ("," + upload if on_device else ""), "-f", "md5", "-"])


def check_sizes(tap, size, wanted, device_options=""):
    argv = command(size, True, device_options)
    name = size + device_options
    plain = Run(argv)
    tap.check(f"{name}, without the shim", plain.output.strip() == wanted and is_clean(plain),
              plain.tell(), plain.stats)
    for how, settings in SHIM_SETTINGS.items():
        run = Run(argv, shim=True, settings=settings)
        tap.check(f"{name}, {how}", run.output == plain.output and is_clean(run),
                  run.differences(plain), run.stats)
        if how == "deferring everything":
            tap.check(f"{name}, {how}: was deferred", run.dump.get("deferred_allocations", 0) > 0,
                      run.dump)


def main():
    if shutil.which("ffmpeg") is None:
        skip("ffmpeg is not installed")
    skip_under_sanitizers()
    filters = Run(["ffmpeg", "-hide_banner", "-filters"])
    if "hwupload_cuda" not in filters.output:
        skip("this ffmpeg was built without CUDA")
    tap = Tap()
    check_sizes(tap, "320x240", SMALL_MD5)
    check_sizes(tap, "320x240", SMALL_MD5, ",primary_ctx=1")
    check_sizes(tap, "1920x1080", Run(command("1920x1080", False)).output.strip())
    tap.end()


main()
