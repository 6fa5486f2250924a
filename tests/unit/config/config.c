/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/config/config.h"

#include <errno.h>
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

MS_TEST(an_empty_environment_gives_the_defaults)
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

/* The user's job counts; if it is empty, the launcher's. */
MS_TEST(the_job_in_a_file_name_is_cut_and_the_launchers_if_there_is_no_other)
{
    char job[80], expected[80];
    char *environment[] = {(char *)"METASHARD_DUMP=%j", NULL};
    setenv("METASHARD_JOB", "", 1);
    setenv("SLURM_JOB_ID", "42", 1);
    CHECK_EQ(strcmp(read_config(environment).dump_path, "42"), 0);
    memset(job, 'j', sizeof(job));
    job[sizeof(job) - 1] = '\0';
    snprintf(expected, sizeof(expected), "%.64s", job);
    setenv("METASHARD_JOB", job, 1);
    CHECK_EQ(strcmp(read_config(environment).dump_path, expected), 0);
    unsetenv("METASHARD_JOB");
    unsetenv("SLURM_JOB_ID");
}

MS_TEST(variables_set_their_options)
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
    static char *wrong[] = {(char *)"METASHARD=maybe",
                            (char *)"METASHARD_MIN_BYTES=-1",
                            (char *)"METASHARD_MIN_BYTES=2X",
                            (char *)"METASHARD_MIN_BYTES=",
                            (char *)"METASHARD_MIN_BYTES=2MBs",
                            (char *)"METASHARD_MIN_BYTES=2i",
                            (char *)"METASHARD_LOG=loud",
                            (char *)"METASHARD_OVERCOMMIT=2x",
                            (char *)"METASHARD_EXCLUDE=2M-1M",
                            (char *)"METASHARD_EXCLUDE=1M;2M",
                            (char *)"METASHARD_EXCLUDE=1M-",
                            (char *)"METASHARD_EXCLUDE=1M2M",
                            (char *)"METASHARD_EXCLUDE=,1M",
                            (char *)"METASHARD_EXCLUDE=1M,,2M",
                            (char *)"METASHARD_MIN_BYTES=99999999999G"};
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

/* --- each value as text */

struct shown {
    const char *variable;
    char value[MS_PATH_BYTES + 32];
    int count;
};

static void look_for(void *context, const char *variable, const char *value)
{
    struct shown *shown = context;
    if (strcmp(variable, shown->variable) != 0)
        return;
    snprintf(shown->value, sizeof(shown->value), "%s", value);
    shown->count++;
}

static void must_show(const struct ms_config *config, const char *variable, const char *value)
{
    struct shown shown = {.variable = variable};
    ms_config_visit(config, look_for, &shown);
    CHECK_EQ(shown.count, 1);
    if (strcmp(shown.value, value) != 0)
        ms_test_fail(__FILE__, __LINE__, "%s=%s, expected %s", variable, shown.value, value);
}

