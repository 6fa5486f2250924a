/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors that read a file past the page cache (O_DIRECT), in whole blocks. Opening one takes
 * longer than a read of a block, so who has opened one leaves it to the file, which closes it when
 * it is let go. In the file thread and the threads that it starts.
 */
#pragma once

#include <stdbool.h>

#include "runtime/files/file.h"

/* In place of a descriptor: none was opened yet, none can be, or there was no room for one, but
 * there may be the next time. */
enum { MS_DIRECT_NOT_OPENED = -1, MS_DIRECT_REFUSED = -2, MS_DIRECT_NO_ROOM = -3 };

/* Offsets and addresses of reads are multiples of this. */
enum { MS_DIRECT_BLOCK = 4096 };

/* The descriptor that was left to the file, or MS_DIRECT_NOT_OPENED, or MS_DIRECT_REFUSED. */
int ms_direct_left(const struct ms_file *file);

/* Opens a second file description within a use of the file, whose own descriptor goes on using the
 * page cache. The caller closes it, or leaves it to the file. */
int ms_direct_open(const struct ms_file *file);

/* Leaves the descriptor, or MS_DIRECT_REFUSED, to the file, so that the next reader opens none.
 * False: the file does not take it. In the file thread itself. */
bool ms_direct_leave(const struct ms_file *file, int descriptor);
