/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/driver/differential/program.h"

#include <unistd.h>

enum { STREAMS = 5 };

static CUstream streams[STREAMS];
static CUevent event;
static CUstream last;

void program_streams_init(void)
{
    streams[0] = NULL;
    streams[1] = CU_STREAM_LEGACY;
    streams[2] = CU_STREAM_PER_THREAD;
    program_must(cuStreamCreate(&streams[3], CU_STREAM_DEFAULT), "cuStreamCreate");
    program_must(cuStreamCreate(&streams[4], CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    program_must(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
}

CUstream program_next_stream(void)
{
    CUstream next = streams[program_below(STREAMS)];
    if (next != last) {
        program_must(cuEventRecord(event, last), "cuEventRecord");
        program_must(cuStreamWaitEvent(next, event, 0), "cuStreamWaitEvent");
        last = next;
    }
    return next;
}

void program_streams_wait(void)
{
    program_must(cuStreamSynchronize(last), "cuStreamSynchronize");
}

static void wait_a_little(void *microseconds)
{
    usleep((useconds_t)(uintptr_t)microseconds);
}

void program_hold_stream(CUstream stream)
{
    program_must(cuLaunchHostFunc(stream, wait_a_little, (void *)(uintptr_t)program_below(2000)),
                 "cuLaunchHostFunc");
}
