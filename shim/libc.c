/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/libc.h"

#include <dlfcn.h>
#include <link.h>
#include <stdint.h>

/* This library's dynamic section; defined by the linker. */
extern ElfW(Dyn) _DYNAMIC[] __attribute__((visibility("hidden")));

/* The library's entry in the dynamic linker's list. With lazy binding, the linker puts the entry
 * into the second word of the table for bound functions (glibc, elf_machine_runtime_setup);
 * otherwise dladdr1 asks the linker. _r_debug leads to the list, too, but as another library's
 * symbol it costs each process 3500 instructions. */
MS_EARLY static const struct link_map *find_own(void)
{
    Dl_info info;
    struct link_map *own = NULL;
    const ElfW(Dyn) *entry = _DYNAMIC;
    while (entry->d_tag != DT_PLTGOT && entry->d_tag != DT_NULL)
        entry++;
    if (entry->d_tag == DT_PLTGOT)
        own = ((struct link_map **)entry->d_un.d_ptr)[1];
    if (own == NULL)
        dladdr1(_DYNAMIC, &info, (void **)&own, RTLD_DL_LINKMAP);
    return own;
}

/* The first entry of the list: the program. */
MS_EARLY static const struct link_map *find_first(void)
{
    const struct link_map *first = find_own();
    while (first != NULL && first->l_prev != NULL)
        first = first->l_prev;
    return first;
}

/* A library's symbol tables, as the static linker wrote them. */
struct symbols {
    const ElfW(Sym) * table;
    const char *names;
    const uint32_t *hash; /* DT_GNU_HASH */
};

/* glibc has already added the library's address to the entries that it uses itself. */
MS_EARLY static const void *place_of(const struct link_map *library, const ElfW(Dyn) * entry)
{
    const ElfW(Addr) at = entry->d_un.d_ptr;
    return (const void *)(at >= library->l_addr ? at : library->l_addr + at);
}

MS_EARLY static struct symbols symbols_of(const struct link_map *library)
{
    struct symbols found = {NULL, NULL, NULL};
    for (const ElfW(Dyn) *entry = library->l_ld; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_SYMTAB)
            found.table = place_of(library, entry);
        else if (entry->d_tag == DT_STRTAB)
            found.names = place_of(library, entry);
        else if (entry->d_tag == DT_GNU_HASH)
            found.hash = place_of(library, entry);
    }
    return found;
}

/* The dynamic linker's hash function (dl_new_hash). */
MS_EARLY static uint32_t hash_of(const char *name)
{
    uint32_t hash = 5381;
    for (; *name != '\0'; name++)
        hash = hash * 33 + (unsigned char)*name;
    return hash;
}

/* The hash table: the number of buckets, the first symbol in the table, the number of a filter's
 * words and their shift; then the filter; the buckets; and each symbol's hash, whose lowest bit
 * ends a chain. */
MS_EARLY static const ElfW(Sym) * find_symbol(const struct symbols *in, const char *name)
{
    const uint32_t wanted = hash_of(name), buckets = in->hash[0], first = in->hash[1];
    const uint32_t *bucket = in->hash + 4 + in->hash[2] * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
    const uint32_t *hashes = bucket + buckets;
    uint32_t at = bucket[wanted % buckets];
    while (at >= first) {
        const ElfW(Sym) *symbol = &in->table[at];
        const uint32_t hash = hashes[at - first];
        if ((hash | 1) == (wanted | 1) && symbol->st_shndx != SHN_UNDEF &&
            ms_libc_is_equal(in->names + symbol->st_name, name))
            return symbol;
        at = (hash & 1) != 0 ? 0 : at + 1;
    }
    return NULL;
}

/* Before glibc 2.34, dlsym and dlvsym are in libdl.so.2. */
MS_EARLY static bool is_libc(const struct link_map *library)
{
    const char *name = library->l_name;
    for (const char *at = name; *at != '\0'; at++)
        name = *at == '/' ? at + 1 : name;
    return ms_libc_is_equal(name, "libc.so.6") || ms_libc_is_equal(name, "libdl.so.2");
}

void *ms_libc_find(const char *name)
{
    for (const struct link_map *library = find_first(); library != NULL;
         library = library->l_next) {
        if (!is_libc(library))
            continue;
        const struct symbols symbols = symbols_of(library);
        const ElfW(Sym) *found = symbols.hash != NULL ? find_symbol(&symbols, name) : NULL;
        if (found != NULL)
            return (void *)(library->l_addr + found->st_value);
    }
    return NULL;
}

bool ms_libc_is_before(const char *name)
{
    for (const struct link_map *library = find_first(); library->l_ld != _DYNAMIC;
         library = library->l_next) {
        const struct symbols symbols = symbols_of(library);
        if (symbols.hash != NULL && find_symbol(&symbols, name) != NULL)
            return true;
    }
    return false;
}

bool ms_libc_stands_before(const void *wanted)
{
    for (const struct link_map *library = find_first();
         library != NULL && library->l_ld != _DYNAMIC; library = library->l_next) {
        if (library == wanted)
            return true;
    }
    return false;
}
