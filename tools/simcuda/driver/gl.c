/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of a graphics API: buffers of gl.h, registered, mapped for CUDA and unmapped. A buffer is
 * a memory file that is mapped twice, once for either side; only the side whose turn it is can
 * touch it. Images are not simulated.
 *
 * Functions of cudaGL.h and cudaEGL.h, which drivers export although the toolkit's stub library
 * does not: those of buffers. The others are refused (stubs.c).
 */
#include "tools/simcuda/driver/gl.h"

#include "tools/simcuda/driver/state.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

struct buffer {
    struct buffer *next;
    unsigned name;
    bool is_deleted, is_mapped;
    unsigned users; /* the name, and resources */
    size_t bytes;   /* as asked for */
    size_t backed_bytes;
    void *host;
    CUdeviceptr device;
    CUgraphicsResource object; /* of cuGLRegisterBufferObject, or NULL */
};
struct CUgraphicsResource_st {
    struct sim_region region; /* begin: the handle */
    struct buffer *buffer;
    struct CUctx_st *context;
    bool is_mapped;
};
static struct buffer *buffers;
static struct sim_table resources;

/* --- the graphics side */

static bool map_twice(struct buffer *buffer)
{
    const int file = memfd_create("simcuda-gl", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)buffer->backed_bytes) != 0) {
        if (file >= 0)
            close(file);
        return false;
    }
    void *host = mmap(NULL, buffer->backed_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    void *device = mmap(NULL, buffer->backed_bytes, PROT_NONE, MAP_SHARED, file, 0);
    close(file);
    buffer->host = host;
    buffer->device = (CUdeviceptr)device;
    return host != MAP_FAILED && device != MAP_FAILED;
}

EXPORT unsigned simcuda_gl_create(size_t bytes)
{
    static unsigned names;
    struct buffer *buffer = sim_zalloc(sizeof(*buffer));
    buffer->bytes = bytes;
    buffer->backed_bytes = sim_round_up(bytes, (size_t)getpagesize());
    buffer->users = 1;
    if (!map_twice(buffer)) {
        sim_complain("no memory for a graphics buffer of %zu bytes", bytes);
        abort();
    }
    pthread_mutex_lock(&sim_lock);
    buffer->name = ++names;
    buffer->next = buffers;
    buffers = buffer;
    pthread_mutex_unlock(&sim_lock);
    return buffer->name;
}

static struct buffer *find_buffer_locked(unsigned name)
{
    struct buffer *buffer = buffers;
    while (buffer != NULL && (buffer->name != name || buffer->is_deleted))
        buffer = buffer->next;
    return buffer;
}

static void drop_buffer_locked(struct buffer *buffer)
{
    if (--buffer->users > 0)
        return;
    struct buffer **link = &buffers;
    while (*link != buffer)
        link = &(*link)->next;
    *link = buffer->next;
    munmap(buffer->host, buffer->backed_bytes);
    munmap((void *)buffer->device, buffer->backed_bytes);
    free(buffer);
}

EXPORT void *simcuda_gl_bytes(unsigned name)
{
    pthread_mutex_lock(&sim_lock);
    const struct buffer *buffer = find_buffer_locked(name);
    void *bytes = buffer == NULL || buffer->is_mapped ? NULL : buffer->host;
    pthread_mutex_unlock(&sim_lock);
    return bytes;
}

EXPORT void simcuda_gl_delete(unsigned name)
{
    pthread_mutex_lock(&sim_lock);
    struct buffer *buffer = find_buffer_locked(name);
    if (buffer != NULL) {
        buffer->is_deleted = true;
        drop_buffer_locked(buffer);
    }
    pthread_mutex_unlock(&sim_lock);
}

