/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/config/config.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/simcuda/harness/test.h"

static char complaints[4096];

/* Reads the configuration from `environment` with the log in a file, and keeps what was logged. */
static struct ms_config read_config(char **environment)
{
    char path[] = "/tmp/metashard-test-XXXXXX";
    const int file = mkstemp(path);
    CHECK(file >= 0);
    const int saved = dup(STDERR_FILENO);
    dup2(file, STDERR_FILENO);
    struct ms_config config;
    ms_config_read(&config, environment);
    dup2(saved, STDERR_FILENO);
    const ssize_t got = pread(file, complaints, sizeof(complaints) - 1, 0);
    CHECK(got >= 0);
    complaints[got] = '\0';
    close(file);
    close(saved);
    unlink(path);
    return config;
}

static int lines(const char *text)
{
    int count = 0;
    for (; *text != '\0'; text++)
        count += *text == '\n';
    return count;
}

MS_TEST(defaults)
{
    char *environment[] = {(char *)"HOME=/root", NULL};
    const struct ms_config config = read_config(environment);
    CHECK(config.mode == MS_ON);
    CHECK_EQ(config.min_bytes, 2 << 20);
    CHECK_EQ(config.snapshot_bytes, 256 << 20);
    CHECK_EQ(config.overcommit, 0);
    CHECK_EQ(config.settle_ms, 1000);
    CHECK_EQ(config.excluded.count, 0);
    CHECK_EQ(config.log.level, MS_WARN);
    CHECK_EQ(config.dump_path[0], '\0');
    CHECK_EQ(lines(complaints), 0);
}

static struct ms_config config_at(const char *cache, const char *home)
{
    char text[2][8192];
    snprintf(text[0], sizeof(text[0]), "XDG_CACHE_HOME=%s", cache);
    snprintf(text[1], sizeof(text[1]), "HOME=%s", home);
    char *environment[] = {text[0], text[1], NULL};
    return read_config(environment);
}

MS_TEST(caches_are_where_the_user_has_them)
{
    static char longest[sizeof(((struct ms_config *)0)->cache_dir)];
    CHECK_EQ(strcmp(config_at("/var/cache", "/home/a").cache_dir, "/var/cache"), 0);
    CHECK_EQ(strcmp(config_at("relative", "/home/a").cache_dir, "/home/a/.cache"), 0);
    CHECK_EQ(strcmp(config_at("", "a").cache_dir, ""), 0);
    memset(longest, '/', sizeof(longest) - 1);
    CHECK_EQ(strcmp(config_at(longest, "/home/a").cache_dir, longest), 0);
    CHECK_EQ(strcmp(config_at("", longest).cache_dir, ""), 0); /* with what is added */
}

MS_TEST(a_file_name_has_process_rank_job_and_host)
{
    char host[256], expected[600];
    setenv("RANK", "3", 1);
    setenv("WORLD_SIZE", "8", 1);
    setenv("METASHARD_JOB", "a/b", 1);
    char *environment[] = {(char *)"METASHARD_DUMP=/tmp/%p-%r-%j-%h-%x%", NULL};
    const struct ms_config config = read_config(environment);
    gethostname(host, sizeof(host));
    snprintf(expected, sizeof(expected), "/tmp/%d-3-a_b-%s-%%x%%", (int)getpid(), host);
    CHECK(strcmp(config.dump_path, expected) == 0);
    unsetenv("RANK");
    unsetenv("METASHARD_JOB");
    char *nothing[] = {(char *)"METASHARD_DUMP=%r%j", NULL};
    const struct ms_config without = read_config(nothing);
    CHECK(strcmp(without.dump_path, "nonenone") == 0);
}

MS_TEST(values)
{
    char *environment[] = {(char *)"METASHARD=Off",
                           (char *)"METASHARD_MIN_BYTES=512k",
                           (char *)"METASHARD_SNAPSHOT_BYTES=1G",
                           (char *)"METASHARD_EXCLUDE=20M,1K-2k",
                           (char *)"METASHARD_OVERCOMMIT=3",
                           (char *)"METASHARD_LOG=debug",
                           (char *)"METASHARD_DUMP=/tmp/%p.json",
                           NULL};
    const struct ms_config config = read_config(environment);
    CHECK(config.mode == MS_OFF);
    CHECK_EQ(config.min_bytes, 512 << 10);
    CHECK_EQ(config.snapshot_bytes, 1 << 30);
    CHECK_EQ(config.overcommit, 3);
    CHECK(ms_config_holds_size(&config.excluded, 20 << 20));
    CHECK(!ms_config_holds_size(&config.excluded, (20 << 20) + 1));
    CHECK(ms_config_holds_size(&config.excluded, 1024) &&
          ms_config_holds_size(&config.excluded, 2048));
    CHECK(!ms_config_holds_size(&config.excluded, 1023) &&
          !ms_config_holds_size(&config.excluded, 2049));
    CHECK_EQ(config.log.level, MS_DEBUG);
    char expected[64];
    snprintf(expected, sizeof(expected), "/tmp/%d.json", (int)getpid());
    CHECK(strcmp(config.dump_path, expected) == 0);
    CHECK_EQ(lines(complaints), 0);
}

MS_TEST(words_that_mean_on_and_off)
{
    static const char *const words[2][4] = {{"off", "0", "False", "no"},
                                            {"on", "1", "true", "YES"}};
    for (int i = 0; i < 8; i++) {
        char mode[32], leases[32];
        snprintf(mode, sizeof(mode), "METASHARD=%s", words[i / 4][i % 4]);
        snprintf(leases, sizeof(leases), "METASHARD_LEASES=%s", words[i / 4][i % 4]);
        char *environment[] = {mode, leases, NULL};
        const struct ms_config config = read_config(environment);
        CHECK_EQ(config.mode, i / 4 == 0 ? MS_OFF : MS_ON);
        CHECK_EQ(config.leases, i / 4);
        CHECK_EQ(lines(complaints), 0);
    }
}

