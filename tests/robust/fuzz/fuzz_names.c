/* SPDX-License-Identifier: Apache-2.0 */
/* Any text as names of kernels, and any bytes as the arguments of a process: what is shown of them
 * depends on nothing else, and a smaller buffer gets the beginning of it. */

#include "runtime/state/kernel_name.h"
#include "runtime/state/secrets.h"
#include "tests/robust/fuzz/fuzz.h"

enum { SHOWN_BYTES = 16 << 10, TELLING_BYTES = 1000 };

typedef void shower(const char *text, size_t size, char *out, size_t bytes);

static void show_kernels(const char *text, __attribute__((unused)) size_t size, char *out,
                         size_t bytes)
{
    ms_kernel_name_shorten(text, out, bytes);
}

/* A name that fills the place of another one with names. */
static void leave_names(const char *name)
{
    static char text[TELLING_BYTES + 8] = "_Z";
    char out[64];
    for (size_t at = 2; at < TELLING_BYTES; at += strlen(name))
        strcpy(text + at, name);
    ms_kernel_name_shorten(text, out, sizeof(out));
}

/* In a buffer of their own size, for sanitizers. */
static char *shown(shower *show, const char *text, size_t size, size_t bytes)
{
    char *out = malloc(bytes);
    require(out != NULL);
    memset(out, 0x5a, bytes);
    show(text, size, out, bytes);
    require(memchr(out, '\0', bytes) != NULL);
    return out;
}

static void check(shower *show, const char *text, size_t size)
{
    leave_names("3abc");
    char *all = shown(show, text, size, SHOWN_BYTES);
    leave_names("1d1");
    char *again = shown(show, text, size, SHOWN_BYTES);
    require(strcmp(all, again) == 0);
    const size_t bytes = 1 + (size * 7 + 3) % 160;
    char *some = shown(show, text, size, bytes);
    require(strncmp(all, some, bytes - 1) == 0);
    free(all);
    free(again);
    free(some);
}

static const char secret[] = "S-e-c-r-e-t";

/* Whatever other arguments there are, a secret behind an option of its own stays hidden. */
static void check_secret(const char *text, size_t size)
{
    static const char option[] = "x\0--hf-token";
    char *all = malloc(size + sizeof(option) + sizeof(secret) + 1);
    require(all != NULL);
    if (size > 0)
        memcpy(all, text, size);
    all[size] = '\0';
    memcpy(all + size + 1, option, sizeof(option));
    memcpy(all + size + 1 + sizeof(option), secret, sizeof(secret));
    char *out =
        shown(ms_secrets_mask, all, size + 1 + sizeof(option) + sizeof(secret), SHOWN_BYTES);
    require(strstr(out, secret) == NULL || memmem(text, size, secret, strlen(secret)) != NULL);
    free(out);
    free(all);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    require(text != NULL);
    if (size > 0)
        memcpy(text, data, size);
    text[size] = '\0';
    check(show_kernels, text, size);
    check(ms_secrets_mask, text, size);
    check_secret(text, size);
    free(text);
    return 0;
}
