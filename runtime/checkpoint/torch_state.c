/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/checkpoint/torch_state.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/array.h"
#include "runtime/base/heap.h"
#include "runtime/base/utf8.h"
#include "runtime/checkpoint/pickle.h"

enum {
    DEPTH_MAX = 2048,
    /* A dict that the pickle has once may be reached by many names, and so may its items. So names
     * may take SPENT_MAX_TIMES the pickle's size plus SPENT_MIN_BYTES, up to SPENT_MAX_BYTES. */
    SPENT_MAX_TIMES = 32,
    SPENT_MIN_BYTES = 1 << 16,
    SPENT_MAX_BYTES = 256 << 20
};

/* Types of storages (in module torch, torch.storage, torch.cuda...) and dtypes of their elements;
 * or, for a storage of bytes, the dtype that a tensor names beside it. */
static const struct {
    char storage[20], name[16]; /* "": there is none */
    enum ms_dtype dtype;
} types[] = {
    {"FloatStorage", "float32", MS_DTYPE_F32},
    {"HalfStorage", "float16", MS_DTYPE_F16},
    {"BFloat16Storage", "bfloat16", MS_DTYPE_BF16},
    {"LongStorage", "int64", MS_DTYPE_I64},
    {"IntStorage", "int32", MS_DTYPE_I32},
    {"ShortStorage", "int16", MS_DTYPE_I16},
    {"CharStorage", "int8", MS_DTYPE_I8},
    {"ByteStorage", "uint8", MS_DTYPE_U8},
    {"BoolStorage", "bool", MS_DTYPE_BOOL},
    {"DoubleStorage", "float64", MS_DTYPE_F64},
    {"ComplexFloatStorage", "complex64", MS_DTYPE_C64},
    {"UntypedStorage", "", MS_DTYPE_U8},
    {"", "uint16", MS_DTYPE_U16},
    {"", "uint32", MS_DTYPE_U32},
    {"", "uint64", MS_DTYPE_U64},
    {"", "float8_e5m2", MS_DTYPE_F8_E5M2},
    {"", "float8_e4m3fn", MS_DTYPE_F8_E4M3},
    {"", "float8_e5m2fnuz", MS_DTYPE_F8_E5M2FNUZ},
    {"", "float8_e4m3fnuz", MS_DTYPE_F8_E4M3FNUZ},
    {"", "float8_e8m0fnu", MS_DTYPE_F8_E8M0},
};

enum { TYPE_COUNT = sizeof(types) / sizeof(types[0]) };

/* The object that a call would create. */
enum made {
    NO_TENSOR,
    A_DICT,
    A_PARAMETER, /* the first argument is the tensor */
    A_SUBCLASS,  /* made from the result of a function, itself an argument */
    A_TENSOR,
    A_TENSOR_WITH_DTYPE,
    A_QUANTIZED
};

static const struct {
    char module[16], name[32];
    enum made made;
} functions[] = {
    {"collections", "OrderedDict", A_DICT},
    {"collections", "defaultdict", A_DICT},
    {"torch._utils", "_rebuild_parameter", A_PARAMETER},
    {"torch._utils", "_rebuild_parameter_with_state", A_PARAMETER},
    {"torch._tensor", "_rebuild_from_type_v2", A_SUBCLASS},
    {"torch._tensor", "_rebuild_from_type", A_SUBCLASS},
    {"torch.tensor", "_rebuild_from_type", A_SUBCLASS}, /* torch 1.7 and 1.8 */
    {"torch._utils", "_rebuild_tensor", A_TENSOR},
    {"torch._utils", "_rebuild_tensor_v2", A_TENSOR},
    {"torch._utils", "_rebuild_tensor_v3", A_TENSOR_WITH_DTYPE},
    {"torch._utils", "_rebuild_qtensor", A_QUANTIZED},
};

/* A container whose items are being visited. */
struct frame {
    uint32_t cell; /* the next item, or in a dict the item's key */
    uint32_t index;
    size_t path_bytes;
    bool is_dict;
};

struct walk {
    const struct ms_fault_context *reading;
    struct ms_pickle pickle;
    struct ms_arena *arena;
    struct ms_torch_state state;
    struct frame frames[DEPTH_MAX];
    size_t depth;
    char *path; /* the name of the current value; "" for the top */
    size_t path_bytes, path_capacity;
    uint64_t spent, limit;
    uint32_t top_item; /* the cell of the current item of the top */
    uint32_t root;     /* the item of the top that has all tensors so far; 0: no tensor yet */
    bool has_roots;    /* several items of the top have tensors */
};

/* --- values of the pickle */

