/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/source/lease.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "runtime/config/config.h"
#include "tools/simcuda/harness/test.h"

static char path[] = "/tmp/metashard-lease-XXXXXX";

static void remove_file(void)
{
    unlink(path);
}

static int make_file(void)
{
    const int file = mkstemp(path);
    CHECK(file >= 0);
    atexit(remove_file);
    close(file);
    return open(path, O_RDONLY);
}

MS_TEST(a_lease_is_taken_where_that_is_allowed_and_given_back)
{
    struct ms_lease lease = {false};
    const int file = make_file();
    ms_lease_take(&lease, file);
    CHECK(!atomic_load(&lease.is_taken) && !ms_lease_any());
    ms_config.leases = true;
    ms_lease_take(&lease, file);
    if (!atomic_load(&lease.is_taken))
        ms_test_skip("no leases here");
    CHECK(ms_lease_any());
    CHECK_EQ(fcntl(file, F_GETLEASE), F_RDLCK);
    CHECK(ms_lease_is_intact(&lease, file) && !ms_lease_is_broken(&lease, file));
    ms_lease_drop(&lease, file);
    CHECK(!ms_lease_any());
    CHECK_EQ(fcntl(file, F_GETLEASE), F_UNLCK);
    CHECK(!ms_lease_is_intact(&lease, file));
    ms_lease_drop(&lease, file); /* once is enough */
    CHECK(!ms_lease_any());
}

MS_TEST(a_file_that_is_open_for_writing_gets_none)
{
    struct ms_lease lease = {false};
    const int file = make_file(), writer = open(path, O_WRONLY);
    ms_config.leases = true;
    ms_lease_take(&lease, file);
    CHECK(!atomic_load(&lease.is_taken) && !ms_lease_any());
    close(writer);
}
