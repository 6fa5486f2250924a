/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/checkpoint/pickle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/unit/counted_pages.h"

static struct ms_pickle pickle;
static struct ms_fault fault;

static bool read_text(const char *text, size_t bytes)
{
    const struct ms_fault_context reading = {"some.pt", &fault};
    const int pieces = live;
    pickle = (struct ms_pickle){0};
    fault.text[0] = '\0';
    const bool is_read = ms_pickle_read(&reading, text, bytes, &pickle);
    CHECK_EQ(is_read, fault.text[0] == '\0');
    if (!is_read)
        CHECK_EQ(live, pieces);
    return is_read;
}

/* --- values as text */

static char shown[4096];

static void show(const char *text, size_t length)
{
    sprintf(shown + strlen(shown), "%.*s", (int)length, text);
}

static void show_value(uint32_t number);

static void show_items(const struct ms_value *value, const char *begin, const char *end)
{
    show(begin, strlen(begin));
    for (uint32_t cell = value->first; cell != 0; cell = pickle.cells[cell].next) {
        show_value(pickle.cells[cell].value);
        show(" ", 1);
        CHECK((pickle.cells[cell].next == 0) == (cell == value->last));
    }
    show(end, strlen(end));
}

/* 5, 'text', ? (other), (1 2 ), [1 2 ], {key value }, module.name, call(arguments), <id>. */
static void show_value(uint32_t number)
{
    CHECK(number < pickle.value_count);
    const struct ms_value *value = &pickle.values[number];
    CHECK(!value->is_marked);
    switch (value->kind) {
    case MS_VALUE_OTHER:
        show("?", 1);
        return;
    case MS_VALUE_INT:
        sprintf(shown + strlen(shown), "%lld", (long long)value->number);
        return;
    case MS_VALUE_TEXT:
        show("'", 1);
        show(pickle.text + value->text.at, value->text.length);
        show("'", 1);
        return;
    case MS_VALUE_GLOBAL:
        show_value(value->global.module);
        show(".", 1);
        show_value(value->global.name);
        return;
    case MS_VALUE_TUPLE:
        show_items(value, "(", ")");
        return;
    case MS_VALUE_LIST:
        show_items(value, "[", "]");
        return;
    case MS_VALUE_DICT:
        show_items(value, "{", "}");
        return;
    case MS_VALUE_CALL:
        show_value(value->call.function);
        show_value(value->call.arguments);
        if (value->first != 0)
            show_items(value, "{", "}");
        return;
    case MS_VALUE_PERSISTENT:
        show("<", 1);
        show_value(value->id);
        show(">", 1);
        return;
    }
}

/* A text, which may have zeros, and what it is. */
#define ROW(text, wanted)              \
    {                                  \
        text, sizeof(text) - 1, wanted \
    }
struct row {
    const char *text;
    size_t bytes;
    const char *wanted;
};

static void check_values(const struct row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        /* No byte behind the text is read. */
        char *text = malloc(rows[i].bytes);
        memcpy(text, rows[i].text, rows[i].bytes);
        shown[0] = '\0';
        if (!read_text(text, rows[i].bytes))
            ms_test_fail(__FILE__, __LINE__, "row %zu: %s", i, fault.text);
        show_value(pickle.top);
        if (strcmp(shown, rows[i].wanted) != 0)
            ms_test_fail(__FILE__, __LINE__, "row %zu: expected %s, found %s", i, rows[i].wanted,
                         shown);
        ms_pickle_cleanup(&pickle);
        CHECK_EQ(live, 0);
        free(text);
    }
}

static void check_faults(const struct row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        char *text = malloc(rows[i].bytes), wanted[256];
        memcpy(text, rows[i].text, rows[i].bytes);
        snprintf(wanted, sizeof(wanted), "some.pt: data.pkl[%s", rows[i].wanted);
        if (read_text(text, rows[i].bytes) || strncmp(fault.text, wanted, strlen(wanted)) != 0)
            ms_test_fail(__FILE__, __LINE__, "row %zu: expected %s, found %s", i, wanted,
                         fault.text);
        free(text);
    }
}