static bool is_text(const struct ms_pickle *pickle, uint32_t value, const char *text)
{
    const struct ms_value *found = &pickle->values[value];
    return found->kind == MS_VALUE_TEXT && found->text.length == strlen(text) &&
           memcmp(pickle->text + found->text.at, text, found->text.length) == 0;
}

/* Gets the first `count` items of a tuple. Returns false if the tuple has fewer. */
static bool get_items(const struct ms_pickle *pickle, uint32_t tuple, uint32_t *items, int count)
{
    if (pickle->values[tuple].kind != MS_VALUE_TUPLE)
        return false;
    uint32_t cell = pickle->values[tuple].first;
    for (int i = 0; i < count; i++, cell = pickle->cells[cell].next) {
        if (cell == 0)
            return false;
        items[i] = pickle->cells[cell].value;
    }
    return true;
}

/* --- the walk */

static bool fault_at(const struct walk *walk, const char *what)
{
    const struct ms_place place = {NULL, walk->path_bytes > 0 ? walk->path : "data.pkl", 0};
    ms_fault_at(walk->reading, &place, "%s", what);
    return false;
}

static bool spend(struct walk *walk, size_t bytes)
{
    walk->spent += bytes;
    return walk->spent <= walk->limit ||
           fault_at(walk, "expected fewer names for values that the file has once");
}

static enum made made_by(const struct ms_pickle *pickle, uint32_t function)
{
    const struct ms_value *found = &pickle->values[function];
    if (found->kind != MS_VALUE_GLOBAL)
        return NO_TENSOR;
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        if (is_text(pickle, found->global.module, functions[i].module) &&
            is_text(pickle, found->global.name, functions[i].name))
            return functions[i].made;
    }
    return NO_TENSOR;
}

/* Returns what a call makes, and the tuple of its arguments; NO_TENSOR for another value. */
static enum made made_of(const struct ms_pickle *pickle, uint32_t value, uint32_t *arguments_out)
{
    const struct ms_value *call = &pickle->values[value];
    uint32_t items[3];
    if (call->kind != MS_VALUE_CALL)
        return NO_TENSOR;
    *arguments_out = call->call.arguments;
    enum made made = made_by(pickle, call->call.function);
    if (made == A_SUBCLASS) { /* function, class, arguments, state */
        if (!get_items(pickle, call->call.arguments, items, 3))
            return NO_TENSOR;
        *arguments_out = items[2];
        made = made_by(pickle, items[0]);
    }
    return made;
}

static bool is_tensor(enum made made)
{
    return made == A_TENSOR || made == A_TENSOR_WITH_DTYPE || made == A_QUANTIZED;
}

/* Replaces a parameter by its tensor. */
static bool find_made(struct walk *walk, uint32_t *value, enum made *made_out,
                      uint32_t *arguments_out)
{
    while ((*made_out = made_of(&walk->pickle, *value, arguments_out)) == A_PARAMETER) {
        if (!spend(walk, 1))
            return false;
        if (!get_items(&walk->pickle, *arguments_out, value, 1))
            return fault_at(walk, "expected the tensor of a parameter");
    }
    return true;
}

static bool append_path(struct walk *walk, const char *text, size_t bytes)
{
    const size_t wanted = walk->path_bytes + bytes + 2;
    if (wanted > walk->path_capacity) {
        char *grown = ms_heap_realloc(walk->path, 2 * wanted);
        if (grown == NULL)
            return fault_at(walk, "out of memory");
        walk->path = grown;
        walk->path_capacity = 2 * wanted;
    }
    if (walk->depth > 1)
        walk->path[walk->path_bytes++] = '.';
    memcpy(walk->path + walk->path_bytes, text, bytes);
    walk->path_bytes += bytes;
    walk->path[walk->path_bytes] = '\0';
    return true;
}

/* Appends the item's key or index. False: a fault. Only keys that are texts or integers have
 * names. */
static bool append_key(struct walk *walk, const struct frame *frame, uint32_t key,
                       bool *has_name_out)
{
    char digits[24];
    int64_t number = frame->index;
    *has_name_out = true;
    if (frame->is_dict) {
        const struct ms_value *value = &walk->pickle.values[key];
        if (value->kind == MS_VALUE_TEXT) {
            const char *text = walk->pickle.text + value->text.at;
            return ms_utf8_is_valid(text, value->text.length)
                       ? append_path(walk, text, value->text.length)
                       : fault_at(walk, "expected keys in UTF-8, without NUL");
        }
        *has_name_out = value->kind == MS_VALUE_INT;
        if (!*has_name_out)
            return true;
        number = value->number;
    }
    return append_path(walk, digits, (size_t)snprintf(digits, sizeof(digits), "%" PRId64, number));
}