static void give_turn_locked(struct buffer *buffer, bool to_cuda)
{
    const int host = to_cuda ? PROT_NONE : PROT_READ | PROT_WRITE;
    const int device = to_cuda ? PROT_READ | PROT_WRITE : PROT_NONE;
    buffer->is_mapped = to_cuda;
    if (mprotect(buffer->host, buffer->backed_bytes, host) != 0 ||
        mprotect((void *)buffer->device, buffer->backed_bytes, device) != 0)
        sim_complain("the access to a graphics buffer could not be changed");
}

/* --- resources */

static CUresult register_buffer(CUgraphicsResource *resource_out, unsigned name, unsigned flags)
{
    struct CUctx_st *context;
    const CUresult result = sim_context_get(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (resource_out == NULL || (flags != CU_GRAPHICS_REGISTER_FLAGS_NONE &&
                                 flags != CU_GRAPHICS_REGISTER_FLAGS_READ_ONLY &&
                                 flags != CU_GRAPHICS_REGISTER_FLAGS_WRITE_DISCARD))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    struct buffer *buffer = find_buffer_locked(name);
    if (buffer != NULL) {
        struct CUgraphicsResource_st *resource = sim_zalloc(sizeof(*resource));
        resource->region = (struct sim_region){(uint64_t)resource, 1};
        resource->buffer = buffer;
        resource->context = context;
        buffer->users++;
        sim_table_add(&resources, &resource->region);
        *resource_out = resource;
    }
    pthread_mutex_unlock(&sim_lock);
    return buffer != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuGraphicsGLRegisterBuffer(CUgraphicsResource *resource_out, unsigned name,
                                           unsigned flags)
{
    SIM_ENTER(cuGraphicsGLRegisterBuffer);
    return register_buffer(resource_out, name, flags);
}

static struct CUgraphicsResource_st *find_locked(CUgraphicsResource handle)
{
    const struct sim_region *row = sim_table_find(&resources, (uint64_t)handle);
    return row != NULL && row == &handle->region ? handle : NULL;
}

/* Each is one, none is there twice, and all are mapped or all are not. */
static CUresult check_locked(const CUgraphicsResource *handles, unsigned count, bool are_mapped)
{
    for (unsigned i = 0; i < count; i++) {
        if (find_locked(handles[i]) == NULL)
            return CUDA_ERROR_INVALID_HANDLE;
        for (unsigned other = 0; other < i; other++) {
            if (handles[other] == handles[i] || handles[other]->buffer == handles[i]->buffer)
                return CUDA_ERROR_INVALID_HANDLE;
        }
    }
    for (unsigned i = 0; i < count; i++) {
        if (are_mapped && !handles[i]->is_mapped)
            return CUDA_ERROR_NOT_MAPPED;
        if (!are_mapped && handles[i]->buffer->is_mapped)
            return CUDA_ERROR_ALREADY_MAPPED;
    }
    return CUDA_SUCCESS;
}

/* Graphics work from before is done: here calls of graphics work at once. */
static CUresult map_all(const CUgraphicsResource *handles, unsigned count, CUstream handle,
                        bool per_thread)
{
    struct CUstream_st *stream;
    if (handles == NULL || count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    CUresult result = sim_stream_find_locked(handle, per_thread, &stream);
    if (result == CUDA_SUCCESS)
        result = sim_capture_refuse_stream_locked(stream);
    if (result == CUDA_SUCCESS)
        result = check_locked(handles, count, false);
    for (unsigned i = 0; result == CUDA_SUCCESS && i < count; i++) {
        struct buffer *buffer = handles[i]->buffer;
        handles[i]->is_mapped = true;
        give_turn_locked(buffer, true);
        sim_memory_add_locked(SIM_GRAPHICS, buffer->device, buffer->bytes, handles[i]->context);
    }
    pthread_mutex_unlock(&sim_lock);
    return result;
}

static void unmap_locked(struct CUgraphicsResource_st *resource)
{
    struct sim_memory *memory = sim_memory_find_locked(resource->buffer->device);
    if (memory != NULL)
        sim_memory_destroy_locked(memory);
    give_turn_locked(resource->buffer, false);
    resource->is_mapped = false;
}

/*
 * The stream's work is done before graphics goes on, for which the host waits here. Work of other
 * streams that still uses the memory is a race.
 */
static CUresult unmap_all(const CUgraphicsResource *handles, unsigned count, CUstream stream,
                          bool per_thread)
{
    if (handles == NULL || count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = sim_stream_wait(stream, per_thread);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim_lock);
    result = check_locked(handles, count, true);
    for (unsigned i = 0; result == CUDA_SUCCESS && i < count; i++)
        unmap_locked(handles[i]);
    pthread_mutex_unlock(&sim_lock);
    return result;
}

#define CALLS(suffix, is_per_thread)                                                              \
    CUresult cuGraphicsMapResources##suffix(unsigned int count, CUgraphicsResource *resources_,   \
                                            CUstream hStream)                                     \
    {                                                                                             \
        SIM_ENTER(cuGraphicsMapResources##suffix);                                                \
        return map_all(resources_, count, hStream, is_per_thread);                                \
    }                                                                                             \
    CUresult cuGraphicsUnmapResources##suffix(unsigned int count, CUgraphicsResource *resources_, \
                                              CUstream hStream)                                   \
    {                                                                                             \
        SIM_ENTER(cuGraphicsUnmapResources##suffix);                                              \
        return unmap_all(resources_, count, hStream, is_per_thread);                              \
    }
CALLS(, false)
CALLS(_ptsz, true)

/* The address is the same at every mapping, though it need not be. Outputs may be NULL. */
static CUresult get_mapped(CUdeviceptr *address_out, size_t *bytes_out, CUgraphicsResource resource)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&sim_lock);
    if (find_locked(resource) == NULL)
        result = CUDA_ERROR_INVALID_HANDLE;
    else if (!resource->is_mapped)
        result = CUDA_ERROR_NOT_MAPPED;
    if (result == CUDA_SUCCESS && address_out != NULL)
        *address_out = resource->buffer->device;
    if (result == CUDA_SUCCESS && bytes_out != NULL)
        *bytes_out = resource->buffer->bytes;
    pthread_mutex_unlock(&sim_lock);
    return result;
}

CUresult cuGraphicsResourceGetMappedPointer_v2(CUdeviceptr *pDevPtr, size_t *pSize,
                                               CUgraphicsResource resource)
{
    SIM_ENTER(cuGraphicsResourceGetMappedPointer_v2);
    return get_mapped(pDevPtr, pSize, resource);
}

/* The hints change nothing here. */
static CUresult set_map_flags(CUgraphicsResource resource, unsigned flags)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&sim_lock);
    if (find_locked(resource) == NULL)
        result = CUDA_ERROR_INVALID_HANDLE;
    else if (flags > CU_GRAPHICS_MAP_RESOURCE_FLAGS_WRITE_DISCARD)
        result = CUDA_ERROR_INVALID_VALUE;
    else if (resource->is_mapped)
        result = CUDA_ERROR_ALREADY_MAPPED;
    pthread_mutex_unlock(&sim_lock);
    return result;
}

