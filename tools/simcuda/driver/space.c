/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device addresses and physical memory. Addresses come from arenas: big reservations without
 * access, that grow by need and are never given back. Physical memory is a range of the device's
 * memory file, so that one range can be mapped at many addresses and in other processes.
 *
 * Reservations are made as an H200 with driver 580 makes them: in areas of 32 MiB, or as many of
 * them as they take. A reservation that fits into what is left of an area is placed there, wherever
 * it was wanted, but not behind one that got the address that it wanted.
 */
#include "tools/simcuda/driver/state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ARENA_BYTES ((size_t)16 << 30)
#define ADDRESS_BITS 47
#define FILE_BYTES ((size_t)1 << 42)
#define LOW_BEGIN 0x302000000ull
#define LOW_END (1ull << 40)
#define LOW_ARENA_BYTES ((size_t)1 << 30)

#define AREA_BYTES ((size_t)32 << 20)
#define OWN_BYTES ((size_t)8 << 20) /* of the first area, for the driver */
enum { PLACES_TRIED = 256 };

static struct sim_extents free_space, free_low; /* low: of reservations, with SIMCUDA_LOW */
static uint64_t low_end = LOW_BEGIN;            /* of the arenas of free_low */

struct arena {
    struct sim_region region;
    struct sim_extents *free; /* NULL: one reservation at a wanted address, which goes with it */
};
static struct sim_table arenas;
struct sim_table sim_handles;

struct area {
    struct sim_region region;
    unsigned users; /* reservations that lie in it, the driver's own among them */
    bool is_wanted; /* the program chose its address */
};
static struct sim_table areas;
static struct sim_extents left_over; /* of areas that nobody chose */