MS_TEST(values_are_shown_as_they_could_be_set)
{
    static const char *const cases[][3] = {
        {"METASHARD", "OFF", "off"},
        {"METASHARD", "yes", "on"},
        {"METASHARD", "Verify", "verify"},
        {"METASHARD_VERIFY_SAMPLE", "0", "0"},
        {"METASHARD_VERIFY_SAMPLE", "100", "100"},
        {"METASHARD_MIN_BYTES", "1K", "1024"},
        {"METASHARD_MIN_BYTES", "16777215T", "18446742974197923840"},
        {"METASHARD_EXCLUDE", "", ""},
        {"METASHARD_EXCLUDE", "1K", "1024-1024"},
        {"METASHARD_EXCLUDE", "1K-2K,3,4-4", "1024-2048,3-3,4-4"},
        {"METASHARD_OVERCOMMIT", "3", "3"},
        {"METASHARD_LEASES", "0", "off"},
        {"METASHARD_LEASES", "1", "on"},
        {"METASHARD_PLAN", "/a/plan", "/a/plan"},
        {"METASHARD_STATE_DIR", "a", "a"}, /* less than its default */
        {"METASHARD_PLAN_MODE", "Advise", "advise"},
        {"METASHARD_PLAN_MODE", "ENFORCE", "enforce"},
        {"METASHARD_LOG", "Trace", "trace"},
        {"METASHARD_SELFCHECK", "off", "off"},
        {"METASHARD_SELFCHECK", "On", "on"},
        {"METASHARD_SELFCHECK", "FRESH", "fresh"},
        /* The last: complaints would go there. */
        {"METASHARD_LOG", "error:/dev/null", "error:/dev/null"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[128];
        snprintf(text, sizeof(text), "%s=%s", cases[i][0], cases[i][1]);
        char *environment[] = {text, NULL};
        const struct ms_config config = read_config(environment);
        CHECK_EQ(lines(complaints), 0);
        must_show(&config, cases[i][0], cases[i][2]);
    }
}

MS_TEST(a_list_of_sizes_has_sixteen_at_most)
{
    char text[1024] = "METASHARD_EXCLUDE=", expected[1024] = "";
    for (int i = 0; i < 17; i++) {
        char *environment[] = {text, NULL};
        if (i > 0) {
            const struct ms_config config = read_config(environment);
            CHECK_EQ(config.excluded.count, i);
            CHECK_EQ(lines(complaints), 0);
            must_show(&config, "METASHARD_EXCLUDE", expected);
        }
        sprintf(text + strlen(text), "%s%d-%d", i > 0 ? "," : "", i, i + 1000);
        sprintf(expected + strlen(expected), "%s%d-%d", i > 0 ? "," : "", i, i + 1000);
    }
    char *environment[] = {text, NULL};
    CHECK_EQ(read_config(environment).excluded.count, 0);
    CHECK_EQ(lines(complaints), 1);
    CHECK(strstr(complaints, "expected at most 16 sizes") != NULL);
    CHECK(strstr(complaints, "; using none") != NULL);
}

MS_TEST(a_list_of_sizes_may_end_in_a_comma)
{
    char *environment[] = {(char *)"METASHARD_EXCLUDE=5,", NULL};
    CHECK_EQ(read_config(environment).excluded.count, 1);
    CHECK_EQ(lines(complaints), 0);
}

/* --- at the edges */

MS_TEST(a_number_of_bytes_is_read_up_to_where_it_ends)
{
    static const struct {
        const char *text;
        bool is_read;
        uint64_t bytes;
        size_t length;
    } cases[] = {{"65536", true, 65536, 5},
                 {"80GB rest", true, UINT64_C(80) << 30, 4},
                 {"2Kib", true, 2048, 4},
                 {"2Kx", true, 2048, 2},
                 {"2B", true, 2, 2},
                 {"2k-3", true, 2048, 2},
                 {"18446744073709551615", true, UINT64_MAX, 20},
                 {"18446744073709551616", false, 0, 0},
                 {"18014398509481983K", true, UINT64_MAX - 1023, 18},
                 {"18014398509481984K", false, 0, 0},
                 {"16777216T", false, 0, 0},
                 {"", false, 0, 0},
                 {"K", false, 0, 0},
                 {" 1", false, 0, 0},
                 {"+1", false, 0, 0}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *at = cases[i].text;
        uint64_t bytes = 0;
        errno = EILSEQ;
        CHECK_EQ(ms_config_read_bytes(&at, &bytes), cases[i].is_read);
        CHECK_EQ(at - cases[i].text, cases[i].length);
        CHECK_EQ(bytes, cases[i].bytes);
        CHECK_EQ(errno, EILSEQ); /* the program's */
    }
}

static void compare(void *context, const char *variable, const char *value)
{
    must_show(context, variable, value);
}

static void must_be_same(struct ms_config *one, const struct ms_config *other)
{
    ms_config_visit(other, compare, one);
}

/* A variable and a value that is just not possible; the default stays. */
MS_TEST(values_beyond_the_edge_are_complained_about)
{
    static const char *const wrong[] = {"METASHARD_VERIFY_SAMPLE=101",
                                        "METASHARD_VERIFY_SAMPLE=1x",
                                        "METASHARD_VERIFY_SAMPLE=",
                                        "METASHARD_OVERCOMMIT=",
                                        "METASHARD_OVERCOMMIT=18446744073709551616",
                                        "METASHARD_PLAN_MODE=",
                                        "METASHARD_PLAN_MODE=on",
                                        "METASHARD_SELFCHECK=yes",
                                        "METASHARD_LEASES=verify",
                                        "METASHARD_LOG=",
                                        "METASHARD_LOG=warning",
                                        "METASHARD_LOG=war",
                                        "METASHARD_LOG=warm"};
    struct ms_config expected;
    char *none[] = {NULL};
    ms_config_read_quietly(&expected, none);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        char text[64];
        strcpy(text, wrong[i]);
        char *environment[] = {text, NULL};
        struct ms_config config = read_config(environment);
        CHECK_EQ(lines(complaints), 1);
        CHECK(strstr(complaints, text) != NULL && strstr(complaints, "; using ") != NULL);
        CHECK_EQ(config.verify_percent, 100);
        CHECK_EQ(config.overcommit, 0);
        must_be_same(&config, &expected);
    }
}

