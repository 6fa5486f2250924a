/* SPDX-License-Identifier: Apache-2.0 */
/*
 * in_place RANK WORLD FOLDER [OPTION...]: a plain CUDA program that works on whole tensors. It
 * allocates every tensor of the checkpoint, copies it from the mapped file to the device, and never
 * copies rows out: what of it a rank needs, it reads in place.
 *
 *   --carve               one allocation, with the tensors at multiples of 512 bytes, as caching allocators do
 *   --pieces N            copies each tensor in N pieces of one size
 *   --chunk N             copies at most N bytes at a time
 *   --staged              copies through a buffer of its own: the driver does not see the mapped file
 *   --skip NAME           does not load this tensor
 *   --ranges FILE         reads back what the lines of FILE say: NAME BEGIN END, bytes of the tensor
 *   --sliced              copies these out first, side by side into one allocation, and frees the tensors
 *   --kernel LIBRARY      reads through a kernel, and not with cuMemcpyDtoH
 *   --api FILE            hands FILE to metashard_plan_file, once everything is loaded
 *   --text FILE           hands what is in FILE to metashard_plan_text
 *   --materialise         asks for the rank's part (metashard_materialise), whenever everything is loaded
 *   --fork                has a child that ends, once everything is loaded
 *   --open FILE           opens FILE for writing, once everything is loaded, and writes nothing
 *   --wait                prints "ready" once everything is loaded, and goes on when standard input ends
 *   --settle LIBRARY      launches kernels without parameters for half a second
 *   --scribble NAME B E   sets the bytes from B up to E to 0x5a, before it reads
 *   --slice NAME B E      copies these bytes to an allocation of their own, and reads that
 *   --twice               loads all tensors once more, to other memory, and reads the same of it
 *   --reload              copies all tensors once more, to the same memory, and reads the same again
 *   --free NAME           frees the tensor's memory when all is read
 *   --outside NAME B E    reads these bytes too, last; may be given several times
 *   --more BYTES          allocates so much, once all is read
 *   --copy-outside        reads these with cuMemcpyDtoH, whatever the others are read with
 *
 * Prints one JSON object: "tensors", a list of the name, address and bytes of each that was loaded,
 * twice with --twice; "ranges" and "outside", in the order read, each with name, begin, end, the
 * CUresult, a hash of the bytes read and one of the same bytes of the file, both null if the read
 * failed; "api", what the function of the preloaded object returned and said, or null; "more", the
 * CUresult of that allocation, 0 if there was none.
 */
#include "tests/demo/device.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/demo/safetensors.h"
#include "tools/json_writer.h"

enum { MAX_OUTSIDE = 64, CARVE_BYTES = 512, SETTLE_LAUNCHES = 250, SETTLE_PAUSE_US = 2000 };

struct range {
    const char *name;
    uint64_t begin, end;
};

static struct {
    bool carve, staged, sliced, materialise, fork, wait, twice, reload, copy_outside;
    uint64_t pieces, chunk, more;
    const char *skip, *ranges, *kernel, *settle, *api, *text, *free, *open;
    struct range scribble, slice, outside[MAX_OUTSIDE];
    size_t outside_count;
} options = {.pieces = 1, .chunk = UINT64_MAX};

/* The words behind an option: none, a text, a number, or NAME BEGIN END. */
enum kind { FLAG, TEXT, NUMBER, RANGE, RANGES };

static const struct {
    const char *name;
    enum kind kind;
    void *value;
} option_rows[] = {
    {"--carve", FLAG, &options.carve},
    {"--pieces", NUMBER, &options.pieces},
    {"--chunk", NUMBER, &options.chunk},
    {"--staged", FLAG, &options.staged},
    {"--skip", TEXT, &options.skip},
    {"--ranges", TEXT, &options.ranges},
    {"--kernel", TEXT, &options.kernel},
    {"--api", TEXT, &options.api},
    {"--text", TEXT, &options.text},
    {"--materialise", FLAG, &options.materialise},
    {"--fork", FLAG, &options.fork},
    {"--wait", FLAG, &options.wait},
    {"--settle", TEXT, &options.settle},
    {"--scribble", RANGE, &options.scribble},
    {"--slice", RANGE, &options.slice},
    {"--open", TEXT, &options.open},
    {"--twice", FLAG, &options.twice},
    {"--reload", FLAG, &options.reload},
    {"--more", NUMBER, &options.more},
    {"--free", TEXT, &options.free},
    {"--sliced", FLAG, &options.sliced},
    {"--outside", RANGES, &options.outside},
    {"--copy-outside", FLAG, &options.copy_outside},
};