/* Returns the row of `types`, or TYPE_COUNT. */
static size_t find_type(const struct ms_pickle *pickle, uint32_t value, bool is_storage)
{
    const struct ms_value *global = &pickle->values[value];
    size_t i = 0;
    for (; i < TYPE_COUNT; i++) {
        const char *name = is_storage ? types[i].storage : types[i].name;
        if (name[0] != '\0' && is_text(pickle, global->global.name, name))
            break;
    }
    return i;
}

static uint64_t type_bytes(size_t type)
{
    return ms_dtype_bits[types[type].dtype] / 8;
}

/* Reads a tuple of integers that are 0 or more. Stores `most` of them; a larger count only says
 * that there are more. */
static bool read_numbers(const struct ms_pickle *pickle, uint32_t tuple, uint64_t *numbers,
                         size_t most, size_t *count_out)
{
    *count_out = 0;
    if (pickle->values[tuple].kind != MS_VALUE_TUPLE)
        return false;
    for (uint32_t cell = pickle->values[tuple].first; cell != 0; cell = pickle->cells[cell].next) {
        const struct ms_value *value = &pickle->values[pickle->cells[cell].value];
        if (value->kind != MS_VALUE_INT || value->number < 0)
            return false;
        if (*count_out < most)
            numbers[*count_out] = (uint64_t)value->number;
        if (++*count_out > most)
            break;
    }
    return true;
}

static bool is_contiguous(const struct ms_tensor *tensor, const uint64_t *strides)
{
    uint64_t expected = 1;
    if (tensor->elements == 0)
        return true;
    for (unsigned i = tensor->dims; i-- > 0;) {
        if (tensor->shape[i] == 1)
            continue;
        if (strides[i] != expected)
            return false;
        expected *= tensor->shape[i];
    }
    return true;
}

/* The arguments of a call of torch._utils._rebuild_tensor or a later version of this function. */
struct rebuild {
    enum made made;
    uint32_t storage, first, shape, stride, dtype; /* arguments: values */
    bool is_changed;   /* the elements are the bytes conjugated or negated */
    size_t held, type; /* rows of `types`, or TYPE_COUNT */
    size_t dims;
    uint64_t strides[MS_TENSOR_DIMS_MAX];
};

static bool read_arguments(struct walk *walk, uint32_t arguments, struct rebuild *rebuild)
{
    uint32_t items[8];
    const bool has_dtype = rebuild->made == A_TENSOR_WITH_DTYPE;
    const int least = has_dtype ? 7 : 4, metadata = has_dtype ? 7 : 6;
    if (!get_items(&walk->pickle, arguments, items, least))
        return fault_at(walk, "expected a tensor's storage, offset, shape and strides");
    rebuild->storage = items[0];
    rebuild->first = items[1];
    rebuild->shape = items[2];
    rebuild->stride = items[3];
    rebuild->dtype = has_dtype ? items[6] : 0;
    rebuild->is_changed = rebuild->made != A_QUANTIZED &&
                          get_items(&walk->pickle, arguments, items, metadata + 1) &&
                          walk->pickle.values[items[metadata]].first != 0;
    return true;
}

/* ("storage", type, key, location, elements) */
static bool read_storage(struct walk *walk, struct rebuild *rebuild, struct ms_torch_view *view)
{
    const struct ms_value *values = walk->pickle.values, *storage = &values[rebuild->storage];
    uint32_t id[5];
    if (storage->kind != MS_VALUE_PERSISTENT || !get_items(&walk->pickle, storage->id, id, 5) ||
        !is_text(&walk->pickle, id[0], "storage") || values[id[1]].kind != MS_VALUE_GLOBAL ||
        values[id[2]].kind != MS_VALUE_TEXT || values[id[4]].kind != MS_VALUE_INT ||
        values[id[4]].number < 0)
        return fault_at(walk, "expected a storage with type, key, location and size");
    const struct ms_value *key = &values[id[2]];
    const char *text = walk->pickle.text + key->text.at;
    if (!ms_utf8_is_valid(text, key->text.length))
        return fault_at(walk, "expected the storage's key in UTF-8, without NUL");
    view->key = ms_arena_string(walk->arena, text, key->text.length);
    if (view->key == NULL)
        return fault_at(walk, "out of memory");
    rebuild->held = find_type(&walk->pickle, id[1], true);
    view->storage_bytes = (uint64_t)values[id[4]].number;
    return rebuild->held == TYPE_COUNT ||
           !__builtin_mul_overflow(view->storage_bytes, type_bytes(rebuild->held),
                                   &view->storage_bytes) ||
           fault_at(walk, "expected a storage of less than 2^64 bytes");
}

