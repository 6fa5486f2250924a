/* SPDX-License-Identifier: Apache-2.0 */
/* Plans that arrive at any moment, and what a program may tell the shim. Nothing of it may change a
 * byte. */
#include "tests/driver/differential/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "shim/metashard.h"

enum { TEXT_BYTES = 2048 };

static char control_path[200];

void fuzz_plans_init(void)
{
    const char *path = getenv("METASHARD_CONTROL");
    if (path != NULL)
        snprintf(control_path, sizeof(control_path), "%s", path);
}

/* A plan for some of the checkpoint's tensors, and for one that the program names itself. */
static int draw_plan(char *text)
{
    static const char *const placements[] = {"[{\"shard\": 0}]", "[\"replicate\"]",
                                             "[{\"shard\": 1}]", "[{\"flat\": \"zero3\"}]"};
    const unsigned world = 1 + (unsigned)fuzz_below(4);
    const unsigned rank = (unsigned)fuzz_below(world);
    const char *first = placements[fuzz_below(4)];
    const char *others = placements[fuzz_below(4)];
    if (fuzz_one_in(10)) /* not valid: refused, and the plan before stays in force */
        return snprintf(text, TEXT_BYTES, "{\"format\": \"metashard-plan/1\", \"tensors\": 3}");
    return snprintf(text, TEXT_BYTES,
                    "{\"format\": \"metashard-plan/1\", \"world_size\": %u, \"rank\": %u, "
                    "\"tensors\": [{\"name\": \"%c.*\", \"placements\": %s}, "
                    "{\"name\": \"*\", \"placements\": %s}]}",
                    world, rank, 'a' + (int)fuzz_below(5), first, others);
}

static void plan_by_call(void)
{
    char text[TEXT_BYTES];
    const int length = draw_plan(text);
    if (metashard_plan_text != NULL)
        metashard_plan_text(text, (size_t)length);
    fuzz_say("  %s\n", text);
}

/* METASHARD_PLAN is looked at four times a second: it arrives whenever it is seen. */
static void plan_by_file(void)
{
    char text[TEXT_BYTES], path[600], hidden[600];
    draw_plan(text);
    snprintf(path, sizeof(path), "%s/plan.json", fuzz_folder);
    snprintf(hidden, sizeof(hidden), "%s/plan.new", fuzz_folder);
    FILE *file = fopen(hidden, "w");
    if (file == NULL)
        return;
    fputs(text, file);
    fclose(file);
    rename(hidden, path);
    fuzz_say("  %s\n", text);
}

/* Over the socket; the answer comes when it is in force. */
static void plan_by_socket(void)
{
    char text[TEXT_BYTES], message[TEXT_BYTES + 40];
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const int length = draw_plan(text);
    fuzz_say("  %s\n", text);
    if (!fuzz_has_shim() || control_path[0] == '\0' ||
        strlen(control_path) >= sizeof(address.sun_path))
        return;
    memcpy(address.sun_path, control_path, strlen(control_path) + 1);
    const int client = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (client >= 0 && connect(client, (struct sockaddr *)&address, sizeof(address)) == 0) {
        const int bytes = fuzz_one_in(5)
                              ? snprintf(message, sizeof(message), "materialise\n")
                              : snprintf(message, sizeof(message), "plan %d\n%s", length, text);
        if (write(client, message, (size_t)bytes) == bytes)
            while (read(client, message, sizeof(message)) > 0 &&
                   memchr(message, '\n', sizeof(message)) == NULL)
                ;
    }
    if (client >= 0)
        close(client);
}

/* The program gives a name to what no file holds. */
static void name(void)
{
    const struct fuzz_block *block = fuzz_new_block(4096);
    const uint64_t shape[] = {block->bytes / 16, 16};
    if (metashard_name != NULL)
        metashard_name(block->at, block->bytes / 16 * 16, "e.weight", "U8", shape, 2);
}

static void unname(void)
{
    const struct fuzz_range range = fuzz_range(FUZZ_BLOCK_MOST, 1);
    if (metashard_unname != NULL)
        metashard_unname(range.at, range.bytes);
}

static void materialise(void)
{
    if (metashard_materialise != NULL)
        metashard_materialise();
}

static void status(void)
{
    char text[TEXT_BYTES];
    if (metashard_status != NULL)
        metashard_status(text, sizeof(text));
}

const struct fuzz_operation fuzz_plans[] = {
    {"a plan by a call", plan_by_call, 2},
    {"a plan by a file", plan_by_file, 1},
    {"a plan by the socket", plan_by_socket, 1},
    {"name a block", name, 2},
    {"take names away", unname, 1},
    {"materialise", materialise, 1},
    {"status", status, 1},
    {NULL, NULL, 0},
};
