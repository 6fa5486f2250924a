/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/selfcheck/selfcheck.h"

#include <pthread.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "runtime/driver/facts.h"
#include "runtime/driver/flags.h"
#include "tests/state/page_folder.h"
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"

static struct ms_driver right;

static void begin(void)
{
    fake_needs_hints();
    page_folder_make();
    fake_start();
    right = ms_driver;
    snprintf(ms_config.state_dir, sizeof(ms_config.state_dir), "%s", page_folder);
    ms_config.self_check = MS_SELF_CHECK_ON;
    ms_log_open(MS_ERROR, NULL); /* the warnings are meant */
}

static bool allows(CUdevice device)
{
    fake.device = device;
    return ms_selfcheck_allows(FAKE_CONTEXT, device);
}

/* Kept texts, of any device. */
static size_t text_count(void)
{
    DIR *list = opendir(page_folder);
    size_t count = 0;
    CHECK(list != NULL);
    for (const struct dirent *entry; (entry = readdir(list)) != NULL;)
        count += strncmp(entry->d_name, ".selfcheck-", 11) == 0;
    closedir(list);
    return count;
}

static unsigned checks(void)
{
    return fake.calls[FAKE_mem_create] / 3;
}

/* Another process: what it sees. Statics are those of this process before it asked. */
struct seen {
    bool allows;
    unsigned checks;
    uint32_t unmet;
};

static struct seen in_another_process(void)
{
    int pipes[2];
    struct seen seen;
    int status;
    CHECK_EQ(pipe(pipes), 0);
    const pid_t child = fork();
    if (child == 0) {
        memset(&seen, 0, sizeof(seen)); /* all of it is written */
        seen.allows = allows(0);
        seen.checks = checks();
        seen.unmet = 0;
        for (enum ms_fact fact = 0; fact < MS_FACT_COUNT; fact++)
            seen.unmet |= ms_fact_holds(0, fact) ? 0 : MS_FACT_BIT(fact);
        _exit(write(pipes[1], &seen, sizeof(seen)) != sizeof(seen));
    }
    CHECK_EQ(read(pipes[0], &seen, sizeof(seen)), sizeof(seen));
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    close(pipes[0]);
    close(pipes[1]);
    return seen;
}

static unsigned questions;

static bool count_question(char *seen, size_t bytes)
{
    (void)seen, (void)bytes;
    questions++;
    return true;
}

MS_TEST_AFTER(begin, each_device_is_checked_once)
{
    ms_selfcheck_set_resolver(count_question);
    CHECK(allows(0) && allows(0));
    CHECK_EQ(questions, 1);
    CHECK_EQ(checks(), 1);
    CHECK(allows(1));
    CHECK_EQ(checks(), 2);
    CHECK_EQ(text_count(), 2);
    fake_check_empty();
}

MS_TEST_AFTER(begin, another_process_believes_it)
{
    CHECK_EQ(in_another_process().checks, 1);
    const struct seen second = in_another_process();
    CHECK(second.allows);
    CHECK_EQ(second.checks, 0);
    ms_config.self_check = MS_SELF_CHECK_FRESH;
    CHECK_EQ(in_another_process().checks, 1);
    ms_config.self_check = MS_SELF_CHECK_OFF;
    CHECK_EQ(in_another_process().checks, 0);
}

MS_TEST_AFTER(begin, off_makes_no_call)
{
    ms_config.self_check = MS_SELF_CHECK_OFF;
    CHECK(allows(0));
    for (enum fake_call call = 0; call < FAKE_CALLS; call++)
        CHECK_EQ(fake.calls[call], 0);
    CHECK_EQ(text_count(), 0);
}

/* --- facts that do not hold */

static CUresult short_set(CUdeviceptr address, unsigned value, size_t count, CUstream stream)
{
    return right.memset_d32_async(address, value, count / 2, stream);
}

