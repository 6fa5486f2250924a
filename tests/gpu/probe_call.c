/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of the driver, for probe_driver.py: Python alone takes longer than the shortest do. */
#include <stdint.h>
#include <time.h>

enum { WORDS = 11 }; /* of cuLaunchKernel, which has the most parameters */
typedef int driver_function(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                            uint64_t, uint64_t, uint64_t, uint64_t);

static int64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* All parameters are integers or pointers; a function with fewer does not look at the others. */
__attribute__((visibility("default"))) int probe_call(driver_function *function,
                                                      const uint64_t words[WORDS], int64_t *ns_out);
int probe_call(driver_function *function, const uint64_t w[WORDS], int64_t *ns_out)
{
    const int64_t start_ns = clock_ns();
    const int result = function(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9], w[10]);
    *ns_out = clock_ns() - start_ns;
    return result;
}
