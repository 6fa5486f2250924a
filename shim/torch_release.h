/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which PyTorch the process has. The built-in kernel rules are true of the releases in
 * torch_releases.def, which tests/frameworks/torch/check_wheel.py has proved; of another one nobody
 * knows.
 *
 * A release is known by the build-id of libtorch_cuda.so, which differs between wheels for
 * different Pythons, or by the commit of its sources, which version.py names in the folder above.
 * What the user has checked is known by the build-id alone (torch_checks.h).
 */
#pragma once

#include <stdbool.h>

/*
 * True if the process has a PyTorch that was checked, or none: kernels with the names of PyTorch's
 * are then another program's. Else false; the first time a line says so. Once a PyTorch was found,
 * the answer stays.
 */
bool ms_torch_release_is_proved(void);