MS_TEST(a_unit_has_many_spellings)
{
    static const char *const words[] = {"3G", "3GB", "3GiB", "3gib", "3Gi", "3072M", "3221225472B"};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        char bytes[64], sizes[64];
        snprintf(bytes, sizeof(bytes), "METASHARD_MIN_BYTES=%s", words[i]);
        snprintf(sizes, sizeof(sizes), "METASHARD_EXCLUDE=1KiB-%s,%s", words[i], words[i]);
        char *environment[] = {bytes, sizes, NULL};
        const struct ms_config config = read_config(environment);
        CHECK_EQ(config.min_bytes, UINT64_C(3) << 30);
        CHECK_EQ(config.excluded.count, 2);
        CHECK_EQ(config.excluded.ranges[0].first, 1024);
        CHECK_EQ(config.excluded.ranges[1].last, UINT64_C(3) << 30);
        CHECK_EQ(lines(complaints), 0);
    }
}

MS_TEST(verify_is_on_with_a_share_of_the_allocations)
{
    char *all[] = {(char *)"METASHARD=Verify", NULL};
    char *some[] = {(char *)"METASHARD=verify", (char *)"METASHARD_VERIFY_SAMPLE=10", NULL};
    CHECK(read_config(all).mode == MS_VERIFY);
    CHECK_EQ(read_config(all).verify_percent, 100);
    CHECK_EQ(read_config(some).verify_percent, 10);
    CHECK_EQ(lines(complaints), 0);
}

MS_TEST(a_wrong_value_is_one_line_and_the_default)
{
    static char *wrong[] = {
        (char *)"METASHARD=maybe",          (char *)"METASHARD_MIN_BYTES=-1",
        (char *)"METASHARD_MIN_BYTES=2X",   (char *)"METASHARD_MIN_BYTES=",
        (char *)"METASHARD_MIN_BYTES=2MBs", (char *)"METASHARD_MIN_BYTES=2i",
        (char *)"METASHARD_LOG=loud",       (char *)"METASHARD_OVERCOMMIT=2x",
        (char *)"METASHARD_EXCLUDE=2M-1M",  (char *)"METASHARD_EXCLUDE=1M;2M",
        (char *)"METASHARD_EXCLUDE=1M-",    (char *)"METASHARD_MIN_BYTES=99999999999G"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        char *environment[] = {wrong[i], NULL};
        const struct ms_config config = read_config(environment);
        CHECK(config.mode == MS_ON);
        CHECK_EQ(config.min_bytes, 2 << 20);
        CHECK_EQ(config.log.level, MS_WARN);
        CHECK_EQ(lines(complaints), 1);
        CHECK(strstr(complaints, wrong[i]) != NULL);
        CHECK(strstr(complaints, "expected") != NULL);
    }
}

MS_TEST(an_unknown_name_is_one_warning)
{
    char *environment[] = {(char *)"METASHARD_SNAPSHOTS=5", (char *)"METASHARDX=1", NULL};
    read_config(environment);
    CHECK_EQ(lines(complaints), 1);
    CHECK(strstr(complaints, "METASHARD_SNAPSHOTS") != NULL);
}

MS_TEST(an_unknown_name_has_the_nearest_beside_it)
{
    char *environment[] = {(char *)"METASHARD_MINBYTES=2M", (char *)"METASHARD_=1", NULL};
    read_config(environment);
    CHECK_EQ(lines(complaints), 2);
    CHECK(strstr(complaints, "METASHARD_MINBYTES is not a variable of MetaShard and is ignored; "
                             "did you mean METASHARD_MIN_BYTES?\n") != NULL);
    CHECK(strstr(complaints, "METASHARD_ is not a variable of MetaShard and is ignored\n") != NULL);
}

MS_TEST(a_variable_of_earlier_versions_is_unknown)
{
    char *environment[] = {(char *)"METASHARD_SCATTER=on", NULL};
    read_config(environment);
    CHECK_EQ(lines(complaints), 1);
    CHECK(strstr(complaints, "METASHARD_SCATTER is not a variable of MetaShard") != NULL);
}

MS_TEST(a_variable_that_is_gone_names_what_to_use)
{
    char *environment[] = {(char *)"METASHARD_HASHES=/tmp", (char *)"METASHARD_HASHES_LIKE=/tmp",
                           NULL};
    read_config(environment);
    CHECK_EQ(lines(complaints), 2);
    CHECK(strstr(complaints, "METASHARD_HASHES is not a variable of MetaShard") != NULL);
    CHECK(strstr(complaints, "METASHARD_HASHES_LIKE is not a variable") != NULL);
    CHECK(strstr(complaints, "metashard verify -- COMMAND, or METASHARD=verify") != NULL);
}

MS_TEST(a_log_file_is_appended_to)
{
    char *environment[] = {(char *)"METASHARD_LOG=info:/tmp/metashard-test-log-%p", NULL};
    const struct ms_config config = read_config(environment);
    CHECK_EQ(config.log.level, MS_INFO);
    ms_log(MS_INFO, "hello %d", 42);
    ms_log(MS_DEBUG, "not shown");
    char text[256] = {0};
    const int file = open(config.log.path, O_RDONLY);
    CHECK(file >= 0);
    CHECK(read(file, text, sizeof(text) - 1) > 0);
    close(file);
    unlink(config.log.path);
    CHECK_EQ(lines(text), 1);
    CHECK(strstr(text, "info: hello 42\n") != NULL);
}
