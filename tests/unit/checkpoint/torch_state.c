/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/checkpoint/torch_state.h"

#include <stdio.h>
#include <stdlib.h>

#include "runtime/base/heap.h"
#include "tests/unit/checkpoint/torch_bytes.h"
#include "tests/unit/counted_pages.h"
#include "tests/unit/between.h"

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

static struct bytes text;
static struct ms_torch_state found;
static struct ms_arena names;
static struct ms_fault fault;

/* --- states, written for short */

static const struct part four = {.key = "0", .type = "FloatStorage", .held = 4, .length = 4};

static const char *put_value(const char *at);

/* Up to the closing bracket; a key is a name, "#" and a number, or "?": None. */
static const char *put_items(const char *at, bool has_keys)
{
    put_line(&text, "(");
    while (strchr("})]", *at) == NULL) {
        char key[16] = "";
        size_t length = strcspn(at, ":");
        if (has_keys) {
            memcpy(key, at, length);
            at += length + 1;
        }
        if (has_keys && key[0] == '#')
            put_integer(&text, atoll(key + 1));
        else if (has_keys && key[0] == '?')
            put_line(&text, "N");
        else if (has_keys)
            put_text(&text, key);
        at = put_value(at);
        at += *at == ' ';
    }
    return at + 1;
}

/* {key:value key:value}, o{...} as collections.OrderedDict, [...], (...), T: a tensor, PT, VT and
 * ST: as parameters and as a subclass, X...: the argument of a class, N: None, =: kept, @: what was
 * kept. */
static const char *put_value(const char *at)
{
    const char kind = *at++;
    if (kind == 'o')
        put_line(&text, "ccollections\nOrderedDict\n)R");
    if (kind == '{' || kind == 'o') {
        put_line(&text, kind == '{' ? "}" : "");
        at = put_items(at + (kind == 'o'), true);
        put_line(&text, "u");
    } else if (kind == '[') {
        put_line(&text, "]");
        at = put_items(at, false);
        put_line(&text, "e");
    } else if (kind == '(') {
        at = put_items(at, false);
        put_line(&text, "t");
    } else if (kind == 'T') {
        put_tensor(&text, &four);
    } else if (kind == 'P' || kind == 'V' || kind == 'X') {
        put_line(&text, kind == 'X'   ? "cother\nClass\n"
                        : kind == 'P' ? "ctorch._utils\n_rebuild_parameter\n"
                                      : "ctorch._utils\n_rebuild_parameter_with_state\n");
        at = put_value(at);
        put_line(&text, "\x85R");
    } else if (kind == '=') {
        at = put_value(at);
        put_line(&text, "q\x01");
        text.at[text.count - 1] = 0;
    } else {
        put_line(&text, kind == '@' ? "h" : "N");
        if (kind == '@')
            put_number(&text, 0, 1);
    }
    return at;
}

static bool read_state(void)
{
    const struct ms_fault_context reading = {"some.pt", &fault};
    const int pieces = live;
    found = (struct ms_torch_state){0};
    fault.text[0] = '\0';
    const bool is_read =
        ms_torch_state_read(&reading, (const char *)text.at, text.count, &names, &found);
    CHECK_EQ(is_read, fault.text[0] == '\0');
    CHECK(is_read || found.views == NULL);
    if (!is_read)
        ms_arena_cleanup(&names);
    CHECK(is_read || live == pieces);
    return is_read;
}

static void drop_state(void)
{
    ms_heap_free(found.views);
    ms_arena_cleanup(&names);
    CHECK_EQ(live, 0);
}

/* That the text has these names, with a space behind each, and so many tensors that are skipped;
 * or that there is a fault that says this. */
static void check(const char *state, const char *wanted, size_t skipped)
{
    char seen[1024] = "";
    if (read_state()) {
        for (size_t i = 0; i < found.count; i++)
            strcat(strcat(seen, found.views[i].tensor.name), " ");
        if (found.skipped != skipped || strcmp(seen, wanted) != 0)
            ms_test_fail(__FILE__, __LINE__, "%s: expected %s and %zu, found %s and %zu", state,
                         wanted, skipped, seen, found.skipped);
    } else if (strstr(fault.text, wanted) == NULL || wanted[0] == '\0') {
        ms_test_fail(__FILE__, __LINE__, "%s: expected %s, found %s", state, wanted, fault.text);
    }
    drop_state();
}

