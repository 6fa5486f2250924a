/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/probe.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { DEPTH_MAX = 16 };

static struct {
    FILE *file;
    int depth;
    char closer[DEPTH_MAX]; /* '}' or ']' of each open level */
    bool empty[DEPTH_MAX];
} out;

struct step {
    jmp_buf resume;
    int depth;
    struct step *outer;
};
static struct step *step_now;

static void write_text(const char *text)
{
    fputc('"', out.file);
    for (; *text != '\0'; text++) {
        const unsigned char byte = (unsigned char)*text;
        if (byte == '"' || byte == '\\')
            fprintf(out.file, "\\%c", byte);
        else if (byte < 0x20 || byte >= 0x7f)
            fprintf(out.file, "\\u%04x", byte);
        else
            fputc(byte, out.file);
    }
    fputc('"', out.file);
}

static void write_key(const char *key)
{
    const int level = out.depth - 1;
    if (!out.empty[level])
        fputc(',', out.file);
    out.empty[level] = false;
    fprintf(out.file, "\n%*s", 2 * out.depth, "");
    if (key != NULL && out.closer[level] == '}') {
        write_text(key);
        fputs(": ", out.file);
    }
}

static void open_level(char opener, char closer)
{
    if (out.depth == DEPTH_MAX)
        abort();
    fputc(opener, out.file);
    out.closer[out.depth] = closer;
    out.empty[out.depth] = true;
    out.depth++;
}

void js_begin(int descriptor)
{
    out.file = fdopen(descriptor, "w");
    out.depth = 0;
    step_now = NULL;
    /* Flushed only between values: who reads the pipe of a killed child finds whole values. */
    if (out.file == NULL || setvbuf(out.file, NULL, _IOFBF, 4 * MIB) != 0)
        abort();
    open_level('{', '}');
}

void js_end(void)
{
    while (out.depth > 0)
        js_close();
    fputc('\n', out.file);
    fclose(out.file);
    out.file = NULL;
}

void js_flush(void)
{
    fflush(out.file);
}

void js_open(const char *key)
{
    write_key(key);
    open_level('{', '}');
}

void js_open_list(const char *key)
{
    write_key(key);
    open_level('[', ']');
}

void js_close(void)
{
    out.depth--;
    if (!out.empty[out.depth])
        fprintf(out.file, "\n%*s", 2 * out.depth, "");
    fputc(out.closer[out.depth], out.file);
    fflush(out.file);
}

void js_int(const char *key, long long value)
{
    write_key(key);
    fprintf(out.file, "%lld", value);
}

void js_number(const char *key, double value)
{
    write_key(key);
    if (isfinite(value))
        fprintf(out.file, "%.3f", value);
    else
        fputs("null", out.file);
}

void js_us(const char *key, int64_t ns)
{
    js_number(key, (double)ns / 1e3);
}

void js_bool(const char *key, bool value)
{
    write_key(key);
    fputs(value ? "true" : "false", out.file);
}

void js_string(const char *key, const char *value)
{
    write_key(key);
    write_text(value);
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

void js_raw(const char *key, const char *json)
{
    write_key(key);
    for (; *json != '\0'; json++) {
        fputc(*json, out.file);
        if (*json == '\n')
            fprintf(out.file, "%*s", 2 * out.depth, "");
    }
}

static void make_step(const struct probe_row *row)
{
    js_open(row->key);
    struct step step = {.depth = out.depth, .outer = step_now};
    step_now = &step;
    if (setjmp(step.resume) == 0)
        row->body(row->argument);
    step_now = step.outer;
    while (out.depth >= step.depth)
        js_close();
}

void probe_steps(const struct probe_row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++)
        make_step(&rows[i]);
}

void probe_fail(const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    while (out.closer[out.depth - 1] == ']')
        js_close();
    js_string("error", text);
    if (step_now != NULL)
        longjmp(step_now->resume, 1);
    js_end();
    _exit(0);
}

void probe_require(const char *what, CUresult result)
{
    if (result != CUDA_SUCCESS)
        probe_fail("%s: %s (%d)", what, result_name(result), (int)result);
}
