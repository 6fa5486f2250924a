/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as the file of checks of PyTorch: what a second reader, below, finds in it is believed,
 * and nothing else. */
#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/log.h"
#include "runtime/config/config.h"
#include "runtime/kernel/rules.h"
#include "shim/torch_checks.h"
#include "tests/robust/fuzz/fuzz.h"

enum { READ_BYTES = 64 << 10, IDS = 3, RULES_DIGITS = 16 };
static const char format[] = "metashard-torch-checks/1";
/* "SUM" of an input is that of the rules of this build. */
static const char sum_word[] = "SUM";
static const char *const ids[IDS] = {"00112233445566778899aabbccddeeff00112233", "abc", "a"};

static const char *sum_of_rules(void)
{
    static char digits[RULES_DIGITS + 1];
    uint64_t sum = 0xcbf29ce484222325;
    for (const char *at = ms_builtin_rules; *at != '\0'; at++)
        sum = (sum ^ (unsigned char)*at) * 0x100000001b3;
    snprintf(digits, sizeof(digits), "%016" PRIx64, sum);
    return digits;
}

static char *expand(const uint8_t *data, size_t size, size_t *bytes_out)
{
    const size_t word = sizeof(sum_word) - 1;
    char *text = malloc(size * RULES_DIGITS + 1);
    require(text != NULL);
    *bytes_out = 0;
    for (size_t at = 0; at < size;) {
        const bool is_sum =
            data[at] == 'S' && size - at >= word && memcmp(data + at, sum_word, word) == 0;
        const size_t length = is_sum ? RULES_DIGITS : 1;
        memcpy(text + *bytes_out, is_sum ? sum_of_rules() : (const char *)data + at, length);
        *bytes_out += length;
        at += is_sum ? word : 1;
    }
    text[*bytes_out] = '\0';
    return text;
}

/* A line behind the first: the id, a space, the sum, a space and the version. */
static bool is_check(const char *line, size_t length, const char *id)
{
    const size_t digits = strlen(id), least = digits + 1 + RULES_DIGITS + 1;
    return length >= least && memcmp(line, id, digits) == 0 && line[digits] == ' ' &&
           memcmp(line + digits + 1, sum_of_rules(), RULES_DIGITS) == 0 && line[least - 1] == ' ';
}

static bool has_check(const char *text, size_t bytes, const char *id)
{
    bool is_first = true;
    bytes = strnlen(text, bytes < READ_BYTES ? bytes : READ_BYTES);
    for (size_t at = 0; at < bytes;) {
        const char *end = memchr(text + at, '\n', bytes - at);
        const size_t length = end != NULL ? (size_t)(end - text) - at : bytes - at;
        if (is_first &&
            (end == NULL || length != sizeof(format) - 1 || memcmp(text, format, length) != 0))
            return false;
        if (!is_first && is_check(text + at, length, id))
            return true;
        is_first = false;
        at += length + 1;
    }
    return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool is_open;
    size_t bytes;
    if (!is_open)
        ms_log_open(MS_ERROR, "/dev/null");
    is_open = true;
    char *text = expand(data, size, &bytes);
    const int file = memfd_create("checks", MFD_CLOEXEC);
    require(file >= 0 && fchmod(file, 0600) == 0 && write(file, text, bytes) == (ssize_t)bytes);
    snprintf(ms_config.torch_checks, sizeof(ms_config.torch_checks), "/proc/self/fd/%d", file);
    for (size_t i = 0; i < IDS; i++)
        require(ms_torch_checks_have(ids[i]) == has_check(text, bytes, ids[i]));
    require(!ms_torch_checks_have(""));
    require(fchmod(file, 0622) == 0 && !ms_torch_checks_have(ids[0]));
    close(file);
    free(text);
    return 0;
}
