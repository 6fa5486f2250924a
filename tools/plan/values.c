/* SPDX-License-Identifier: Apache-2.0 */
/* Values on the command line. */
#include <stdlib.h>

#include "tools/plan/commands.h"

bool read_count(const char *text, uint64_t most, uint64_t *count_out)
{
    char *end;
    const unsigned long long count = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || count > most)
        return false;
    *count_out = count;
    return true;
}
