/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Results of metashard-check-torch (tools/check_torch) for a PyTorch: a file in the user's cache,
 * METASHARD_TORCH_CHECKS.
 *
 *     metashard-torch-checks/1
 *     BUILD-ID RULES VERSION
 *
 * RULES is the sum of the built-in rules that were checked; the line says nothing about other
 * rules.
 */
#pragma once

#include <stdbool.h>

/*
 * True if the file says that the built-in rules are true of the libtorch_cuda.so with this
 * build-id. A file that another user has made or may write is not read, which is logged.
 */
bool ms_torch_checks_have(const char *build_id);
