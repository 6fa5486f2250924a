/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small piece of CUDA work whose bytes are known: whole tensors from a mapped file, a part copied
 * out, the whole freed, bytes of its own and a pattern, all read back.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum { JOB_FILE_BYTES = 4 << 20 };

struct job {
    const unsigned char *file; /* JOB_FILE_BYTES of it, mapped */
    unsigned long long whole, part;
    char why[160]; /* what went wrong */
};

/* Maps the file; ends the process where that fails. */
void job_map(struct job *job, const char *path);
/* A context for the calling thread. */
bool job_start(struct job *job);
/* Loads, and copies a part out: what is deferred stays so. */
bool job_load(struct job *job);
/* Reads everything back and frees it. */
bool job_finish(struct job *job);
/* All three; prints "right", or what is wrong, and returns an exit status. */
int job_run(const char *path);