static void *reserve(void *hint, size_t bytes, int flags)
{
    return mmap(hint, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
}

static void add_arena(uint64_t begin, size_t bytes, struct sim_extents *space)
{
    struct arena *arena = sim_zalloc(sizeof(*arena));
    *arena = (struct arena){{begin, bytes}, space};
    sim_table_add(&arenas, &arena->region);
    if (space != NULL)
        sim_extents_give(space, begin, bytes);
}

static bool grow(size_t bytes)
{
    const size_t wanted = bytes < ARENA_BYTES ? ARENA_BYTES : bytes;
    void *memory = reserve(NULL, wanted, 0);
    if (memory == MAP_FAILED && wanted > bytes)
        memory = reserve(NULL, bytes, 0);
    else
        bytes = wanted;
    if (memory == MAP_FAILED)
        return false;
    add_arena((uint64_t)memory, bytes, &free_space);
    return true;
}

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define __SANITIZE_THREAD__ 1
#endif
#endif
#ifdef __SANITIZE_THREAD__
/* ThreadSanitizer ends the process when an address is not one of those that it has shadow for. */
static const bool may_choose_addresses = false;
#else
static const bool may_choose_addresses = true;
#endif

/* Exactly there, or not at all. */
static bool reserve_at(uint64_t address, size_t bytes)
{
    if (!may_choose_addresses)
        return false;
    void *memory = reserve((void *)address, bytes, MAP_FIXED_NOREPLACE);
    if (memory == (void *)address)
        return true;
    if (memory != MAP_FAILED)
        munmap(memory, bytes); /* kernels before 4.17 take the flag for a hint */
    return false;
}

static bool take_at_hint(size_t bytes, CUdeviceptr hint)
{
    if (sim_extents_take_at(&free_space, hint, bytes) ||
        sim_extents_take_at(&free_low, hint, bytes))
        return true;
    if (!reserve_at(hint, bytes))
        return false;
    add_arena(hint, bytes, NULL);
    return true;
}

/* The first free place from the wanted one on, within some GiB. */
static bool take_from_hint(size_t bytes, size_t alignment, CUdeviceptr *hint)
{
    for (int i = 0; i < PLACES_TRIED; i++, *hint += alignment) {
        if (take_at_hint(bytes, *hint))
            return true;
    }
    return false;
}

/* Real drivers leave GiBs of mappings without access below their reservations. */
static void reserve_below(void)
{
    static bool is_done;
    if (!is_done)
        reserve_at(0x200000000ull, 0x300200000ull - 0x200000000ull);
    is_done = true;
}

static bool grow_low(size_t bytes)
{
    const size_t wanted = (bytes + LOW_ARENA_BYTES - 1) / LOW_ARENA_BYTES * LOW_ARENA_BYTES;
    reserve_below();
    for (; low_end + wanted <= LOW_END; low_end += LOW_ARENA_BYTES) {
        if (reserve_at(low_end, wanted)) {
            add_arena(low_end, wanted, &free_low);
            low_end += wanted;
            return true;
        }
    }
    return false;
}

static bool take_low(size_t bytes, size_t alignment, CUdeviceptr *address_out)
{
    uint64_t begin;
    if (!sim_extents_take(&free_low, bytes, alignment, &begin) &&
        (!grow_low(bytes + alignment) || !sim_extents_take(&free_low, bytes, alignment, &begin)))
        return false;
    *address_out = begin;
    return true;
}

CUresult sim_space_take_locked(size_t bytes, size_t alignment, CUdeviceptr *address_out)
{
    uint64_t begin;
    if (bytes >= (size_t)1 << ADDRESS_BITS)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!sim_extents_take(&free_space, bytes, alignment, &begin) &&
        (!grow(bytes + alignment) || !sim_extents_take(&free_space, bytes, alignment, &begin)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    *address_out = begin;
    return CUDA_SUCCESS;
}

static struct area *add_area(uint64_t begin, size_t bytes, size_t used, bool is_wanted)
{
    struct area *area = sim_zalloc(sizeof(*area));
    *area = (struct area){{begin, bytes}, 0, is_wanted};
    sim_table_add(&areas, &area->region);
    if (!is_wanted && used < bytes)
        sim_extents_give(&left_over, begin + used, bytes - used);
    return area;
}

/* The areas in which the range lies: neighbours may share one. */
static void count_users(uint64_t begin, size_t bytes, int change)
{
    for (uint64_t at = begin; at < begin + bytes;) {
        struct area *area = (struct area *)sim_table_find(&areas, at);
        area->users += (unsigned)change;
        at = area->region.begin + area->region.bytes;
    }
}

static bool take_left_over(size_t bytes, size_t alignment, CUdeviceptr *address_out)
{
    static bool is_started;
    CUdeviceptr first;
    if (!is_started && sim_space_take_locked(AREA_BYTES, AREA_BYTES, &first) == CUDA_SUCCESS)
        add_area(first, AREA_BYTES, OWN_BYTES, false)->users++;
    is_started = true;
    uint64_t begin;
    if (bytes >= AREA_BYTES || !sim_extents_take(&left_over, bytes, alignment, &begin))
        return false;
    *address_out = begin;
    return true;
}

static CUresult make_area(size_t bytes, size_t alignment, CUdeviceptr hint,
                          CUdeviceptr *address_out)
{
    const size_t whole = sim_round_up(bytes, AREA_BYTES);
    const size_t aligned = alignment < AREA_BYTES ? AREA_BYTES : alignment;
    CUdeviceptr wanted = sim_round_up(hint, aligned);
    const bool is_wanted = wanted != 0 && sim_config.hints == SIM_HINTS_HONOURED &&
                           take_from_hint(whole, aligned, &wanted);
    CUresult result = CUDA_SUCCESS;
    if (is_wanted)
        *address_out = wanted;
    else if (!sim_config.low_addresses || whole >= LOW_END ||
             !take_low(whole, aligned, address_out))
        result = sim_space_take_locked(whole, aligned, address_out);
    if (result == CUDA_SUCCESS)
        add_area(*address_out, whole, bytes, is_wanted);
    return result;
}

CUresult sim_space_reserve_locked(size_t bytes, size_t alignment, CUdeviceptr hint,
                                  CUdeviceptr *address_out)
{
    CUresult result = CUDA_SUCCESS;
    if (hint != 0 && sim_config.hints == SIM_HINTS_REFUSED)
        return CUDA_ERROR_INVALID_VALUE;
    if (bytes >= (size_t)1 << ADDRESS_BITS)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!take_left_over(bytes, alignment, address_out))
        result = make_area(bytes, alignment, hint, address_out);
    if (result == CUDA_SUCCESS)
        count_users(*address_out, bytes, 1);
    return result;
}

void sim_space_give_locked(CUdeviceptr address, size_t bytes)
{
    struct arena *arena = (struct arena *)sim_table_find(&arenas, address);
    if (arena->free != NULL) {
        sim_extents_give(arena->free, address, bytes);
        return;
    }
    munmap((void *)address, bytes);
    sim_table_remove(&arenas, &arena->region);
    free(arena);
}

static void end_unused_areas(uint64_t begin, size_t bytes)
{
    for (uint64_t at = begin; at < begin + bytes;) {
        struct area *area = (struct area *)sim_table_find(&areas, at);
        const struct sim_region region = area->region;
        at = region.begin + region.bytes;
        if (area->users > 0)
            continue;
        if (!area->is_wanted)
            sim_extents_take_at(&left_over, region.begin, region.bytes);
        sim_table_remove(&areas, &area->region);
        free(area);
        sim_space_give_locked(region.begin, region.bytes);
    }
}

void sim_space_unreserve_locked(CUdeviceptr address, size_t bytes)
{
    const struct area *area = (const struct area *)sim_table_find(&areas, address);
    if (!area->is_wanted)
        sim_extents_give(&left_over, address, bytes);
    count_users(address, bytes, -1);
    end_unused_areas(address, bytes);
}

/* SIMCUDA_BREAK=remap: what was unmapped last, which its address still leads to. */
static struct {
    CUdeviceptr address;
    int file;
    uint64_t offset;
} stale[16];
static size_t stale_next;

static uint64_t stale_or(CUdeviceptr address, const struct sim_physical *physical)
{
    for (size_t i = 0; i < sizeof(stale) / sizeof(stale[0]); i++) {
        if (stale[i].address == address && stale[i].file == physical->file)
            return stale[i].offset;
    }
    return physical->offset;
}

void sim_space_keep_stale_locked(CUdeviceptr address, const struct sim_physical *physical)
{
    stale[stale_next].address = address;
    stale[stale_next].file = physical->file;
    stale[stale_next].offset = physical->offset;
    stale_next = (stale_next + 1) % (sizeof(stale) / sizeof(stale[0]));
}

bool sim_space_map_locked(CUdeviceptr address, struct sim_physical *physical, size_t bytes,
                          bool accessible)
{
    const bool is_apart = sim_is_broken(SIM_BROKEN_ALIAS) && physical->mappings > 0;
    void *memory = mmap((void *)address, bytes, accessible ? PROT_READ | PROT_WRITE : PROT_NONE,
                        (is_apart ? MAP_PRIVATE : MAP_SHARED) | MAP_FIXED | MAP_NORESERVE,
                        physical->file, (off_t)stale_or(address, physical));
    if (memory == MAP_FAILED) {
        sim_complain("mmap of %zu bytes of device memory failed: %s", bytes, strerror(errno));
        return false;
    }
    physical->mappings++;
    return true;
}

void sim_space_set_access_locked(CUdeviceptr address, size_t bytes, bool accessible)
{
    if (mprotect((void *)address, bytes, accessible ? PROT_READ | PROT_WRITE : PROT_NONE) != 0)
        sim_complain("mprotect of device memory failed: %s", strerror(errno));
}

void sim_space_unmap_locked(CUdeviceptr address, size_t bytes)
{
    if (reserve((void *)address, bytes, MAP_FIXED) == MAP_FAILED)
        sim_complain("mmap of unused device addresses failed: %s", strerror(errno));
}

/* --- physical memory */

static bool open_device_file(struct sim_device *device)
{
    if (device->file >= 0)
        return true;
    const int file = memfd_create("simcuda-device", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)FILE_BYTES) != 0) {
        sim_complain("no memory file for device memory: %s", strerror(errno));
        if (file >= 0)
            close(file);
        return false;
    }
    device->file = file;
    sim_extents_give(&device->space, 0, FILE_BYTES);
    return true;
}

