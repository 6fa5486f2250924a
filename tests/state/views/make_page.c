/* SPDX-License-Identifier: Apache-2.0 */
/*
 * make_page FOLDER [NAME...]: a process that keeps a state page in FOLDER: blocks, causes and
 * events under the names, which are anybody's. It lives until standard input ends, and then ends
 * well. Prints "ready".
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runtime/config/config.h"
#include "runtime/state/caller.h"
#include "runtime/state/counters.h"
#include "runtime/state/state.h"

#define MIB ((uint64_t)1 << 20)
enum { MAX_NAMES = 64, STEPS = 12 };

static struct ms_state_place places[MAX_NAMES][2];

static void pause_ms(long ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

/* All that a block can be: deferred, partly so, in memory, dead; every third one is carved. */
static void put_block(uint64_t number, const char *name)
{
    const uint64_t bytes = (number + 1) * MIB + number * 123;
    struct ms_state_block block = {.id = number + 1,
                                   .address = 0x7f0000000000 + (number << 32),
                                   .bytes = bytes,
                                   .device = number % 2,
                                   .file = ms_state_file(name),
                                   .file_offset = number << 20,
                                   .allocated_ns = ms_state_now(),
                                   .changed_ns = ms_state_now()};
    block.kind_bytes[MS_BYTES_FILE] = bytes / 2;
    block.kind_bytes[MS_BYTES_DEAD] = bytes / 5;
    block.kind_bytes[MS_BYTES_RESIDENT] =
        bytes - block.kind_bytes[MS_BYTES_FILE] - block.kind_bytes[MS_BYTES_DEAD];
    block.deferred_bytes = bytes / 3;
    block.cached_bytes = block.kind_bytes[MS_BYTES_FILE] - block.deferred_bytes;
    block.remote_bytes = bytes / 7;
    block.backed_bytes = (number + 1) * MIB;
    snprintf(block.name, sizeof(block.name), "%s", name);
    block.flags = number % 3 == 0 ? MS_BLOCK_CARVED : 0;
    ms_state_put(&places[number][0], &block);
    if (number % 3 != 0)
        return;
    block.flags = MS_BLOCK_PART;
    block.address += 512;
    block.bytes /= 2;
    block.backed_bytes = block.remote_bytes = 0;
    memset(block.kind_bytes, 0, sizeof(block.kind_bytes));
    block.kind_bytes[MS_BYTES_LAUNCH] = block.deferred_bytes = block.bytes;
    block.cached_bytes = 0;
    ms_state_put(&places[number][1], &block);
}

/* The replay begins with what brings bytes in, and is a part of it. */
static void put_events(uint64_t number, const char *name)
{
    static const struct {
        enum ms_event_kind kind;
        enum ms_reason reason;
        bool takes_time;
    } events[] = {{MS_EVENT_ALLOCATE, MS_REASON_CALL, false},
                  {MS_EVENT_RECORD, MS_REASON_CALL, false},
                  {MS_EVENT_REPLAY, MS_REASON_PREFETCH, true},
                  {MS_EVENT_MATERIALISE, MS_REASON_PREFETCH, true},
                  {MS_EVENT_FALLBACK, MS_REASON_NO_RULE, false},
                  {MS_EVENT_REMOTE_READ, MS_REASON_CALL, false}};
    const uint64_t began = ms_state_now();
    for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++) {
        if (events[i].takes_time)
            pause_ms(1);
        ms_state_event(&(struct ms_event){.kind = events[i].kind,
                                          .reason = events[i].reason,
                                          .block = number + 1,
                                          .address = 0x7f0000000000 + (number << 32),
                                          .bytes = (number + 1) * MIB + i,
                                          .began = events[i].takes_time ? began : 0,
                                          .text = name});
    }
}

/* Memory goes up, is brought in, and goes partly back. */
static void change_figures(int step)
{
    const bool is_rise = step < 2 * STEPS / 3;
    ms_counter_add(MS_COUNT_REQUESTED_BYTES, 5 * MIB);
    ms_counter_add(MS_COUNT_RECORDED_FILE_BYTES, 4 * MIB);
    ms_counter_add(MS_COUNT_H2D_BYTES, MIB + 1);
    ms_counter_add(MS_COUNT_FALLBACKS, 1);
    ms_counter_add(MS_COUNT_MATERIALISE_NS, 12345678);
    ms_counter_move(MS_GAUGE_LIVE, is_rise ? 5 * (int64_t)MIB + 17 : -(int64_t)MIB);
    ms_counter_move(MS_GAUGE_DEFERRED, is_rise ? 4 * (int64_t)MIB + 5 : -2 * (int64_t)MIB);
    ms_counter_move(MS_GAUGE_BACKED, step % 3 == 2 ? -(int64_t)MIB : (int64_t)MIB);
    pause_ms(12);
    ms_state_sample();
}

int main(int argc, char **argv)
{
    struct ms_config config = {
        .state_bytes = MIB, .state_kept_bytes = 256 * MIB, .state_command = true, .mode = MS_ON};
    if (argc < 2 || argc > MAX_NAMES + 2)
        return 2;
    snprintf(config.state_dir, sizeof(config.state_dir), "%s", argv[1]);
    ms_state_prepare(&config);
    ms_state_open();
    if (!ms_is_recorded())
        return 1;
    ms_counter_add(MS_COUNT_DEVICE_BYTES, 100 * MIB);
    ms_state_set_device(0, &(struct ms_device_facts){.name = argc > 2 ? argv[2] : "a device"});
    for (int i = 2; i < argc; i++) {
        put_block((uint64_t)i - 2, argv[i]);
        put_events((uint64_t)i - 2, argv[i]);
    }
    for (int i = 0; i < STEPS; i++)
        change_figures(i);
    puts("ready");
    fflush(stdout);
    while (getchar() != EOF)
        ;
    ms_state_end(NULL, NULL);
    return 0;
}
