/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two kinds of entries, SYNC and ASYNC: an asynchronous entry has a stream as its last
 * parameter. `kind##_STREAM` is the entry's stream as an explicit handle, because stream 0 means
 * another stream in the per-thread twins.
 *
 * `kind##_TWINS` is an entry and its per-thread twin: two rows of a macro of (symbol, default
 * stream, kind, ...). MS_TWINS is the same for a macro of (symbol, default stream, ...).
 */
#pragma once

#include "shim/entries.h"

static inline CUstream ms_stream(CUstream stream, CUstream default_stream)
{
    return stream != NULL ? stream : default_stream;
}

#define SYNC_PARAMETERS(...) (__VA_ARGS__)
#define SYNC_ARGUMENTS(...) (__VA_ARGS__)
#define SYNC_STREAM(default_stream) default_stream
#define SYNC_WAITS true

#define ASYNC_PARAMETERS(...) (__VA_ARGS__, CUstream hStream)
#define ASYNC_ARGUMENTS(...) (__VA_ARGS__, hStream)
#define ASYNC_STREAM(default_stream) ms_stream(hStream, default_stream)
#define ASYNC_WAITS false

#define MS_TWINS(suffix, row, symbol, ...)       \
    row(symbol, CU_STREAM_LEGACY, ##__VA_ARGS__) \
        row(symbol##suffix, CU_STREAM_PER_THREAD, ##__VA_ARGS__)
#define SYNC_TWINS(row, symbol, ...) MS_TWINS(_ptds, row, symbol, SYNC, ##__VA_ARGS__)
#define ASYNC_TWINS(row, symbol, ...) MS_TWINS(_ptsz, row, symbol, ASYNC, ##__VA_ARGS__)