/* Half of the time others have all that they leave nobody, at other times nothing or something. */
static size_t draw_limit_locked(void)
{
    const size_t all = sim_config.memory_bytes, least = sim_config.others_leave_bytes;
    if (least == 0 || least >= all)
        return all;
    const uint64_t moment = sim_draw_locked(4);
    return moment < 2 ? least : moment == 2 ? all : least + sim_draw_locked(all - least);
}

size_t sim_physical_free_bytes_locked(CUdevice device)
{
    const size_t own = sim_devices[device].primary != NULL ? sim_config.context_bytes : 0;
    const size_t others = sim_shared_others(device);
    const size_t used = sim_devices[device].used_bytes + own + others;
    const size_t limit = draw_limit_locked();
    return limit > used ? limit - used : 0;
}

/* Two processes that take the last of it at once both look again. */
static bool take_of_shared(CUdevice ordinal, size_t bytes)
{
    const size_t wanted = sim_devices[ordinal].used_bytes + bytes;
    sim_shared_set(ordinal, wanted);
    const bool is_there = wanted + sim_shared_others(ordinal) <= sim_config.memory_bytes;
    if (!is_there)
        sim_shared_set(ordinal, sim_devices[ordinal].used_bytes);
    return is_there;
}

CUresult sim_physical_create_locked(CUdevice ordinal, size_t bytes, struct sim_physical **out)
{
    struct sim_device *device = &sim_devices[ordinal];
    uint64_t offset;
    if (bytes > sim_physical_free_bytes_locked(ordinal) || !open_device_file(device) ||
        !take_of_shared(ordinal, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!sim_extents_take(&device->space, bytes, SIM_GRANULE, &offset)) {
        sim_shared_set(ordinal, device->used_bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct sim_physical *physical = sim_zalloc(sizeof(*physical));
    physical->device = ordinal;
    physical->bytes = bytes;
    physical->offset = offset;
    physical->file = device->file;
    device->used_bytes += bytes;
    sim_stats.physical_bytes_now += bytes;
    if (sim_stats.physical_bytes_now > sim_stats.physical_bytes_peak)
        sim_stats.physical_bytes_peak = sim_stats.physical_bytes_now;
    if (sim_stats.physical_bytes_now > sim_stats.recent_bytes_peak)
        sim_stats.recent_bytes_peak = sim_stats.physical_bytes_now;
    *out = physical;
    return CUDA_SUCCESS;
}

void sim_physical_drop_if_unused_locked(struct sim_physical *physical)
{
    if (physical->users > 0 || physical->mappings > 0)
        return;
    if (physical->foreign) {
        close(physical->file);
    } else {
        struct sim_device *device = &sim_devices[physical->device];
        device->used_bytes -= physical->bytes;
        sim_shared_set(physical->device, device->used_bytes);
        sim_stats.physical_bytes_now -= physical->bytes;
        /* Exported memory keeps its bytes and its place: another process may have it open. */
        if (!physical->exported) {
            if (fallocate(physical->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                          (off_t)physical->offset, (off_t)physical->bytes) != 0)
                sim_complain("device memory could not be given back: %s", strerror(errno));
            sim_extents_give(&device->space, physical->offset, physical->bytes);
        }
    }
    free(physical);
}

/*
 * Behind the memory, the file has a row for each granule where exported memory begins: its
 * importer learns the size from there.
 */
struct export_row {
    uint64_t magic, bytes, device;
};
#define EXPORT_MAGIC 0x53494d4558504f52ull

static off_t export_row_place(uint64_t offset)
{
    return (off_t)(FILE_BYTES + offset / SIM_GRANULE * sizeof(struct export_row));
}

struct sim_physical *sim_physical_import_locked(int file)
{
    struct export_row row;
    const off_t offset = lseek(file, 0, SEEK_CUR);
    if (offset < 0 || (uint64_t)offset >= FILE_BYTES || (size_t)offset % SIM_GRANULE != 0 ||
        pread(file, &row, sizeof(row), export_row_place((uint64_t)offset)) != sizeof(row) ||
        row.magic != EXPORT_MAGIC)
        return NULL;
    const int own = fcntl(file, F_DUPFD_CLOEXEC, 0);
    if (own < 0)
        return NULL;
    struct sim_physical *physical = sim_zalloc(sizeof(*physical));
    physical->device = (CUdevice)row.device;
    physical->bytes = row.bytes;
    physical->offset = (uint64_t)offset;
    physical->file = own;
    physical->foreign = true;
    return physical;
}

int sim_physical_open_locked(struct sim_physical *physical)
{
    const struct export_row row = {EXPORT_MAGIC, physical->bytes, (uint64_t)physical->device};
    /* Not dup(): the position has to be this descriptor's own, it tells where the memory begins. */
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", physical->file);
    const int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return -1;
    if (pwrite(file, &row, sizeof(row), export_row_place(physical->offset)) != sizeof(row)) {
        close(file);
        return -1;
    }
    lseek(file, (off_t)physical->offset, SEEK_SET);
    physical->exported = true;
    return file;
}