/* Where each tensor is; 0 if it was not loaded. */
struct set {
    CUdeviceptr *addresses;
};

static struct checkpoint checkpoint;

/* The lists that are printed at the end. */
static struct list {
    char *text;
    size_t bytes;
    struct writer writer;
} tensors_out, ranges_out, outside_out;

static _Noreturn void usage(const char *what, const char *found)
{
    fprintf(stderr, "in_place: %s: %s; usage: in_place RANK WORLD FOLDER [OPTION...]\n", what,
            found != NULL ? found : "nothing");
    exit(2);
}

static uint64_t number(const char *text)
{
    char *end;
    if (text == NULL || text[0] < '0' || text[0] > '9')
        usage("expected a number", text);
    const unsigned long long value = strtoull(text, &end, 10);
    if (*end != '\0')
        usage("expected a number", text);
    return value;
}

/* One option and what follows it; returns what is behind that. */
static char **read_option(char **at)
{
    size_t row = 0;
    while (row < sizeof(option_rows) / sizeof(option_rows[0]) &&
           strcmp(*at, option_rows[row].name) != 0)
        row++;
    if (row == sizeof(option_rows) / sizeof(option_rows[0]))
        usage("unknown option", *at);
    void *value = option_rows[row].value;
    const enum kind kind = option_rows[row].kind;
    if (kind == FLAG) {
        *(bool *)value = true;
        return at + 1;
    }
    if (at[1] == NULL)
        usage("expected more after", *at);
    if (kind == TEXT)
        *(const char **)value = at[1];
    if (kind == NUMBER)
        *(uint64_t *)value = number(at[1]);
    if (kind == TEXT || kind == NUMBER)
        return at + 2;
    if (at[2] == NULL || options.outside_count == MAX_OUTSIDE)
        usage("expected NAME BEGIN END, and not too often, after", *at);
    struct range *range = value;
    if (kind == RANGES)
        range = &options.outside[options.outside_count++];
    *range = (struct range){at[1], number(at[2]), number(at[3])};
    return at + 4;
}

/* --- what is printed */

static void list_begin(struct list *list)
{
    FILE *file = open_memstream(&list->text, &list->bytes);
    if (file == NULL)
        usage("no memory", NULL);
    list->writer = (struct writer){.file = file, .is_first = true, .is_in_line = true};
}

static void list_put(struct list *list, struct writer *object, const char *key)
{
    fclose(list->writer.file);
    put_value(object, key, "[%s]", list->text);
    free(list->text);
}

static void put_tensor(const char *name, CUdeviceptr address, uint64_t bytes)
{
    struct writer object = json_begin(&tensors_out.writer, NULL, '{', true);
    put_string(&object, "name", name);
    put_number(&object, "address", address);
    put_number(&object, "bytes", bytes);
    json_end(&object, '}');
}

static void put_hash(struct writer *object, const char *key, const unsigned char *bytes,
                     uint64_t length)
{
    put_value(object, key, "\"%016llx\"", (unsigned long long)hash_bytes(0, bytes, length));
}

/* --- loading */

static uint64_t bytes_of(size_t tensor)
{
    return checkpoint.tensors[tensor].rows * checkpoint.tensors[tensor].row_bytes;
}

static bool is_loaded(size_t tensor)
{
    return bytes_of(tensor) > 0 &&
           (options.skip == NULL || strcmp(options.skip, checkpoint.tensors[tensor].name) != 0);
}

static uint64_t carved_bytes(size_t tensor)
{
    return (bytes_of(tensor) + CARVE_BYTES - 1) / CARVE_BYTES * CARVE_BYTES;
}