static void check_state(const char *state, const char *wanted, size_t skipped)
{
    text.count = 0;
    put_value(state);
    put_line(&text, ".");
    check(state, wanted, skipped);
}

/* --- names */

MS_TEST(names_are_the_way_from_the_top)
{
    static const struct {
        const char *state, *wanted;
        size_t skipped;
    } rows[] = {
        {"{w:T}", "w ", 0},
        {"{}", "", 0},
        {"N", "", 0},
        {"T", "", 1},
        {"{m:{w:T v:T} n:T}", "m.w m.v n ", 0},
        {"o{m:o{w:T}}", "m.w ", 0},
        {"[T N T]", "0 2 ", 0},
        {"(T (N T))", "0 1.1 ", 0},
        {"{a:[T {b:T}]}", "a.0 a.1.b ", 0},
        {"{#5:T #-3:[T]}", "5 -3.0 ", 0},
        {"{?:T a:T}", "a ", 1},
        {"{a:T ?:{b:T}}", "a ", 1},
        {"{a:XT b:T}", "b ", 1},
        {"{:T}", " ", 0},
        {"{a:PT b:VT c:PPT}", "a b c ", 0},
        {"{a:=T b:@ c:[@]}", "a b c.0 ", 0},
        {"{?:=T b:@}", "b ", 0},
    };
    for (size_t i = 0; i < COUNT(rows); i++)
        check_state(rows[i].state, rows[i].wanted, rows[i].skipped);
}

MS_TEST(a_dict_around_the_whole_model_is_no_part_of_names)
{
    static const char *const rows[][2] = {
        {"{model:{w:T v:T}}", "w v "},
        {"{state_dict:{w:T}}", "w "},
        {"{module:o{w:T}}", "w "},
        {"{x:N model:{w:T} y:[N]}", "w "},
        {"{modem:{w:T}}", "modem.w "},
        {"{model:{w:T} y:T}", "model.w y "},
        {"{y:T model:{w:T}}", "y model.w "},
        {"{model:[T]}", "model.0 "},
        {"{model:T}", "model "},
        {"{model:{model:{w:T}}}", "model.w "},
        {"[{model:{w:T}}]", "0.model.w "},
        {"{a:{model:{w:T}}}", "a.model.w "},
        {"{model:{w:T} module:{w:T}}", "model.w module.w "},
        {"o{model:{w:T}}", "w "},
    };
    for (size_t i = 0; i < COUNT(rows); i++)
        check_state(rows[i][0], rows[i][1], 0);
}

MS_TEST(a_parameter_has_a_tensor)
{
    text.count = 0;
    put_line(&text, "}U\1actorch._utils\n_rebuild_parameter\n)Rs.");
    check("no arguments", "expected the tensor of a parameter", 0);
    text.count = 0;
    put_line(&text, "}U\1\xff");
    put_tensor(&text, &four);
    put_line(&text, "s.");
    check("bytes", "expected keys in UTF-8, without NUL", 0);
}

STORY_ALONE(
    a_subclass_is_made_of_its_tensor, text.count = 0,
    put_line(&text, "}U\1actorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n"
                    "_rebuild_tensor_v2\ncother\nClass\n(("),
    put_line(&text, "U\7storagectorch\nHalfStorage\nU\0010U\3cpuK\4tQK\1K\2\x85K\1\x85\x89Nt}tRs."),
    IS(read_state()), EQUALS(found.count, 1), EQUALS(found.views[0].tensor.offset, 2),
    EQUALS(found.views[0].tensor.bytes, 4), drop_state())

/* A dict of one tensor, which is made by a call of this function with the usual arguments. */
static void check_function(const char *function, const char *wanted, size_t skipped)
{
    text.count = 0;
    put_line(&text, "}U\1wc");
    put_line(&text, function);
    put_line(&text, "((U\7storagectorch\nHalfStorage\nU\0010U\3cpuK\4tQK\1K\2\x85K\1\x85\x89NtRs.");
    check(function, wanted, skipped);
}

