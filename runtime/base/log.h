/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages to the user: one line each, "metashard[rank R pid P] level: text", by a single write()
 * to stderr or to the file named in METASHARD_LOG. Never allocates, never takes a lock, keeps
 * errno. Safe from any thread.
 *
 * Errors, warnings and infos are limited to 100 lines a second from one place in the code. The next
 * line from the same place, or a line at exit, says how many were left out. Control characters in
 * names become '?' (utf8.h), so a message stays one line.
 */
#pragma once

enum ms_log_level { MS_ERROR, MS_WARN, MS_INFO, MS_DEBUG, MS_TRACE, MS_LOG_LEVEL_COUNT };

extern const char *const ms_log_level_names[MS_LOG_LEVEL_COUNT];

/* Called once at start, before other threads use the shim. A new file is the user's alone (mode
 * 600). If the file cannot be opened, messages go to stderr, with a warning. path may be NULL. */
void ms_log_open(enum ms_log_level level, const char *path);

/* Logs how many lines were left out and are not yet reported. */
void ms_log_finish(void);

void ms_log(enum ms_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Logs at any level and without the limit, for output that the user asked for. `word` stands where
 * the level would. */
void ms_log_say(const char *word, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Ends the process: an invariant of ours is broken, and going on could compute wrong numbers. */
_Noreturn void ms_fatal(const char *format, ...) __attribute__((format(printf, 1, 2)));