static struct set allocate_set(void)
{
    struct set set = {calloc(checkpoint.count, sizeof(*set.addresses))};
    uint64_t total = 0;
    for (size_t i = 0; i < checkpoint.count; i++) {
        if (is_loaded(i) && !options.carve)
            must(device.allocate(&set.addresses[i], bytes_of(i)), "cuMemAlloc of a tensor");
        total += is_loaded(i) ? carved_bytes(i) : 0;
    }
    if (!options.carve || total == 0)
        return set;
    CUdeviceptr at;
    must(device.allocate(&at, total), "cuMemAlloc of all tensors");
    for (size_t i = 0; i < checkpoint.count; i++) {
        if (is_loaded(i)) {
            set.addresses[i] = at;
            at += carved_bytes(i);
        }
    }
    return set;
}

static void copy_piece(CUdeviceptr to, const unsigned char *from, uint64_t bytes)
{
    if (!options.staged) {
        must(device.to_device(to, from, bytes), "cuMemcpyHtoD");
        return;
    }
    unsigned char *stage = malloc(bytes);
    memcpy(stage, from, bytes);
    must(device.to_device(to, stage, bytes), "cuMemcpyHtoD");
    free(stage);
}

static void copy_set(const struct set *set)
{
    for (size_t i = 0; i < checkpoint.count; i++) {
        const uint64_t bytes = is_loaded(i) ? bytes_of(i) : 0;
        uint64_t piece = (bytes + options.pieces - 1) / options.pieces;
        piece = piece < options.chunk ? piece : options.chunk;
        for (uint64_t at = 0; at < bytes; at += piece)
            copy_piece(set->addresses[i] + at, checkpoint.tensors[i].data + at,
                       bytes - at < piece ? bytes - at : piece);
        if (bytes > 0)
            put_tensor(checkpoint.tensors[i].name, set->addresses[i], bytes);
    }
}

/* --- reading */

static size_t tensor_named(const struct range *range)
{
    for (size_t i = 0; i < checkpoint.count; i++) {
        if (strcmp(checkpoint.tensors[i].name, range->name) == 0) {
            if (range->begin > range->end || range->end > bytes_of(i) || !is_loaded(i))
                usage("not bytes of this tensor", range->name);
            return i;
        }
    }
    usage("no such tensor", range->name);
}

/* The range, which lies at from. */
static void read_range(CUdeviceptr from, const struct range *range, struct list *out)
{
    const size_t tensor = tensor_named(range);
    const uint64_t bytes = range->end - range->begin;
    unsigned char *seen = malloc(bytes + 1);
    const CUresult result = options.kernel != NULL ? device_read_by_kernel(seen, from, bytes)
                                                   : device_read(seen, from, bytes);
    const bool is_read = result == CUDA_SUCCESS;
    const unsigned char *file = checkpoint.tensors[tensor].data + range->begin;
    struct writer object = json_begin(&out->writer, NULL, '{', true);
    put_string(&object, "name", range->name);
    put_number(&object, "begin", range->begin);
    put_number(&object, "end", range->end);
    put_number(&object, "result", result);
    if (is_read) {
        put_hash(&object, "hash", seen, bytes);
        put_hash(&object, "file_hash", file, bytes);
    } else {
        put_value(&object, "hash", "null");
        put_value(&object, "file_hash", "null");
    }
    json_end(&object, '}');
    free(seen);
}

/* A name may have blanks; the last two words of a line are numbers. */
static struct range parse_range(char *line)
{
    line[strcspn(line, "\n")] = '\0';
    char *end = strrchr(line, ' ');
    if (end == NULL)
        usage("expected NAME BEGIN END", line);
    *end = '\0';
    char *begin = strrchr(line, ' ');
    if (begin == NULL)
        usage("expected NAME BEGIN END", line);
    *begin = '\0';
    return (struct range){line, number(begin + 1), number(end + 1)};
}

/* The ranges in the file's lines; the caller frees the list. The lines themselves stay. */
static struct range *list_ranges(size_t *count_out)
{
    struct range *list = NULL;
    size_t count = 0, space = 0;
    char *line = NULL;
    FILE *file = options.ranges != NULL ? fopen(options.ranges, "r") : NULL;
    if (options.ranges != NULL && file == NULL)
        usage("cannot be read", options.ranges);
    while (file != NULL && getline(&line, &space, file) > 0) {
        list = realloc(list, (count + 1) * sizeof(*list));
        list[count++] = parse_range(strdup(line));
    }
    if (file != NULL)
        fclose(file);
    free(line);
    *count_out = count;
    return list;
}