MS_TEST(functions_are_those_of_their_modules)
{
    check_function("torch._utils\n_rebuild_tensor_v2\n", "w ", 0);
    check_function("torch._utils\n_rebuild_tensor\n", "w ", 0);
    check_function("torch._utils\n_rebuild_qtensor\n", "", 1);
    check_function("other\n_rebuild_tensor_v2\n", "", 0);
    check_function("torch._utils\n_rebuild_tensor_v4\n", "", 0);
    check_function("torch._tensor\n_rebuild_tensor_v2\n", "", 0);
    text.count = 0;
    put_line(&text, "}U\1actorch._tensor\n_rebuild_from_type_v2\nNN\x86Rs.");
    check("a subclass of too few arguments", "", 0);
    for (int i = 0; i < 2; i++) {
        text.count = 0;
        put_line(&text, i == 0 ? "ccollections\ndefaultdict\n)R" : "cother\ndefaultdict\n)R");
        put_line(&text, "U\1w");
        put_tensor(&text, &four);
        put_line(&text, "s.");
        check("a dict", i == 0 ? "w " : "", (size_t)i);
        text.at[text.count - 1] = 's'; /* in another dict */
        memmove(text.at + 4, text.at, text.count);
        memcpy(text.at, "}U\1d", 4);
        text.count += 4;
        put_line(&text, ".");
        check("a dict in a dict", i == 0 ? "d.w " : "", (size_t)i);
    }
}

/* As when the text is kept: the next opcode is no character. */
STORY_ALONE(a_text_ends_where_it_says, text.count = 0,
            put_line(&text, "}U\1w\x94"
                            "ctorch._utils\n_rebuild_tensor_v2\n((U\7storage\x94"
                            "ctorch\n"
                            "HalfStorage\n\x94U\0010\x94U\3cpuK\4tQK\1K\2\x85K\1\x85tRs."),
            check("kept", "w ", 0))

MS_TEST(a_number_is_no_text)
{
    text.count = 0;
    put_line(&text, "}U\1wctorch._utils\n_rebuild_tensor_v2\n((U\7storage0");
    put_integer(&text, INT64_C(7) << 32 | (int64_t)(text.count - 8)); /* where that is */
    put_line(&text, "ctorch\nHalfStorage\nU\0010U\3cpuK\4tQK\1K\2\x85K\1\x85tRs.");
    check("a number", "w: expected a storage with type, key, location and size", 0);
}

/* --- how deep and how many */

static void nest(int depth)
{
    text.count = 0;
    for (int i = 0; i < depth; i++)
        put_line(&text, "]");
    put_tensor(&text, &four);
    for (int i = 0; i < depth; i++)
        put_line(&text, "a");
    put_line(&text, ".");
}

STORY_ALONE(names_have_2048_parts_at_most, nest(2048), IS(read_state()),
            EQUALS(strlen(found.views[0].tensor.name), 4095), drop_state(), nest(2049),
            check("too deep", "expected nesting of at most 2048", 0), check_state("{a:N}", "", 0),
            text.count = 0, put_line(&text, "]q\1h\1ah\1a."),
            check("a list in itself", "expected nesting of at most 2048", 0))

/* A list that has the one before twice, and so on; the first has a tensor. */
static void double_names(int times)
{
    text.count = 0;
    put_line(&text, "]");
    put_tensor(&text, &four);
    put_line(&text, "a");
    for (int i = 0; i < times; i++)
        put_line(&text, "2\x86");
    put_line(&text, ".");
}

STORY_ALONE(a_value_may_have_many_names_but_not_too_many, double_names(5), IS(read_state()),
            EQUALS(found.count, 32), drop_state(), double_names(14),
            check("many", "expected fewer names for values that the file has once", 0))

/* --- tensors */

struct view {
    const char *function, *type, *dtype; /* with a dtype: as _rebuild_tensor_v3 has it */
    int64_t held, first;
    int dims;
    int64_t shape[10], strides[10];
    const char *metadata; /* an argument behind these, as a pickle */
};

static void put_tuple(const int64_t *numbers, int count)
{
    put_line(&text, "(");
    for (int i = 0; i < count; i++)
        put_integer(&text, numbers[i]);
    put_line(&text, "t");
}

