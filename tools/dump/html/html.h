/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the page share. Texts of a page are not trusted: html_text escapes them. */
#pragma once

#include "tools/dump/merge.h"

/* A view of one process, or of all. */
struct html {
    FILE *file;
    struct view view;
    char id[24];      /* begins the ids of its elements */
    size_t most_rows; /* of a table, for fast browsing. The data in the page has all */
    char heading[4];  /* "h2" */
};

/* The text escaped: for an element, or an attribute between double quotes. The results of this and
 * of those below are a few buffers in turn. */
const char *html_text(const char *text);

/* <data>, with the number for programs. `figure`: its name in the JSON, or NULL. */
const char *html_bytes(const char *figure, uint64_t bytes);
const char *html_time(const char *figure, uint64_t ns);
const char *html_number(const char *figure, uint64_t number);

void html_heading(const struct html *html, const char *text);

/* Before what is wider than a narrow screen, which alone shows it. */
void html_hint(FILE *file);

/* A bar of `bytes`, before a lighter one of `behind`, on a track of `most`. */
void html_bar(FILE *file, uint64_t bytes, uint64_t behind, uint64_t most);

/* The peak without MetaShard, with it, and the device's memory, as bars. */
void html_peaks(const struct html *html, const struct totals *totals);

/* The sections. */
void html_chart(const struct html *html);
void html_causes(const struct html *html);
void html_tensors(const struct html *html);

/* Those of one process. */
void html_map(const struct html *html);
void html_blocks(const struct html *html);
void html_events(const struct html *html);