static void free_set(const struct set *set)
{
    for (size_t i = 0; i < checkpoint.count; i++) {
        if (set->addresses[i] != 0)
            must(device.free(set->addresses[i]), "cuMemFree of a tensor");
    }
}

/* Copies the ranges out; afterwards each lies at its address, and the whole tensors are gone. */
static CUdeviceptr *slice_ranges(const struct set *set, const struct range *list, size_t count)
{
    CUdeviceptr *addresses = calloc(count, sizeof(*addresses)), at;
    uint64_t total = 0;
    for (size_t i = 0; i < count; i++)
        total += list[i].end - list[i].begin;
    must(device.allocate(&at, total), "cuMemAlloc of slices");
    for (size_t i = 0; i < count; i++) {
        const uint64_t bytes = list[i].end - list[i].begin;
        addresses[i] = at;
        must(device.on_device(at, set->addresses[tensor_named(&list[i])] + list[i].begin, bytes),
             "cuMemcpyDtoD of a slice");
        at += bytes;
    }
    free_set(set);
    return addresses;
}

static void read_ranges(const struct set *set)
{
    size_t count;
    struct range *list = list_ranges(&count);
    CUdeviceptr *slices = options.sliced && count > 0 ? slice_ranges(set, list, count) : NULL;
    for (size_t i = 0; i < count; i++)
        read_range(slices != NULL ? slices[i]
                                  : set->addresses[tensor_named(&list[i])] + list[i].begin,
                   &list[i], &ranges_out);
    free(slices);
    free(list);
}

/* --- what may happen between loading and reading */

/* The whole of a file, with a zero behind it. */
static char *content_of(const char *path, size_t *bytes_out)
{
    FILE *file = fopen(path, "r");
    char *text = NULL;
    size_t space = 0;
    if (file == NULL)
        usage("cannot be read", path);
    const ssize_t length = getdelim(&text, &space, '\0', file);
    fclose(file);
    *bytes_out = length > 0 ? (size_t)length : 0;
    return text;
}

static void open_for_writing(const char *path)
{
    /* The program does not wait for itself. */
    const int file = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (file < 0)
        usage("expected a file that can be opened for writing", path);
    close(file);
}

/* The results and errors of the preloaded object's functions. */
struct answer {
    char result[16];
    const char *error; /* NULL: not asked */
};

/* Gives the plan to these functions. */
static struct answer tell_plan(void)
{
    if (options.api == NULL && options.text == NULL)
        return (struct answer){"", NULL};
    int (*plan_file)(const char *) =
        (__typeof__(plan_file))dlsym(RTLD_DEFAULT, "metashard_plan_file");
    int (*plan_text)(const char *, size_t) =
        (__typeof__(plan_text))dlsym(RTLD_DEFAULT, "metashard_plan_text");
    const char *(*error)(void) = (__typeof__(error))dlsym(RTLD_DEFAULT, "metashard_error");
    if (plan_file == NULL || plan_text == NULL || error == NULL)
        return (struct answer){"null", "nothing is preloaded that reads plans"};
    int result;
    if (options.api != NULL) {
        result = plan_file(options.api);
    } else {
        size_t bytes;
        char *text = content_of(options.text, &bytes);
        result = plan_text(text, bytes);
        free(text);
    }
    const char *said = error();
    struct answer answer = {.error = said != NULL ? strdup(said) : ""};
    snprintf(answer.result, sizeof(answer.result), "%d", result);
    return answer;
}

static void load_set(const struct set *set)
{
    copy_set(set);
    int (*materialise)(void) =
        (__typeof__(materialise))dlsym(RTLD_DEFAULT, "metashard_materialise");
    if (options.materialise && materialise != NULL && materialise() != 0)
        usage("metashard_materialise failed", NULL);
}

static void have_child(void)
{
    const pid_t child = fork();
    if (child == 0)
        exit(0);
    if (child < 0 || waitpid(child, NULL, 0) != child)
        usage("no child", "fork");
}

