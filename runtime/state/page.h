/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file of the state page: makes it, with its sections laid out and empty, maps it, and removes those of
 * processes that are gone. Knows nothing of what is written there (state.c).
 */
#ifndef METASHARD_RUNTIME_STATE_PAGE_H
#define METASHARD_RUNTIME_STATE_PAGE_H

#include <stdbool.h>

#include "runtime/state/folder.h"
#include "runtime/state/format.h"

/* How many sections' records there are for so many bytes, which are at least MS_STATE_LEAST_BYTES. */
void ms_state_lay_out(struct ms_state_header *header_out, uint64_t bytes, uint64_t options,
                      uint64_t figures);

/*
 * A file that nobody sees yet, mapped, all zero behind the header; its bytes are reserved, so that a full
 * file system is told here and not by a signal later. *text: why it is NULL, for a message (256 bytes).
 */
struct ms_state_page {
    unsigned char *bytes;
    uint64_t total_bytes;
    int folder;           /* descriptor */
    char hidden_name[64]; /* in the folder, until it is shown */
    char path[MS_PATH_BYTES];
};
bool ms_state_page_make(struct ms_state_page *page, const char *folder, uint64_t bytes,
                        const struct ms_state_header *header, char text[256]);

/* Gives the file its name: readers find it whole. Closes the folder. A page of the same process id that is
 * gone (the program has called exec) is replaced. */
bool ms_state_page_show(struct ms_state_page *page, char text[256]);

/* Undoes ms_state_page_make. */
void ms_state_page_drop(struct ms_state_page *page);

#endif