#define CHECK_VALUES(rows) check_values(rows, sizeof(rows) / sizeof((rows)[0]))
#define CHECK_FAULTS(rows) check_faults(rows, sizeof(rows) / sizeof((rows)[0]))

/* --- single values */

MS_TEST(numbers_and_texts_are_known)
{
    static const struct row rows[] = {
        ROW("\x80\2K\5.", "5"),
        ROW("K\xff.", "255"),
        ROW("M\1\2.", "513"),
        ROW("J\xff\xff\xff\xff.", "-1"),
        ROW("J\xff\xff\xff\x7f.", "2147483647"),
        ROW("\x8a\0.", "0"),
        ROW("\x8a\1\xff.", "-1"),
        ROW("\x8a\1\x80.", "-128"),
        ROW("\x8a\1\x7f.", "127"),
        ROW("\x8a\2\xff\0.", "255"),
        ROW("\x8a\10\1\0\0\0\0\0\0\x80.", "-9223372036854775807"),
        ROW("\x8a\11\1\0\0\0\0\0\0\0\0.", "?"),
        ROW("\x8b\1\0\0\0\x80.", "-128"),
        ROW("X\3\0\0\0abc.", "'abc'"),
        ROW("T\3\0\0\0abc.", "'abc'"),
        ROW("U\3abc.", "'abc'"),
        ROW("\x8c\1a.", "'a'"),
        ROW("\x8c\0.", "''"),
        ROW("\x8d\2\0\0\0\0\0\0\0ab.", "'ab'"),
    };
    CHECK_VALUES(rows);
}

MS_TEST(values_of_other_opcodes_are_unknown)
{
    static const struct row rows[] = {
        ROW("N.", "?"),
        ROW("\x88.", "?"),
        ROW("\x89.", "?"),
        ROW("G12345678.", "?"),
        ROW("B\2\0\0\0ab.", "?"),
        ROW("C\2ab.", "?"),
        ROW("\x8e\2\0\0\0\0\0\0\0ab.", "?"),
        ROW("\x96\2\0\0\0\0\0\0\0ab.", "?"),
        ROW("\x8f.", "?"),
        ROW("\x8f(K\1K\2\x90.", "?"),
        ROW("K\5(K\1\x91\x86.", "(5 ? )"),
    };
    CHECK_VALUES(rows);
}

/* --- containers */

MS_TEST(containers_have_their_items_in_their_order)
{
    static const struct row rows[] = {
        ROW(").", "()"),
        ROW("K\1\x85.", "(1 )"),
        ROW("K\1K\2\x86.", "(1 2 )"),
        ROW("K\1K\2K\3\x87.", "(1 2 3 )"),
        ROW("K\1K\2K\3\x86\x86.", "(1 (2 3 ) )"),
        ROW("(t.", "()"),
        ROW("(K\1K\2K\3K\4t.", "(1 2 3 4 )"),
        ROW("(K\1(K\2tK\3t.", "(1 (2 ) 3 )"),
        ROW("].", "[]"),
        ROW("]K\1aK\2a.", "[1 2 ]"),
        ROW("](K\1K\2e(K\3e(e.", "[1 2 3 ]"),
        ROW("}.", "{}"),
        ROW("}K\1K\2sK\3K\4s.", "{1 2 3 4 }"),
        ROW("}(K\1K\2K\3K\4u(u.", "{1 2 3 4 }"),
        ROW("}K\1]K\2as.", "{1 [2 ] }"),
    };
    CHECK_VALUES(rows);
}

