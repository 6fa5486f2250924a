/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings of PyTorch's caching allocator that keep the shim from deferring its memory. They are
 * logged, since PyTorch's own message for an out-of-memory error proposes one of them.
 */
#ifndef METASHARD_RUNTIME_CONFIG_TORCH_ALLOCATOR_H
#define METASHARD_RUNTIME_CONFIG_TORCH_ALLOCATOR_H

/* Logs a warning for each such setting in `environment`, unless privileged. The log is open. */
void ms_allocator_warn(char **environment);

#endif
