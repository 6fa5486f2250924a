/* SPDX-License-Identifier: Apache-2.0 */
/* An auditor of the dynamic linker (rtld-audit(7)), as sotruss and latrace are. */
#include <link.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT unsigned la_version(unsigned version);
EXPORT unsigned la_objopen(struct link_map *map, Lmid_t id, uintptr_t *cookie);

EXPORT unsigned la_version(unsigned version)
{
    return version;
}

EXPORT unsigned la_objopen(struct link_map *map, Lmid_t id, uintptr_t *cookie)
{
    (void)map, (void)id, (void)cookie;
    return LA_FLG_BINDTO | LA_FLG_BINDFROM;
}
