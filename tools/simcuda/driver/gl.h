/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What stands for OpenGL: buffers with a name, whose bytes the graphics side has at an address of
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

/* Of cudaGL.h, whose other types are not needed. */
typedef CUresult simcuda_gl_register_function(CUgraphicsResource *resource_out, unsigned buffer,
                                              unsigned flags);
simcuda_gl_register_function cuGraphicsGLRegisterBuffer;
