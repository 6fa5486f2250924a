/* SPDX-License-Identifier: Apache-2.0 */
/* The entry points of streams: making, waiting, asking. */
#include "tools/simcuda/driver/state.h"

#include <string.h>

static CUresult create(CUstream *stream_out, unsigned flags, int priority)
{
    struct CUctx_st *context;
    if (stream_out == NULL || (flags & ~(unsigned)CU_STREAM_NON_BLOCKING) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = sim_context_get(&context);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim_lock);
    *stream_out = sim_stream_create_locked(context, flags, priority);
    pthread_mutex_unlock(&sim_lock);
    return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *phStream, unsigned int Flags)
{
    SIM_ENTER(cuStreamCreate);
    return create(phStream, Flags, 0);
}

CUresult cuStreamCreateWithPriority(CUstream *phStream, unsigned int flags, int priority)
{
    SIM_ENTER(cuStreamCreateWithPriority);
    return create(phStream, flags, priority);
}

static CUresult destroy(CUstream handle)
{
    struct CUstream_st *stream;
    if (handle == NULL || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD)
        return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&sim_lock);
    const CUresult result = sim_stream_find_locked(handle, false, &stream);
    if (result == CUDA_SUCCESS)
        sim_stream_destroy_locked(stream);
    pthread_mutex_unlock(&sim_lock);
    return result;
}

CUresult cuStreamDestroy_v2(CUstream hStream)
{
    SIM_ENTER(cuStreamDestroy_v2);
    return destroy(hStream);
}

CUresult cuStreamDestroy(CUstream hStream)
{
    SIM_ENTER(cuStreamDestroy);
    return destroy(hStream);
}

/* A stream that is queried or waited for: unsafe during a capture, also of another stream. */
static CUresult find_asked_locked(CUstream handle, bool per_thread, struct CUstream_st **stream_out)
{
    CUresult result = sim_stream_find_locked(handle, per_thread, stream_out);
    if (result == CUDA_SUCCESS)
        result = sim_capture_refuse_stream_locked(*stream_out);
    if (result == CUDA_SUCCESS)
        result = sim_capture_refuse_unsafe_locked();
    return result;
}

static CUresult query(CUstream handle, bool per_thread)
{
    struct CUstream_st *stream;
    pthread_mutex_lock(&sim_lock);
    CUresult result = find_asked_locked(handle, per_thread, &stream);
    if (result == CUDA_SUCCESS && sim_stream_is_busy(stream))
        result = CUDA_ERROR_NOT_READY;
    if (result == CUDA_SUCCESS && stream->is_legacy) {
        const struct CUstream_st *each = stream->context->streams;
        for (; each != NULL; each = each->next) {
            if (sim_stream_is_blocking(each) && sim_stream_is_busy(each))
                result = CUDA_ERROR_NOT_READY;
        }
    }
    pthread_mutex_unlock(&sim_lock);
    return result;
}

/* Facts of a stream, which the queries below share. */
struct answer {
    unsigned flags;
    int priority;
    uint64_t id;
    struct CUctx_st *context;
};

static CUresult ask(CUstream handle, bool per_thread, const void *place, struct answer *answer_out)
{
    struct CUstream_st *stream;
    if (place == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    const CUresult result = sim_stream_find_locked(handle, per_thread, &stream);
    if (result == CUDA_SUCCESS)
        *answer_out = (struct answer){stream->flags, stream->priority, stream->id, stream->context};
    pthread_mutex_unlock(&sim_lock);
    return result;
}

/* Both twins of one query: `member` of the answer goes to *place. */
#define QUERY(symbol, type, place, member)                           \
    CUresult symbol(CUstream hStream, type *place)                   \
    {                                                                \
        SIM_ENTER(symbol);                                           \
        struct answer answer;                                        \
        const CUresult result = ask(hStream, false, place, &answer); \
        if (result == CUDA_SUCCESS)                                  \
            *place = answer.member;                                  \
        return result;                                               \
    }                                                                \
    CUresult symbol##_ptsz(CUstream hStream, type *place)            \
    {                                                                \
        SIM_ENTER(symbol##_ptsz);                                    \
        struct answer answer;                                        \
        const CUresult result = ask(hStream, true, place, &answer);  \
        if (result == CUDA_SUCCESS)                                  \
            *place = answer.member;                                  \
        return result;                                               \
    }

QUERY(cuStreamGetFlags, unsigned int, flags, flags)
QUERY(cuStreamGetPriority, int, priority, priority)
QUERY(cuStreamGetId, unsigned long long, streamId, id)
QUERY(cuStreamGetCtx, CUcontext, pctx, context)
QUERY(cuStreamGetDevice, CUdevice, device, context->device)

static CUresult get_context(CUstream handle, bool per_thread, CUcontext *context_out,
                            CUgreenCtx *green_out)
{
    struct answer answer;
    const CUresult result = ask(handle, per_thread, context_out, &answer);
    if (result != CUDA_SUCCESS)
        return result;
    *context_out = answer.context;
    if (green_out != NULL)
        *green_out = NULL;
    return CUDA_SUCCESS;
}

SIM_TWINS(cuStreamGetCtx_v2, _ptsz, (CUstream hStream, CUcontext *pCtx, CUgreenCtx *pGreenCtx),
          get_context(hStream, per_thread, pCtx, pGreenCtx))

static CUresult synchronize(CUstream handle, bool per_thread)
{
    struct CUstream_st *stream;
    pthread_mutex_lock(&sim_lock);
    CUresult result = find_asked_locked(handle, per_thread, &stream);
    if (result == CUDA_SUCCESS)
        result = sim_stream_wait_locked(stream);
    pthread_mutex_unlock(&sim_lock);
    return result;
}

SIM_TWINS(cuStreamSynchronize, _ptsz, (CUstream hStream), synchronize(hStream, per_thread))

SIM_TWINS(cuStreamQuery, _ptsz, (CUstream hStream), query(hStream, per_thread))

/* Attributes steer caches and priorities only: known ones are taken, and zero when asked for. */
static CUresult get_attribute(CUstream handle, bool per_thread, CUstreamAttrID attribute,
                              CUstreamAttrValue *value)
{
    struct answer answer;
    const CUresult result = ask(handle, per_thread, value, &answer);
    if (result != CUDA_SUCCESS)
        return result;
    memset(value, 0, sizeof(*value));
    switch ((int)attribute) {
    case CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW:
    case CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY:
    case CU_STREAM_ATTRIBUTE_MEM_SYNC_DOMAIN:
    case CU_STREAM_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
        return CUDA_SUCCESS;
    case CU_STREAM_ATTRIBUTE_PRIORITY:
        value->priority = answer.priority;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

SIM_TWINS(cuStreamGetAttribute, _ptsz,
          (CUstream hStream, CUstreamAttrID attr, CUstreamAttrValue *value_out),
          get_attribute(hStream, per_thread, attr, value_out))

static CUresult set_attribute(CUstream handle, bool per_thread, CUstreamAttrID attribute,
                              const CUstreamAttrValue *value)
{
    CUstreamAttrValue before;
    if (value == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return get_attribute(handle, per_thread, attribute, &before);
}

SIM_TWINS(cuStreamSetAttribute, _ptsz,
          (CUstream hStream, CUstreamAttrID attr, const CUstreamAttrValue *value),
          set_attribute(hStream, per_thread, attr, value))
