/* SPDX-License-Identifier: Apache-2.0 */
/* The building blocks of the page's sections. */
#include <inttypes.h>

#include "tools/dump/html/html.h"
#include "tools/dump/line.h"

void html_text(FILE *file, const char *text)
{
    static const struct {
        char letter;
        const char *escaped;
    } all[] = {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}, {'\'', "&#39;"}};
    for (; *text != '\0'; text++) {
        const char *escaped = NULL;
        for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
            escaped = all[i].letter == *text ? all[i].escaped : escaped;
        if (escaped != NULL)
            fputs(escaped, file);
        else
            putc(*text, file);
    }
}

static void datum(FILE *file, const char *figure, uint64_t value, const char *text)
{
    fputs("<data", file);
    if (figure != NULL)
        fprintf(file, " data-figure=\"%s\"", figure);
    fprintf(file, " value=\"%" PRIu64 "\">%s</data>", value, text);
}

void html_bytes(FILE *file, const char *figure, uint64_t bytes)
{
    datum(file, figure, bytes, bytes == 0 ? "0" : bytes_text(bytes));
}

void html_time(FILE *file, const char *figure, uint64_t ns)
{
    datum(file, figure, ns, ns == 0 ? "0" : time_text(ns));
}

void html_number(FILE *file, const char *figure, uint64_t number)
{
    char text[32];
    snprintf(text, sizeof(text), "%" PRIu64, number);
    datum(file, figure, number, text);
}

void html_heading(const struct html *html, const char *text)
{
    fprintf(html->file, "<%s>%s</%s>\n", html->heading, text, html->heading);
}
