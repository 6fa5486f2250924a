/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/kernel/loads.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "runtime/kernel/strided_loop.h"

/* --- types, by the mangled name of a kernel (CUDALoops.cuh, Loops.cuh): a functor has its types as
 * template arguments, and the type of a lambda's argument ends its name */

/* Moves *at behind the text if the text stands there. */
static bool skip(const char **at, const char *text)
{
    const size_t length = strlen(text);
    if (strncmp(*at, text, length) != 0)
        return false;
    *at += length;
    return true;
}

static size_t letter_bytes(char letter)
{
    static const struct {
        char letters[6];
        size_t bytes;
    } sizes[] = {{"abh", 1}, {"st", 2}, {"fij", 4}, {"dlmxy", 8}};
    for (size_t i = 0; letter != '\0' && i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        if (strchr(sizes[i].letters, letter) != NULL)
            return sizes[i].bytes;
    }
    return 0;
}

/* Types of namespace c10. */
static size_t class_bytes(const char **at)
{
    static const struct {
        char name[20];
        size_t bytes;
    } names[] = {{"4HalfE", 2},
                 {"8BFloat16E", 2},
                 {"11Float8_e5m2E", 1},
                 {"13Float8_e4m3fnE", 1},
                 {"14Float8_e8m0fnuE", 1},
                 {"15Float8_e4m3fnuzE", 1},
                 {"15Float8_e5m2fnuzE", 1},
                 {"5qint8E", 1},
                 {"6quint8E", 1},
                 {"6qint32E", 4}};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (skip(at, names[i].name))
            return names[i].bytes;
    }
    return 0;
}

