/* SPDX-License-Identifier: Apache-2.0 */
/* How many descriptors are open: a leak is one more. */
#pragma once

#include <fcntl.h>

static inline int open_descriptors(void)
{
    int count = 0;
    for (int i = 0; i < 256; i++)
        count += fcntl(i, F_GETFD) >= 0;
    return count;
}
