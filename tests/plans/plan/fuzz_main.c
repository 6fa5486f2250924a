/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FOLDER [MUTATIONS [SECONDS [SEED]]]: the main of a fuzz target where libFuzzer is not at hand.
 * Runs every file of the folder as it is, then MUTATIONS random changes of them, the same in every
 * run, and then others for SECONDS. These begin with SEED, which is another one in each run if none
 * is given, and is printed.
 *
 * An input is in memory of its own size, so that a sanitizer sees a read behind it. It has twenty
 * seconds, and 2 GiB of memory. When the target dies, the input is kept in ./crash-input and its
 * name printed. TAP.
 */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tests/robust/fuzz/fuzz.h"

enum { INPUTS_MAX = 512, INPUT_BYTES_MAX = 1 << 20 };

struct input {
    uint8_t *data;
    size_t size;
};

static struct input corpus[INPUTS_MAX];
static size_t corpus_count;
static const struct input *running;
static uint64_t state;

static uint64_t below(uint64_t bound)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return bound == 0 ? 0 : state % bound;
}

/* The target died: keeps what it was given. */
static void keep_input(void)
{
    static const char words[] = "# the input is in crash-input\n";
    if (running == NULL)
        return;
    const int file = open("crash-input", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file >= 0 && write(file, running->data, running->size) >= 0 &&
        write(STDERR_FILENO, words, sizeof(words) - 1) >= 0)
        close(file);
}

