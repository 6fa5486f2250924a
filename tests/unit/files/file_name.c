/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/files/file_name.h"

#include "runtime/files/file_internal.h"
#include "tests/unit/between.h"
#include "tests/unit/counted_pages.h"
#include "tests/unit/files/files.h"

static struct test_file file;

static void start(void)
{
    make_test_file(&file, "/tmp", 1000);
}

MS_TEST_AFTER(start, a_file_has_one_name_which_lasts_longer)
{
    const int pieces = live;
    may_make = 0;
    CHECK(ms_file_name_take(file.opened) == NULL);
    may_make = PLENTY;
    struct ms_file_name *name = ms_file_name_take(file.opened);
    CHECK(name != NULL && ms_file_name_take(file.opened) == name);
    CHECK_EQ(live, pieces + 1);
    const dev_t device = file.opened->mapped_device;
    const ino_t inode = file.opened->mapped_inode;
    ms_file_drop(file.opened);
    struct ms_source *source = ms_file_name_source(name);
    CHECK(ms_source_name(source) == name);
    CHECK(ms_source_file(source) == NULL && ms_source_snapshot(source) == NULL);
    const struct ms_named_file found = ms_file_name_get(name);
    CHECK(found.device == device && found.inode == inode && strcmp(found.path, file.path) == 0);
    ms_file_name_drop(name);
    CHECK_EQ(live, pieces);
    ms_file_name_drop(name);
    CHECK_EQ(live, pieces - 1);
}

MS_TEST_AFTER(start, a_file_is_as_named_by_size_and_time)
{
    struct ms_file_name *name = ms_file_name_take(file.opened);
    struct stat *now = &file.opened->recorded;
    const struct stat then = *now;
    CHECK(ms_file_name_fits(name, file.opened));
    now->st_ctim.tv_sec++;
    CHECK(ms_file_name_fits(name, file.opened));
    now->st_size++;
    CHECK(!ms_file_name_fits(name, file.opened));
    *now = then;
    now->st_mtim.tv_sec++;
    CHECK(!ms_file_name_fits(name, file.opened));
    *now = then;
    now->st_mtim.tv_nsec++;
    CHECK(!ms_file_name_fits(name, file.opened));
    *now = then;
    ms_file_name_drop(name);
}