/* Skips a reference to an earlier part of the name: "S_", "S4_". */
static bool skip_reference(const char **at)
{
    const char *end = *at;
    if (*end++ != 'S')
        return false;
    end += strspn(end, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ");
    if (*end != '_')
        return false;
    *at = end + 1;
    return true;
}

/* The bytes of the type at *at, which moves behind the type: "f", "N3c108BFloat16E",
 * "NS4_8BFloat16E", "N3c107complexIfEE". 0: the type is unknown. */
static size_t type_bytes(const char **at)
{
    if (**at != 'N') {
        const size_t bytes = letter_bytes(**at);
        *at += bytes > 0;
        return bytes;
    }
    ++*at;
    if (!skip(at, "3c10") && !skip_reference(at))
        return 0;
    if (!skip(at, "7complexI"))
        return class_bytes(at);
    const size_t part = type_bytes(at); /* a complex number has no complex parts */
    return skip(at, "EE") ? 2 * part : 0;
}

/* Bytes of an element; 0: unknown. */
struct elements {
    size_t loaded, stored;
};

enum { MOST_TYPES = 3 };

/* The types of a functor's template arguments. */
struct types {
    size_t bytes[MOST_TYPES];
};

/* Reads the types of a functor. A reference among them means the class that stands before: scalars
 * have no references, and other types do not occur. The class is known if only one stands before,
 * and it has no parts. */
static bool read_types(const char *at, size_t count, struct types *types)
{
    size_t class_count = 0, named_bytes = 0;
    for (size_t i = 0; i < count; i++) {
        const char *begin = at;
        if (skip_reference(&at)) {
            types->bytes[i] = named_bytes;
        } else {
            types->bytes[i] = type_bytes(&at);
            if (*begin == 'N') {
                const bool has_parts = strncmp(begin, "N3c107complexI", 14) == 0;
                named_bytes = class_count++ == 0 && !has_parts ? types->bytes[i] : 0;
            }
        }
        if (types->bytes[i] == 0)
            return false;
    }
    return true;
}

/* Functors of one argument, and which of their types are loaded and stored; -1: none of them. */
static const struct {
    char name[40];
    int count, loaded, stored;
} functors[] = {
    {"NS0_13AUnaryFunctorI", 3, 1, 2}, /* its first operand is a number */
    {"NS0_13BUnaryFunctorI", 3, 0, 2}, /* its second operand is a number */
    {"NS0_21CUDAFunctorOnSelf_addI", 1, 0, 0},
    {"NS0_22CUDAFunctorOnOther_addI", 1, 0, 0},
    {"NS0_10AbsFunctorI", 1, 0, -1}, /* the absolute value of a complex number is not complex */
    {"ZNS0_27converting_copy_kernel_cudaI", 2, 0, 1},
};

/* Casts of floats before PyTorch 2.15, by the type that they store. */
static const struct {
    char name[40];
    size_t stored;
} casts[] = {{"ZNS0_24float16_copy_kernel_cudaE", 2}, {"ZNS0_25bfloat16_copy_kernel_cudaE", 2}};

/* Finds the types of a lambda. Its name does not tell the type that it stores. */
static struct elements find_lambda(const char *functor)
{
    struct elements elements = {0, 0};
    const char *at = *functor == 'Z' ? strstr(functor, "EUl") : NULL;
    if (at == NULL)
        return elements;
    at += strlen("EUl");
    elements.loaded = type_bytes(&at);
    /* one argument, and the end of the lambda's name: a name within it would continue */
    if (elements.loaded == 0 || *at++ != 'E')
        return (struct elements){0, 0};
    at += strspn(at, "0123456789");
    if (*at++ != '_' || (strncmp(at, "St5arrayI", 9) != 0 && strncmp(at, "EEv", 3) != 0 &&
                         strncmp(at, "NS_6detail5ArrayI", 17) != 0))
        return (struct elements){0, 0};
    for (size_t i = 0; i < sizeof(casts) / sizeof(casts[0]); i++) {
        if (strncmp(functor, casts[i].name, strlen(casts[i].name)) == 0)
            elements.stored = casts[i].stored;
    }
    return elements;
}

static struct elements find_types(const char *functor)
{
    for (size_t i = 0; i < sizeof(functors) / sizeof(functors[0]); i++) {
        const char *at = functor;
        struct types types = {{0}};
        if (!skip(&at, functors[i].name))
            continue;
        if (!read_types(at, (size_t)functors[i].count, &types))
            return (struct elements){0, 0};
        return (struct elements){types.bytes[functors[i].loaded],
                                 functors[i].stored < 0 ? 0 : types.bytes[functors[i].stored]};
    }
    return find_lambda(functor);
}

/* --- loops */

/* A complex number of two doubles. */
enum { LARGEST_ELEMENT = 16 };

/* The parameters of a dense loop: (numel, functor, {out, in}, ...), and with a cast
 * (..., calculator, calculator, loader, storer). */
enum { COUNT = 0, POINTERS = 2, LOADER = 5, STORER = 6, CAST_PARAMS = 7 };

static uint32_t word(const struct ms_packed *packed, size_t at)
{
    uint32_t value;
    memcpy(&value, packed->bytes + at, sizeof(value));
    return value;
}

static const char *skip_to(const char *name, const char *text)
{
    const char *at = strstr(name, text);
    return at != NULL ? at + strlen(text) : NULL;
}

/* LoadWithCast<1> and StoreWithCast<1> (MemoryAccess.cuh) are {type, size} of the element in
 * memory, which the functor's types do not tell. 0: unknown. */
static size_t cast_bytes(const struct ms_param_layout *layout, const struct ms_packed *packed,
                         unsigned param)
{
    const struct ms_param *cast = &layout->params[param];
    if (layout->count != CAST_PARAMS || cast->bytes != 8 || cast->offset + 8 > packed->count)
        return 0;
    const size_t bytes = word(packed, cast->offset + 4);
    return bytes <= LARGEST_ELEMENT ? bytes : 0;
}

static struct elements find_elements(const struct ms_param_layout *layout,
                                     const struct ms_packed *packed, const char *functor)
{
    struct elements elements = find_types(functor);
    if (strstr(functor, "12LoadWithCastI") != NULL)
        elements.loaded = cast_bytes(layout, packed, LOADER);
    if (strstr(functor, "13StoreWithCastI") != NULL)
        elements.stored = cast_bytes(layout, packed, STORER);
    return elements;
}

/* Where the name of a dense loop has its functor, or NULL. */
static const char *find_functor(const char *name)
{
    const char *functor = skip_to(name, "_ZN2at6native29vectorized_elementwise_kernelILi");
    if (functor == NULL)
        return skip_to(name, "_ZN2at6native27unrolled_elementwise_kernelI");
    functor += strspn(functor, "0123456789");
    return *functor == 'E' ? functor + 1 : NULL;
}

static bool find_dense(const struct ms_param_layout *layout, const struct ms_packed *packed,
                       size_t pointers, struct ms_loads *loads)
{
    const char *functor = find_functor(layout->name);
    if (functor == NULL || !layout->known || layout->count <= POINTERS ||
        layout->params[COUNT].bytes != sizeof(uint32_t) ||
        layout->params[POINTERS].offset != pointers)
        return false;
    const size_t count = word(packed, layout->params[COUNT].offset);
    const struct elements elements = find_elements(layout, packed, functor);
    const size_t loaded = elements.loaded != 0 ? elements.loaded : LARGEST_ELEMENT;
    loads->bytes = count * loaded;
    if (elements.loaded != 0 && elements.stored != 0) {
        loads->in_row = loads->in_step = loaded;
        loads->out_step = elements.stored;
    }
    return true;
}

static void find_strided(const struct ms_param_layout *layout, const struct ms_packed *packed,
                         size_t pointers, struct ms_loads *loads)
{
    const char *functor = skip_to(layout->name, "22gpu_kernel_impl_nocastI");
    struct ms_strides strides;
    if (functor == NULL ||
        ms_strided_loop_find_strides(layout, packed, pointers, &strides) != MS_STRIDED_FOUND ||
        strides.elements != word(packed, layout->params[COUNT].offset))
        return;
    const struct elements elements = find_types(functor);
    const size_t loaded = elements.loaded != 0 ? elements.loaded : LARGEST_ELEMENT;
    loads->in_row = strides.in_span + loaded;
    loads->in_step = strides.in_step;
    loads->out_step = strides.out_step;
    loads->bytes = (strides.rows - 1) * strides.in_step + loads->in_row;
    if (!strides.has_rows) /* the output's rows lie in each other */
        loads->in_row = 0;
}

void ms_loads_find(const struct ms_param_layout *layout, const struct ms_packed *packed,
                   size_t pointers, struct ms_loads *loads_out)
{
    *loads_out = (struct ms_loads){0};
    if (!find_dense(layout, packed, pointers, loads_out))
        find_strided(layout, packed, pointers, loads_out);
}
