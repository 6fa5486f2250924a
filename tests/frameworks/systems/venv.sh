# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Installs the packages of requirements.txt into a virtual environment of the user's cache (SYSTEMS_VENV names another
# one), once. PyTorch is not in it: it is seen from the environment of tests/frameworks/torch, which is left as it is. Sourced
# with the project's folder as the current one, after tests/setup/common.sh.

systems_venv=${SYSTEMS_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/metashard/systems}

install_systems() { # PYTHON-WITH-PYTORCH
    local wanted=tests/frameworks/systems/requirements.txt packages
    if cmp -s "$wanted" "$systems_venv/requirements.txt"; then
        return
    fi
    say "installing transformers, accelerate, Lightning, DeepSpeed, JAX and others into $systems_venv: 1.7 GB, once"
    [ -x "$systems_venv/bin/python" ] || "$1" -m venv "$systems_venv"
    packages=$("$systems_venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$packages/torch-venv.pth"
    "$systems_venv/bin/python" -m pip install --quiet --no-deps --requirement "$wanted"
    cp "$wanted" "$systems_venv/requirements.txt"
}
