/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The release of PyTorch in the process. The built-in kernel rules are true of the releases in
 * torch_releases.def, as tests/frameworks/torch/check_wheel.py has proved; for another release
 * nobody knows.
 *
 * A release is known by the build-id of libtorch_cuda.so, which differs between wheels for
 * different Pythons, or by the commit of its sources, which version.py in the folder above names. A
 * release that the user has checked is known by the build-id alone (torch_checks.h).
 */
#pragma once

#include <stdbool.h>

/*
 * True if the process has a PyTorch that was checked, or no PyTorch: kernels with the names of
 * PyTorch's are then another program's. The first false answer is logged. Once a PyTorch was found,
 * the answer stays.
 */
bool ms_torch_release_is_proved(void);