MS_TEST(calls_are_values_and_nothing_is_called)
{
    static const struct row rows[] = {
        ROW("cm\nf\n.", "'m'.'f'"),
        ROW("c\n\n.", "''.''"),
        ROW("U\1mU\1f\x93.", "'m'.'f'"),
        ROW("cm\nf\nK\1\x85R.", "'m'.'f'(1 )"),
        ROW("cm\nf\n)\x81.", "'m'.'f'()"),
        ROW("cm\nf\nK\1\x85}\x92.", "'m'.'f'(1 )"),
        ROW("cm\nf\n)R}b.", "'m'.'f'()"),
        ROW("cm\nf\n)RK\1K\2s.", "'m'.'f'(){1 2 }"), /* as in a dict */
        ROW("cm\nf\n)R(K\1K\2u.", "'m'.'f'(){1 2 }"),
        ROW("cm\nf\n)RK\1a.", "'m'.'f'()"), /* as in a list: not looked at */
        ROW("cm\nf\n)R(K\1e.", "'m'.'f'()"),
        ROW("K\7Q.", "<7>"),
    };
    CHECK_VALUES(rows);
}

MS_TEST(the_stack_and_the_memo_are_those_of_python)
{
    static const struct row rows[] = {
        ROW("K\5K\6"
            "0.",
            "5"),
        ROW("K\5(0.", "5"),
        ROW("K\5(K\6"
            "0(00.",
            "5"),
        ROW("K\5(K\6K\7"
            "1.",
            "5"),
        ROW("K\5"
            "2\x86.",
            "(5 5 )"),
        ROW("K\5q\0h\0\x86.", "(5 5 )"),
        ROW("K\5r\0\0\0\0j\0\0\0\0\x86.", "(5 5 )"),
        ROW("K\1\x94K\2\x94h\1h\0\x87.", "(2 2 1 )"),
        ROW("K\1q\2K\2\x94h\1\x86.", "(2 2 )"), /* the second that was set */
        ROW("K\1q\0K\2q\0h\0\x86.", "(2 2 )"),
        ROW("K\1q\0"
            "0K\2q\0"
            "0K\3\x94h\1\x86.",
            "(3 3 )"),
        ROW("\x80\5\x95\3\0\0\0\0\0\0\0K\5.", "5"),
    };
    CHECK_VALUES(rows);
}

/* --- faults, with the place of the opcode */

MS_TEST(a_pickle_ends_with_its_stop)
{
    static const struct row rows[] = {
        ROW("", "0]: expected STOP before the end"),
        ROW("K\5", "2]: expected STOP before the end"),
        ROW("K\5.N", "2]: expected nothing after STOP"),
        ROW("\x80\6K\5.", "0]: expected a protocol of at most 5"),
        ROW("\x95\3\0\0\0\0\0\0\0K.", "0]: expected a frame that ends in the file"),
        ROW("NF.", "1]: expected an opcode of torch.save, found FLOAT"),
        ROW("NI.", "1]: expected an opcode of torch.save, found INT"),
        ROW("N\xff.", "1]: expected an opcode of torch.save, found 0xff"),
        ROW("N\0.", "1]: expected an opcode of torch.save, found 0x00"),
    };
    CHECK_FAULTS(rows);
}

MS_TEST(arguments_end_in_the_pickle)
{
    static const struct row rows[] = {
        ROW("K", "0]: expected more bytes of the opcode's argument"),
        ROW("M\1", "0]: expected more bytes"),
        ROW("J\1\2\3", "0]: expected more bytes"),
        ROW("G1234567", "0]: expected more bytes"),
        ROW("X\3\0\0\0ab", "0]: expected more bytes"),
        ROW("X\3\0\0", "0]: expected more bytes"),
        ROW("U\3ab", "0]: expected more bytes"),
        ROW("\x8d\3\0\0\0\0\0\0\x80"
            "abc",
            "0]: expected more bytes"),
        ROW("cab", "0]: expected the end of a line"),
        ROW("cab\nc", "0]: expected the end of a line"),
    };
    CHECK_FAULTS(rows);
}

