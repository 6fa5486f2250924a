/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/dump/line.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "runtime/config/config.h"

#define ELLIPSIS "\u2026"
enum { MOST_BYTES = 8192 };

static bool has_color;
static size_t width; /* in characters; 0: no limit */

static const char *const codes[] = {
    [PLAIN] = "",          [BOLD] = "\033[1m",   [DIM] = "\033[2m",  [RED] = "\033[31m",
    [YELLOW] = "\033[33m", [GREEN] = "\033[32m", [CYAN] = "\033[36m"};

enum color life_color(const struct ms_snapshot *snapshot, enum color otherwise)
{
    const char *life = life_name(snapshot);
    return strcmp(life, "killed") == 0 ? RED : strcmp(life, "running") == 0 ? GREEN : otherwise;
}

static size_t terminal_width(void)
{
    struct winsize size;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0)
        return 0;
    return size.ws_col;
}

bool line_setup(const struct options *options)
{
    const bool is_terminal = isatty(STDOUT_FILENO) != 0;
    const char *refused = ms_environment_find(environ, "NO_COLOR"); /* https://no-color.org */
    const bool is_colorful = is_terminal && (refused == NULL || refused[0] == '\0');
    has_color = is_colorful;
    width = is_terminal ? terminal_width() : 0;
    if (options->color != NULL) {
        has_color = strcmp(options->color, "always") == 0 ||
                    (strcmp(options->color, "auto") == 0 && is_colorful);
        if (!has_color && strcmp(options->color, "auto") != 0 &&
            strcmp(options->color, "never") != 0) {
            fprintf(stderr, "metashard-dump: --color: expected auto, always or never, found %s\n",
                    options->color);
            return false;
        }
    }
    if (options->width != NULL) {
        char *end;
        const unsigned long number = strtoul(options->width, &end, 10);
        if (options->width[0] < '0' || options->width[0] > '9' || *end != '\0' || number > 10000) {
            fprintf(stderr, "metashard-dump: --width: expected a number of characters, found %s\n",
                    options->width);
            return false;
        }
        width = number;
    }
    return true;
}

static bool is_inside(char byte)
{
    return ((unsigned char)byte & 0xc0) == 0x80;
}

/* The length in bytes of the first characters of the text. */
static size_t bytes_of(const char *text, size_t characters)
{
    size_t at = 0;
    for (; text[at] != '\0' && characters > 0; characters--) {
        at++;
        while (is_inside(text[at]))
            at++;
    }
    return at;
}

size_t text_length(const char *text)
{
    size_t count = 0;
    for (; *text != '\0'; text++)
        count += !is_inside(*text);
    return count;
}

static char *long_buffer(void)
{
    static char buffers[4][MOST_BYTES];
    static unsigned turn;
    return buffers[turn++ % 4];
}

const char *text_begin(const char *text, size_t room)
{
    if (text_length(text) <= room)
        return text;
    char *out = long_buffer();
    snprintf(out, MOST_BYTES, "%.*s%s", (int)bytes_of(text, room > 0 ? room - 1 : 0), text,
             room > 0 ? ELLIPSIS : "");
    return out;
}

const char *text_end(const char *text, size_t room)
{
    const size_t length = text_length(text);
    if (length <= room)
        return text;
    char *out = long_buffer();
    snprintf(out, MOST_BYTES, "%s%s", room > 0 ? ELLIPSIS : "",
             text + bytes_of(text, length - (room > 0 ? room - 1 : 0)));
    return out;
}

size_t line_room(size_t used)
{
    return width == 0 ? SIZE_MAX : width > used ? width - used : 0;
}

bool line_is_narrow(size_t characters)
{
    return width > 0 && width < characters;
}

static void put(enum color color, const char *text)
{
    if (has_color && color != PLAIN)
        printf("%s%s\033[0m\n", codes[color], text);
    else
        printf("%s\n", text);
}

void line(enum color color, const char *format, ...)
{
    char text[MOST_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    size_t bytes = strlen(text);
    while (bytes > 0 && text[bytes - 1] == ' ')
        bytes--;
    text[bytes] = '\0';
    put(color, text_begin(text, line_room(0)));
}

/* Breaks the text between words. `first`: how far the first line is indented. */
static void wrap(enum color color, size_t first, size_t indent, size_t whole, const char *text)
{
    char out[MOST_BYTES];
    for (size_t before = first; *text != '\0'; before = indent) {
        size_t bytes = bytes_of(text, whole - before);
        size_t space = bytes;
        while (text[bytes] != '\0' && space > 0 && text[space] != ' ')
            space--;
        if (space > 0) /* otherwise it is one long word, which is cut */
            bytes = space;
        snprintf(out, sizeof(out), "%*s%.*s", (int)before, "", (int)bytes, text);
        put(color, out);
        text += bytes;
        while (*text == ' ')
            text++;
    }
}

void paragraph(enum color color, unsigned indent, const char *text)
{
    const size_t whole = width > 8 ? width : 100;
    indent = whole > indent + 20 ? indent : 4;
    wrap(color, indent, indent, whole, text);
}

void hanging(enum color color, unsigned indent, const char *text)
{
    if (width > indent + 20)
        wrap(color, 0, indent, width, text);
    else
        line(color, "%s", text);
}

static char *buffer(void)
{
    static char buffers[16][32];
    static unsigned turn;
    return buffers[turn++ % 16];
}

const char *bytes_text(uint64_t bytes)
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    char *text = buffer();
    if (bytes < 1024) {
        snprintf(text, 32, "%" PRIu64 " B", bytes);
        return text;
    }
    double value = (double)bytes / 1024;
    size_t unit = 0;
    for (; value >= 1024 && unit < sizeof(units) / sizeof(units[0]) - 1; unit++)
        value /= 1024;
    snprintf(text, 32, "%.1f %s", value, units[unit]);
    return text;
}

const char *time_text(uint64_t ns)
{
    char *text = buffer();
    if (ns >= 1000000000)
        snprintf(text, 32, "%.3f s", (double)ns / 1e9);
    else if (ns >= 1000000)
        snprintf(text, 32, "%.1f ms", (double)ns / 1e6);
    else
        snprintf(text, 32, "%.1f us", (double)ns / 1e3);
    return text;
}

const char *total_text(const struct totals *totals, enum total which)
{
    return (which == TOTAL_TIME ? time_text : bytes_text)(totals->of[which]);
}
