/* SPDX-License-Identifier: Apache-2.0 */
/*
 *     metashard self-check
 *     version 0.1.0
 *     driver 13000 580.65.06
 *     device 73696d756c617465642d637564612d00
 *     boot 5e3c1c0e-...
 *     memory holds
 *     ...
 *     hint is not so: 0x302000000 was reserved
 *     end
 *
 * One file a device, with a line for each fact but the resolver's. Anything else is no report.
 */
#include "runtime/selfcheck/kept.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/state/folder.h"
#include "runtime/state/kept_text.h"

enum { TEXT_BYTES = 4096 };
#define HOLDS "holds\n"
#define UNMET "is not so: "
#define END "end\n"

/* What NVIDIA's kernel module says of itself, which changes without a boot. "": there is none. */
static void read_module_version(char *text, size_t bytes)
{
    const int file = open("/sys/module/nvidia/version", O_RDONLY | O_CLOEXEC);
    const ssize_t got = file >= 0 ? read(file, text, bytes - 1) : 0;
    if (file >= 0)
        close(file);
    text[got > 0 ? got : 0] = '\0';
    text[strcspn(text, "\n")] = '\0';
}

bool ms_check_subject_find(CUdevice device, struct ms_check_subject *subject_out)
{
    CUuuid uuid;
    int version;
    char module[40];
    struct ms_state_identity identity;
    ms_state_identify(&identity);
    if (ms_driver.device_get_uuid(&uuid, device) != CUDA_SUCCESS ||
        ms_driver.driver_get_version(&version) != CUDA_SUCCESS || identity.boot[0] == '\0')
        return false;
    for (size_t i = 0; i < sizeof(uuid.bytes); i++)
        snprintf(subject_out->device + 2 * i, 3, "%02x", (unsigned char)uuid.bytes[i]);
    read_module_version(module, sizeof(module));
    snprintf(subject_out->driver, sizeof(subject_out->driver), "%d %s", version, module);
    memcpy(subject_out->boot, identity.boot, sizeof(subject_out->boot));
    return true;
}

static void name_of(const struct ms_check_subject *subject, char name[64])
{
    snprintf(name, 64, ".selfcheck-%s", subject->device);
}

static int put_head(const struct ms_check_subject *subject, char *text, size_t bytes)
{
    return snprintf(text, bytes,
                    "metashard self-check\nversion %s\ndriver %s\ndevice %s\nboot %s\n",
                    METASHARD_VERSION, subject->driver, subject->device, subject->boot);
}

/* Moves *at behind the word. False if it is not there. */
static bool skip(const char **at, const char *word)
{
    const size_t length = strlen(word);
    const bool is_there = strncmp(*at, word, length) == 0;
    *at += is_there ? length : 0;
    return is_there;
}

/* The rest of the line, of printable characters. */
static bool read_seen(const char **at, char seen[MS_SEEN_BYTES])
{
    const size_t length = strcspn(*at, "\n");
    if (length >= MS_SEEN_BYTES || (*at)[length] != '\n')
        return false;
    for (size_t i = 0; i < length; i++) {
        if ((*at)[i] < ' ' || (*at)[i] > '~')
            return false;
    }
    memcpy(seen, *at, length);
    seen[length] = '\0';
    *at += length + 1;
    return true;
}

static bool read_fact(const char **at, enum ms_fact fact, struct ms_check_report *report)
{
    if (!skip(at, ms_facts[fact].name) || !skip(at, " "))
        return false;
    if (skip(at, HOLDS))
        return true;
    report->unmet |= MS_FACT_BIT(fact);
    return skip(at, UNMET) && read_seen(at, report->seen[fact]);
}

bool ms_check_kept_read(const struct ms_check_subject *subject, struct ms_check_report *report_out)
{
    char name[64], text[TEXT_BYTES], head[TEXT_BYTES];
    const char *at = text;
    name_of(subject, name);
    put_head(subject, head, sizeof(head));
    *report_out = (struct ms_check_report){0};
    if (!ms_kept_text_read(&ms_config, name, text, sizeof(text)) || !skip(&at, head))
        return false;
    for (enum ms_fact fact = 0; fact < MS_FACT_COUNT; fact++) {
        if (fact != MS_FACT_RESOLVER && !read_fact(&at, fact, report_out))
            return false;
    }
    return strcmp(at, END) == 0;
}

void ms_check_kept_write(const struct ms_check_subject *subject,
                         const struct ms_check_report *report)
{
    char name[64], text[TEXT_BYTES];
    size_t used = (size_t)put_head(subject, text, sizeof(text));
    for (enum ms_fact fact = 0; fact < MS_FACT_COUNT; fact++) {
        const bool is_unmet = (report->unmet & MS_FACT_BIT(fact)) != 0;
        if (fact != MS_FACT_RESOLVER && is_unmet)
            used += (size_t)snprintf(text + used, sizeof(text) - used, "%s " UNMET "%s\n",
                                     ms_facts[fact].name, report->seen[fact]);
        else if (fact != MS_FACT_RESOLVER)
            used += (size_t)snprintf(text + used, sizeof(text) - used, "%s " HOLDS,
                                     ms_facts[fact].name);
    }
    snprintf(text + used, sizeof(text) - used, END);
    name_of(subject, name);
    ms_kept_text_write(&ms_config, name, text);
}