static void wait_for_end_of_input(void)
{
    puts("ready");
    fflush(stdout);
    while (getchar() != EOF)
        ;
}

static void launch_for_a_while(void)
{
    for (int i = 0; i < SETTLE_LAUNCHES; i++) {
        must(device.launch(device.nothing, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL),
             "cuLaunchKernel");
        usleep(SETTLE_PAUSE_US);
    }
    must(device.synchronise(), "cuCtxSynchronize");
}

/* The bytes, by way of an allocation of their own. */
static void read_slice(const struct set *set, const struct range *range)
{
    const size_t tensor = tensor_named(range);
    CUdeviceptr slice;
    must(device.allocate(&slice, range->end - range->begin), "cuMemAlloc of a slice");
    must(device.on_device(slice, set->addresses[tensor] + range->begin, range->end - range->begin),
         "cuMemcpyDtoD");
    read_range(slice, range, &ranges_out);
}

static struct answer between(const struct set *set)
{
    const struct answer said = tell_plan();
    if (options.fork)
        have_child();
    if (options.open != NULL)
        open_for_writing(options.open);
    if (options.wait)
        wait_for_end_of_input();
    if (options.settle != NULL)
        launch_for_a_while();
    const struct range *scribble = &options.scribble;
    if (scribble->name != NULL)
        must(device.set(set->addresses[tensor_named(scribble)] + scribble->begin, 0x5a,
                        scribble->end - scribble->begin),
             "cuMemsetD8");
    return said;
}

static void print_all(const struct answer *said, CUresult more)
{
    struct writer object = json_document(stdout);
    list_put(&tensors_out, &object, "tensors");
    list_put(&ranges_out, &object, "ranges");
    list_put(&outside_out, &object, "outside");
    if (said->error != NULL) {
        struct writer answer = json_begin(&object, "api", '{', true);
        put_value(&answer, "result", "%s", said->result);
        put_string(&answer, "error", said->error);
        json_end(&answer, '}');
    } else {
        put_value(&object, "api", "null");
    }
    put_number(&object, "more", more);
    json_document_end(&object);
}

static void run(void)
{
    struct set second = {NULL};
    const struct set set = allocate_set();
    load_set(&set);
    const struct answer said = between(&set);
    read_ranges(&set);
    if (options.slice.name != NULL)
        read_slice(&set, &options.slice);
    if (options.twice) {
        second = allocate_set();
        load_set(&second);
        read_ranges(&second);
    }
    if (options.reload) {
        load_set(&set);
        read_ranges(&set);
    }
    if (options.free != NULL) {
        const struct range whole = {options.free, 0, 0};
        must(device.free(set.addresses[tensor_named(&whole)]), "cuMemFree");
    }
    if (options.copy_outside)
        options.kernel = NULL;
    for (size_t i = 0; i < options.outside_count; i++)
        read_range(set.addresses[tensor_named(&options.outside[i])] + options.outside[i].begin,
                   &options.outside[i], &outside_out);
    CUdeviceptr more;
    const CUresult result = options.more > 0 ? device.allocate(&more, options.more) : CUDA_SUCCESS;
    free(set.addresses);
    free(second.addresses);
    print_all(&said, result);
}

int main(int argc, char **argv)
{
    if (argc < 4)
        usage("expected three arguments", argv[argc - 1]);
    if (number(argv[1]) >= number(argv[2]))
        usage("expected a RANK less than WORLD", argv[1]);
    for (char **at = argv + 4; *at != NULL;)
        at = read_option(at);
    if (options.pieces == 0 || options.chunk == 0)
        usage("expected at least one", "--pieces or --chunk 0");
    checkpoint_open(&checkpoint, argv[3]);
    list_begin(&tensors_out);
    list_begin(&ranges_out);
    list_begin(&outside_out);
    device_open();
    uint64_t largest = 0;
    for (size_t i = 0; i < checkpoint.count; i++)
        largest = bytes_of(i) > largest ? bytes_of(i) : largest;
    if (options.kernel != NULL || options.settle != NULL)
        device_load_kernels(options.kernel != NULL ? options.kernel : options.settle,
                            options.kernel != NULL ? largest : 4);
    run();
    return 0;
}
