/* SPDX-License-Identifier: Apache-2.0 */
/* The default stream by its explicit handle: 0 means another stream in the per-thread twins. */
#ifndef METASHARD_SHIM_STREAM_H
#define METASHARD_SHIM_STREAM_H

#include "shim/entries.h"

static inline CUstream ms_stream(CUstream stream, CUstream default_stream)
{
    return stream != NULL ? stream : default_stream;
}

#endif
