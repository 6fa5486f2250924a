/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A library that is preloaded beside the shim, before it or behind it, as torch_memory_saver is:
 * what the CUDA runtime would allocate it maps itself, and it can give that memory back for a
 * while. It also passes on the calls of its process that map memory, and counts those that come by.
 */
#pragma once

/* From now on content is kept while memory is away, or not. */
typedef void saver_keep_function(int keeps);
typedef void saver_pause_function(void);
typedef void saver_resume_function(void);

/* Calls that came by. */
typedef int saver_count_function(void);