static void die(int signal_number)
{
    keep_input();
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

/* There in a program with a sanitizer, which has handlers of its own. */
void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

static void watch_for_death(void)
{
    static const int deaths[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    signal(SIGALRM, die);
    if (__sanitizer_set_death_callback != NULL) {
        __sanitizer_set_death_callback(keep_input);
        return;
    }
    for (size_t i = 0; i < sizeof(deaths) / sizeof(deaths[0]); i++)
        signal(deaths[i], die);
}

static void run(const struct input *input)
{
    uint8_t *exact = malloc(input->size);
    if (exact == NULL && input->size > 0)
        abort();
    if (input->size > 0)
        memcpy(exact, input->data, input->size);
    running = input;
    LLVMFuzzerTestOneInput(exact, input->size);
    running = NULL;
    free(exact);
}

static void read_input(const char *folder, const char *name)
{
    char path[4096];
    struct stat stat;
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0 || fstat(file, &stat) != 0 || !S_ISREG(stat.st_mode) ||
        stat.st_size > INPUT_BYTES_MAX || corpus_count == INPUTS_MAX) {
        if (file >= 0)
            close(file);
        return;
    }
    struct input *input = &corpus[corpus_count++];
    input->size = (size_t)stat.st_size;
    input->data = malloc(input->size + 1);
    if (input->data == NULL || read(file, input->data, input->size) != (ssize_t)input->size)
        abort();
    close(file);
}

static void remove_part(struct input *input)
{
    const size_t begin = below(input->size);
    const size_t length = 1 + below(input->size - begin < 64 ? input->size - begin : 64);
    const size_t end = begin + length < input->size ? begin + length : input->size;
    memmove(input->data + begin, input->data + end, input->size - end);
    input->size -= end - begin;
}

/* Bytes of any input of the corpus, put in anywhere. */
static void insert_part(struct input *input, size_t room)
{
    const struct input *from = &corpus[below(corpus_count)];
    const size_t begin = below(from->size);
    const size_t at = below(input->size + 1);
    size_t length = 1 + below(from->size < 64 ? from->size : 64);
    if (length > from->size - begin)
        length = from->size - begin;
    if (length > room - input->size)
        length = room - input->size;
    memmove(input->data + at + length, input->data + at, input->size - at);
    memcpy(input->data + at, from->data + begin, length);
    input->size += length;
}

/* A run of digits becomes a number at an edge of what a 64-bit integer holds. */
static void change_number(struct input *input, size_t room)
{
    static const char *const numbers[] = {"0",
                                          "1",
                                          "-1",
                                          "2147483648",
                                          "4294967296",
                                          "4294967295",
                                          "16777216",
                                          "3",
                                          "9223372036854775807",
                                          "9223372036854775808",
                                          "1e300",
                                          "1.5",
                                          "-0",
                                          "18446744073709551615",
                                          "18446744073709551616",
                                          "1152921504606846976",
                                          "-9223372036854775808"};
    const char *number = numbers[below(sizeof(numbers) / sizeof(numbers[0]))];
    const size_t length = strlen(number);
    size_t begin = below(input->size);
    while (begin < input->size && (input->data[begin] < '0' || input->data[begin] > '9'))
        begin++;
    size_t end = begin;
    while (end < input->size && input->data[end] >= '0' && input->data[end] <= '9')
        end++;
    if (begin == end || input->size - (end - begin) + length > room)
        return;
    memmove(input->data + begin + length, input->data + end, input->size - end);
    memcpy(input->data + begin, number, length);
    input->size += length - (end - begin);
}

static void mutate(struct input *input, size_t room)
{
    for (uint64_t changes = 1 + below(4); changes > 0; changes--) {
        const uint64_t kind = below(6);
        if (kind == 0 || input->size == 0)
            insert_part(input, room);
        else if (kind == 1)
            remove_part(input);
        else if (kind == 2)
            change_number(input, room);
        else if (kind == 3)
            input->data[below(input->size)] ^= (uint8_t)(1 << below(8));
        else if (kind == 4)
            input->data[below(input->size)] = (uint8_t) "{}[]\",:-0\\*?\x80\xff "[below(16)];
        else
            input->size = below(8) == 0 ? below(input->size) : input->size;
    }
}

/* --- */

static void read_corpus(const char *folder)
{
    struct dirent **names;
    const int count = scandir(folder, &names, NULL, alphasort);
    for (int i = 0; i < count; i++) {
        read_input(folder, names[i]->d_name);
        free(names[i]);
    }
    if (count >= 0)
        free(names);
}

static void run_changed(void)
{
    static struct input changed;
    if (changed.data == NULL)
        changed.data = malloc(INPUT_BYTES_MAX);
    if (changed.data == NULL)
        abort();
    const struct input *from = &corpus[below(corpus_count)];
    changed.size = from->size;
    memcpy(changed.data, from->data, from->size);
    mutate(&changed, INPUT_BYTES_MAX);
    alarm(20);
    run(&changed);
    alarm(0);
}

static void set_seed(unsigned long seed)
{
    state = seed * 0x9e3779b97f4a7c15u + 1;
}

static unsigned long new_seed(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return ((unsigned long)now.tv_sec * 1000000000u + (unsigned long)now.tv_nsec) % 1000000000u;
}

static unsigned long run_for(unsigned long seconds)
{
    const time_t end = time(NULL) + (time_t)seconds;
    unsigned long count = 0;
    for (; time(NULL) < end; count++)
        run_changed();
    return count;
}

/* As libFuzzer's limit in tests/robust/fuzz/run is. */
static bool takes_little(void)
{
    enum { MOST_KIB = 2 << 20 };
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 && usage.ru_maxrss < MOST_KIB;
}

int main(int argc, char **argv)
{
    if (argc < 2 || argc > 5) {
        fprintf(stderr, "usage: %s FOLDER [MUTATIONS [SECONDS [SEED]]]\n", argv[0]);
        return 2;
    }
    read_corpus(argv[1]);
    if (corpus_count == 0) {
        fprintf(stderr, "%s: expected files in this folder\n", argv[1]);
        return 2;
    }
    watch_for_death();

    for (size_t i = 0; i < corpus_count; i++)
        run(&corpus[i]);
    printf("ok 1 %zu inputs of the corpus\n", corpus_count);
    fflush(stdout);

    const unsigned long mutations = argc > 2 ? strtoul(argv[2], NULL, 10) : 0;
    set_seed(1);
    for (unsigned long i = 0; i < mutations; i++)
        run_changed();
    printf("ok 2 %lu random changes of them\n", mutations);

    const unsigned long seconds = argc > 3 ? strtoul(argv[3], NULL, 10) : 0;
    const unsigned long seed = argc > 4 ? strtoul(argv[4], NULL, 10) : new_seed();
    printf("# seed %lu\n", seed);
    fflush(stdout);
    set_seed(seed);
    printf("ok 3 %lu more in %lu s\n", run_for(seconds), seconds);
    printf("%s 4 no input takes 2 GiB\n1..4\n", takes_little() ? "ok" : "not ok");
    for (size_t i = 0; i < corpus_count; i++)
        free(corpus[i].data);
    return 0;
}
