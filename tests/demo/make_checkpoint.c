/* SPDX-License-Identifier: Apache-2.0 */
/*
 * make_checkpoint FOLDER SIZE_MIB [FILES]: a checkpoint as Hugging Face writes them, a few
 * safetensors files and an index, with the tensors of a Llama model in bfloat16.
 *
 * From 192 MiB on the shapes are those of Llama 3.2 1B (hidden size 2048, 8 of 32 heads for keys
 * and values, 8192 intermediate), below that a quarter of them; the number of layers and the
 * vocabulary follow from the size. The vocabulary is odd, and there is a head of 1001 rows, so that
 * no number of ranks divides every tensor.
 *
 * A safetensors file is: the length of the header (8 bytes, little-endian), the header (JSON,
 * padded with spaces to 8 bytes), the tensors (https://github.com/huggingface/safetensors).
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TENSORS = 4096, NAME_BYTES = 96, BUFFER_WORDS = 1 << 17 };

struct tensor {
    char name[NAME_BYTES];
    uint64_t rows, columns; /* columns == 0: one dimension */
    uint64_t bytes;
    int file;
};

static struct tensor tensors[MAX_TENSORS];
static int count;
static const char *folder;
static int files = 4;

static void fail(const char *path)
{
    fprintf(stderr, "make_checkpoint: %s: %s\n", path, strerror(errno));
    exit(1);
}

static void add(int layer, const char *name, uint64_t rows, uint64_t columns)
{
    struct tensor *tensor = &tensors[count++];
    if (count == MAX_TENSORS) {
        fprintf(stderr, "make_checkpoint: more than %d tensors\n", MAX_TENSORS);
        exit(2);
    }
    if (layer >= 0)
        snprintf(tensor->name, NAME_BYTES, "model.layers.%d.%s.weight", layer, name);
    else
        snprintf(tensor->name, NAME_BYTES, "%s.weight", name);
    tensor->rows = rows;
    tensor->columns = columns;
    tensor->bytes = 2 * rows * (columns != 0 ? columns : 1);
}

static void add_layer(int layer, uint64_t hidden)
{
    const uint64_t key_value = hidden / 4, intermediate = 4 * hidden;
    add(layer, "input_layernorm", hidden, 0);
    add(layer, "self_attn.q_proj", hidden, hidden);
    add(layer, "self_attn.k_proj", key_value, hidden);
    add(layer, "self_attn.v_proj", key_value, hidden);
    add(layer, "self_attn.o_proj", hidden, hidden);
    add(layer, "post_attention_layernorm", hidden, 0);
    add(layer, "mlp.gate_proj", intermediate, hidden);
    add(layer, "mlp.up_proj", intermediate, hidden);
    add(layer, "mlp.down_proj", hidden, intermediate);
}

static uint64_t total_bytes(void)
{
    uint64_t total = 0;
    for (int i = 0; i < count; i++)
        total += tensors[i].bytes;
    return total;
}

/* As many layers as fit in about 9 tenths of the size; the embedding takes the rest. */
static void plan_tensors(uint64_t wanted_bytes)
{
    const uint64_t hidden = wanted_bytes >= UINT64_C(192) << 20 ? 2048 : 512;
    const uint64_t layer_bytes = 2 * (hidden * hidden * 14 + hidden * hidden / 2 + 2 * hidden);
    const uint64_t layers = wanted_bytes / 10 * 9 / layer_bytes;
    const struct tensor *embedding = &tensors[0];
    add(-1, "model.embed_tokens", 1, hidden);
    for (uint64_t layer = 0; layer < layers; layer++)
        add_layer((int)layer, hidden);
    add(-1, "model.norm", hidden, 0);
    add(-1, "score", 1001, hidden);
    const uint64_t planned = total_bytes();
    uint64_t rows = planned < wanted_bytes ? (wanted_bytes - planned) / (2 * hidden) : 1;
    rows |= 1;
    tensors[0].rows = rows;
    tensors[0].bytes = 2 * rows * embedding->columns;
    for (int i = 0; i < count; i++)
        tensors[i].file = (int)((uint64_t)i * (uint64_t)files / (uint64_t)count);
}

static void file_name(char *name, size_t length, int file)
{
    snprintf(name, length, "model-%05d-of-%05d.safetensors", file + 1, files);
}

