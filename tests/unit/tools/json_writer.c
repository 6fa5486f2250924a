/* SPDX-License-Identifier: Apache-2.0 */
/* The writer writes JSON, also of bytes that are no text. */
#include "tools/json_writer.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/document/json.h"
#include "tools/simcuda/harness/test.h"

static const char *escaped(const char *text)
{
    static char *written;
    size_t bytes;
    free(written);
    FILE *file = open_memstream(&written, &bytes);
    struct writer object = json_document(file);
    put_string(&object, "path", text);
    json_document_end(&object);
    fclose(file);
    char *begin = strchr(written, ':') + 3;
    *strrchr(begin, '"') = '\0';
    return begin;
}

MS_TEST(bytes_that_are_no_utf8_become_question_marks)
{
    CHECK(strcmp(escaped("/data/\xe4\xff.bin"), "/data/??.bin") == 0);
    CHECK(strcmp(escaped("cut \xe2\x82"), "cut ??") == 0);
    CHECK(strcmp(escaped("surrogate \xed\xa0\x80, overlong \xc0\xaf"),
                 "surrogate ???, overlong ??") == 0);
}

MS_TEST(other_characters_stay)
{
    CHECK(strcmp(escaped("gr\xc3\xb6\xc3\x9f\x65r \xf0\x9f\x98\x80"),
                 "gr\xc3\xb6\xc3\x9f\x65r \xf0\x9f\x98\x80") == 0);
}

MS_TEST(characters_that_would_end_a_text_or_a_line_are_escaped)
{
    CHECK(strcmp(escaped("a \"b\" \\c"), "a \\\"b\\\" \\\\c") == 0);
    CHECK(strcmp(escaped("\n\x1b\x7f"), "\\u000a\\u001b\\u007f") == 0);
    CHECK(strcmp(escaped("\xc2\x85 \xe2\x80\xa8 \xe2\x80\xa9"), "\\u0085 \\u2028 \\u2029") == 0);
    CHECK(strcmp(escaped("\xe2\x80\xae \xe2\x81\xa6 \xd8\x9c"), "\\u202e \\u2066 \\u061c") == 0);
}

MS_TEST(lists_and_objects_have_commas_between_their_members)
{
    char *written;
    size_t bytes;
    FILE *file = open_memstream(&written, &bytes);
    struct writer object = json_document(file);
    struct writer list = json_begin(&object, "list", '[', true);
    put_number(&list, NULL, UINT64_MAX);
    put_value(&list, NULL, "null");
    json_end(&list, ']');
    struct writer empty = json_begin(&object, "empty", '{', false);
    json_end(&empty, '}');
    json_document_end(&object);
    fclose(file);
    CHECK(strcmp(written, "{\n  \"list\": [18446744073709551615, null],\n  \"empty\": {}\n}\n") ==
          0);
    free(written);
}

MS_TEST(a_document_that_was_read_is_written_in_one_line)
{
    static const char text[] =
        "[ {\"a\\\\\" :\t[1,\n-2.5e3 ,true,null],\r\n\"b \\\" ,:\": { }} ,7 ]";
    char *written;
    size_t bytes;
    struct ms_fault fault;
    const struct ms_fault_context reading = {"f", &fault};
    const char *root;
    CHECK(ms_json_check(&reading, text, strlen(text), &root));
    FILE *file = open_memstream(&written, &bytes);
    struct writer object = json_document(file);
    struct ms_json_walk walk = {.in = root};
    put_json(&object, "all", root);
    CHECK(ms_json_next(&walk));
    put_json(&object, "first", walk.value);
    CHECK(ms_json_next(&walk));
    put_json(&object, "second", walk.value);
    json_document_end(&object);
    fclose(file);
    CHECK(strcmp(written,
                 "{\n  \"all\": [{\"a\\\\\": [1, -2.5e3, true, null], \"b \\\" ,:\": {}}, 7],\n"
                 "  \"first\": {\"a\\\\\": [1, -2.5e3, true, null], \"b \\\" ,:\": {}},\n"
                 "  \"second\": 7\n}\n") == 0);
    free(written);
}
