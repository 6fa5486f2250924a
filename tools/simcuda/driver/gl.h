/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stands in for OpenGL: buffers with a name, whose bytes the graphics side has at an address of
 * its own. A program under test plays that side; it finds these names with dlsym in the
 * libcuda.so.1 that the process has.
 */
#pragma once

#include <cuda.h>
#include <stddef.h>

/* A new buffer of zeros; never 0. */
typedef unsigned simcuda_gl_create_function(size_t bytes);
simcuda_gl_create_function simcuda_gl_create;
/* Its bytes; NULL while CUDA has it mapped (whoever touches them then is ended by a signal), and
 * when it is none. */
typedef void *simcuda_gl_bytes_function(unsigned buffer);
simcuda_gl_bytes_function simcuda_gl_bytes;
/* The memory lives on while CUDA has it registered. */
typedef void simcuda_gl_delete_function(unsigned buffer);
simcuda_gl_delete_function simcuda_gl_delete;

/* Declared in cudaGL.h and cudaEGL.h, whose other types are not needed. */
typedef CUresult simcuda_gl_register_function(CUgraphicsResource *resource_out, unsigned buffer,
                                              unsigned flags);
simcuda_gl_register_function cuGraphicsGLRegisterBuffer;
typedef CUresult simcuda_gl_object_function(unsigned buffer);
simcuda_gl_object_function cuGLRegisterBufferObject, cuGLUnregisterBufferObject,
    cuGLUnmapBufferObject;
typedef CUresult simcuda_gl_map_function(CUdeviceptr *address_out, size_t *bytes_out,
                                         unsigned buffer);
simcuda_gl_map_function cuGLMapBufferObject_v2, cuGLMapBufferObject_v2_ptds;
typedef CUresult simcuda_gl_map_async_function(CUdeviceptr *address_out, size_t *bytes_out,
                                               unsigned buffer, CUstream stream);
simcuda_gl_map_async_function cuGLMapBufferObjectAsync_v2, cuGLMapBufferObjectAsync_v2_ptsz;
CUresult cuGLUnmapBufferObjectAsync(unsigned buffer, CUstream stream);

struct simcuda_egl_frame {
    void *planes[3];
    unsigned width, height, depth, pitch, plane_count, channels;
    int type, color_format, format; /* type 1: planes are addresses */
};
/* A buffer that is mapped, as a frame of one row of bytes. */
typedef CUresult simcuda_egl_frame_function(struct simcuda_egl_frame *frame_out,
                                            CUgraphicsResource resource, unsigned index,
                                            unsigned level);
simcuda_egl_frame_function cuGraphicsResourceGetMappedEglFrame;