MS_TEST_AFTER(begin, an_unmet_fact_without_a_way_around_ends_deferral)
{
    ms_driver.memset_d32_async = short_set;
    for (unsigned process = 0; process < 2; process++) {
        const struct seen seen = in_another_process();
        CHECK(!seen.allows);
        CHECK_EQ(seen.unmet, MS_FACT_BIT(MS_FACT_SET));
        CHECK_EQ(seen.checks, process == 0);
    }
}

static CUresult refuse_fourth(CUdeviceptr address, size_t bytes, size_t offset,
                              CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    return fake.mappings < 3 ? right.mem_map(address, bytes, offset, handle, flags)
                             : CUDA_ERROR_INVALID_VALUE;
}

MS_TEST_AFTER(begin, an_unmet_fact_with_a_way_around_leaves_deferral_on)
{
    ms_driver.mem_map = refuse_fourth;
    CHECK(allows(1));
    ms_driver.mem_map = right.mem_map;
    CHECK(allows(0));
    CHECK(!ms_fact_holds(1, MS_FACT_ALIAS));
    CHECK(ms_fact_holds(0, MS_FACT_ALIAS));
    CHECK(!ms_fact_holds(MS_EVERY_DEVICE, MS_FACT_ALIAS));
    CHECK_EQ(checks(), 3); /* the first one was asked again: a call was refused */
}

MS_TEST_AFTER(begin, a_call_that_fails_once_is_no_answer)
{
    fake_fail(FAKE_mem_map, 4, CUDA_ERROR_INVALID_VALUE);
    CHECK(allows(0));
    CHECK(fake_has_failed());
    CHECK(ms_fact_holds(0, MS_FACT_ALIAS));
    CHECK_EQ(in_another_process().unmet, 0);
}

static bool is_wrong(char *seen, size_t bytes)
{
    snprintf(seen, bytes, "cuMemAlloc is elsewhere");
    return false;
}

MS_TEST_AFTER(begin, the_resolver_is_asked_in_each_process)
{
    ms_selfcheck_set_resolver(is_wrong);
    const struct seen first = in_another_process();
    CHECK(!first.allows);
    CHECK_EQ(first.unmet, MS_FACT_BIT(MS_FACT_RESOLVER));
    CHECK(!in_another_process().allows);
    ms_selfcheck_set_resolver(NULL);
    const struct seen later = in_another_process();
    CHECK(later.allows);
    CHECK_EQ(later.checks, 0);
}

/* --- when it cannot be asked now */

MS_TEST_AFTER(begin, little_memory_is_no_failure_and_it_is_asked_later)
{
    const size_t total = fake.total_bytes;
    fake.total_bytes = FAKE_GRANULE;
    CHECK(allows(0) && allows(0));
    CHECK_EQ(text_count(), 0);
    fake.total_bytes = total;
    ms_driver.memset_d32_async = short_set;
    CHECK(!allows(0));
    CHECK_EQ(text_count(), 1);
}

MS_TEST_AFTER(begin, memory_that_is_short_for_good_is_not_asked_for_ever)
{
    fake_fail(FAKE_mem_create, 1, CUDA_ERROR_OUT_OF_MEMORY);
    for (int i = 0; i < 40; i++) {
        fake_fail(FAKE_mem_create, 1, CUDA_ERROR_OUT_OF_MEMORY);
        CHECK(allows(0));
    }
    CHECK_EQ(fake.calls[FAKE_mem_create], 16);
    fake_check_empty();
}

MS_TEST_AFTER(begin, a_device_that_does_not_finish_is_not_asked_again)
{
    fake.is_busy = true;
    CHECK(allows(0));
    CHECK_EQ(checks(), 1);
    fake.is_busy = false;
    CHECK(allows(0));
    CHECK_EQ(checks(), 1);
    CHECK_EQ(text_count(), 0);
}

