/* SPDX-License-Identifier: Apache-2.0 */
/* spin_kernel (at/cuda/Sleep.cu): torch.cuda._sleep(cycles), at a gigahertz. */
#include "tools/simcuda/torch/host.h"

#include <time.h>

static void run(__attribute__((unused)) const struct simcuda_launch *launch, void **args)
{
    const int64_t ns = SIMCUDA_ARG(args, 0, int64_t);
    nanosleep(&(struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000}, NULL);
}

simcuda_kernel *host_find_sleep(const char *name)
{
    return strstr(name, "_Sleep_cu_") != NULL && strstr(name, "11spin_kernelEl") != NULL ? run
                                                                                         : NULL;
}
