/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metashard-dump show --html: one page that needs no other file, and no network. It has the data of
 * --json under the id "data", and its script (draw.js, page.js) draws all of it. The page makes the
 * browser refuse every other script.
 */
#include <stdlib.h>

#include "tools/dump/dump.h"

/* Rows of each list, so few that a page of 64 ranks has under 5 MB. Processes share the rows. */
enum { ROWS = 3000, LEAST_ROWS = 20, ROWS_OF_ALL = 1000 };

/* The page before its data, and behind it. Made by embed_page.py. */
extern const char dump_page_begin[], dump_page_end[];

/* No data can end the element: "<" occurs only in texts, where it is written as an escape. */
static void put_data(FILE *file, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] == '<')
            fputs("\\u003c", file);
        else
            putc(text[i], file);
    }
}

static bool write_page(FILE *file, const struct view *view)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *memory = open_memstream(&text, &bytes);
    if (memory == NULL)
        return false;
    const size_t rows = ROWS / view->count;
    write_json(memory, view, rows > LEAST_ROWS ? rows : LEAST_ROWS, ROWS_OF_ALL);
    if (fclose(memory) != 0) {
        free(text);
        return false;
    }
    fputs(dump_page_begin, file);
    put_data(file, text, bytes);
    fputs(dump_page_end, file);
    free(text);
    return true;
}

bool write_html(const char *path, const struct view *view)
{
    return write_output(path, view, write_page);
}