CUresult cuGraphicsResourceSetMapFlags_v2(CUgraphicsResource resource, unsigned int flags)
{
    SIM_ENTER(cuGraphicsResourceSetMapFlags_v2);
    return set_map_flags(resource, flags);
}

CUresult cuGraphicsResourceSetMapFlags(CUgraphicsResource resource, unsigned int flags)
{
    SIM_ENTER(cuGraphicsResourceSetMapFlags);
    return set_map_flags(resource, flags);
}

/* One that is mapped is unmapped. */
static CUresult unregister(CUgraphicsResource resource)
{
    pthread_mutex_lock(&sim_lock);
    struct CUgraphicsResource_st *found = find_locked(resource);
    if (found != NULL) {
        if (found->is_mapped)
            unmap_locked(found);
        sim_table_remove(&resources, &found->region);
        drop_buffer_locked(found->buffer);
        free(found);
    }
    pthread_mutex_unlock(&sim_lock);
    return found != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuGraphicsUnregisterResource(CUgraphicsResource resource)
{
    SIM_ENTER(cuGraphicsUnregisterResource);
    return unregister(resource);
}

/* --- a buffer by its name, as before there were resources: it has one of its own */

static CUgraphicsResource *object_of(unsigned name)
{
    static CUgraphicsResource none;
    pthread_mutex_lock(&sim_lock);
    struct buffer *buffer = find_buffer_locked(name);
    pthread_mutex_unlock(&sim_lock);
    return buffer != NULL ? &buffer->object : &none;
}

EXPORT CUresult cuGLRegisterBufferObject(unsigned buffer)
{
    SIM_ENTER(cuGLRegisterBufferObject);
    return *object_of(buffer) != NULL ? CUDA_ERROR_ALREADY_MAPPED
                                      : register_buffer(object_of(buffer), buffer, 0);
}

EXPORT CUresult cuGLUnregisterBufferObject(unsigned buffer)
{
    SIM_ENTER(cuGLUnregisterBufferObject);
    CUgraphicsResource *object = object_of(buffer);
    const CUresult result = unregister(*object);
    *object = NULL;
    return result;
}

static CUresult map_object(CUdeviceptr *address_out, size_t *bytes_out, unsigned buffer,
                           CUstream stream, bool per_thread)
{
    const CUgraphicsResource *object = object_of(buffer);
    const CUresult result = map_all(object, 1, stream, per_thread);
    return result != CUDA_SUCCESS ? result : get_mapped(address_out, bytes_out, *object);
}

#define MAP_OBJECT(suffix, async_suffix, per_thread)                                              \
    EXPORT CUresult cuGLMapBufferObject_v2##suffix(CUdeviceptr *address_out, size_t *bytes_out,   \
                                                   unsigned buffer)                               \
    {                                                                                             \
        SIM_ENTER(cuGLMapBufferObject_v2##suffix);                                                \
        return map_object(address_out, bytes_out, buffer, NULL, per_thread);                      \
    }                                                                                             \
    EXPORT CUresult cuGLMapBufferObjectAsync_v2##async_suffix(CUdeviceptr *address_out,           \
                                                              size_t *bytes_out, unsigned buffer, \
                                                              CUstream stream)                    \
    {                                                                                             \
        SIM_ENTER(cuGLMapBufferObjectAsync_v2##async_suffix);                                     \
        return map_object(address_out, bytes_out, buffer, stream, per_thread);                    \
    }
MAP_OBJECT(, , false)
MAP_OBJECT(_ptds, _ptsz, true)

EXPORT CUresult cuGLUnmapBufferObject(unsigned buffer)
{
    SIM_ENTER(cuGLUnmapBufferObject);
    return unmap_all(object_of(buffer), 1, NULL, false);
}

EXPORT CUresult cuGLUnmapBufferObjectAsync(unsigned buffer, CUstream stream)
{
    SIM_ENTER(cuGLUnmapBufferObjectAsync);
    return unmap_all(object_of(buffer), 1, stream, false);
}

EXPORT CUresult cuGraphicsResourceGetMappedEglFrame(struct simcuda_egl_frame *frame_out,
                                                    CUgraphicsResource resource, unsigned index,
                                                    unsigned level)
{
    CUdeviceptr address;
    size_t bytes;
    SIM_ENTER(cuGraphicsResourceGetMappedEglFrame);
    if (frame_out == NULL || index != 0 || level != 0)
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = get_mapped(&address, &bytes, resource);
    if (result == CUDA_SUCCESS)
        *frame_out = (struct simcuda_egl_frame){.planes = {(void *)address},
                                                .width = (unsigned)bytes,
                                                .height = 1,
                                                .depth = 1,
                                                .pitch = (unsigned)bytes,
                                                .plane_count = 1,
                                                .channels = 1,
                                                .type = 1};
    return result;
}
