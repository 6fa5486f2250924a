/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/drawn_plans.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* --- text */

struct writer {
    char *text;
    size_t used;
    size_t (*below)(size_t limit);
    unsigned dims, sizes[2], world;
    bool keeps_all;
};

__attribute__((format(printf, 2, 3))) static void put(struct writer *writer, const char *format,
                                                      ...)
{
    va_list arguments;
    va_start(arguments, format);
    const int length =
        vsnprintf(writer->text + writer->used, DRAWN_PLAN_BYTES - writer->used, format, arguments);
    va_end(arguments);
    if (length < 0 || writer->used + (size_t)length >= DRAWN_PLAN_BYTES)
        abort();
    writer->used += (size_t)length;
}

size_t drawn_tensor_bytes(const struct drawn_tensor *tensor)
{
    return tensor->element * tensor->rows * tensor->columns;
}

/* --- placements */

/* The known properties of a tensor that an entry selects: several tensors may have its name. */
struct selected {
    const struct drawn_tensor *tensor; /* NULL: not which one */
    size_t bytes;                      /* 0: not how many */
    unsigned dims;
};

/* Bytes may be of several ranks, or of none. */
static void put_ranges(struct writer *writer, size_t bytes)
{
    if (writer->keeps_all) {
        put(writer, "\"ranges\": [[[0, %zu]]]", bytes);
        return;
    }
    put(writer, "\"ranges\": [");
    for (unsigned rank = 0; rank < writer->world; rank++) {
        size_t at = 0;
        const char *comma = "";
        put(writer, "%s[", rank > 0 ? ", " : "");
        for (size_t count = writer->below(4); count > 0 && at < bytes; count--) {
            const size_t begin = at + writer->below(bytes - at);
            const size_t end = begin + 1 + writer->below(bytes - begin);
            put(writer, "%s[%zu, %zu]", comma, begin, end);
            comma = ", ";
            at = end;
        }
        put(writer, "]");
    }
    put(writer, "]");
}

static void put_shard(struct writer *writer, const struct selected *selected, bool may_interleave)
{
    const unsigned dim = (unsigned)writer->below(selected->dims);
    const struct drawn_tensor *tensor = selected->tensor;
    const size_t length = tensor == NULL ? 0 : dim == 0 ? tensor->rows : tensor->columns;
    const bool is_fused = writer->below(3) == 0;
    put(writer, "{\"shard\": %u%s}", dim,
        may_interleave && is_fused && length > 0 && length % 4 == 0 ? ", \"interleave\": [2, 1, 1]"
                                                                    : "");
}

/* The first one that is written may be interleaved, and one of all may be flat. */
static void put_placement(struct writer *writer, const struct selected *selected, bool is_first)
{
    switch (writer->below(is_first ? 5 : 3)) {
    case 0:
        put(writer, "\"replicate\"");
        return;
    case 3:
        put(writer, "{\"flat\": \"zero3\"}");
        return;
    case 4:
        if (selected->tensor != NULL) {
            put(writer, "{\"flat\": \"fsdp1\", \"unit\": \"%s\"}", selected->tensor->name);
            return;
        }
        /* FALLTHROUGH */
    default:
        put_shard(writer, selected, is_first);
    }
}

static void put_placements(struct writer *writer, const struct selected *selected)
{
    static const char *const names[] = {"dp", "tp"};
    if (writer->dims == 1) {
        put(writer, "\"placements\": [");
        put_placement(writer, selected, true);
        put(writer, "]");
        return;
    }
    const unsigned first = (unsigned)writer->below(2);
    put(writer, "\"placements\": {\"%s\": ", names[first]);
    put_placement(writer, selected, true);
    put(writer, ", \"%s\": ", names[1 - first]);
    put_placement(writer, selected, false);
    put(writer, "}");
}

static void put_place(struct writer *writer, const struct selected *selected)
{
    const size_t way = writer->below(8);
    put(writer, ", ");
    if (way < 3 && selected->bytes > 0)
        put_ranges(writer, selected->bytes);
    else
        put_placements(writer, selected);
    put(writer, "}");
}

/* --- entries */

