#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# private-jemalloc.sh IN.a OUT.a PREFIX [--whole]
#
# Makes a copy of jemalloc's position-independent archive that cannot meet the program's malloc:
#  - every global symbol but jemalloc's internal je_* gets PREFIX, so that malloc() in our own code
#    and free(strdup()) still mean libc's;
#  - the C++ operators are dropped, and the tables of names for mallctl, which nobody calls:
#    heap_jemalloc.c has stubs for the functions that use the tables;
#  - the copy reads no settings: MALLOC_CONF and /etc/malloc.conf are for the program's own jemalloc.
#    Heap profiling, which only settings can enable, would pull in libm and libgcc_s.
#    heap_jemalloc.c has stubs for both;
#  - the copy maps memory through heap_jemalloc.c, which handles a mapping that fails;
#  - no thread has a cache (je_opt_tcache, heap_jemalloc.c), so the cache's part of jemalloc's
#    thread-local data, two thirds, is cut off: if a program starts with LD_AUDIT, all libraries
#    share less than 2 KiB. Only versions for which the beginning of that part is known are cut;
#    tests/unit/base/heap_jemalloc.c shows that nothing is written there (--whole cuts nothing);
#  - the constructor is dropped: a preloaded library must cost nothing without CUDA, and
#    jemalloc initialises itself at the first allocation anyway.
set -eu

in=$1 out=$2 prefix=$3 whole=${4-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cp "$in" "$work/private.a"
chmod u+w "$work/private.a"
ar d "$work/private.a" jemalloc_cpp.pic.o ctl.pic.o
nm --defined-only --extern-only "$work/private.a" |
    awk -v prefix="$prefix" 'NF == 3 && $3 !~ /^je_/ { print $3, prefix $3 }' |
    sort -u >"$work/renames"
for name in mmap secure_getenv readlink exp log round _Unwind_Backtrace _Unwind_GetIP; do
    echo "$name $prefix$name" >>"$work/renames"
done
# In 5.3.0 the cache begins at byte 856 of 2632 with pages of 4 KiB, and at byte 920 of 2696 with pages of 64 KiB, which have
# 16 more bins.
cut_thread_data() {
    objcopy -O binary --only-section=.tdata "$work/tsd.pic.o" "$work/tdata"
    case $(wc -c <"$work/tdata") in
    2632) begin=856 ;;
    2696) begin=920 ;;
    *) return 0 ;;
    esac
    if grep -aq '5\.3\.0-0-g54eaed1d8b56b1aa528be3bdd1877e59c56fa90c' "$in"; then
        head -c "$begin" "$work/tdata" >"$work/cut"
        objcopy --update-section ".tdata=$work/cut" "$work/tsd.pic.o"
        (cd "$work" && ar r private.a tsd.pic.o)
    fi
}
if [ -z "$whole" ]; then
    (cd "$work" && ar x private.a tsd.pic.o)
    cut_thread_data
fi
objcopy --weaken-symbol=je_opt_tcache --redefine-syms="$work/renames" --remove-section=.init_array \
    --remove-section=.rela.init_array "$work/private.a"
mv "$work/private.a" "$out"