static bool read_shape(struct walk *walk, struct rebuild *rebuild, struct ms_tensor *tensor)
{
    const struct ms_pickle *pickle = &walk->pickle;
    const struct ms_value *first = &pickle->values[rebuild->first];
    size_t strides;
    rebuild->type = rebuild->held;
    if (rebuild->made == A_TENSOR_WITH_DTYPE) {
        if (pickle->values[rebuild->dtype].kind != MS_VALUE_GLOBAL)
            return fault_at(walk, "expected a dtype");
        rebuild->type = find_type(pickle, rebuild->dtype, false);
    }
    if (first->kind != MS_VALUE_INT || first->number < 0 ||
        !read_numbers(pickle, rebuild->shape, tensor->shape, MS_TENSOR_DIMS_MAX, &rebuild->dims) ||
        !read_numbers(pickle, rebuild->stride, rebuild->strides, MS_TENSOR_DIMS_MAX, &strides) ||
        rebuild->dims != strides)
        return fault_at(walk, "expected offset, shape and strides of integers that are 0 or more");
    return true;
}

/* Reads the tensor's offset in its storage. PyTorch ignores the offset if there are no elements. */
static bool read_place(struct walk *walk, const struct rebuild *rebuild, struct ms_torch_view *view)
{
    struct ms_tensor *tensor = &view->tensor;
    const uint64_t first = (uint64_t)walk->pickle.values[rebuild->first].number;
    if (tensor->bytes == 0)
        return true;
    return (!__builtin_mul_overflow(first, type_bytes(rebuild->type), &tensor->offset) &&
            tensor->bytes <= view->storage_bytes &&
            tensor->offset <= view->storage_bytes - tensor->bytes) ||
           fault_at(walk, "expected a tensor that ends in its storage");
}

/* Returns false on a fault, or, with *is_skipped_out, to skip the tensor. */
static bool read_view(struct walk *walk, enum made made, uint32_t arguments,
                      struct ms_torch_view *view, bool *is_skipped_out)
{
    struct rebuild rebuild = {.made = made};
    struct ms_tensor *tensor = &view->tensor;
    *is_skipped_out = false;
    if (!read_arguments(walk, arguments, &rebuild) || !read_storage(walk, &rebuild, view) ||
        !read_shape(walk, &rebuild, tensor))
        return false;
    *is_skipped_out = made == A_QUANTIZED || rebuild.held == TYPE_COUNT ||
                      rebuild.type == TYPE_COUNT || rebuild.dims > MS_TENSOR_DIMS_MAX ||
                      rebuild.is_changed;
    if (*is_skipped_out)
        return false;
    tensor->dims = (unsigned)rebuild.dims;
    tensor->dtype = types[rebuild.type].dtype;
    const char *wrong = ms_tensor_measure(tensor);
    if (wrong != NULL)
        return fault_at(walk, wrong);
    *is_skipped_out = !is_contiguous(tensor, rebuild.strides);
    return !*is_skipped_out && read_place(walk, &rebuild, view);
}

static bool visit_tensor(struct walk *walk, uint32_t value, uint32_t arguments, enum made made)
{
    struct ms_torch_state *state = &walk->state;
    bool is_skipped;
    walk->pickle.values[value].is_marked = true;
    walk->has_roots |= walk->root != 0 && walk->root != walk->top_item;
    walk->root = walk->top_item;
    if (!MS_ARRAY_GROW(state->views, state->count, state->capacity))
        return fault_at(walk, "out of memory");
    struct ms_torch_view *view = &state->views[state->count++];
    *view = (struct ms_torch_view){0};
    if (!spend(walk, sizeof(*view) + walk->path_bytes))
        return false;
    if (!read_view(walk, made, arguments, view, &is_skipped)) {
        state->count--;
        state->skipped += is_skipped;
        return is_skipped;
    }
    view->tensor.name = ms_arena_string(walk->arena, walk->path, walk->path_bytes);
    return view->tensor.name != NULL || fault_at(walk, "out of memory");
}

/* True if the value's items have names: for a list, a tuple or a dict. */
static bool is_container(const struct ms_value *value, enum made made)
{
    return value->kind == MS_VALUE_TUPLE || value->kind == MS_VALUE_LIST ||
           value->kind == MS_VALUE_DICT || made == A_DICT;
}

static bool is_dict(const struct ms_value *value)
{
    return value->kind == MS_VALUE_DICT || value->kind == MS_VALUE_CALL;
}