/* An exact name may stand there once. The large tensors are last, and drawn more often. */
static void put_named(struct writer *writer, const struct drawn_program *program, bool *is_used)
{
    const size_t count = program->tensor_count;
    const size_t i =
        writer->below(2) == 0 ? writer->below(count) : count - 1 - writer->below(DRAWN_LARGE);
    const struct drawn_tensor *tensor = &program->tensors[i];
    const bool is_exact = writer->below(3) > 0 && !is_used[i];
    struct selected selected = {.dims = 2};
    if (is_exact) {
        selected = (struct selected){tensor, drawn_tensor_bytes(tensor), 2};
        is_used[i] = true;
    }
    put(writer, "{\"name\": \"%c.%s\"", is_exact ? tensor->name[0] : "abcdelm"[writer->below(7)],
        is_exact ? "weight" : "*");
    if (is_exact && writer->below(4) == 0)
        put(writer, ", \"size\": %zu", selected.bytes);
    put_place(writer, &selected);
}

/* By size, by order, by both, or by a declaration, which is one dimension of bytes. */
static void put_unnamed(struct writer *writer, const struct drawn_program *program, size_t number)
{
    const size_t bytes = program->sizes[writer->below(program->size_count)];
    const size_t way = writer->below(4), order = writer->below(2 * program->size_count);
    const struct selected selected = {.bytes = way == 1 ? 0 : bytes, .dims = 1};
    if (way == 0)
        put(writer, "{\"name\": \"t%zu\", \"dtype\": \"U8\", \"shape\": [%zu]", number, bytes);
    else if (way == 1)
        put(writer, "{\"order\": %zu", order);
    else if (way == 2)
        put(writer, "{\"size\": %zu, \"order\": %zu", bytes, order);
    else
        put(writer, "{\"size\": %zu", bytes);
    put_place(writer, &selected);
}

static void put_entries(struct writer *writer, const struct drawn_program *program)
{
    bool is_used[DRAWN_TENSORS_MOST] = {false};
    const size_t count = 1 + writer->below(4);
    for (size_t i = 0; i < count; i++) {
        put(writer, "%s", i > 0 ? ", " : "");
        if (program->size_count > 0)
            put_unnamed(writer, program, i);
        else
            put_named(writer, program, is_used);
    }
    if (writer->below(3) > 0 && program->size_count == 0) {
        put(writer, ", {\"name\": \"*\"");
        put_place(writer, &(struct selected){.dims = 2});
    }
}

static void put_mesh(struct writer *writer)
{
    writer->dims = 1 + (writer->below(4) == 0);
    writer->world = 1;
    for (unsigned i = 0; i < writer->dims; i++) {
        writer->sizes[i] =
            writer->keeps_all ? 1 : 1 + (unsigned)writer->below(writer->dims == 1 ? 4 : 3);
        writer->world *= writer->sizes[i];
    }
    if (writer->dims == 1)
        put(writer, "\"world_size\": %u", writer->sizes[0]);
    else
        put(writer, "\"mesh\": {\"dp\": %u, \"tp\": %u}", writer->sizes[0], writer->sizes[1]);
    put(writer, ", \"rank\": %zu", writer->below(writer->world));
}

size_t drawn_plan(const struct drawn_program *program, size_t (*below)(size_t limit),
                  char text[DRAWN_PLAN_BYTES])
{
    struct writer writer = {.text = text, .below = below, .keeps_all = program->keeps_all};
    put(&writer, "{\"format\": \"metashard-plan/1\", ");
    put_mesh(&writer);
    put(&writer, ", \"tensors\": [");
    put_entries(&writer, program);
    put(&writer, "]}");
    return writer.used;
}

/* --- ways */

bool drawn_plan_to_file(const char *folder, const char *text)
{
    static _Atomic unsigned number; /* threads may do it at the same time */
    char path[4096], hidden[4096];
    snprintf(path, sizeof(path), "%s/plan.json", folder);
    snprintf(hidden, sizeof(hidden), "%s/plan.new-%u", folder, number++);
    FILE *file = fopen(hidden, "w");
    if (file == NULL)
        return false;
    fputs(text, file);
    return fclose(file) == 0 && rename(hidden, path) == 0;
}

static bool exchange(int client, const char *request, size_t bytes)
{
    char answer[1024];
    if (write(client, request, bytes) != (ssize_t)bytes)
        return false;
    ssize_t count;
    while ((count = read(client, answer, sizeof(answer))) > 0) {
        if (memchr(answer, '\n', (size_t)count) != NULL)
            return true;
    }
    return false;
}