MS_TEST_AFTER(begin, nothing_is_asked_during_a_capture)
{
    ms_hot.captures = 1;
    CHECK(allows(0));
    for (enum fake_call call = 0; call < FAKE_CALLS; call++)
        CHECK_EQ(fake.calls[call], 0);
    ms_hot.captures = 0;
    CHECK(allows(0));
    CHECK_EQ(checks(), 1);
}

static void *ask(void *unused)
{
    return ms_selfcheck_allows(FAKE_CONTEXT, 0) ? unused : NULL;
}

MS_TEST_AFTER(begin, threads_wait_for_one_check)
{
    enum { THREADS = 8 };
    pthread_t threads[THREADS];
    void *result;
    for (int i = 0; i < THREADS; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, ask, &threads), 0);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], &result);
        CHECK(result == &threads);
    }
    CHECK_EQ(checks(), 1);
    fake_check_empty();
}

/* --- the kept text */

static const char *text_path(void)
{
    static char path[128];
    snprintf(path, sizeof(path), "%s/.selfcheck-%032d", page_folder, 0);
    return path;
}

static size_t read_text(char *text, size_t bytes)
{
    FILE *file = fopen(text_path(), "re");
    CHECK(file != NULL);
    const size_t length = fread(text, 1, bytes, file);
    fclose(file);
    return length;
}

static void write_text(const char *text, size_t length)
{
    FILE *file = fopen(text_path(), "we");
    CHECK(file != NULL);
    CHECK_EQ(fwrite(text, 1, length, file), length);
    CHECK_EQ(fclose(file), 0);
}

static void expect_ignored(const char *text, size_t length)
{
    write_text(text, length);
    const struct seen seen = in_another_process();
    CHECK_EQ(seen.checks, 1);
    CHECK_EQ(seen.unmet, 0);
}

MS_TEST_AFTER(begin, a_text_that_was_cut_or_changed_is_ignored)
{
    char text[4096], other[4096];
    CHECK_EQ(in_another_process().checks, 1);
    const size_t length = read_text(text, sizeof(text));
    /* Each in a process of its own, which takes a second there. */
    const size_t step = ms_test_is_watched() ? 97 : 7;
    for (size_t cut = 0; cut < length; cut += step)
        expect_ignored(text, cut);
    for (size_t at = 0; at < length; at += step) {
        memcpy(other, text, length);
        other[at] ^= 0x80;
        expect_ignored(other, length);
    }
    memset(other, '\n', sizeof(other));
    memcpy(other, text, length);
    expect_ignored(other, length + 1);
    expect_ignored(other, sizeof(other));
    write_text(text, length);
    CHECK_EQ(in_another_process().checks, 0);
}

MS_TEST_AFTER(begin, a_text_of_another_driver_is_ignored)
{
    char text[4096];
    CHECK_EQ(in_another_process().checks, 1);
    text[read_text(text, sizeof(text) - 1)] = '\0';
    char *version = strstr(text, "driver 13000");
    CHECK(version != NULL);
    version[8] = '2';
    expect_ignored(text, strlen(text));
}

MS_TEST_AFTER(begin, a_text_that_others_can_write_is_ignored)
{
    CHECK_EQ(in_another_process().checks, 1);
    CHECK_EQ(chmod(text_path(), 0666), 0);
    CHECK_EQ(in_another_process().checks, 1);
    CHECK_EQ(in_another_process().checks, 0); /* it was written anew */
    char link[160];
    snprintf(link, sizeof(link), "%s.real", text_path());
    CHECK_EQ(rename(text_path(), link), 0);
    CHECK_EQ(symlink(link, text_path()), 0);
    CHECK_EQ(in_another_process().checks, 1);
}

MS_TEST_AFTER(begin, no_folder_no_text)
{
    ms_config.state_dir[0] = '\0';
    CHECK_EQ(in_another_process().checks, 1);
    CHECK_EQ(in_another_process().checks, 1);
    CHECK_EQ(text_count(), 0);
}