static void put_view(const struct view *view)
{
    text.count = 0;
    put_line(&text, "}U\1wctorch._utils\n");
    put_line(&text, view->function != NULL ? view->function
                    : view->dtype != NULL  ? "_rebuild_tensor_v3"
                                           : "_rebuild_tensor_v2");
    put_line(&text, "\n((U\7storagectorch\n");
    put_line(&text, view->type);
    put_line(&text, "\nU\1kU\3cpu");
    put_integer(&text, view->held);
    put_line(&text, "tQ");
    put_integer(&text, view->first);
    put_tuple(view->shape, view->dims);
    put_tuple(view->strides, view->dims);
    if (view->function == NULL)
        put_line(&text, "\x89N");
    if (view->dtype != NULL) {
        put_line(&text, "ctorch\n");
        put_line(&text, view->dtype);
        put_line(&text, "\n");
    }
    put_line(&text, view->metadata != NULL ? view->metadata : "");
    put_line(&text, "tRs.");
}

static void check_view(const struct view *view, enum ms_dtype dtype, uint64_t offset,
                       uint64_t bytes)
{
    put_view(view);
    if (!read_state() || found.count != 1)
        ms_test_fail(__FILE__, __LINE__, "%s %s: %zu, %s", view->type, view->dtype, found.skipped,
                     fault.text);
    const struct ms_torch_view *seen = &found.views[0];
    CHECK_EQ(seen->tensor.dtype, dtype);
    CHECK_EQ(seen->tensor.offset, offset);
    CHECK_EQ(seen->tensor.bytes, bytes);
    CHECK_EQ(seen->tensor.dims, view->dims);
    for (int i = 0; i < view->dims; i++)
        CHECK_EQ(seen->tensor.shape[i], view->shape[i]);
    CHECK(seen->tensor.file == NULL && strcmp(seen->key, "k") == 0);
    CHECK(seen->tensor.offset + seen->tensor.bytes <= seen->storage_bytes);
    drop_state();
}

MS_TEST(storages_have_a_type_or_a_dtype_beside_them)
{
    static const struct {
        const char *storage, *name;
        enum ms_dtype dtype;
        uint64_t bytes;
    } types[] = {
        {"FloatStorage", "float32", MS_DTYPE_F32, 4},
        {"HalfStorage", "float16", MS_DTYPE_F16, 2},
        {"BFloat16Storage", "bfloat16", MS_DTYPE_BF16, 2},
        {"LongStorage", "int64", MS_DTYPE_I64, 8},
        {"IntStorage", "int32", MS_DTYPE_I32, 4},
        {"ShortStorage", "int16", MS_DTYPE_I16, 2},
        {"CharStorage", "int8", MS_DTYPE_I8, 1},
        {"ByteStorage", "uint8", MS_DTYPE_U8, 1},
        {"BoolStorage", "bool", MS_DTYPE_BOOL, 1},
        {"DoubleStorage", "float64", MS_DTYPE_F64, 8},
        {"ComplexFloatStorage", "complex64", MS_DTYPE_C64, 8},
        {"UntypedStorage", NULL, MS_DTYPE_U8, 1},
        {NULL, "uint16", MS_DTYPE_U16, 2},
        {NULL, "uint32", MS_DTYPE_U32, 4},
        {NULL, "uint64", MS_DTYPE_U64, 8},
        {NULL, "float8_e5m2", MS_DTYPE_F8_E5M2, 1},
        {NULL, "float8_e4m3fn", MS_DTYPE_F8_E4M3, 1},
        {NULL, "float8_e5m2fnuz", MS_DTYPE_F8_E5M2FNUZ, 1},
        {NULL, "float8_e4m3fnuz", MS_DTYPE_F8_E4M3FNUZ, 1},
        {NULL, "float8_e8m0fnu", MS_DTYPE_F8_E8M0, 1},
    };
    for (size_t i = 0; i < COUNT(types); i++) {
        struct view view = {.type = types[i].storage,
                            .held = 5,
                            .first = 2,
                            .dims = 1,
                            .shape = {3},
                            .strides = {1}};
        if (types[i].storage != NULL)
            check_view(&view, types[i].dtype, 2 * types[i].bytes, 3 * types[i].bytes);
        view.type = "UntypedStorage";
        view.dtype = types[i].name;
        view.held = (int64_t)(5 * types[i].bytes);
        if (types[i].name != NULL)
            check_view(&view, types[i].dtype, 2 * types[i].bytes, 3 * types[i].bytes);
    }
}

