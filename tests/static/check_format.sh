#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_format.sh CLANG_FORMAT: every C file is as clang-format 14 would write it.
set -eu
cd "$(dirname "$0")/../.."
case $("$1" --version) in
*'version 14.'*) ;;
*)
    echo "only clang-format 14 decides; this is $("$1" --version)"
    exit 77
    ;;
esac
find shim runtime tools tests \( -name '*.c' -o -name '*.h' \) -print0 |
    xargs -0 -n 50 -P "$(nproc)" "$1" --dry-run --Werror
