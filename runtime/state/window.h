/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The window of deferral: open from the first deferred allocation until the program has moved on, that is, launches
 * work, and for METASHARD_SETTLE_MS nothing was allocated or recorded. settle.h ends it.
 */
#ifndef METASHARD_RUNTIME_STATE_WINDOW_H
#define METASHARD_RUNTIME_STATE_WINDOW_H

#include <stdbool.h>

/* An allocation was deferred: a window opens. */
void ms_window_open(void);

/* Something was recorded or materialised: the window stays open. */
void ms_window_extend(void);

/* The last window has ended by settling: what is handed out now should have memory. */
bool ms_window_is_settled(void);

/* The program launched work. True: it has moved on; other threads are not told so before the time is over again. */
bool ms_window_is_due(void);

/* It ends by settling. */
void ms_window_end(void);

/* Settling left something: not again before something new comes. */
void ms_window_give_up(void);

#endif
