/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/torch_release.h"

#include <elf.h>
#include <limits.h>
#include <link.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/log.h"
#include "runtime/base/regular_file.h"
#include "shim/torch_checks.h"

/* The library with PyTorch's kernels. */
struct library {
    char path[PATH_MAX];
    char build_id[48]; /* hexadecimal digits; empty: no build-id */
};

/* Up to PyTorch 1.13 the library is split into libtorch_cuda_cu.so and libtorch_cuda_cpp.so. */
static bool has_kernels(const char *path)
{
    const char *name = strrchr(path, '/');
    name = name != NULL ? name + 1 : path;
    return strcmp(name, "libtorch_cuda.so") == 0 || strcmp(name, "libtorch_cuda_cu.so") == 0;
}

static size_t padded(size_t bytes)
{
    return (bytes + 3) / 4 * 4;
}

static void write_digits(const unsigned char *bytes, size_t count, char digits_out[48])
{
    for (size_t i = 0; i < count && 2 * i + 2 < 48; i++)
        snprintf(digits_out + 2 * i, 3, "%02x", bytes[i]);
}

/* Reads the build-id if it is among the notes of a segment. */
static void read_build_id(const unsigned char *notes, size_t bytes, char digits_out[48])
{
    ElfW(Nhdr) note;
    for (size_t at = 0; at + sizeof(note) <= bytes;) {
        memcpy(&note, notes + at, sizeof(note));
        const size_t name = at + sizeof(note), text = name + padded(note.n_namesz);
        at = text + padded(note.n_descsz);
        if (note.n_type != NT_GNU_BUILD_ID || note.n_namesz != sizeof(ELF_NOTE_GNU) || at > bytes ||
            memcmp(notes + name, ELF_NOTE_GNU, sizeof(ELF_NOTE_GNU)) != 0)
            continue;
        write_digits(notes + text, note.n_descsz, digits_out);
        return;
    }
}

static int look(struct dl_phdr_info *info, size_t size, void *found)
{
    struct library *library = found;
    (void)size;
    if (info->dlpi_name == NULL || !has_kernels(info->dlpi_name) ||
        strlen(info->dlpi_name) >= sizeof(library->path))
        return 0;
    strcpy(library->path, info->dlpi_name);
    library->build_id[0] = '\0';
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        if (segment->p_type == PT_NOTE)
            read_build_id((const unsigned char *)(info->dlpi_addr + segment->p_vaddr),
                          segment->p_memsz, library->build_id);
    }
    return 1;
}

/* --- the release */

static _Atomic enum { UNDECIDED, PROVED, UNKNOWN } decision;

static const struct {
    char version[12], commit[41], build_id[41];
} releases[] = {
#define MS_RELEASE(version, commit, build_id) {version, commit, build_id},
#include "shim/torch_releases.def"
#undef MS_RELEASE
};

/* The values in version.py; "": missing. */
struct said {
    char version[48], commit[48];
};

/* Copies the text in quotes behind `name`, if it fits. */
static void read_value(const char *text, const char *name, char value_out[48])
{
    const char *at = strstr(text, name);
    at = at != NULL ? strchr(at + strlen(name), '\'') : NULL;
    const size_t length = at != NULL ? strcspn(at + 1, "'\n") : 0;
    if (length < 48)
        snprintf(value_out, 48, "%.*s", (int)length, at != NULL ? at + 1 : "");
}

/* Reads version.py, in the folder above the library's. `path`, the library's, becomes the path of
 * version.py: stacks may be small. */
static void read_version(char path[PATH_MAX], struct said *said_out)
{
    static const char behind[] = "../version.py";
    char text[1024];
    struct stat stat;
    *said_out = (struct said){0};
    char *name = strrchr(path, '/');
    name = name != NULL ? name + 1 : path;
    memcpy(name, behind, sizeof(behind)); /* shorter than the library's name */
    const int file = ms_regular_file_open(path, &stat);
    if (file < 0)
        return;
    const ssize_t bytes = read(file, text, sizeof(text) - 1);
    close(file);
    text[bytes > 0 ? bytes : 0] = '\0';
    read_value(text, "\n__version__ = ", said_out->version);
    read_value(text, "\ngit_version = ", said_out->commit);
}

static bool is_listed(const char *build_id, const char *commit)
{
    for (size_t i = 0; i < sizeof(releases) / sizeof(releases[0]); i++) {
        if (strcmp(releases[i].build_id, build_id) == 0 || strcmp(releases[i].commit, commit) == 0)
            return true;
    }
    return false;
}

static const char *or_unknown(const char *text)
{
    return text[0] != '\0' ? text : "unknown";
}

static bool decide(struct library *library)
{
    struct said said;
    read_version(library->path, &said);
    const bool is_proved =
        is_listed(library->build_id, said.commit) || ms_torch_checks_have(library->build_id);
    if (atomic_exchange(&decision, is_proved ? PROVED : UNKNOWN) == UNDECIDED && !is_proved)
        ms_log(MS_WARN,
               "this PyTorch (version %s, build-id %s) is none of the releases that MetaShard was "
               "checked with, up to %s: its kernels run at once instead of being recorded, which "
               "takes memory earlier and changes nothing else; metashard-check-torch checks it, "
               "once (docs/troubleshooting.md)",
               or_unknown(said.version), or_unknown(library->build_id),
               releases[sizeof(releases) / sizeof(releases[0]) - 1].version);
    return is_proved;
}

bool ms_torch_release_is_proved(void)
{
    struct library library;
    const int decided = atomic_load(&decision);
    if (decided != UNDECIDED)
        return decided == PROVED;
    return dl_iterate_phdr(look, &library) == 0 || decide(&library);
}
