/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loaders that read a checkpoint, and do not map it: each way of the C library, to the buffers that
 * real ones use. The rank uses one tensor of eight (loaders.py).
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "tests/driver/differential/scenario.h"

enum { TENSORS = 8, HEAD = 16384 + 328, USED = 5 };
#define TENSOR (4 * MIB)

/* Functions that a file compiled with -D_FORTIFY_SOURCE calls. */
ssize_t __read_chk(int file, void *buffer, size_t bytes, size_t room);
ssize_t __pread_chk(int file, void *buffer, size_t bytes, off_t offset, size_t room);
size_t __fread_chk(void *buffer, size_t room, size_t bytes, size_t count, FILE *stream);

static void must(bool condition, const char *what)
{
    if (!condition) {
        perror(what);
        exit(2);
    }
}

static off_t place(int tensor)
{
    return HEAD + (off_t)tensor * (off_t)TENSOR;
}

static int make_checkpoint(void)
{
    enum { WORDS = 1 << 20 };
    static uint64_t words[WORDS];
    uint64_t state = 1;
    const int made = open(scenario_file(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    must(made >= 0 && ftruncate(made, place(TENSORS) + 100) == 0, "ftruncate");
    for (off_t at = 0; at < place(TENSORS); at += (off_t)sizeof(words)) {
        for (int i = 0; i < WORDS; i++)
            words[i] = (state = state * UINT64_C(6364136223846793005) + 1442695040888963407);
        must(pwrite(made, words, sizeof(words), at) == sizeof(words), "pwrite");
    }
    must(ftruncate(made, place(TENSORS)) == 0, "ftruncate");
    close(made); /* nobody writes */
    const int file = open(scenario_file(), O_RDONLY);
    must(file >= 0, "open");
    return file;
}

static CUdeviceptr blocks[TENSORS];

static void copy(int tensor, const void *bytes)
{
    blocks[tensor] = allocate(TENSOR);
    OK(cuMemcpyHtoD(blocks[tensor], bytes, TENSOR));
}

static void use(void)
{
    print_bytes("tensor", blocks[USED], TENSOR);
}

/* --- ways to read a tensor */

static void with_pread(int file, unsigned char *to, off_t at)
{
    must(pread(file, to, TENSOR, at) == (ssize_t)TENSOR, "pread");
}

static void with_read(int file, unsigned char *to, off_t at)
{
    must(lseek(file, at, SEEK_SET) == at && read(file, to, TENSOR) == (ssize_t)TENSOR, "read");
}

static void in_parts(int file, unsigned char *to, off_t at)
{
    for (size_t done = 0; done < TENSOR; done += MIB / 4)
        must(pread(file, to + done, MIB / 4, at + (off_t)done) == (ssize_t)MIB / 4, "pread");
}

static void with_preadv(int file, unsigned char *to, off_t at)
{
    const struct iovec parts[] = {{to, MIB}, {to + MIB, MIB}, {to + 2 * MIB, 2 * MIB}};
    must(preadv(file, parts, 3, at) == (ssize_t)TENSOR, "preadv");
}

static void with_readv(int file, unsigned char *to, off_t at)
{
    const struct iovec parts[] = {{to, TENSOR / 2}, {to + TENSOR / 2, TENSOR / 2}};
    must(lseek(file, at, SEEK_SET) == at && readv(file, parts, 2) == (ssize_t)TENSOR, "readv");
}

static void with_preadv2(int file, unsigned char *to, off_t at)
{
    const struct iovec part = {to, TENSOR};
    must(preadv2(file, &part, 1, at, RWF_HIPRI) == (ssize_t)TENSOR, "preadv2");
}

static void fortified(int file, unsigned char *to, off_t at)
{
    must(lseek(file, at, SEEK_SET) == at &&
             __read_chk(file, to, TENSOR / 2, TENSOR) == (ssize_t)TENSOR / 2,
         "read");
    const off_t half = at + (off_t)TENSOR / 2;
    must(__pread_chk(file, to + TENSOR / 2, TENSOR / 2, half, TENSOR / 2) == (ssize_t)TENSOR / 2,
         "pread");
}

static FILE *open_stream(off_t at)
{
    FILE *stream = fopen(scenario_file(), "r");
    must(stream != NULL && fseeko(stream, at - 100, SEEK_SET) == 0, "fopen");
    for (int i = 0; i < 100; i++) /* what is read next begins in the stream's buffer */
        must(fgetc(stream) != EOF, "fgetc");
    return stream;
}

static void with_fread(int file, unsigned char *to, off_t at)
{
    (void)file;
    FILE *stream = open_stream(at);
    must(fread(to, 1, TENSOR / 2, stream) == TENSOR / 2, "fread");
    must(fread_unlocked(to + TENSOR / 2, 2, TENSOR / 4, stream) == TENSOR / 4, "fread");
    fclose(stream);
}

static void with_fortified_fread(int file, unsigned char *to, off_t at)
{
    (void)file;
    FILE *stream = open_stream(at);
    must(__fread_chk(to, TENSOR, TENSOR, 1, stream) == 1, "fread");
    fclose(stream);
}

/* As a C++ stream: the tensor starts in a small read, and a large one has the rest. */
static void buffered(int file, unsigned char *to, off_t at)
{
    char buffer[8192];
    enum { FROM_BUFFER = 3000 };
    must(pread(file, buffer, sizeof(buffer), at - (off_t)(sizeof(buffer) - FROM_BUFFER)) ==
             sizeof(buffer),
         "pread");
    memcpy(to, buffer + sizeof(buffer) - FROM_BUFFER, FROM_BUFFER);
    must(pread(file, to + FROM_BUFFER, TENSOR - FROM_BUFFER, at + FROM_BUFFER) ==
             (ssize_t)TENSOR - FROM_BUFFER,
         "pread");
}

struct part {
    int file;
    unsigned char *to;
    off_t at;
};

static void *read_part(void *argument)
{
    const struct part *part = argument;
    must(pread(part->file, part->to, TENSOR / 4, part->at) == (ssize_t)TENSOR / 4, "pread");
    return NULL;
}

static void by_threads(int file, unsigned char *to, off_t at)
{
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    struct part parts[THREADS];
    for (int i = 0; i < THREADS; i++) {
        const size_t done = (size_t)i * TENSOR / THREADS;
        parts[i] = (struct part){file, to + done, at + (off_t)done};
        must(pthread_create(&threads[i], NULL, read_part, &parts[i]) == 0, "pthread_create");
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

typedef void way(int file, unsigned char *to, off_t at);

/* A buffer for each tensor, freed behind its copy. */
static void load(way *read_tensor)
{
    const int file = make_checkpoint();
    for (int i = 0; i < TENSORS; i++) {
        unsigned char *to = malloc(TENSOR);
        read_tensor(file, to, place(i));
        copy(i, to);
        free(to);
    }
    close(file);
    use();
}

#define LOAD(name)  \
    SCENARIO(name)  \
    {               \
        load(name); \
    }
LOAD(with_pread)
LOAD(with_read)
LOAD(in_parts)
LOAD(with_preadv)
LOAD(with_readv)
LOAD(with_preadv2)
LOAD(fortified)
LOAD(with_fread)
LOAD(with_fortified_fread)
LOAD(buffered)
LOAD(by_threads)

/* --- other buffers */

/* One pinned buffer for all, in a stream. */
SCENARIO(staged)
{
    void *staging;
    CUstream stream = make_stream();
    const int file = make_checkpoint();
    OK(cuMemAllocHost(&staging, TENSOR));
    for (int i = 0; i < TENSORS; i++) {
        with_pread(file, staging, place(i));
        blocks[i] = allocate(TENSOR);
        OK(cuMemcpyHtoDAsync(blocks[i], staging, TENSOR, stream));
        OK(cuStreamSynchronize(stream));
    }
    use();
}

/* All of the file in memory, before anything is known of a device. */
SCENARIO(whole)
{
    const int file = make_checkpoint();
    unsigned char *all = malloc((size_t)place(TENSORS));
    const off_t bytes = place(TENSORS);
    must(pread(file, all, (size_t)bytes, 0) == bytes, "pread");
    close(file);
    for (int i = 0; i < TENSORS; i++)
        copy(i, all + place(i));
    use();
}

/* Read to one buffer, copied on to another one. */
SCENARIO(copied_on)
{
    void *pinned;
    const int file = make_checkpoint();
    unsigned char *to = malloc(TENSOR);
    OK(cuMemAllocHost(&pinned, TENSOR));
    for (int i = 0; i < TENSORS; i++) {
        buffered(file, to, place(i));
        memcpy(pinned, to, TENSOR);
        copy(i, pinned);
    }
    use();
}

SCENARIO(halves)
{
    const int file = make_checkpoint();
    unsigned char *to = malloc(TENSOR);
    for (int i = 0; i < TENSORS; i++) {
        blocks[i] = allocate(TENSOR / 2);
        with_pread(file, to, place(i));
        OK(cuMemcpyHtoD(blocks[i], to + TENSOR / 2, TENSOR / 2));
    }
    print_bytes("half", blocks[USED], TENSOR / 2);
}

/* --- what is not the file's any more */

SCENARIO(changed)
{
    const int file = make_checkpoint();
    unsigned char *to = malloc(TENSOR);
    for (int i = 0; i < TENSORS; i++) {
        with_pread(file, to, place(i));
        to[TENSOR - 1 - (size_t)i] ^= 1;
        copy(i, to);
        memset(to, 0, TENSOR);
    }
    for (int i = 0; i < TENSORS; i++)
        print_bytes("tensor", blocks[i], TENSOR);
}

SCENARIO(written_since)
{
    const int file = make_checkpoint();
    unsigned char *to = malloc(TENSOR);
    with_pread(file, to, place(0));
    overwrite_file_unseen(TENSOR);
    copy(0, to);
    with_pread(file, to, place(1));
    copy(1, to);
    overwrite_file(2 * TENSOR);
    for (int i = 0; i < 2; i++)
        print_bytes("tensor", blocks[i], TENSOR);
}

/* The bytes that were read are gone, and others are in their place. */
SCENARIO(mapped_anew)
{
    const int file = make_checkpoint();
    unsigned char *to =
        mmap(NULL, TENSOR, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    with_pread(file, to, place(0));
    must(mmap(to, TENSOR, PROT_READ, MAP_PRIVATE | MAP_FIXED, file, 8 << 20) == to, "mmap");
    copy(0, to);
    print_bytes("tensor", blocks[0], TENSOR);
}

/* As a number that was closed, and is another file's by then. */
SCENARIO(number_of_another)
{
    const int file = make_checkpoint();
    unsigned char *to = malloc(TENSOR);
    with_pread(file, to, place(0));
    must(dup2(open("/dev/zero", O_RDONLY), file) == file, "dup2");
    copy(0, to);
    must(read(file, to, TENSOR) == (ssize_t)TENSOR, "read");
    copy(1, to);
    for (int i = 0; i < 2; i++)
        print_bytes("tensor", blocks[i], TENSOR);
}

/* --- past the page cache: nothing of the file is there when it is copied from */

enum { DIRECT_BLOCK = 4096 };
#define DIRECT_BYTES (TENSOR + 2 * DIRECT_BLOCK)

static int open_directly(void)
{
    const int file = make_checkpoint();
    must(fdatasync(file) == 0 && posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) == 0, "fadvise");
    close(file);
    const int direct = open(scenario_file(), O_RDONLY | O_DIRECT);
    return direct >= 0 ? direct : open(scenario_file(), O_RDONLY); /* a file system without */
}

static unsigned char *map_pages(void)
{
    unsigned char *pages =
        mmap(NULL, DIRECT_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(pages != MAP_FAILED, "mmap");
    return pages;
}

/* Reads whole blocks around the tensor, in parts if `step` is less. Returns where it is. */
static unsigned char *read_around(int file, unsigned char *pages, off_t at, size_t step)
{
    const off_t begin = at / DIRECT_BLOCK * DIRECT_BLOCK;
    const size_t bytes = (size_t)(at - begin) + TENSOR;
    const size_t wanted = (bytes + DIRECT_BLOCK - 1) / DIRECT_BLOCK * DIRECT_BLOCK;
    for (size_t done = 0; done < wanted; done += step) {
        const size_t now = wanted - done < step ? wanted - done : step;
        const ssize_t got = pread(file, pages + done, now, begin + (off_t)done);
        must(got == (ssize_t)now || done + (size_t)got >= bytes, "pread"); /* the file's end */
    }
    return pages + (at - begin);
}

/* A buffer for each tensor. */
static void load_directly(size_t step)
{
    const int file = open_directly();
    for (int i = 0; i < TENSORS; i++) {
        unsigned char *pages = map_pages();
        copy(i, read_around(file, pages, place(i), step));
        must(munmap(pages, DIRECT_BYTES) == 0, "munmap");
    }
    close(file);
    use();
}

SCENARIO(directly)
{
    load_directly(DIRECT_BYTES);
}

SCENARIO(directly_in_parts)
{
    load_directly(MIB / 2);
}

/* As fastsafetensors: threads, each with a buffer for a part, and blocks that are read twice. */
struct load {
    int file, first;
    CUcontext context;
};

static void *load_parts(void *argument)
{
    enum { PART = 512 << 10 };
    const struct load *load = argument;
    unsigned char *pages = map_pages();
    OK(cuCtxSetCurrent(load->context));
    for (size_t done = (size_t)load->first * PART; done < TENSORS * TENSOR; done += 2 * PART) {
        const off_t at = HEAD + (off_t)done, begin = at / DIRECT_BLOCK * DIRECT_BLOCK;
        must(pread(load->file, pages, PART + DIRECT_BLOCK, begin) >= (at - begin) + PART, "pread");
        OK(cuMemcpyHtoD(blocks[done / TENSOR] + done % TENSOR, pages + (at - begin), PART));
    }
    return NULL;
}

SCENARIO(directly_by_threads)
{
    pthread_t other;
    const int file = open_directly();
    for (int i = 0; i < TENSORS; i++)
        blocks[i] = allocate(TENSOR);
    struct load first = {file, 0, NULL}, second = {dup(file), 1, NULL};
    OK(cuCtxGetCurrent(&first.context));
    second.context = first.context;
    must(pthread_create(&other, NULL, load_parts, &second) == 0, "pthread_create");
    load_parts(&first);
    pthread_join(other, NULL);
    use();
}

SCENARIO(directly_with_preadv)
{
    const int file = open_directly();
    for (int i = 0; i < TENSORS; i++) {
        unsigned char *pages = map_pages();
        const off_t begin = place(i) / DIRECT_BLOCK * DIRECT_BLOCK;
        const struct iovec parts[] = {{pages, MIB}, {pages + MIB, DIRECT_BYTES - MIB}};
        must(preadv(file, parts, 2, begin) >= (ssize_t)TENSOR + place(i) - begin, "preadv");
        copy(i, pages + (place(i) - begin));
    }
    use();
}

SCENARIO(directly_changed)
{
    const int file = open_directly();
    for (int i = 0; i < TENSORS; i++) {
        unsigned char *tensor = read_around(file, map_pages(), place(i), MIB);
        tensor[(size_t)i * (TENSOR - 1) / (TENSORS - 1)] ^= 1;
        copy(i, tensor);
    }
    for (int i = 0; i < TENSORS; i++)
        print_bytes("tensor", blocks[i], TENSOR);
}

/* One buffer, read over from two places; what is copied is of both. */
SCENARIO(directly_read_over)
{
    const int file = open_directly();
    unsigned char *pages = map_pages();
    unsigned char *tensor = read_around(file, pages, place(0), DIRECT_BYTES);
    must(pread(file, pages + MIB, MIB, 0) == (ssize_t)MIB, "pread");
    copy(0, tensor);
    tensor = read_around(file, pages, place(1), DIRECT_BYTES);
    copy(1, tensor);
    for (int i = 0; i < 2; i++)
        print_bytes("tensor", blocks[i], TENSOR);
}

SCENARIO(directly_written_since)
{
    const int file = open_directly();
    unsigned char *tensor = read_around(file, map_pages(), place(0), DIRECT_BYTES);
    overwrite_file_unseen(TENSOR);
    copy(0, tensor);
    tensor = read_around(file, map_pages(), place(1), DIRECT_BYTES);
    copy(1, tensor);
    overwrite_file(2 * TENSOR);
    for (int i = 0; i < 2; i++)
        print_bytes("tensor", blocks[i], TENSOR);
}

SCENARIO(directly_mapped_anew)
{
    const int file = open_directly();
    unsigned char *pages = map_pages();
    unsigned char *tensor = read_around(file, pages, place(0), DIRECT_BYTES);
    must(mmap(pages, DIRECT_BYTES, PROT_READ, MAP_PRIVATE | MAP_FIXED, file, 8 << 20) == pages,
         "mmap");
    copy(0, tensor);
    print_bytes("tensor", blocks[0], TENSOR);
}

/* --- by no function of libc, as io_uring: pieces of the file, one behind the other */

static unsigned char *read_unseen(int file, int piece)
{
    unsigned char *pages = map_pages();
    const off_t at = (off_t)piece * (off_t)TENSOR;
    must(syscall(SYS_pread64, file, pages, TENSOR, at) == (long)TENSOR, "pread64");
    return pages;
}

SCENARIO(unseen)
{
    const int file = open_directly();
    for (int i = 0; i < TENSORS; i++) {
        unsigned char *pages = read_unseen(file, i);
        copy(i, pages);
        must(munmap(pages, DIRECT_BYTES) == 0, "munmap");
    }
    close(file);
    use();
}

/* Three of four are another rank's. */
SCENARIO(unseen_by_one_of_four)
{
    const int file = open_directly();
    for (int i = 1; i < TENSORS; i += 4)
        copy(i, read_unseen(file, i));
    use();
}

SCENARIO(unseen_changed)
{
    const int file = open_directly();
    for (int i = 0; i < TENSORS; i++) {
        unsigned char *tensor = read_unseen(file, i);
        tensor[i % 2 == 0 ? 0 : TENSOR - 1] ^= 1;
        copy(i, tensor);
    }
    for (int i = 0; i < TENSORS; i++)
        print_bytes("tensor", blocks[i], TENSOR);
}

/* The program may do so: but no sample has that byte. */
SCENARIO(unseen_changed_a_little)
{
    const int file = open_directly();
    unsigned char *tensor = read_unseen(file, 0);
    tensor[5 * MIB / 2 + 99999] ^= 1;
    copy(0, tensor);
    printf("result %d\n", cuMemcpyDtoH(tensor, blocks[0], TENSOR));
}

SCENARIO(unseen_written_since)
{
    const int file = open_directly();
    unsigned char *tensor = read_unseen(file, 0);
    copy(0, tensor);
    tensor = read_unseen(file, 1);
    copy(1, tensor);
    overwrite_file(2 * TENSOR);
    for (int i = 0; i < 2; i++)
        print_bytes("tensor", blocks[i], TENSOR);
}
