/* SPDX-License-Identifier: Apache-2.0 */
/* The order of locks and claims. Only built with -Ddebug_checks=true. */
#include "runtime/base/lock.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/memory/memory_internal.h"
#include "runtime/memory/space.h"
#include "tests/unit/between.h"

#ifdef __clang__ /* sees most of what follows at compile time */
#pragma clang diagnostic ignored "-Wthread-safety-analysis"
#endif

static struct ms_lock turn = MS_LOCK_INIT(prefetch);
static struct ms_lock low = MS_LOCK_INIT(files);
static struct ms_lock high = MS_LOCK_INIT(leases);
static struct ms_lock also_high = MS_LOCK_INIT(leases);

static struct ms_inside allocations[] = {
    {.facts = {.address = 0x1000, .bytes = 0x1000}, .backing = {.bytes = 0x1000}},
    {.facts = {.address = 0x2000, .bytes = 0x1000}, .backing = {.bytes = 0x1000}}};

static struct ms_allocation *claim(int i)
{
    return ms_space_claim(allocations[i].facts.address);
}

static void add_allocations(void)
{
    CHECK(ms_space_add(&allocations[0].facts));
    CHECK(ms_space_add(&allocations[1].facts));
}

/* Runs body in a child, which must end by SIGABRT with this text as the end of its only line. */
static void check_ends(void (*body)(void), const char *text)
{
    char line[1024] = "";
    int ends[2], status;
    CHECK(pipe(ends) == 0);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        body();
        _exit(0);
    }
    close(ends[1]);
    CHECK_EQ(waitpid(child, &status, 0), child);
    const ssize_t got = read(ends[0], line, sizeof(line) - 1);
    close(ends[0]);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    const char *found = strstr(line, "lock order: ");
    if (got <= 0 || found == NULL || strcmp(found + strlen("lock order: "), text) != 0)
        ms_test_fail(__FILE__, __LINE__, "expected '%s', found '%s'", text, line);
}

static void take_downwards(void)
{
    ms_lock_take(&high);
    ms_lock_take(&low);
}

static void take_twice(void)
{
    ms_lock_take(&low);
    ms_lock_take(&low);
}

static void take_two_of_a_rank(void)
{
    ms_lock_take(&high);
    ms_lock_take(&also_high);
}

static void claim_under_a_lock(void)
{
    ms_lock_take(&low);
    claim(0);
}

static void take_a_turn_under_a_claim(void)
{
    claim(0);
    ms_lock_take(&turn);
}

static void claim_downwards(void)
{
    claim(1);
    claim(0);
}

static void claim_twice(void)
{
    claim(0);
    claim(0);
}

static void drop_what_is_not_held(void)
{
    ms_lock_drop(&low);
}

static const char *order(enum ms_lock_rank wanted, const char *wanted_name, enum ms_lock_rank held,
                         const char *held_name)
{
    static char line[256];
    snprintf(line, sizeof(line),
             "%s (rank %d) is wanted while %s (rank %d) is held; docs/locking.md has the order\n",
             wanted_name, (int)wanted, held_name, (int)held);
    return line;
}
#define ORDER(wanted, held) order(MS_LOCK_##wanted, #wanted, MS_LOCK_##held, #held)

STORY_ALONE(a_lock_of_no_higher_rank_ends_the_process_with_both_names,
            check_ends(take_downwards, ORDER(files, leases)),
            check_ends(take_twice, ORDER(files, files)),
            check_ends(take_two_of_a_rank, ORDER(leases, leases)))

STORY_AFTER(add_allocations, a_claim_under_a_lock_and_a_turn_under_a_claim_end_the_process,
            check_ends(claim_under_a_lock, ORDER(claim, files)),
            check_ends(take_a_turn_under_a_claim, ORDER(prefetch, claim)))

STORY_AFTER(add_allocations, claims_against_the_order_of_addresses_end_the_process,
            check_ends(claim_downwards,
                       "a claim at 0x1000 is wanted while one up to 0x3000 is held; "
                       "docs/locking.md has the order\n"),
            check_ends(claim_twice, "a claim at 0x1000 is wanted while one up to 0x2000 is held; "
                                    "docs/locking.md has the order\n"))

MS_TEST(a_lock_that_is_dropped_must_be_held)
{
    check_ends(drop_what_is_not_held, "files is released and not held\n");
}

MS_TEST_AFTER(add_allocations, locks_taken_in_order_go_on)
{
    ms_lock_take(&turn);
    struct ms_allocation *first = claim(0), *second = claim(1);
    ms_lock_take(&low);
    ms_lock_take(&high);
    CHECK(!ms_lock_try(&low));
    ms_lock_drop(&low); /* in any order */
    CHECK(ms_lock_try(&low));
    ms_lock_drop(&high);
    ms_lock_drop(&low);
    ms_space_unclaim(second);
    ms_space_unclaim(first);
    first = claim(0);
    ms_space_unclaim(first);
    ms_lock_drop(&turn);
    ms_lock_take(&turn);
    ms_lock_drop(&turn);
}
