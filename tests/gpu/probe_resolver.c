/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Is what cuGetProcAddress answers the address that dlsym gives for the exported name? And does the
 * entry table name every export of this driver?
 */
/* Before cuda.h, whose macros rename functions. */
static const struct entry {
    const char *symbol, *base;
    int version, per_thread;
} entries[] = {
#define MS_ENTRY(class_, symbol, base, version, per_thread, reason) \
    {#symbol, #base, version, per_thread},
#include "shim/entries.def"
#undef MS_ENTRY
};

#include "tests/gpu/probe.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

static void *resolve(const struct entry *entry, CUdriverProcAddressQueryResult *status_out)
{
    const cuuint64_t flags = entry->per_thread ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
                                               : CU_GET_PROC_ADDRESS_LEGACY_STREAM;
    void *address = NULL;
    if (CU(cuGetProcAddress_v2, entry->base, &address, entry->version, flags, status_out) !=
        CUDA_SUCCESS)
        return NULL;
    return address;
}

static const char *symbol_at(const void *address)
{
    Dl_info info;
    if (dladdr(address, &info) == 0)
        return "outside every library";
    return info.dli_sname != NULL && info.dli_saddr == address ? info.dli_sname : "unnamed";
}

static void print_difference(const struct entry *entry, void *exported, void *resolved,
                             CUdriverProcAddressQueryResult status)
{
    js_open(NULL);
    js_string("symbol", entry->symbol);
    js_int("version", entry->version);
    js_bool("exported", exported != NULL);
    js_string("resolved_to", resolved == NULL ? "" : symbol_at(resolved));
    js_int("query_status", (int)status);
    js_close();
}

static void compare_all(size_t unused)
{
    int same = 0, other_address = 0, only_exported = 0, only_resolved = 0, neither = 0;
    js_open_list("differing");
    for (size_t i = 0; i < ARRAY_COUNT(entries); i++) {
        CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
        void *const exported = dlsym(probe_library, entries[i].symbol);
        void *const resolved = resolve(&entries[i], &status);
        if (exported == NULL && resolved == NULL)
            neither++;
        else if (resolved == NULL)
            only_exported++;
        else if (exported == NULL)
            only_resolved++;
        else if (exported != resolved)
            other_address++;
        else
            same++;
        if (exported != resolved)
            print_difference(&entries[i], exported, resolved, status);
    }
    js_close();
    js_int("rows", (long long)ARRAY_COUNT(entries));
    js_int("same", same);
    js_int("other_address", other_address);
    js_int("only_exported", only_exported);
    js_int("only_resolved", only_resolved);
    js_int("neither", neither);
}

static bool in_table(const char *symbol)
{
    for (size_t i = 0; i < ARRAY_COUNT(entries); i++)
        if (strcmp(entries[i].symbol, symbol) == 0)
            return true;
    return false;
}

struct dynamic {
    const ElfW(Sym) * symbols;
    const char *names;
    const uint32_t *gnu_hash, *hash;
};

static struct dynamic read_dynamic(const struct link_map *map)
{
    struct dynamic dynamic = {.symbols = NULL};
    for (const ElfW(Dyn) *row = map->l_ld; row->d_tag != DT_NULL; row++) {
        /* glibc has relocated these pointers on x86-64 and aarch64. */
        const void *const pointer = (const void *)row->d_un.d_ptr;
        if (row->d_tag == DT_SYMTAB)
            dynamic.symbols = pointer;
        else if (row->d_tag == DT_STRTAB)
            dynamic.names = pointer;
        else if (row->d_tag == DT_GNU_HASH)
            dynamic.gnu_hash = pointer;
        else if (row->d_tag == DT_HASH)
            dynamic.hash = pointer;
    }
    return dynamic;
}

/* The number of dynamic symbols: nothing in an ELF file says it but the hash tables. */
static uint32_t symbol_count(const struct dynamic *dynamic)
{
    if (dynamic->hash != NULL)
        return dynamic->hash[1];
    if (dynamic->gnu_hash == NULL)
        return 0;
    const uint32_t buckets = dynamic->gnu_hash[0], first = dynamic->gnu_hash[1];
    const uint32_t bloom_words = dynamic->gnu_hash[2] * (sizeof(ElfW(Addr)) / 4);
    const uint32_t *const bucket = dynamic->gnu_hash + 4 + bloom_words;
    const uint32_t *const chain = bucket + buckets;
    uint32_t last = 0;
    for (uint32_t i = 0; i < buckets; i++)
        last = bucket[i] > last ? bucket[i] : last;
    if (last < first)
        return first;
    while ((chain[last - first] & 1) == 0)
        last++;
    return last + 1;
}

static void list_unknown_exports(size_t unused)
{
    struct link_map *map = NULL;
    if (dlinfo(probe_library, RTLD_DI_LINKMAP, &map) != 0)
        probe_fail("dlinfo: %s", dlerror());
    const struct dynamic dynamic = read_dynamic(map);
    const uint32_t count = symbol_count(&dynamic);
    int exports = 0;
    js_open_list("not_in_the_table");
    for (uint32_t i = 1; i < count; i++) {
        const ElfW(Sym) *const symbol = &dynamic.symbols[i];
        const char *const name = dynamic.names + symbol->st_name;
        const bool is_function = (symbol->st_info & 0xf) == STT_FUNC;
        if (symbol->st_shndx == SHN_UNDEF || !is_function || strncmp(name, "cu", 2) != 0)
            continue;
        exports++;
        if (!in_table(name))
            js_string(NULL, name);
    }
    js_close();
    js_int("exported_functions", exports);
    js_string("file", strrchr(map->l_name, '/') != NULL ? strrchr(map->l_name, '/') + 1 : "");
}

/* How a program may ask that is not in the table: no flags, the newest version, odd names. */
static void odd_questions(size_t unused)
{
    static const struct {
        const char *key, *name;
        int version;
        cuuint64_t flags;
    } questions[] = {
        {"empty_name_version_0", "", 0, 0},
        {"suffix_in_the_name", "cuMemAlloc_v2", 12000, 0},
        {"alloc_version_2000", "cuMemAlloc", 2000, 0},
        {"alloc_newest", "cuMemAlloc", CUDA_VERSION, 0},
        {"alloc_version_of_the_future", "cuMemAlloc", 99000, 0},
        {"copy_per_thread", "cuMemcpyHtoD", 7000, 2},
        {"copy_per_thread_version_3020", "cuMemcpyHtoD", 3020, 2},
        {"alloc_per_thread", "cuMemAlloc", 7000, 2},
        {"resolver_11030", "cuGetProcAddress", 11030, 0},
        {"resolver_12000", "cuGetProcAddress", 12000, 0},
        {"synchronize_newest", "cuCtxSynchronize", 13000, 0},
        {"unknown", "cuNoSuchThing", 12000, 0},
    };
    for (size_t i = 0; i < ARRAY_COUNT(questions); i++) {
        void *address = NULL;
        CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
        const CUresult result = CU(cuGetProcAddress_v2, questions[i].name, &address,
                                   questions[i].version, questions[i].flags, &status);
        js_open(questions[i].key);
        js_result("result", result);
        js_int("query_status", (int)status);
        js_string("symbol", address == NULL ? "" : symbol_at(address));
        js_close();
    }
}

const struct probe_row section_resolver[] = {
    {"before_init", compare_all, 0, LOADED},
    {"after_init", compare_all},
    {"exports", list_unknown_exports},
    {"odd_questions", odd_questions},
    {NULL},
};