MS_TEST(a_tensor_is_contiguous_in_its_storage)
{
    static const struct view rows[] = {
        {.type = "CharStorage", .held = 1}, /* of no dimensions */
        {.type = "CharStorage", .held = 24, .dims = 3, .shape = {2, 3, 4}, .strides = {12, 4, 1}},
        {.type = "CharStorage", .held = 8, .dims = 3, .shape = {2, 1, 4}, .strides = {4, 99, 1}},
        {.type = "CharStorage", .held = 1, .dims = 2, .shape = {1, 1}, .strides = {0, 7}},
        {.type = "CharStorage", .held = 1, .dims = 8, .shape = {1, 1, 1, 1, 1, 1, 1, 1}},
        {.type = "CharStorage",
         .held = 4,
         .function = "_rebuild_tensor",
         .dims = 1,
         .shape = {4},
         .strides = {1}},
        {.type = "CharStorage",
         .held = 4,
         .dims = 1,
         .shape = {4},
         .strides = {1},
         .metadata = "}"},
    };
    for (size_t i = 0; i < COUNT(rows); i++)
        check_view(&rows[i], MS_DTYPE_I8, 0, (uint64_t)rows[i].held);
    /* Where one without elements lies says nothing. */
    check_view(&(struct view){.type = "CharStorage", .first = 9, .dims = 2, .shape = {0, 3}},
               MS_DTYPE_I8, 0, 0);
}