MS_TEST(an_opcode_takes_only_values_that_are_on_the_stack)
{
    static const struct row rows[] = {
        ROW(".", "0]: expected more values on the stack"),
        ROW("0", "0]: expected more values"),
        ROW("2", "0]: expected more values"),
        ROW("q\0", "0]: expected more values"),
        ROW("Q", "0]: expected more values"),
        ROW("\x85", "0]: expected more values"),
        ROW("N\x86", "1]: expected more values"),
        ROW("NN\x87", "2]: expected more values"),
        ROW("K\1(K\2\x86", "5]: expected more values"), /* a mark between */
        ROW("N(.", "2]: expected more values"),
        ROW("]a", "1]: expected more values"),
        ROW("}Ns", "2]: expected more values"),
        ROW("NR", "1]: expected more values"),
        ROW("NN\x92", "2]: expected more values"),
        ROW("Nb", "1]: expected more values"),
        ROW("N\x93", "1]: expected more values"),
        ROW("(e", "1]: expected more values"),
        ROW("(u", "1]: expected more values"),
        ROW("(\x90", "1]: expected more values"),
        ROW("Nt", "1]: expected a mark on the stack"),
        ROW("N1", "1]: expected a mark on the stack"),
        ROW("Ne", "1]: expected a mark on the stack"),
        ROW("Nu", "1]: expected a mark on the stack"),
        ROW("N\x90", "1]: expected a mark on the stack"),
        ROW("N\x91", "1]: expected a mark on the stack"),
        ROW("NNa", "2]: expected a list"),
        ROW("N(Ne", "3]: expected a list"),
        ROW("]NNs", "3]: expected a dict, and pairs of key and value"),
        ROW("](NNu", "4]: expected a dict, and pairs of key and value"),
        ROW("}(NNNu", "5]: expected a dict, and pairs of key and value"),
        ROW("h\0", "0]: expected a memo entry that was set before"),
        ROW("Nq\0h\1", "3]: expected a memo entry that was set before"),
        ROW("Nq\2h\1.", "3]: expected a memo entry that was set before"),
        ROW("Nq\3", "1]: expected fewer memo entries than bytes"),
        ROW("Nq\4.", "1]: expected fewer memo entries than bytes"),
    };
    CHECK_FAULTS(rows);
}

/* --- how much there may be */

MS_TEST(a_pickle_has_at_most_100_mb_and_so_many_values)
{
    const size_t bytes = MS_PICKLE_MAX_BYTES;
    char *text = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(text != MAP_FAILED);
    CHECK(!read_text(text, bytes));
    CHECK(strstr(fault.text, "found 0x00") != NULL);
    CHECK(!read_text(text, bytes + 1));
    CHECK(strstr(fault.text, "expected at most 100 MB") != NULL);
    memset(text, 'N', MS_PICKLE_MAX_VALUES + 1);
    CHECK(!read_text(text, MS_PICKLE_MAX_VALUES + 2));
    CHECK(strstr(fault.text, "data.pkl[8000000]: expected fewer values") != NULL);
    text[MS_PICKLE_MAX_VALUES] = '.';
    CHECK(read_text(text, MS_PICKLE_MAX_VALUES + 1));
    ms_pickle_cleanup(&pickle);
    munmap(text, bytes);
    CHECK_EQ(live, 0);
}

static char long_text[2048];

static bool read_long(void)
{
    const bool is_read = read_text(long_text, strlen(long_text));
    CHECK(is_read || strstr(fault.text, "out of memory") != NULL);
    if (is_read)
        ms_pickle_cleanup(&pickle);
    return is_read;
}

MS_TEST(a_pickle_without_memory_is_refused_and_leaks_nothing)
{
    strcpy(long_text, "](");
    for (int i = 0; i < 60; i++)
        strcat(long_text, "K\1\x94(cm\nf\n0");
    for (int i = 0; i < 60; i++)
        strcat(long_text, "t");
    strcat(long_text, "e.");
    without_each_piece(read_long, 12);
    CHECK(read_text(long_text, strlen(long_text)));
    CHECK_EQ(live, 2); /* values and cells */
}
