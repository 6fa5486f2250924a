/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The window of deferral: open from the first deferred allocation until the program has moved on,
 * that is, it launches work, and for METASHARD_SETTLE_MS nothing was allocated or recorded.
 * Settling (settle.h) ends it.
 */
#pragma once

#include <stdbool.h>

/* An allocation was deferred: a window opens. */
void ms_window_open(void);

/* Something was recorded or materialised: the window stays open. */
void ms_window_extend(void);

struct ms_window {
    bool is_settled;   /* settling ended the last window: new blocks should have memory */
    bool has_moved_on; /* settling ended it because the program has moved on */
};
struct ms_window ms_window_now(void);

/* The program launched work. Returns true, to one thread at a time, if the program has moved on.
 * That ends the window. */
bool ms_window_is_due(void);

/* Settling ends the window. If it was in vain, that is, left something, it is not tried again
 * before something new is recorded. */
void ms_window_end(bool is_in_vain);
