/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings of PyTorch's caching allocator under which its memory is none that the shim defers. They are told: whoever preloads it
 * wants something else, and PyTorch's own text for an out-of-memory proposes one of them.
 */
#ifndef METASHARD_RUNTIME_CONFIG_TORCH_ALLOCATOR_H
#define METASHARD_RUNTIME_CONFIG_TORCH_ALLOCATOR_H

/* One warning for each such setting in `environment`, which is not a privileged program's. The log is open. */
void ms_allocator_warn(char **environment);

#endif
