/* SPDX-License-Identifier: Apache-2.0 */
/* Sharing with other processes, other APIs and a switch. */
#include "tools/simcuda/driver/gl.h"
#include "tools/simcuda/driver/hook.h"
#include "tools/simcuda/tests/program.h"

#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* The header declares one form only. */
__typeof__(cuWaitExternalSemaphoresAsync) cuWaitExternalSemaphoresAsync_ptsz;
__typeof__(cuSignalExternalSemaphoresAsync) cuSignalExternalSemaphoresAsync_ptsz;
__typeof__(cuGraphicsMapResources) cuGraphicsMapResources_ptsz;
__typeof__(cuGraphicsUnmapResources) cuGraphicsUnmapResources_ptsz;

static CUstream make_stream(void)
{
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

/* --- events of several processes */

static CUevent make_shared(CUipcEventHandle *handle)
{
    CUevent event;
    OK(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    OK(cuIpcGetEventHandle(handle, event));
    return event;
}

MS_TEST(a_shared_event_within_its_process)
{
    start();
    struct gate gate;
    CUipcEventHandle handle;
    CUevent plain, own;
    const CUstream first = make_stream(), second = make_stream();
    const CUevent event = make_shared(&handle);
    OK(cuEventCreate(&plain, CU_EVENT_DISABLE_TIMING));
    FAILS(cuIpcGetEventHandle(&handle, plain), CUDA_ERROR_INVALID_HANDLE);
    FAILS(cuIpcGetEventHandle(NULL, event), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuIpcOpenEventHandle(&own, handle), CUDA_ERROR_INVALID_CONTEXT);
    FAILS(cuIpcOpenEventHandle(NULL, handle), CUDA_ERROR_INVALID_VALUE);
    memset(&handle, 1, sizeof(handle));
    FAILS(cuIpcOpenEventHandle(&own, handle), CUDA_ERROR_INVALID_HANDLE);
    OK(cuEventQuery(event));
    OK(cuEventSynchronize(event));
    close_gate(&gate, first);
    OK(cuEventRecord(event, first));
    FAILS(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    OK(cuStreamWaitEvent(second, event, 0));
    FAILS(cuStreamQuery(second), CUDA_ERROR_NOT_READY);
    open_gate(&gate);
    OK(cuStreamSynchronize(second));
    OK(cuEventSynchronize(event));
    OK(cuEventQuery(event));
    OK(cuEventDestroy(event));
}

/* More records than are kept apart; each is waited for in its order. */
MS_TEST(a_shared_event_is_recorded_often)
{
    start();
    CUipcEventHandle handle;
    const CUstream stream = make_stream();
    const CUevent event = make_shared(&handle);
    for (int i = 0; i < 1000; i++)
        OK(cuEventRecord(event, stream));
    OK(cuEventSynchronize(event));
    OK(cuStreamQuery(stream));
}

/* A record that is replaced is still waited for by whoever waited for it, however many replace
 * it. */
MS_TEST(a_wait_is_for_the_record_of_its_time)
{
    start();
    struct gate gate;
    CUipcEventHandle handle;
    const CUstream slow = make_stream(), quick = make_stream(), waiter = make_stream();
    const CUevent event = make_shared(&handle);
    close_gate(&gate, slow);
    OK(cuEventRecord(event, slow));
    OK(cuStreamWaitEvent(waiter, event, 0));
    OK(cuEventRecord(event, quick));
    OK(cuEventSynchronize(event));
    FAILS(cuStreamQuery(waiter), CUDA_ERROR_NOT_READY);
    for (int i = 0; i < 1000; i++)
        OK(cuEventRecord(event, quick));
    usleep(5000);
    FAILS(cuStreamQuery(waiter), CUDA_ERROR_NOT_READY);
    open_gate(&gate);
    OK(cuStreamSynchronize(waiter));
}

static void tell(int file)
{
    CHECK_EQ(write(file, "x", 1), 1);
}

static void hear(int file)
{
    char letter;
    CHECK_EQ(read(file, &letter, 1), 1);
}

/* Records behind a gate, opens it when told; then waits for what the other process records. */
static void export_event(int in, int out)
{
    struct gate gate;
    CUipcEventHandle handle;
    start();
    const CUstream stream = make_stream();
    const CUevent event = make_shared(&handle);
    close_gate(&gate, stream);
    OK(cuEventRecord(event, stream));
    CHECK_EQ(write(out, &handle, sizeof(handle)), sizeof(handle));
    hear(in);
    open_gate(&gate);
    OK(cuStreamSynchronize(stream));
    hear(in);
    FAILS(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    tell(out);
    OK(cuEventSynchronize(event));
    exit(0);
}

MS_TEST(events_between_processes)
{
    int from_child[2], to_child[2], status;
    CHECK_EQ(pipe(from_child), 0);
    CHECK_EQ(pipe(to_child), 0);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        close(to_child[1]); /* so that it hears when the test ends early */
        export_event(to_child[0], from_child[1]);
    }
    struct gate gate;
    CUipcEventHandle handle;
    CUevent event;
    float milliseconds;
    start();
    const CUstream stream = make_stream(), own = make_stream();
    CHECK_EQ(read(from_child[0], &handle, sizeof(handle)), sizeof(handle));
    OK(cuIpcOpenEventHandle(&event, handle));
    FAILS(cuIpcGetEventHandle(&handle, event), CUDA_ERROR_INVALID_HANDLE);
    FAILS(cuEventElapsedTime(&milliseconds, event, event), CUDA_ERROR_INVALID_HANDLE);
    FAILS(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    OK(cuStreamWaitEvent(stream, event, 0));
    FAILS(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    tell(to_child[1]);
    OK(cuEventSynchronize(event));
    OK(cuStreamSynchronize(stream));
    close_gate(&gate, own);
    OK(cuEventRecord(event, own));
    tell(to_child[1]);
    hear(from_child[0]);
    open_gate(&gate);
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    OK(cuEventDestroy(event));
    FAILS(cuIpcOpenEventHandle(&event, handle), CUDA_ERROR_INVALID_HANDLE);
}

/* --- semaphores of other APIs, which the test itself plays */

static CUexternalSemaphore import(int file, CUexternalSemaphoreHandleType type)
{
    CUexternalSemaphore semaphore;
    const CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC desc = {.type = type, .handle.fd = file};
    OK(cuImportExternalSemaphore(&semaphore, &desc));
    return semaphore;
}

static int other_file(int file)
{
    const int other = dup(file);
    CHECK(other >= 0);
    return other;
}

MS_TEST(a_semaphore_of_two_states)
{
    const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS signal = {0};
    const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS wait = {0};
    const int file = eventfd(0, EFD_CLOEXEC);
    const uint64_t one = 1;
    start();
    const CUstream stream = make_stream(), other = make_stream();
    CUexternalSemaphore semaphore =
        import(other_file(file), CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD);
    OK(cuWaitExternalSemaphoresAsync(&semaphore, &wait, 1, stream));
    FAILS(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    CHECK_EQ(write(file, &one, sizeof(one)), sizeof(one));
    OK(cuStreamSynchronize(stream));
    /* The wait took the signal; the device gives another one. */
    OK(cuWaitExternalSemaphoresAsync(&semaphore, &wait, 1, stream));
    usleep(2000);
    FAILS(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    OK(cuSignalExternalSemaphoresAsync(&semaphore, &signal, 1, other));
    OK(cuStreamSynchronize(stream));
    OK(cuStreamSynchronize(other));
    OK(cuDestroyExternalSemaphore(semaphore));
    FAILS(cuDestroyExternalSemaphore(semaphore), CUDA_ERROR_INVALID_HANDLE);
    FAILS(cuWaitExternalSemaphoresAsync(&semaphore, &wait, 1, stream), CUDA_ERROR_INVALID_HANDLE);
    FAILS(cuSignalExternalSemaphoresAsync(&semaphore, &signal, 1, stream),
          CUDA_ERROR_INVALID_HANDLE);
}

MS_TEST(a_semaphore_that_counts)
{
    CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS signal = {0};
    CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS wait = {0};
    const int file = memfd_create("timeline", MFD_CLOEXEC);
    CHECK_EQ(ftruncate(file, 4096), 0);
    uint64_t *counter = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(counter != MAP_FAILED);
    start();
    const CUstream stream = make_stream();
    CUexternalSemaphore semaphore =
        import(other_file(file), CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD);
    wait.params.fence.value = 7;
    OK(cuWaitExternalSemaphoresAsync_ptsz(&semaphore, &wait, 1, stream));
    __atomic_store_n(counter, 6, __ATOMIC_RELEASE);
    usleep(2000);
    FAILS(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    __atomic_store_n(counter, 8, __ATOMIC_RELEASE);
    OK(cuStreamSynchronize(stream));
    OK(cuWaitExternalSemaphoresAsync(&semaphore, &wait, 1, stream));
    signal.params.fence.value = 12;
    OK(cuSignalExternalSemaphoresAsync_ptsz(&semaphore, &signal, 1, stream));
    OK(cuStreamSynchronize(stream));
    CHECK_EQ(*counter, 12);
    OK(cuDestroyExternalSemaphore(semaphore));
}

MS_TEST(wrong_semaphores)
{
    const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS wait[2] = {{{{0}}}};
    CUexternalSemaphore semaphores[2] = {NULL};
    CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC desc = {.type = CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD,
                                                .handle.fd = -1};
    start();
    FAILS(cuImportExternalSemaphore(&semaphores[0], &desc), CUDA_ERROR_INVALID_HANDLE);
    FAILS(cuImportExternalSemaphore(NULL, &desc), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuImportExternalSemaphore(&semaphores[0], NULL), CUDA_ERROR_INVALID_VALUE);
    desc.type = CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_NVSCISYNC;
    FAILS(cuImportExternalSemaphore(&semaphores[0], &desc), CUDA_ERROR_NOT_SUPPORTED);
    semaphores[0] = import(eventfd(1, EFD_CLOEXEC), CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD);
    FAILS(cuWaitExternalSemaphoresAsync(semaphores, wait, 2, NULL), CUDA_ERROR_INVALID_HANDLE);
    FAILS(cuWaitExternalSemaphoresAsync(NULL, wait, 1, NULL), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuWaitExternalSemaphoresAsync(semaphores, NULL, 1, NULL), CUDA_ERROR_INVALID_VALUE);
    OK(cuWaitExternalSemaphoresAsync(semaphores, wait, 1, NULL));
    OK(cuCtxSynchronize());
    OK(cuDestroyExternalSemaphore(semaphores[0]));
}

/* A process that ends does not wait for a semaphore that nobody signals. */
MS_TEST(a_wait_ends_with_the_process)
{
    const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS wait = {0};
    start();
    CUexternalSemaphore semaphore =
        import(eventfd(0, EFD_CLOEXEC), CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD);
    OK(cuWaitExternalSemaphoresAsync(&semaphore, &wait, 1, make_stream()));
}

/* A wait in a graph is one at every launch. */
MS_TEST(a_captured_wait)
{
    const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS wait = {0};
    const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS signal = {0};
    CUgraph graph;
    CUgraphExec executable;
    start();
    const CUstream stream = make_stream(), other = make_stream();
    CUexternalSemaphore semaphore =
        import(eventfd(0, EFD_CLOEXEC), CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD);
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuWaitExternalSemaphoresAsync(&semaphore, &wait, 1, stream));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiate(&executable, graph, 0));
    for (int i = 0; i < 2; i++) {
        OK(cuGraphLaunch(executable, stream));
        usleep(2000);
        FAILS(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
        OK(cuSignalExternalSemaphoresAsync(&semaphore, &signal, 1, other));
        OK(cuStreamSynchronize(stream));
    }
    OK(cuGraphExecDestroy(executable));
    OK(cuGraphDestroy(graph));
    OK(cuDestroyExternalSemaphore(semaphore));
}

/* --- graphics */

enum { BUFFER_BYTES = 5000 };

static CUgraphicsResource register_buffer(unsigned buffer)
{
    CUgraphicsResource resource;
    OK(cuGraphicsGLRegisterBuffer(&resource, buffer, CU_GRAPHICS_REGISTER_FLAGS_NONE));
    return resource;
}

MS_TEST(a_graphics_buffer)
{
    CUdeviceptr address = 0;
    size_t bytes = 0;
    unsigned char seen[4];
    start();
    const CUstream stream = make_stream();
    const unsigned buffer = simcuda_gl_create(BUFFER_BYTES);
    unsigned char *drawn = simcuda_gl_bytes(buffer);
    drawn[BUFFER_BYTES - 1] = 9;
    CUgraphicsResource resource = register_buffer(buffer);
    FAILS(cuGraphicsResourceGetMappedPointer(&address, &bytes, resource), CUDA_ERROR_NOT_MAPPED);
    OK(cuGraphicsResourceSetMapFlags(resource, CU_GRAPHICS_MAP_RESOURCE_FLAGS_NONE));
    OK(cuGraphicsMapResources(1, &resource, stream));
    CHECK(simcuda_gl_bytes(buffer) == NULL);
    FAILS(cuGraphicsMapResources(1, &resource, stream), CUDA_ERROR_ALREADY_MAPPED);
    FAILS(cuGraphicsResourceSetMapFlags(resource, 0), CUDA_ERROR_ALREADY_MAPPED);
    OK(cuGraphicsResourceGetMappedPointer(&address, &bytes, resource));
    OK(cuGraphicsResourceGetMappedPointer(NULL, NULL, resource));
    CHECK_EQ(bytes, BUFFER_BYTES);
    OK(cuMemcpyDtoH(seen, address + BUFFER_BYTES - 4, 4));
    CHECK_EQ(seen[3], 9);
    FAILS(cuMemFree(address), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemsetD8Async(address, 5, BUFFER_BYTES, stream));
    OK(cuGraphicsUnmapResources(1, &resource, stream));
    CHECK_EQ(drawn[0] + drawn[BUFFER_BYTES - 1], 10);
    FAILS(cuGraphicsUnmapResources(1, &resource, stream), CUDA_ERROR_NOT_MAPPED);
    FAILS(cuGraphicsResourceGetMappedPointer(&address, &bytes, resource), CUDA_ERROR_NOT_MAPPED);
    OK(cuGraphicsUnregisterResource(resource));
    FAILS(cuGraphicsUnregisterResource(resource), CUDA_ERROR_INVALID_HANDLE);
    simcuda_gl_delete(buffer);
    CHECK(simcuda_gl_bytes(buffer) == NULL);
}

/* Work queued before the unmapping is done when graphics has the buffer again. */
MS_TEST(unmapping_waits_for_the_stream)
{
    CUdeviceptr address;
    size_t bytes;
    CHECK_EQ(setenv("SIMCUDA_DELAY_US", "3000", 1), 0);
    start();
    const CUstream stream = make_stream();
    const unsigned buffer = simcuda_gl_create(BUFFER_BYTES);
    CUgraphicsResource resource = register_buffer(buffer);
    OK(cuGraphicsMapResources_ptsz(1, &resource, stream));
    OK(cuGraphicsResourceGetMappedPointer(&address, &bytes, resource));
    OK(cuMemsetD8Async(address, 5, bytes, stream));
    OK(cuGraphicsUnmapResources_ptsz(1, &resource, stream));
    CHECK_EQ(((unsigned char *)simcuda_gl_bytes(buffer))[BUFFER_BYTES - 1], 5);
}

MS_TEST(a_graphics_buffer_by_its_name)
{
    CUdeviceptr address = 0;
    size_t bytes = 0;
    unsigned char seen = 0;
    start();
    const CUstream stream = make_stream();
    const unsigned buffer = simcuda_gl_create(BUFFER_BYTES);
    unsigned char *drawn = simcuda_gl_bytes(buffer);
    drawn[BUFFER_BYTES - 1] = 9;
    FAILS(cuGLMapBufferObject_v2(&address, &bytes, buffer), CUDA_ERROR_INVALID_HANDLE);
    OK(cuGLRegisterBufferObject(buffer));
    OK(cuGLMapBufferObject_v2(&address, &bytes, buffer));
    CHECK_EQ(bytes, BUFFER_BYTES);
    CHECK(simcuda_gl_bytes(buffer) == NULL);
    OK(cuMemcpyDtoH(&seen, address + BUFFER_BYTES - 1, 1));
    CHECK_EQ(seen, 9);
    OK(cuGLUnmapBufferObject(buffer));
    OK(cuGLMapBufferObjectAsync_v2_ptsz(&address, &bytes, buffer, stream));
    OK(cuMemsetD8Async(address, 5, BUFFER_BYTES, stream));
    OK(cuGLUnmapBufferObjectAsync(buffer, stream));
    CHECK_EQ(drawn[0] + drawn[BUFFER_BYTES - 1], 10);
    OK(cuGLUnregisterBufferObject(buffer));
    FAILS(cuGLUnregisterBufferObject(buffer), CUDA_ERROR_INVALID_HANDLE);
}

MS_TEST(a_graphics_buffer_as_a_frame)
{
    struct simcuda_egl_frame frame;
    unsigned char seen = 0;
    start();
    const unsigned buffer = simcuda_gl_create(BUFFER_BYTES);
    ((unsigned char *)simcuda_gl_bytes(buffer))[0] = 9;
    CUgraphicsResource resource = register_buffer(buffer);
    FAILS(cuGraphicsResourceGetMappedEglFrame(&frame, resource, 0, 0), CUDA_ERROR_NOT_MAPPED);
    OK(cuGraphicsMapResources(1, &resource, NULL));
    OK(cuGraphicsResourceGetMappedEglFrame(&frame, resource, 0, 0));
    CHECK_EQ(frame.pitch * frame.height, BUFFER_BYTES);
    OK(cuMemcpyDtoH(&seen, (CUdeviceptr)frame.planes[0], 1));
    CHECK_EQ(seen, 9);
    FAILS(cuGraphicsResourceGetMappedEglFrame(&frame, resource, 1, 0), CUDA_ERROR_INVALID_VALUE);
}

MS_TEST(wrong_graphics_resources)
{
    start();
    CUgraphicsResource resources[2];
    const unsigned buffer = simcuda_gl_create(BUFFER_BYTES);
    FAILS(cuGraphicsGLRegisterBuffer(&resources[0], buffer + 1, 0), CUDA_ERROR_INVALID_HANDLE);
    FAILS(cuGraphicsGLRegisterBuffer(&resources[0], buffer, 64), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuGraphicsGLRegisterBuffer(NULL, buffer, 0), CUDA_ERROR_INVALID_VALUE);
    resources[0] = resources[1] = register_buffer(buffer);
    FAILS(cuGraphicsMapResources(2, resources, NULL), CUDA_ERROR_INVALID_HANDLE);
    FAILS(cuGraphicsMapResources(1, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuGraphicsResourceSetMapFlags(resources[0], 3), CUDA_ERROR_INVALID_VALUE);
    resources[1] = (CUgraphicsResource)&resources[0];
    FAILS(cuGraphicsMapResources(2, resources, NULL), CUDA_ERROR_INVALID_HANDLE);
    OK(cuGraphicsMapResources(1, resources, NULL));
    OK(cuGraphicsUnregisterResource(resources[0]));
    CHECK(simcuda_gl_bytes(buffer) != NULL);
}

/* --- a switch */

static void start_with_switch(void)
{
    CHECK_EQ(setenv("SIMCUDA_MULTICAST", "1", 1), 0);
    CHECK_EQ(setenv("SIMCUDA_DEVICES", "2", 1), 0);
    start();
}

static CUmemGenericAllocationHandle make_object(unsigned devices, size_t bytes)
{
    CUmemGenericAllocationHandle object;
    const CUmulticastObjectProp prop = {.numDevices = devices, .size = bytes};
    OK(cuMulticastCreate(&object, &prop));
    return object;
}

MS_TEST(no_switch)
{
    start();
    int supported = 1;
    CUmemGenericAllocationHandle object;
    const CUmulticastObjectProp prop = {.numDevices = 1, .size = 2 * MIB};
    OK(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 0));
    CHECK_EQ(supported, 0);
    FAILS(cuMulticastCreate(&object, &prop), CUDA_ERROR_NOT_SUPPORTED);
    FAILS(cuMulticastBindAddr(1, 0, 2 * MIB, 2 * MIB, 0), CUDA_ERROR_NOT_SUPPORTED);
}

/* Binds memory of both devices, by handle and by address: a store through the switch is in both. */
MS_TEST(memory_of_two_devices)
{
    start_with_switch();
    int supported = 0;
    size_t granule;
    unsigned seen;
    const unsigned stored = 0x01020304;
    CUmemGenericAllocationHandle handle;
    const CUmemAllocationProp of_second = device_prop(1);
    const CUmulticastObjectProp prop = {.numDevices = 2, .size = 8 * MIB};
    OK(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 1));
    CHECK_EQ(supported, 1);
    OK(cuMulticastGetGranularity(&granule, &prop, CU_MULTICAST_GRANULARITY_MINIMUM));
    CHECK_EQ(granule, 2 * MIB);
    const CUmemGenericAllocationHandle object = make_object(2, 8 * MIB);
    OK(cuMulticastAddDevice(object, 0));
    OK(cuMulticastAddDevice(object, 1));
    const CUdeviceptr place = reserve(6 * MIB), other = reserve(4 * MIB);
    back(place, 6 * MIB);
    OK(cuMemCreate(&handle, 4 * MIB, &of_second, 0));
    OK(cuMulticastBindAddr(object, 4 * MIB, place + 2 * MIB, 4 * MIB, 0));
    FAILS(simcuda_multicast_store(object, 4 * MIB, &stored, 4), CUDA_ERROR_ILLEGAL_ADDRESS);
    OK(cuMulticastBindMem(object, 6 * MIB, handle, 2 * MIB, 2 * MIB, 0));
    OK(simcuda_multicast_store(object, 6 * MIB + 100, &stored, 4));
    OK(cuMemcpyDtoH(&seen, place + 4 * MIB + 100, 4));
    CHECK_EQ(seen, stored);
    OK(cuMulticastUnbind(object, 1, 6 * MIB, 2 * MIB));
    OK(cuMulticastBindMem(object, 4 * MIB, handle, 0, 4 * MIB, 0));
    OK(simcuda_multicast_store(object, 4 * MIB + 8, &stored, 4));
    OK(cuMemMap(other, 4 * MIB, 0, handle, 0));
    OK(set_access(other, 4 * MIB, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    OK(cuMemcpyDtoH(&seen, other + 8, 4));
    CHECK_EQ(seen, stored);
    OK(cuMemRelease(object));
    FAILS(cuMemRelease(object), CUDA_ERROR_INVALID_VALUE);
}

/* Bound memory lives on when nothing else holds it. */
MS_TEST(a_binding_holds_its_memory)
{
    start_with_switch();
    const CUmemGenericAllocationHandle object = make_object(1, 2 * MIB);
    OK(cuMulticastAddDevice(object, 0));
    const size_t before = free_bytes();
    const CUmemGenericAllocationHandle handle = create(2 * MIB);
    OK(cuMulticastBindMem(object, 0, handle, 0, 2 * MIB, 0));
    OK(cuMemRelease(handle));
    CHECK_EQ(before - free_bytes(), 2 * MIB);
    OK(cuMulticastUnbind(object, 0, 0, 2 * MIB));
    CHECK_EQ(free_bytes(), before);
}

MS_TEST(memory_of_a_pool_is_bound)
{
    start_with_switch();
    CUdeviceptr pooled, plain;
    const unsigned char stored = 77;
    unsigned char seen;
    const CUmemGenericAllocationHandle object = make_object(1, 4 * MIB);
    OK(cuMulticastAddDevice(object, 0));
    OK(cuMemAllocAsync(&pooled, 4 * MIB, NULL));
    OK(cuMemAlloc(&plain, 4 * MIB));
    FAILS(cuMulticastBindAddr(object, 0, plain, 4 * MIB, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMulticastBindAddr(object, 0, pooled, 4 * MIB, 0));
    OK(simcuda_multicast_store(object, 4 * MIB - 1, &stored, 1));
    OK(cuMemcpyDtoH(&seen, pooled + 4 * MIB - 1, 1));
    CHECK_EQ(seen, 77);
    OK(cuMulticastUnbind(object, 0, 0, 4 * MIB));
    OK(cuMemFree(pooled));
}

MS_TEST(wrong_bindings)
{
    start_with_switch();
    CUmulticastObjectProp prop = {.numDevices = 1, .size = MIB};
    CUmemGenericAllocationHandle object;
    FAILS(cuMulticastCreate(&object, &prop), CUDA_ERROR_INVALID_VALUE);
    prop.numDevices = 0;
    FAILS(cuMulticastCreate(&object, &prop), CUDA_ERROR_INVALID_VALUE);
    object = make_object(1, 4 * MIB);
    FAILS(cuMulticastAddDevice(object, 2), CUDA_ERROR_INVALID_DEVICE);
    FAILS(cuMulticastAddDevice(1, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMulticastAddDevice(object, 0));
    FAILS(cuMulticastAddDevice(object, 1), CUDA_ERROR_INVALID_VALUE);
    const CUdeviceptr place = reserve(8 * MIB);
    back(place, 4 * MIB);
    back(place + 4 * MIB, 4 * MIB);
    FAILS(cuMulticastBindAddr(object, 0, place, 2 * MIB, 1), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMulticastBindAddr(object, 0, place, MIB, 0), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMulticastBindAddr(object, MIB, place, 2 * MIB, 0), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMulticastBindAddr(object, 0, place + MIB, 2 * MIB, 0), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMulticastBindAddr(object, 2 * MIB, place, 4 * MIB, 0), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMulticastBindAddr(object, 0, place + 2 * MIB, 4 * MIB, 0), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMulticastBindAddr(1, 0, place, 4 * MIB, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMulticastBindAddr(object, 0, place, 4 * MIB, 0));
    FAILS(cuMulticastBindAddr(object, 2 * MIB, place + 4 * MIB, 2 * MIB, 0),
          CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMulticastUnbind(object, 0, 0, 2 * MIB), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMulticastUnbind(object, 1, 0, 4 * MIB), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemMap(reserve(4 * MIB), 4 * MIB, 0, object, 0), CUDA_ERROR_NOT_SUPPORTED);
}

/* --- counts */

static struct simcuda_counts take_counts(void)
{
    struct simcuda_counts counts;
    simcuda_take_counts(&counts);
    return counts;
}

MS_TEST(the_peak_begins_anew_when_it_is_taken)
{
    start();
    CUdeviceptr address;
    const char bytes[1000] = {0};
    OK(cuMemAlloc(&address, 4 * MIB));
    OK(cuMemcpyHtoD(address, bytes, sizeof(bytes)));
    CHECK_EQ(take_counts().physical_bytes_peak, 4 * MIB);
    CHECK_EQ(take_counts().physical_bytes_peak, 4 * MIB); /* what there is counts */
    OK(cuMemFree(address));
    CHECK_EQ(take_counts().physical_bytes_peak, 4 * MIB);
    CHECK_EQ(take_counts().physical_bytes_peak, 0);
    CHECK_EQ(take_counts().h2d_bytes, sizeof(bytes)); /* of all times */
}
