/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The configuration: read from the environment once, when the shim starts, and constant afterwards.
 * An invalid value gives one warning and leaves the default. An unknown METASHARD_ variable gives
 * one warning. Programs with raised privileges (setuid) get the defaults.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/log.h"

enum { MS_PATH_BYTES = 512 };

struct ms_log_setting {
    enum ms_log_level level;
    char path[MS_PATH_BYTES]; /* empty: stderr */
};

/* Ranges of sizes in bytes, both ends included. */
enum { MS_MAX_SIZES = 16 };
struct ms_size_list {
    int count;
    struct {
        uint64_t first, last;
    } ranges[MS_MAX_SIZES];
};

enum ms_mode { MS_OFF, MS_ON, MS_VERIFY };
enum ms_plan_mode { MS_ADVISE, MS_ENFORCE };
enum ms_self_check { MS_SELF_CHECK_OFF, MS_SELF_CHECK_ON, MS_SELF_CHECK_FRESH };

typedef bool ms_type_SWITCH;
typedef enum ms_mode ms_type_MODE;
typedef enum ms_plan_mode ms_type_PLAN_MODE;
typedef enum ms_self_check ms_type_SELF_CHECK;
typedef uint64_t ms_type_BYTES;
typedef uint64_t ms_type_NUMBER;
typedef uint64_t ms_type_PERCENT;
typedef struct ms_size_list ms_type_SIZES;
typedef struct ms_log_setting ms_type_LOG;
typedef char ms_type_PATH[MS_PATH_BYTES];

struct ms_config {
#define MS_OPTION(type, field, variable, default_, unit, description) ms_type_##type field;
#include "runtime/config/options.def"
#undef MS_OPTION
    char runtime_dir[MS_PATH_BYTES]; /* $XDG_RUNTIME_DIR, or "" */
    char cache_dir[MS_PATH_BYTES];   /* $XDG_CACHE_HOME, or $HOME/.cache, or "" */
};

/* The settings of this process, constant after ms_lifetime_begin (lifetime.h). */
extern struct ms_config ms_config;

/* Fills *config from `environment` (as environ(7)), opens the log, and logs invalid variables. */
void ms_config_read(struct ms_config *config, char **environment);

/* Fills *config, but neither opens the log nor logs; for tools. */
void ms_config_read_quietly(struct ms_config *config, char **environment);

/* Reads a size at *text, such as 65536, 80G, 80GB or 80GiB, and moves *text behind it. Units are
 * powers of 1024, with or without B or iB. Returns false, and leaves *text, if there is no number,
 * or a number that is too large. */
bool ms_config_read_bytes(const char **text, uint64_t *bytes_out);

/* Returns the value of a variable of `environment` (as environ(7)), or NULL. */
const char *ms_environment_find(char **environment, const char *name);

/* Calls visit with the name and the value, as text, of each variable. */
typedef void ms_config_visitor(void *context, const char *variable, const char *value);
void ms_config_visit(const struct ms_config *config, ms_config_visitor *visit, void *context);

bool ms_config_holds_size(const struct ms_size_list *sizes, uint64_t bytes);

/* True if METASHARD in the environment is a valid "off". Logs nothing; for the constructor. */
bool ms_config_is_off(void);
