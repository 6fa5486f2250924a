/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for PyTorch's libc10.so: the function that its caching allocator reports blocks with
 * (c10/core/Allocator.cpp), which keeps what it was told, and an allocator that refuses everything.
 */
#include "tests/driver/differential/c10.h"

static int64_t bytes;
static int calls;

SIMC10_EXPORT void REPORT(void *block, int64_t size, size_t allocated, size_t reserved,
                          struct c10_device device)
{
    bytes += block != NULL && device.type == 1 && device.index == 0 ? size : 0;
    calls += allocated <= reserved;
}

SIMC10_EXPORT void c10_told(int *calls_out, int64_t *bytes_out)
{
    *calls_out = calls;
    *bytes_out = bytes;
}

static void (*request)(int8_t type, size_t bytes);
static int8_t request_type;

void c10_on_request(void (*told)(int8_t type, size_t bytes))
{
    request = told;
}

struct data_ptr { /* returned in memory */
    void *words[8];
};
struct allocator {
    const struct functions {
        void *destroy[2];
        struct data_ptr (*allocate)(struct allocator *self, size_t size);
    } * functions;
};

static struct data_ptr refuse(struct allocator *self, size_t size)
{
    (void)self;
    request(request_type, size);
    return (struct data_ptr){{NULL}};
}

void *GET_ALLOCATOR(const int8_t *type)
{
    static const struct functions functions = {.allocate = refuse};
    static struct allocator allocator = {&functions};
    request_type = *type;
    return &allocator;
}
