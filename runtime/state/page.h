/* SPDX-License-Identifier: Apache-2.0 */
/* The file of the state page and its folder. Makes and maps the file, with its sections laid out
 * and empty, and removes pages of processes that have ended. state.c writes the content. */
#pragma once

#include <stdbool.h>

#include "runtime/config/config.h"
#include "runtime/state/format.h"

#define MS_STATE_PREFIX "metashard-"
#define MS_STATE_SUFFIX ".state"

/* Files that are being made. An old file is removed: its process was killed. */
#define MS_STATE_HIDDEN_PREFIX ".metashard-new-"

/* The folder that the configuration selects. `index` counts the places to try in turn. Returns
 * false after the last, or if METASHARD_STATE_DIR is empty. */
bool ms_page_folder(const struct ms_config *config, unsigned index, char path_out[MS_PATH_BYTES]);

/* Opens the first of these folders that can be used, and makes it if it does not exist. A folder in
 * which others may create or rename files cannot be used. Returns the descriptor, or -1: there is
 * no such folder, or this process has raised privileges. */
int ms_page_open_folder(const struct ms_config *config);

/* True for the name of a state page. */
bool ms_page_is_name(const char *name);

/*
 * A page is a mapped file, or, without is_file, memory that no other process sees. ms_page_make
 * lays the records of its sections out, all zero behind the header, and `fill` writes them. The
 * bytes of a file are reserved, so that a full file system fails here and does not raise a signal
 * later. Tries the folders in turn. On failure `text` has the reason, unless `fill` has failed.
 *
 * A file has no name that readers know until it is filled. It replaces a page of the same process
 * id whose process has ended (or has called exec). Then pages of ended processes are removed, by
 * whole runs: runs that ended more than 7 days ago, and the oldest runs while all pages together
 * have more than METASHARD_STATE_KEPT_BYTES. The newest run stays, however large. A run is the
 * ranks of one world, each once, that started within ten minutes.
 */
struct ms_page {
    unsigned char *bytes;
    uint64_t total_bytes;
    int folder;           /* descriptor, until the page has its name */
    char hidden_name[64]; /* in the folder, until then */
    char path[MS_PATH_BYTES];
};
typedef bool ms_page_filler(const struct ms_page *page, const struct ms_config *config);
bool ms_page_make(struct ms_page *page, const struct ms_config *config, bool is_file,
                  ms_page_filler *fill, char text[256]);

/* Reads the process of a page in a folder, and how long it ran: until its end, or until a block
 * changed last. */
bool ms_page_process(int folder, const char *name, struct ms_state_process *process_out,
                     uint64_t *ran_ns_out);
