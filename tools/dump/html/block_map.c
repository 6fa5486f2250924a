/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page's map of the address space: blocks by address, wrapped into rows. A block is as wide as
 * its bytes, but always wide enough to be visible; gaps between blocks are left out. The height of
 * each colour in a block is its share of the bytes: the page has only the sums.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "runtime/state/explain.h"
#include "tools/dump/html/html.h"
#include "tools/dump/line.h"

enum { ROW_WIDTH = 1000, ROW_HEIGHT = 24, MOST_ROWS = 10, GAP = 2, LEAST_WIDTH = 3 };

/* From bottom to top. */
enum share { RESIDENT, CACHED, DEFERRED, REMOTE, DEAD, SHARES };
static const struct state {
    const char *name, *meaning;
} states[SHARES] = {
    [RESIDENT] = {"resident", "in device memory"},
    [CACHED] = {"cached", "in device memory, and can be evicted"},
    [DEFERRED] = {"deferred", "not in device memory"},
    [REMOTE] = {"remote", "not in device memory: other ranks keep it"},
    [DEAD] = {"dead", "never written, or not read again"},
};

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void shares_of(const struct ms_state_block *block, uint64_t shares[SHARES])
{
    uint64_t left = block->bytes;
    shares[RESIDENT] = least(block->kind_bytes[MS_BYTES_RESIDENT], left);
    left -= shares[RESIDENT];
    shares[CACHED] = least(block->cached_bytes, left);
    left -= shares[CACHED];
    const uint64_t deferred = least(block->deferred_bytes, left);
    shares[REMOTE] = least(block->remote_bytes, deferred);
    shares[DEFERRED] = deferred - shares[REMOTE];
    shares[DEAD] = left - deferred;
}

/* A block of the map, by its number in the snapshot. */
struct spot {
    const struct ms_state_block *block;
    size_t number;
};

/* Orders by device, then by address. */
static int by_address(const void *a, const void *b)
{
    const struct ms_state_block *left = ((const struct spot *)a)->block;
    const struct ms_state_block *right = ((const struct spot *)b)->block;
    if (left->device != right->device)
        return left->device < right->device ? -1 : 1;
    if (left->address != right->address)
        return left->address < right->address ? -1 : 1;
    return left->id < right->id ? -1 : left->id > right->id;
}

/* A carved allocation is shown by its parts, or by itself if it has none in the snapshot. */
static bool is_shown(const struct ms_snapshot *snapshot, size_t i)
{
    const struct ms_state_block *block = &snapshot->blocks[i];
    const bool has_parts = (block->flags & MS_BLOCK_CARVED) != 0 && i + 1 < snapshot->block_count &&
                           snapshot->blocks[i + 1].id == block->id;
    return !has_parts && block->bytes > 0;
}

static struct spot *spots_of(const struct ms_snapshot *snapshot, size_t *count_out)
{
    struct spot *spots = calloc(snapshot->block_count + 1, sizeof(*spots));
    size_t count = 0;
    for (size_t i = 0; i < snapshot->block_count && spots != NULL; i++) {
        if (is_shown(snapshot, i))
            spots[count++] = (struct spot){&snapshot->blocks[i], i};
    }
    if (count > 1)
        qsort(spots, count, sizeof(*spots), by_address);
    *count_out = count;
    return spots;
}

static void describe(FILE *file, const struct ms_state_block *block)
{
    fprintf(file, "<title>%s%sblock %" PRIu64 "%s at 0x%" PRIx64 ", %s: %s", html_text(block->name),
            block->name[0] != '\0' ? "\n" : "", block->id,
            (block->flags & MS_BLOCK_PART) != 0 ? " (part)" : "", block->address,
            bytes_text(block->bytes), block_state(block));
    for (int i = 0; i < MS_BYTES_KIND_COUNT; i++) {
        if (block->kind_bytes[i] > 0)
            fprintf(file, "\n%s %s", ms_state_kind_names[i], bytes_text(block->kind_bytes[i]));
    }
    if (block->remote_bytes > 0)
        fprintf(file, "\nkept by other ranks %s", bytes_text(block->remote_bytes));
    fputs("</title>", file);
}

/* A row in the making. */
struct map_row {
    FILE *file;
    double at;
    bool is_open;
};

static void row_begin(struct map_row *row, uint64_t address)
{
    fprintf(row->file,
            "<div class=\"row\"><code>0x%" PRIx64
            "</code><svg viewBox=\"0 0 %d %d\" preserveAspectRatio=\"none\">\n",
            address, ROW_WIDTH, ROW_HEIGHT);
    row->is_open = true;
    row->at = 0;
}

