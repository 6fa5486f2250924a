/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/probe.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { DEPTH_MAX = 16, LINE_MAX_BYTES = 8192 };

/* Shared with the children, which go on where their parent is, and it where they ended. */
static struct {
    int descriptor, depth;
    char closer[DEPTH_MAX]; /* '}' or ']' of each open level */
    bool empty[DEPTH_MAX];
} * out;

struct step {
    jmp_buf resume;
    int depth;
    struct step *outer;
};
static struct step *step_now;

/* The text to write at once, so that a process that is ended leaves whole values. */
static char line[LINE_MAX_BYTES];
static size_t line_bytes;

static void add(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void add(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    line_bytes +=
        (size_t)vsnprintf(line + line_bytes, sizeof(line) - line_bytes, format, arguments);
    va_end(arguments);
    if (line_bytes >= sizeof(line))
        abort();
}

static void write_line(void)
{
    if (write(out->descriptor, line, line_bytes) != (ssize_t)line_bytes)
        abort();
    line_bytes = 0;
}

static void add_text(const char *text)
{
    add("\"");
    for (; *text != '\0'; text++) {
        const unsigned char byte = (unsigned char)*text;
        if (byte == '"' || byte == '\\')
            add("\\%c", byte);
        else if (byte < 0x20 || byte >= 0x7f)
            add("\\u%04x", byte);
        else
            add("%c", byte);
    }
    add("\"");
}

static void add_key(const char *key)
{
    const int level = out->depth - 1;
    add("%s\n%*s", out->empty[level] ? "" : ",", 2 * out->depth, "");
    out->empty[level] = false;
    if (key != NULL && out->closer[level] == '}') {
        add_text(key);
        add(": ");
    }
}

static void open_level(char opener, char closer)
{
    if (out->depth == DEPTH_MAX)
        abort();
    add("%c", opener);
    write_line();
    out->closer[out->depth] = closer;
    out->empty[out->depth] = true;
    out->depth++;
}

void js_begin(int descriptor)
{
    out = mmap(NULL, sizeof(*out), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (out == MAP_FAILED)
        abort();
    out->descriptor = descriptor;
    open_level('{', '}');
}

int js_depth(void)
{
    return out->depth;
}

void js_close_to(int depth)
{
    while (out->depth > depth)
        js_close();
}

void js_end(void)
{
    js_close_to(0);
    add("\n");
    write_line();
    close(out->descriptor);
}

void js_open(const char *key)
{
    add_key(key);
    open_level('{', '}');
}

void js_open_list(const char *key)
{
    add_key(key);
    open_level('[', ']');
}

void js_close(void)
{
    out->depth--;
    if (!out->empty[out->depth])
        add("\n%*s", 2 * out->depth, "");
    add("%c", out->closer[out->depth]);
    write_line();
}

/* A value that needs no quotes. */
#define WRITE(key, ...) (add_key(key), add(__VA_ARGS__), write_line())

void js_int(const char *key, long long value)
{
    WRITE(key, "%lld", value);
}

void js_number(const char *key, double value)
{
    WRITE(key, isfinite(value) ? "%.3f" : "null", value);
}

void js_us(const char *key, int64_t ns)
{
    js_number(key, (double)ns / 1e3);
}

void js_bool(const char *key, bool value)
{
    WRITE(key, "%s", value ? "true" : "false");
}

void js_string(const char *key, const char *value)
{
    add_key(key);
    add_text(value);
    write_line();
}

void js_format(const char *key, const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    js_string(key, text);
}

void js_address(const char *key, uint64_t value)
{
    js_format(key, "0x%llx", (unsigned long long)value);
}

static const char *result_name(CUresult result)
{
    const char *name = NULL;
    if (CU(cuGetErrorName, result, &name) == CUDA_SUCCESS && name != NULL)
        return name;
    return "unnamed result";
}

void js_result(const char *key, CUresult result)
{
    js_string(key, result_name(result));
}

static void make_step(const struct probe_row *row)
{
    js_open(row->key);
    struct step step = {.depth = out->depth, .outer = step_now};
    step_now = &step;
    if (setjmp(step.resume) == 0)
        row->body(row->argument);
    step_now = step.outer;
    js_close_to(step.depth - 1);
}

static void make_alone(size_t row_)
{
    const struct probe_row *const row = (const struct probe_row *)row_;
    probe_driver_start();
    row->body(row->argument);
}

void probe_section(size_t rows)
{
    for (const struct probe_row *row = (const struct probe_row *)rows; row->body != NULL; row++) {
        if (row->when == NOT_QUICK && probe_quick)
            continue;
        if (row->when == LOADED)
            probe_driver_load_or_fail();
        else if (row->when != ALONE)
            probe_driver_start();
        if (row->when == ALONE)
            probe_child(row->key, ALONE_SECONDS, make_alone, (size_t)row);
        else if (row->key == NULL)
            row->body(row->argument);
        else
            make_step(row);
    }
}

void probe_fail(const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    while (out->closer[out->depth - 1] == ']')
        js_close();
    js_string("error", text);
    if (step_now != NULL)
        longjmp(step_now->resume, 1);
    _exit(PROBE_SAID);
}

void probe_require(const char *what, CUresult result)
{
    if (result != CUDA_SUCCESS)
        probe_fail("%s: %s (%d)", what, result_name(result), (int)result);
}
