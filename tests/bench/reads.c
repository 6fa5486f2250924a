/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reads WAY COUNT: large reads, for reads.py, which counts the instructions of `measured` under
 * callgrind. Prints how many were made inside. Ways:
 *
 *     files    notes of reads (reads.h), each of another file, when COUNT were noted
 *     places   the same, of one file, each to another place
 *     before   the program's own reads, each of another file, before cuInit
 *     used     the same behind cuInit
 */
#include <cuda.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/driver/flags.h"
#include "runtime/finding/reads.h"

enum { ROUNDS = 1000, BYTES = MS_READS_LEAST, STEP = 2 * MS_READS_LEAST };

static void must(int is_good, const char *what)
{
    if (is_good)
        return;
    perror(what);
    exit(1);
}

/* A file on no disk. */
static int make_file(void)
{
    const int file = memfd_create("read", 0);
    must(file >= 0 && ftruncate(file, BYTES) == 0, "memfd_create");
    return file;
}

static char buffer[BYTES];
static const uintptr_t base = UINT64_C(1) << 40;

/* callgrind collects only while this runs. */
__attribute__((noinline)) static void measured(void (*call)(int file, long i), int file, long i)
{
    call(file, i);
}

static void note(int file, long i)
{
    ms_reads_note(file, (const void *)(base + (uintptr_t)i * STEP), BYTES, -1, 0);
}

static void read_all(int file, __attribute__((unused)) long i)
{
    must(read(file, buffer, BYTES) == BYTES, "read");
}

static void each(void (*call)(int file, long i), int kept, long i, int is_measured)
{
    const int file = kept >= 0 ? kept : make_file();
    must(lseek(file, call == note ? BYTES : 0, SEEK_SET) >= 0, "lseek");
    if (is_measured)
        measured(call, file, i);
    else
        call(file, i);
    if (kept < 0)
        close(file);
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    const long count = atol(argv[2]);
    const int is_note = strcmp(argv[1], "files") == 0 || strcmp(argv[1], "places") == 0;
    const int kept = strcmp(argv[1], "places") == 0 ? make_file() : -1;
    if (strcmp(argv[1], "used") == 0)
        must(cuInit(0) == CUDA_SUCCESS, "cuInit");
    atomic_store(&ms_hot.started, 1); /* of the runtime in this program */
    for (long i = 0; i < count + ROUNDS; i++)
        each(is_note ? note : read_all, kept, i, i >= count);
    printf("%d\n", ROUNDS);
    return 0;
}
