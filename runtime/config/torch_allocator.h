/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings of PyTorch's caching allocator that keep the shim from deferring its memory. They are
 * logged, since PyTorch's own message for an out-of-memory error proposes one of them.
 */
#pragma once

/* Logs a warning for each such setting in `environment`, unless privileged. The log is open. */
void ms_allocator_warn(char **environment);
