/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/nearest.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>
#include <strings.h>

#include "runtime/base/number.h"

enum { MOST_LETTERS = 48 };

static bool is_same(char a, char b)
{
    return tolower((unsigned char)a) == tolower((unsigned char)b);
}

/* The edit distance from `text` to `word`: one row of a table for each letter of `text`. */
static size_t distance_of(const char *text, const char *word)
{
    size_t rows[3][MOST_LETTERS + 1];
    const size_t letters = strlen(word);
    for (size_t j = 0; j <= letters; j++)
        rows[0][j] = j;
    for (size_t i = 1; text[i - 1] != '\0'; i++) {
        size_t *row = rows[i % 3];
        const size_t *above = rows[(i + 2) % 3], *second = rows[(i + 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= letters; j++) {
            const bool is_kept = is_same(text[i - 1], word[j - 1]);
            row[j] = ms_least(ms_least(above[j], row[j - 1]) + 1, above[j - 1] + !is_kept);
            if (i > 1 && j > 1 && is_same(text[i - 1], word[j - 2]) &&
                is_same(text[i - 2], word[j - 1]))
                row[j] = ms_least(row[j], second[j - 2] + 1);
        }
    }
    return rows[strlen(text) % 3][letters];
}

void ms_nearest_try(struct ms_nearest *nearest, const char *word)
{
    const size_t letters = strlen(nearest->text);
    if (letters == 0 || letters > MOST_LETTERS || strlen(word) > MOST_LETTERS)
        return;
    const bool is_start =
        letters > 2 && letters < strlen(word) && strncasecmp(nearest->text, word, letters) == 0;
    const size_t distance = is_start ? 1 : distance_of(nearest->text, word);
    if (distance > (letters + 2) / 4 || (nearest->word != NULL && distance >= nearest->distance))
        return;
    nearest->word = word;
    nearest->distance = distance;
}