bool drawn_request(const char *path, const char *request, size_t bytes)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (path[0] == '\0' || strlen(path) >= sizeof(address.sun_path))
        return false;
    memcpy(address.sun_path, path, strlen(path) + 1);
    const int client = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool is_done = client >= 0 &&
                         connect(client, (struct sockaddr *)&address, sizeof(address)) == 0 &&
                         exchange(client, request, bytes);
    if (client >= 0)
        close(client);
    return is_done;
}

bool drawn_plan_to_socket(const char *path, const char *text, size_t bytes)
{
    char request[DRAWN_PLAN_BYTES + 40];
    const int head = snprintf(request, sizeof(request), "plan %zu\n", bytes);
    memcpy(request + head, text, bytes);
    return drawn_request(path, request, (size_t)head + bytes);
}

/* --- the checkpoint of large tensors */

static void path_of(char path[4096], const char *folder)
{
    snprintf(path, 4096, "%s/large.safetensors", folder);
}

static int header_of(char *header, size_t most, const struct drawn_tensor *tensors)
{
    const size_t first = drawn_tensor_bytes(&tensors[0]);
    return snprintf(header, most,
                    "{\"%s\":{\"dtype\":\"%s\",\"shape\":[%zu,%zu],\"data_offsets\":[0,%zu]},"
                    "\"%s\":{\"dtype\":\"%s\",\"shape\":[%zu,%zu],\"data_offsets\":[%zu,%zu]}}",
                    tensors[0].name, tensors[0].dtype, tensors[0].rows, tensors[0].columns, first,
                    tensors[1].name, tensors[1].dtype, tensors[1].rows, tensors[1].columns, first,
                    first + drawn_tensor_bytes(&tensors[1]));
}

static void write_file(const char *path, const unsigned char *bytes, size_t count)
{
    /* So old that a later write would show (docs/design/files.md). */
    const struct timespec times[2] = {{.tv_sec = 1700000000}, {.tv_sec = 1700000000}};
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(bytes, 1, count, file) != count || fclose(file) != 0 ||
        utimensat(AT_FDCWD, path, times, 0) != 0) {
        perror(path);
        exit(2);
    }
}

static size_t granule_of_driver(void)
{
    const char *set = getenv("SIMCUDA_GRANULE_KIB");
    return (set != NULL ? strtoul(set, NULL, 10) : 2048) << 10;
}

struct drawn_file drawn_file_make(const char *folder, bool has_header)
{
    const size_t granule = granule_of_driver();
    /* Rows of the first end within granules; those of the second are short, and many. */
    struct drawn_file file = {.tensors = {{"l.weight", "F32", 4, 24, (granule / 8 + 64) / 4},
                                          {"m.weight", "BF16", 2, 512, granule / 512 * 5 / 4 / 2}}};
    char path[4096], header[512];
    const uint64_t length =
        has_header ? (uint64_t)header_of(header, sizeof(header), file.tensors) : 0;
    file.begins[0] = 8 + (size_t)length;
    file.begins[1] = file.begins[0] + drawn_tensor_bytes(&file.tensors[0]);
    file.bytes = file.begins[1] + drawn_tensor_bytes(&file.tensors[1]);
    unsigned char *bytes = malloc(file.bytes);
    uint64_t word = granule;
    for (size_t i = 0; i < file.bytes; i += sizeof(word)) {
        word = word * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        const uint64_t mixed = word ^ word >> 29;
        memcpy(bytes + i, &mixed, file.bytes - i < 8 ? file.bytes - i : 8);
    }
    memcpy(bytes, &length, sizeof(length));
    memcpy(bytes + 8, header, (size_t)length);
    path_of(path, folder);
    write_file(path, bytes, file.bytes);
    file.content = bytes;
    if (!has_header)
        return file;
    free(bytes);
    file.content = drawn_file_map(folder, file.bytes);
    if (file.content == NULL) {
        perror(path);
        exit(2);
    }
    return file;
}

const unsigned char *drawn_file_map(const char *folder, size_t bytes)
{
    char path[4096];
    path_of(path, folder);
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    void *content = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (descriptor >= 0)
        close(descriptor);
    return content == MAP_FAILED ? NULL : content;
}