static void row_end(struct map_row *row)
{
    if (row->is_open)
        fputs("</svg></div>\n", row->file);
    row->is_open = false;
}

/* Draws the piece of the block that fits in this row. */
static void draw_piece(const struct html *html, const struct map_row *row, const struct spot *spot,
                       double width)
{
    uint64_t shares[SHARES];
    double bottom = ROW_HEIGHT;
    shares_of(spot->block, shares);
    fprintf(html->file, "<g data-block=\"%s-b%zu\" data-state=\"%s\" data-name=\"%s\">", html->id,
            spot->number, block_state(spot->block), html_text(spot->block->name));
    describe(html->file, spot->block);
    for (int i = 0; i < SHARES; i++) {
        const double height = (double)shares[i] * ROW_HEIGHT / (double)spot->block->bytes;
        if (shares[i] == 0)
            continue;
        bottom -= height;
        fprintf(html->file,
                "<rect class=\"%s\" x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\"/>",
                states[i].name, row->at, bottom, width, height);
    }
    fputs("</g>\n", html->file);
}

static void draw_spot(const struct html *html, struct map_row *row, const struct spot *spot,
                      double width)
{
    const double whole = width;
    while (width > 0) {
        const double done = (double)spot->block->bytes * (1 - width / whole);
        if (!row->is_open)
            row_begin(row, (spot->block->address + (uint64_t)done) & ~(uint64_t)0xfff);
        const double piece = width < ROW_WIDTH - row->at ? width : ROW_WIDTH - row->at;
        draw_piece(html, row, spot, piece);
        row->at += piece + GAP;
        width -= piece;
        if (row->at > ROW_WIDTH - LEAST_WIDTH)
            row_end(row);
    }
}

/* Draws the blocks of one device. */
static void draw_device(const struct html *html, const struct spot *spots, size_t count)
{
    uint64_t bytes = 0;
    double sum = 0; /* because in a damaged page, `bytes` may have overflowed */
    for (size_t i = 0; i < count; i++) {
        bytes += spots[i].block->bytes;
        sum += (double)spots[i].block->bytes;
    }
    const size_t wanted = 1 + count / 12; /* few blocks need few rows */
    const size_t rows = wanted < MOST_ROWS ? wanted : MOST_ROWS;
    double room = (double)(rows * ROW_WIDTH) - (double)(count * GAP);
    room = room > ROW_WIDTH / 4.0 ? room : ROW_WIDTH / 4.0;
    const uint32_t device = spots->block->device;
    const bool is_known = device < html->view.processes->device_count;
    fprintf(html->file,
            "<p class=\"caption\">device %" PRIu32
            " (%s): %zu blocks, %s</p>\n<div class=\"map\" role=\"img\" aria-label=\"%zu blocks by "
            "address; the table of blocks "
            "has the same data\">\n",
            device, is_known ? html_text(html->view.processes->devices[device].name) : "", count,
            bytes_text(bytes), count);
    struct map_row row = {html->file, 0, false};
    for (size_t i = 0; i < count; i++) {
        const double width = (double)spots[i].block->bytes * room / sum;
        draw_spot(html, &row, &spots[i], width > LEAST_WIDTH ? width : LEAST_WIDTH);
    }
    row_end(&row);
    fputs("</div>\n", html->file);
}

static void draw_legend(FILE *file)
{
    fputs("<ul class=\"legend\">", file);
    for (int i = 0; i < SHARES; i++)
        fprintf(file,
                "<li><svg class=\"key\" viewBox=\"0 0 24 8\" aria-hidden=\"true\"><rect "
                "class=\"%s\" width=\"24\" height=\"8\"/></svg><b>%s</b> %s</li>",
                states[i].name, states[i].name, states[i].meaning);
    fputs("</ul>\n", file);
}

void html_map(const struct html *html)
{
    html_heading(html, "Address space");
    fputs(
        "<p class=\"dim\">Blocks by address, each as wide as its bytes; gaps between them are left "
        "out. The height of a colour is its share of the block's bytes.</p>\n",
        html->file);
    draw_legend(html->file);
    html_hint(html->file);
    size_t count;
    struct spot *spots = spots_of(html->view.processes, &count);
    if (count == 0)
        fputs("<p>There are no blocks.</p>\n", html->file);
    for (size_t first = 0, end; first < count; first = end) {
        for (end = first; end < count && spots[end].block->device == spots[first].block->device;)
            end++;
        draw_device(html, &spots[first], end - first);
    }
    free(spots);
}
