/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages to the user: one line each, "metashard[rank R pid P] level: text", by a single write()
 * to stderr or to the file named in METASHARD_LOG. Never allocates, never takes a lock, keeps
 * errno. Safe from any thread.
 *
 * Errors, warnings and infos are limited to 100 lines a second from one place in the code; the next line from
 * there tells how many were left out, or the last one of the process does. Control characters in a message, as
 * file names may have them, become '?': a line stays one.
 */
#ifndef METASHARD_RUNTIME_BASE_LOG_H
#define METASHARD_RUNTIME_BASE_LOG_H

enum ms_log_level { MS_ERROR, MS_WARN, MS_INFO, MS_DEBUG, MS_TRACE, MS_LOG_LEVEL_COUNT };

extern const char *const ms_log_level_names[MS_LOG_LEVEL_COUNT];

/* Set once at start, before other threads use the shim. A file that cannot be opened leaves
 * stderr in use and says so. path may be NULL. */
void ms_log_open(enum ms_log_level level, const char *path);

/* Tells how many lines were left out at last. */
void ms_log_finish(void);

void ms_log(enum ms_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same at any level, and however many there are: what the user has asked for. The word stands where others
 * have the level. */
void ms_say(const char *word, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* One of our own invariants is broken: going on could compute wrong numbers. Ends the process. */
_Noreturn void ms_fatal(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
