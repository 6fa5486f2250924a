/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file of the state page: makes and maps it, with its sections laid out and empty, and removes
 * pages of processes that have ended. What is written there is up to state.c.
 */
#pragma once

#include <stdbool.h>

#include "runtime/state/folder.h"
#include "runtime/state/format.h"

/* Files that are being made. An old one is removed: its process was killed. */
#define MS_STATE_HIDDEN_PREFIX ".metashard-new-"

/*
 * Opens the folder, and makes it if it does not exist. A link at its end is refused, and so is a
 * folder in which others may create or rename files: -1, with the reason in `text`.
 */
int ms_state_open_folder(const char *path, char text[256]);

/* Divides so many bytes, at least MS_STATE_LEAST_BYTES, among the sections' records. */
void ms_state_lay_out(struct ms_state_header *header_out, uint64_t bytes, uint64_t options,
                      uint64_t figures);

/*
 * A file without a name that readers know, mapped, all zero behind the header. Its bytes are
 * reserved, so that a full file system fails here and does not raise a signal later. On failure,
 * `text` has the reason.
 */
struct ms_state_page {
    unsigned char *bytes;
    uint64_t total_bytes;
    int folder;           /* descriptor */
    char hidden_name[64]; /* in the folder, until ms_state_page_show */
    char path[MS_PATH_BYTES];
};
bool ms_state_page_make(struct ms_state_page *page, const char *folder, uint64_t bytes,
                        const struct ms_state_header *header, char text[256]);

/*
 * Gives the complete file its name, and closes the folder. Replaces a page of the same process id
 * whose process has ended (or has called exec).
 *
 * Removes pages of ended processes, by whole runs: those that ended more than 7 days ago, and the
 * oldest while all together have more than `kept_bytes`. The newest run stays, however large. A run
 * is the ranks of one world, each once, that started within ten minutes.
 */
bool ms_state_page_show(struct ms_state_page *page, uint64_t kept_bytes, char text[256]);

/* Reads the process of a page in a folder, and when a block changed last there. */
bool ms_state_page_process(int folder, const char *name, struct ms_state_process *process_out,
                           uint64_t *changed_ns_out);

/* Undoes ms_state_page_make. */
void ms_state_page_drop(struct ms_state_page *page);