static FILE *create(const char *name, char *path, size_t length)
{
    snprintf(path, length, "%s/%s", folder, name);
    FILE *stream = fopen(path, "wb");
    if (stream == NULL)
        fail(path);
    return stream;
}

/* The header of one file, as text in memory of its own. */
static char *make_header(int file, size_t *length_out)
{
    char *text = NULL;
    size_t length = 0;
    FILE *stream = open_memstream(&text, &length);
    if (stream == NULL)
        fail("header");
    uint64_t at = 0;
    fprintf(stream, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (int i = 0; i < count; i++) {
        const struct tensor *tensor = &tensors[i];
        if (tensor->file != file)
            continue;
        fprintf(stream, ",\"%s\":{\"dtype\":\"BF16\",\"shape\":[%llu", tensor->name,
                (unsigned long long)tensor->rows);
        if (tensor->columns != 0)
            fprintf(stream, ",%llu", (unsigned long long)tensor->columns);
        fprintf(stream, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at,
                (unsigned long long)(at + tensor->bytes));
        at += tensor->bytes;
    }
    fputc('}', stream);
    while (fflush(stream) == 0 && length % 8 != 0)
        fputc(' ', stream);
    fclose(stream);
    *length_out = length;
    return text;
}

/* Four bfloat16 values: any sign and fraction, exponents around 1, so every value is finite. */
static uint64_t make_values(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15); /* splitmix64 */
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    z ^= z >> 31;
    return (z & UINT64_C(0x83ff83ff83ff83ff)) | UINT64_C(0x3c003c003c003c00);
}

static void write_values(FILE *stream, uint64_t bytes, uint64_t seed)
{
    static uint64_t buffer[BUFFER_WORDS];
    uint64_t state = seed;
    while (bytes > 0) {
        const size_t now = bytes < sizeof(buffer) ? (size_t)bytes : sizeof(buffer);
        for (size_t i = 0; i < (now + 7) / 8; i++)
            buffer[i] = make_values(&state);
        fwrite(buffer, 1, now, stream);
        bytes -= now;
    }
}

static void write_file(int file)
{
    char name[64], path[4096];
    file_name(name, sizeof(name), file);
    FILE *stream = create(name, path, sizeof(path));
    size_t length;
    char *header = make_header(file, &length);
    for (int i = 0; i < 8; i++)
        fputc((int)((uint64_t)length >> (8 * i) & 0xff), stream);
    fwrite(header, 1, length, stream);
    free(header);
    for (int i = 0; i < count; i++) {
        if (tensors[i].file == file)
            write_values(stream, tensors[i].bytes, (uint64_t)i << 40);
    }
    if (ferror(stream) || fclose(stream) != 0)
        fail(path);
}

static void write_index(void)
{
    char path[4096];
    FILE *stream = create("model.safetensors.index.json", path, sizeof(path));
    fprintf(stream, "{\"metadata\": {\"total_size\": %llu}, \"weight_map\": {\n",
            (unsigned long long)total_bytes());
    for (int i = 0; i < count; i++) {
        char name[64];
        file_name(name, sizeof(name), tensors[i].file);
        fprintf(stream, "  \"%s\": \"%s\"%s\n", tensors[i].name, name, i + 1 < count ? "," : "");
    }
    fprintf(stream, "}}\n");
    if (ferror(stream) || fclose(stream) != 0)
        fail(path);
}

static long number(const char *text, const char *what, long least, long most)
{
    char *end;
    const long value = strtol(text, &end, 10);
    if (*end != '\0' || value < least || value > most) {
        fprintf(stderr, "make_checkpoint: %s is %s: expected a number from %ld to %ld\n", what,
                text, least, most);
        exit(2);
    }
    return value;
}

int main(int argc, char **argv)
{
    if (argc < 3 || argc > 4) {
        fprintf(stderr, "usage: make_checkpoint FOLDER SIZE_MIB [FILES]\n");
        return 2;
    }
    folder = argv[1];
    const uint64_t bytes = (uint64_t)number(argv[2], "SIZE_MIB", 8, 1 << 16) << 20;
    if (argc == 4)
        files = (int)number(argv[3], "FILES", 1, 99);
    plan_tensors(bytes);
    for (int file = 0; file < files; file++)
        write_file(file);
    write_index();
    printf("%d tensors, %llu bytes, %d files\n", count, (unsigned long long)total_bytes(), files);
    return 0;
}