MS_TEST(a_file_name_fits_or_is_not_taken)
{
    char text[2 * MS_PATH_BYTES] = "METASHARD_DUMP=",
                  log[2 * MS_PATH_BYTES] = "METASHARD_LOG=info:";
    char *environment[] = {text, NULL}, *logged[] = {log, NULL};
    const size_t used = strlen(text), log_used = strlen(log);
    memset(text + used, 'a', MS_PATH_BYTES - 2);
    CHECK_EQ(strlen(read_config(environment).dump_path), MS_PATH_BYTES - 2);
    CHECK_EQ(lines(complaints), 0);
    text[used + MS_PATH_BYTES - 2] = 'a';
    CHECK_EQ(read_config(environment).dump_path[0], '\0');
    CHECK_EQ(lines(complaints), 1);
    CHECK(strstr(complaints, "expected a file name of less than 512 bytes; using none") != NULL);
    strcpy(text + used + MS_PATH_BYTES - 4, "%p"); /* what it becomes is too long */
    CHECK_EQ(read_config(environment).dump_path[0] == '\0', getpid() > 99);
    memset(log + log_used, '/', MS_PATH_BYTES - 1);
    const struct ms_config config = read_config(logged);
    CHECK_EQ(config.log.level, MS_WARN);
    CHECK_EQ(config.log.path[0], '\0');
    CHECK_EQ(lines(complaints), 1);
}

MS_TEST(a_folder_for_the_run_is_the_systems_if_it_fits)
{
    static char text[2 * MS_PATH_BYTES] = "XDG_RUNTIME_DIR=/run/user/7";
    char *environment[] = {text, NULL}, *none[] = {NULL};
    CHECK_EQ(strcmp(read_config(environment).runtime_dir, "/run/user/7"), 0);
    CHECK_EQ(strcmp(read_config(none).runtime_dir, ""), 0);
    const size_t used = strlen("XDG_RUNTIME_DIR=");
    memset(text + used, '/', MS_PATH_BYTES - 1);
    CHECK_EQ(strlen(read_config(environment).runtime_dir), MS_PATH_BYTES - 1);
    text[used + MS_PATH_BYTES - 1] = '/';
    CHECK_EQ(read_config(environment).runtime_dir[0], '\0');
}

MS_TEST(a_cache_of_the_longest_name_is_taken)
{
    static char longest[MS_PATH_BYTES];
    memset(longest, '/', MS_PATH_BYTES - 1 - strlen("/.cache"));
    CHECK_EQ(strlen(config_at("", longest).cache_dir), MS_PATH_BYTES - 1);
    char *environment[] = {(char *)"XDG_CACHE_HOME=/var/cache", NULL}, *none[] = {NULL};
    struct ms_config config;
    ms_config_read_quietly(&config, environment);
    CHECK_EQ(strcmp(config.cache_dir, "/var/cache"), 0);
    ms_config_read_quietly(&config, none);
    CHECK_EQ(config.cache_dir[0], '\0');
}