static bool enter(struct walk *walk, uint32_t value)
{
    const struct ms_value *container = &walk->pickle.values[value];
    if (walk->depth == DEPTH_MAX)
        return fault_at(walk, "expected nesting of at most 2048");
    walk->frames[walk->depth++] =
        (struct frame){container->first, 0, walk->path_bytes, is_dict(container)};
    return true;
}

static bool visit(struct walk *walk, const struct frame *frame, uint32_t key, uint32_t value)
{
    uint32_t arguments = 0;
    enum made made;
    bool has_name;
    if (!spend(walk, 1) || !find_made(walk, &value, &made, &arguments))
        return false;
    const struct ms_value *found = &walk->pickle.values[value];
    if (!is_container(found, made) && !is_tensor(made))
        return true;
    if (!append_key(walk, frame, key, &has_name) ||
        !spend(walk, walk->path_bytes - frame->path_bytes))
        return false;
    if (!has_name)
        return true;
    return is_tensor(made) ? visit_tensor(walk, value, arguments, made) : enter(walk, value);
}

static bool follow(struct walk *walk)
{
    while (walk->depth > 0) {
        struct frame *frame = &walk->frames[walk->depth - 1];
        const struct ms_cell *cells = walk->pickle.cells;
        walk->path_bytes = frame->path_bytes;
        walk->path[walk->path_bytes] = '\0';
        if (frame->cell == 0) {
            walk->depth--;
            continue;
        }
        const struct frame at = *frame;
        const uint32_t item = frame->is_dict ? cells[at.cell].next : at.cell;
        if (walk->depth == 1)
            walk->top_item = at.cell;
        frame->cell = cells[item].next;
        frame->index++;
        if (!visit(walk, &at, cells[at.cell].value, cells[item].value))
            return false;
    }
    return true;
}

/* Drops the first part of all names if all tensors are in one dict of the top that has a usual name
 * for the model. */
static void drop_root(struct walk *walk, bool is_top_dict)
{
    static const char *const roots[] = {"state_dict", "model", "module"};
    const struct ms_pickle *pickle = &walk->pickle;
    if (walk->root == 0 || walk->has_roots || !is_top_dict)
        return;
    const struct ms_cell *key = &pickle->cells[walk->root];
    const struct ms_value *value = &pickle->values[pickle->cells[key->next].value];
    uint32_t arguments;
    if (value->kind != MS_VALUE_DICT &&
        made_of(pickle, pickle->cells[key->next].value, &arguments) != A_DICT)
        return;
    for (size_t i = 0; i < sizeof(roots) / sizeof(roots[0]); i++) {
        if (!is_text(pickle, key->value, roots[i]))
            continue;
        for (size_t view = 0; view < walk->state.count; view++)
            walk->state.views[view].tensor.name += strlen(roots[i]) + 1;
    }
}

/* Counts tensors in objects of other classes, in sets, or below keys without a name. */
static void count_unnamed(struct walk *walk)
{
    uint32_t arguments;
    for (uint32_t i = 0; i < walk->pickle.value_count; i++) {
        if (!walk->pickle.values[i].is_marked && is_tensor(made_of(&walk->pickle, i, &arguments)))
            walk->state.skipped++;
    }
}

static bool walk_run(struct walk *walk)
{
    uint32_t arguments, value = walk->pickle.top;
    const enum made made = made_of(&walk->pickle, value, &arguments);
    const struct ms_value *top = &walk->pickle.values[value];
    if (!append_path(walk, "", 0))
        return false;
    if (is_container(top, made) && (!enter(walk, value) || !follow(walk)))
        return false;
    drop_root(walk, is_dict(top));
    count_unnamed(walk);
    return true;
}

bool ms_torch_state_read(const struct ms_fault_context *reading, const char *text, size_t bytes,
                         struct ms_arena *arena, struct ms_torch_state *state_out)
{
    struct walk *walk = ms_heap_zalloc(sizeof(*walk));
    if (walk == NULL)
        return ms_fault_at(reading, NULL, "out of memory");
    walk->reading = reading;
    walk->arena = arena;
    walk->limit = (uint64_t)bytes * SPENT_MAX_TIMES + SPENT_MIN_BYTES;
    walk->limit = walk->limit < SPENT_MAX_BYTES ? walk->limit : SPENT_MAX_BYTES;
    const bool is_good = ms_pickle_read(reading, text, bytes, &walk->pickle) && walk_run(walk);
    if (is_good)
        *state_out = walk->state;
    else
        ms_heap_free(walk->state.views);
    ms_pickle_cleanup(&walk->pickle);
    ms_heap_free(walk->path);
    ms_heap_free(walk);
    return is_good;
}