MS_TEST(other_tensors_are_skipped)
{
    static const struct view rows[] = {
        {.type = "CharStorage", .held = 6, .dims = 2, .shape = {2, 3}, .strides = {1, 2}},
        {.type = "CharStorage", .held = 6, .dims = 2, .shape = {2, 3}, .strides = {3, 2}},
        {.type = "CharStorage", .held = 6, .dims = 1, .shape = {6}, .strides = {0}},
        {.type = "CharStorage", .held = 1, .dims = 9, .shape = {1, 1, 1, 1, 1, 1, 1, 1, 1}},
        {.type = "ComplexDoubleStorage", .held = 1, .dims = 1, .shape = {1}, .strides = {1}},
        {.type = "UntypedStorage",
         .dtype = "bits16",
         .held = 2,
         .dims = 1,
         .shape = {1},
         .strides = {1}},
        {.type = "UntypedStorage", .dtype = "", .held = 1},
        {.type = "", .held = 1},
        {.type = "CharStorage", .held = 1, .function = "_rebuild_qtensor"},
        {.type = "CharStorage", .held = 1, .metadata = "}K\1K\2s"},
        {.type = "UntypedStorage", .dtype = "int8", .held = 1, .metadata = "}K\1K\2s"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        put_view(&rows[i]);
        check("skipped", "", 1);
    }
    put_view(&(struct view){.type = "CharStorage", .held = 1, .function = "_rebuild_other"});
    check("another function", "", 0);
}

MS_TEST(places_end_in_their_storage)
{
    enum { BIG = 62 };
    static const struct {
        struct view view;
        const char *why;
    } rows[] = {
        {{.type = "IntStorage", .held = 5, .first = 3, .dims = 1, .shape = {3}, .strides = {1}},
         "w: expected a tensor that ends in its storage"},
        {{.type = "IntStorage", .held = 2, .dims = 1, .shape = {3}, .strides = {1}},
         "w: expected a tensor that ends in its storage"},
        {{.type = "IntStorage",
          .held = 2,
          .first = INT64_C(1) << BIG,
          .dims = 1,
          .shape = {2},
          .strides = {1}},
         "w: expected a tensor that ends in its storage"},
        {{.type = "LongStorage", .held = INT64_C(1) << 61},
         "w: expected a storage of less than 2^64"},
        {{.type = "IntStorage", .held = -1}, "w: expected a storage with type, key, location and"},
        {{.type = "IntStorage", .held = 1, .first = -1},
         "w: expected offset, shape and strides of"},
        {{.type = "IntStorage", .held = 1, .dims = 1, .shape = {-1}, .strides = {1}},
         "w: expected offset, shape and strides of"},
        {{.type = "IntStorage", .held = 1, .dims = 1, .shape = {1}, .strides = {-1}},
         "w: expected offset, shape and strides of"},
        {{.type = "IntStorage", .held = 1, .dims = 2, .shape = {INT64_C(1) << BIG, 2}},
         "w: expected a shape of less than 2^63 bytes"},
        {{.type = "IntStorage", .held = 1, .function = "_rebuild_tensor_v3"},
         "w: expected a tensor's storage, offset, shape and strides"},
        {{.type = "IntStorage", .held = 1, .function = "_rebuild_tensor_v3", .metadata = "\x89NN"},
         "w: expected a dtype"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        put_view(&rows[i].view);
        check("places", rows[i].why, 0);
    }
}

MS_TEST(arguments_are_what_torch_writes)
{
    static const char *const heads[][2] = {
        {"(K\1~))t", "expected a storage with type"},
        {"((U\7storagectorch\nByteStorage\nU\1kU\3cputQ~))t", "expected a storage with type"},
        {"((U\7storagfctorch\nByteStorage\nU\1kU\3cpuK\1tQ~))t", "expected a storage with type"},
        {"((U\7storageU\1xU\1kU\3cpuK\1tQ~))t", "expected a storage with type"},
        {"((U\7storagectorch\nByteStorage\nK\1U\3cpuK\1tQ~))t", "expected a storage with type"},
        {"((U\7storagectorch\nByteStorage\nU\1kU\3cpuNtQ~))t", "expected a storage with type"},
        {"((U\7storagectorch\nByteStorage\nU\1\xffU\3cpuK\1tQ~))t", "key in UTF-8, without NUL"},
        {"((U\7storagectorch\nByteStorage\nU\1kU\3cpuK\1tQ~)t", "a tensor's storage, offset"},
        {"((U\7storagectorch\nByteStorage\nU\1kU\3cpuK\1tQN))t", "expected offset, shape and"},
        {"((U\7storagectorch\nByteStorage\nU\1kU\3cpuK\1tQ~])t", "expected offset, shape and"},
        {"((U\7storagectorch\nByteStorage\nU\1kU\3cpuK\1tQ~)]t", "expected offset, shape and"},
        {"((U\7storagectorch\nByteStorage\nU\1kU\3cpuK\1tQ~)K\1\x85t", "expected offset, shape"},
        {"((U\7storagectorch\nByteStorage\nU\1kU\3cpuK\1tQ~N\x85~\x85t", "expected offset, shape"},
        {"((U\7storagectorch\nByteStorage\nU\1kU\3cpuK\1tQ~N\x85)t", "expected offset, shape"},
        {"](NNNNe", "expected a tensor's storage, offset, shape and strides"},
    };
    for (size_t i = 0; i < COUNT(heads); i++) {
        text.count = 0;
        put_line(&text, "}U\1wctorch._utils\n_rebuild_tensor_v2\n");
        for (const char *at = heads[i][0]; *at != '\0'; at++) {
            if (*at == '~')
                put_integer(&text, 0);
            else
                put(&text, at, 1);
        }
        put_line(&text, "Rs.");
        check(heads[i][1], heads[i][1], 0);
    }
}

/* --- memory */

static bool read_many(void)
{
    const bool is_read = read_state();
    CHECK(is_read || strstr(fault.text, "out of memory") != NULL);
    ms_heap_free(found.views);
    ms_arena_cleanup(&names);
    return is_read;
}

MS_TEST(a_state_without_memory_is_refused_and_leaks_nothing)
{
    text.count = 0;
    put_value("[T T T T T T T T T T T T T T T T T T T T T T T T T T T T T T T T T T T T T T T T]");
    put_line(&text, ".");
    without_each_piece(read_many, 12);
    text.count = 0;
    put_value("{long:{long:{long:{long:{long:{long:T}}}}}}");
    put_line(&text, ".");
    without_each_piece(read_many, 8);
    static char key[60001]; /* so that names take several pieces */
    memset(key, 'k', sizeof(key) - 1);
    text.count = 0;
    put_line(&text, "}");
    put_text(&text, key);
    put_value("[T T T T T T T T T T]");
    put_line(&text, "s.");
    without_each_piece(read_many, 9);
}