MS_TEST(an_environment_is_searched_by_whole_names)
{
    char *environment[] = {(char *)"AB=1", (char *)"A", (char *)"A=", (char *)"A=3", NULL};
    CHECK_EQ(strcmp(ms_environment_find(environment, "A"), ""), 0);
    CHECK_EQ(strcmp(ms_environment_find(environment, "AB"), "1"), 0);
    CHECK(ms_environment_find(environment, "B") == NULL);
    CHECK(ms_environment_find(NULL, "A") == NULL);
}

/* --- warnings */

MS_TEST(words_that_people_type_have_what_there_is_instead)
{
    static const char *const cases[][2] = {
        {"METASHARD_DEBUG", "METASHARD_LOG=debug says what it does"},
        {"METASHARD_VERBOSE", "METASHARD_LOG=info says what it does"},
        {"METASHARD_ENABLE", "METASHARD=on, the default, or off"},
        {"METASHARD_ENABLED", "METASHARD=on, the default, or off"},
        {"METASHARD_DISABLE", "METASHARD=off"},
        {"METASHARD_DISABLED", "METASHARD=off"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[64], expected[256];
        snprintf(text, sizeof(text), "%s=1", cases[i][0]);
        snprintf(expected, sizeof(expected),
                 "%s is not a variable of MetaShard and is ignored: %s\n", cases[i][0],
                 cases[i][1]);
        char *environment[] = {text, NULL};
        read_config(environment);
        CHECK_EQ(lines(complaints), 1);
        CHECK(strstr(complaints, expected) != NULL);
    }
}

MS_TEST(another_prefix_is_a_warning)
{
    char *environment[] = {(char *)"META_SHARD_LOG=debug", (char *)"METASHARD_LOG=info",
                           (char *)"META_SHAR=1", NULL};
    CHECK_EQ(read_config(environment).log.level, MS_INFO);
    CHECK_EQ(lines(complaints), 1);
    CHECK(strstr(complaints, "META_SHARD_LOG is not a variable of MetaShard and is ignored: they "
                             "begin with METASHARD\n") != NULL);
}

/* More than are looked at by themselves. */
MS_TEST(very_many_settings_are_all_read)
{
    enum { MANY = 200 };
    static char texts[MANY][32];
    char *environment[MANY + 1];
    for (int i = 0; i < MANY; i++) {
        snprintf(texts[i], sizeof(texts[i]), "METASHARD_QQQQ%d=1", i);
        environment[i] = texts[i];
    }
    environment[MANY] = NULL;
    for (int last = 126; last <= 128; last++) {
        strcpy(texts[last], "METASHARD_OVERCOMMIT=7");
        CHECK_EQ(read_config(environment).overcommit, 7);
        snprintf(texts[last], sizeof(texts[last]), "METASHARD_QQQQ%d=1", last);
    }
    environment[127] = NULL;
    strcpy(texts[126], "METASHARD_OVERCOMMIT=7");
    CHECK_EQ(read_config(environment).overcommit, 7);
}

MS_TEST(the_switch_is_off_only_where_it_is_set_so)
{
    static const char *const on[] = {"on", "verify", "", "maybe"};
    unsetenv("METASHARD");
    CHECK(!ms_config_is_off());
    for (size_t i = 0; i < sizeof(on) / sizeof(on[0]); i++) {
        setenv("METASHARD", on[i], 1);
        CHECK(!ms_config_is_off());
    }
    setenv("METASHARD", "False", 1);
    CHECK(ms_config_is_off());
    unsetenv("METASHARD");
}

MS_TEST(the_first_and_the_last_size_of_a_list_count)
{
    const struct ms_size_list sizes = {.count = 2, .ranges = {{10, 20}, {30, 30}, {50, 60}}};
    static const uint64_t in[] = {10, 15, 20, 30}, out[] = {9, 21, 29, 31, 55};
    for (int i = 0; i < 4; i++)
        CHECK(ms_config_holds_size(&sizes, in[i]));
    for (int i = 0; i < 5; i++)
        CHECK(!ms_config_holds_size(&sizes, out[i]));
}
