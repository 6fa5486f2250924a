/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/collective/agreement.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/heap.h"
#include "runtime/base/log.h"
#include "runtime/start.h"

/* The end of an id: where its maker listens. Numbers as the machines have them: both are little-endian. */
struct offer {
    char magic[8];
    uint16_t port;
    uint16_t padding;
    uint32_t host; /* hash of the machine's boot id */
    unsigned char address[16];
};
_Static_assert(sizeof(struct offer) == 32, "the end of an id");
static const char offer_magic[8] = "MSHARD01";

enum { OFFER_AT = MS_ID_BYTES - sizeof(struct offer) };

/* What each rank sends once. */
struct record {
    uint64_t magic, nonce, plan_hash;
    uint32_t ranks, rank, world, plan_rank;
    uint64_t reserved[3];
};
_Static_assert(sizeof(struct record) == 64, "the record");
static const uint64_t record_magic = UINT64_C(0x31303043534d0002);

struct asked {
    uint64_t sequence, bytes, subject;
    uint32_t root, can;
};

enum { YES = 'Y', NO = 'N', PREPARE = 'P', READY = 'R' };

struct ms_agreement {
    bool is_server, is_broken;
    uint32_t rank, ranks;
    int sockets[]; /* by rank, of the server; else the one to it. -1: none */
};

/* --- ids that were made here */

enum { MAX_OFFERS = 16 };
static struct {
    pthread_mutex_t lock; /* guards the table; held across nothing that waits */
    struct {
        unsigned char id[MS_ID_BYTES];
        int listener; /* -1: free */
        uint64_t age;
    } entries[MAX_OFFERS];
    uint64_t count;
} offers = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void remember(const unsigned char *id, int listener)
{
    pthread_mutex_lock(&offers.lock);
    int oldest = 0;
    for (int i = 0; i < MAX_OFFERS; i++) {
        if (offers.entries[i].age < offers.entries[oldest].age)
            oldest = i;
    }
    if (offers.entries[oldest].age != 0 && offers.entries[oldest].listener >= 0)
        close(offers.entries[oldest].listener);
    memcpy(offers.entries[oldest].id, id, MS_ID_BYTES);
    offers.entries[oldest].listener = listener;
    offers.entries[oldest].age = ++offers.count;
    pthread_mutex_unlock(&offers.lock);
}

/* The caller's then; -1: the id was made elsewhere. */
static int take_listener(const unsigned char *id)
{
    int listener = -1;
    pthread_mutex_lock(&offers.lock);
    for (int i = 0; i < MAX_OFFERS && listener < 0; i++) {
        if (offers.entries[i].age != 0 && memcmp(offers.entries[i].id, id, MS_ID_BYTES) == 0) {
            listener = offers.entries[i].listener;
            offers.entries[i].listener = -1;
            offers.entries[i].age = 0;
        }
    }
    pthread_mutex_unlock(&offers.lock);
    return listener;
}

/* --- sockets */

static uint64_t hash_of(const void *bytes, size_t count)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < count; i++)
        hash = (hash ^ ((const unsigned char *)bytes)[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static uint32_t this_host(void)
{
    char boot_id[64] = "";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file == NULL || fgets(boot_id, sizeof(boot_id), file) == NULL)
        gethostname(boot_id, sizeof(boot_id) - 1);
    if (file != NULL)
        fclose(file);
    return (uint32_t)hash_of(boot_id, strlen(boot_id));
}

/* An address under which other machines find this one; else the loopback. IPv4 as IPv6 writes it. */
static struct in6_addr find_address(void)
{
    struct in6_addr found = IN6ADDR_LOOPBACK_INIT;
    struct ifaddrs *list;
    bool is_found = false;
    if (getifaddrs(&list) != 0)
        return found;
    for (const struct ifaddrs *at = list; at != NULL && !is_found; at = at->ifa_next) {
        if (at->ifa_addr == NULL || at->ifa_addr->sa_family != AF_INET ||
            (at->ifa_flags & IFF_LOOPBACK) != 0 || (at->ifa_flags & IFF_UP) == 0)
            continue;
        memset(&found, 0, sizeof(found));
        found.s6_addr[10] = found.s6_addr[11] = 0xff;
        memcpy(&found.s6_addr[12],
               &((const struct sockaddr_in *)(const void *)at->ifa_addr)->sin_addr, 4);
        is_found = true;
    }
    freeifaddrs(list);
    return found;
}

static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static uint64_t deadline(void)
{
    return now_ms() + ms_config.scatter_ms;
}

static const uint64_t never = UINT64_MAX;

/* True when the socket can be used before the deadline. */
static bool wait_for(int socket, short events, uint64_t until)
{
    struct pollfd poll_ = {.fd = socket, .events = events};
    for (;;) {
        const uint64_t now = now_ms();
        const int left = until == never ? -1 : now < until ? (int)(until - now) : 0;
        const int ready = poll(&poll_, 1, left);
        if (ready >= 0 || left == 0)
            return ready > 0;
        /* Who has said that it is ready must hear the answer: the others go by it. */
        if (errno != EINTR)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

static bool send_all(int socket, const void *bytes, size_t count)
{
    const char *at = bytes;
    while (count > 0) {
        const ssize_t sent = send(socket, at, count, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return false;
        at += sent;
        count -= (size_t)sent;
    }
    return true;
}

static bool receive_all(int socket, void *bytes, size_t count, uint64_t until)
{
    char *at = bytes;
    while (count > 0) {
        if (!wait_for(socket, POLLIN, until))
            return false;
        const ssize_t received = recv(socket, at, count, 0);
        if (received < 0 && errno == EINTR)
            continue;
        if (received <= 0)
            return false;
        at += received;
        count -= (size_t)received;
    }
    return true;
}

static bool send_word(int socket, char word)
{
    return send_all(socket, &word, 1);
}

/* 0: none came. */
static char receive_word(int socket, uint64_t until)
{
    char word = 0;
    return receive_all(socket, &word, 1, until) ? word : 0;
}

static void no_delay(int socket)
{
    const int on = 1;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

static int listen_somewhere(uint16_t *port_out)
{
    struct sockaddr_in6 own = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT};
    socklen_t length = sizeof(own);
    const int off = 0;
    const int listener = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0)
        return -1;
    setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    if (bind(listener, (struct sockaddr *)&own, sizeof(own)) != 0 || listen(listener, 4096) != 0 ||
        getsockname(listener, (struct sockaddr *)&own, &length) != 0) {
        close(listener);
        return -1;
    }
    *port_out = ntohs(own.sin6_port);
    return listener;
}

static int connect_to(const struct offer *offer, uint64_t until)
{
    struct sockaddr_in6 there = {.sin6_family = AF_INET6, .sin6_port = htons(offer->port)};
    static const unsigned char loopback[16] = {[10] = 0xff, [11] = 0xff, 127, 0, 0, 1};
    int error = 0;
    socklen_t length = sizeof(error);
    memcpy(&there.sin6_addr, offer->host == this_host() ? loopback : offer->address, 16);
    const int connection = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (connection < 0)
        return -1;
    if ((connect(connection, (struct sockaddr *)&there, sizeof(there)) != 0 &&
         errno != EINPROGRESS) ||
        !wait_for(connection, POLLOUT, until) ||
        getsockopt(connection, SOL_SOCKET, SO_ERROR, &error, &length) != 0 || error != 0) {
        close(connection);
        return -1;
    }
    no_delay(connection);
    return connection;
}

/* --- offering */

void ms_agreement_offer(unsigned char id[MS_ID_BYTES])
{
    static const unsigned char unused[sizeof(struct offer)];
    struct offer offer = {.host = this_host()};
    if (memcmp(id + OFFER_AT, unused, sizeof(unused)) != 0)
        return;
    const int listener = listen_somewhere(&offer.port);
    if (listener < 0) {
        ms_log(MS_WARN, "METASHARD_SCATTER: no socket to listen on: %s", strerror(errno));
        return;
    }
    const struct in6_addr address = find_address();
    memcpy(offer.magic, offer_magic, sizeof(offer.magic));
    memcpy(offer.address, &address, sizeof(offer.address));
    memcpy(id + OFFER_AT, &offer, sizeof(offer));
    remember(id, listener);
}

/* --- the end of it */

static void break_up(struct ms_agreement *agreement)
{
    const uint32_t count = agreement->is_server ? agreement->ranks : 1;
    for (uint32_t i = 0; i < count; i++) {
        if (agreement->sockets[i] >= 0)
            close(agreement->sockets[i]);
        agreement->sockets[i] = -1;
    }
    agreement->is_broken = true;
}

void ms_agreement_end(struct ms_agreement *agreement)
{
    if (agreement == NULL)
        return;
    break_up(agreement);
    ms_heap_free(agreement);
}

/* --- a question, of the server */

static bool send_to_all(const struct ms_agreement *agreement, char word)
{
    bool is_good = true;
    for (uint32_t i = 0; i < agreement->ranks; i++) {
        if (agreement->sockets[i] >= 0 && !send_word(agreement->sockets[i], word))
            is_good = false;
    }
    return is_good;
}

static bool all_are_ready(const struct ms_agreement *agreement)
{
    const uint64_t until = deadline();
    for (uint32_t i = 0; i < agreement->ranks; i++) {
        if (agreement->sockets[i] >= 0 && receive_word(agreement->sockets[i], until) != READY)
            return false;
    }
    return true;
}

static bool prepare_all(const struct ms_agreement *agreement, uint64_t subject)
{
    bool is_good = send_to_all(agreement, PREPARE);
    for (uint32_t i = 0; i < agreement->ranks && is_good; i++) {
        if (agreement->sockets[i] >= 0)
            is_good = send_all(agreement->sockets[i], &subject, sizeof(subject));
    }
    return is_good;
}

/* False: the first did not hear it, so nobody did, and it can still be a no. */
static bool tell_yes(struct ms_agreement *agreement)
{
    uint32_t told = 0, lost = 0;
    for (uint32_t i = 0; i < agreement->ranks; i++) {
        if (agreement->sockets[i] < 0)
            continue;
        if (send_word(agreement->sockets[i], YES) || send_word(agreement->sockets[i], YES)) {
            told++;
            continue;
        }
        if (told == 0)
            return false;
        lost++;
        ms_log(MS_ERROR,
               "METASHARD_SCATTER: rank %" PRIu32 " did not hear the answer: others scatter, and "
               "it does not",
               i);
    }
    if (lost > 0)
        break_up(agreement); /* it may still wait for the word */
    return true;
}

/* All have said yes: then they wait for the word. */
static bool settle(struct ms_agreement *agreement, uint64_t subject)
{
    if (prepare_all(agreement, subject) && all_are_ready(agreement) && tell_yes(agreement))
        return true;
    send_to_all(agreement, NO);
    break_up(agreement);
    return false;
}

/* What one rank has said, and what is to come of all. */
struct tally {
    uint32_t wanted, least; /* of the root; of the others */
    uint64_t subject;
};

static void count_in(struct tally *tally, const struct asked *asked, uint32_t rank)
{
    if (rank == asked->root) {
        tally->wanted = asked->can;
        tally->subject = asked->subject;
    } else if (asked->can < tally->least) {
        tally->least = asked->can;
    }
}

static bool ask_as_server(struct ms_agreement *agreement, const struct asked *own,
                          uint64_t *subject_out)
{
    const uint64_t until = deadline();
    struct tally tally = {.least = UINT32_MAX};
    count_in(&tally, own, agreement->rank);
    for (uint32_t i = 0; i < agreement->ranks; i++) {
        struct asked other;
        if (agreement->sockets[i] < 0)
            continue;
        if (!receive_all(agreement->sockets[i], &other, sizeof(other), until) ||
            other.sequence != own->sequence || other.bytes != own->bytes ||
            other.root != own->root) {
            ms_log(MS_INFO,
                   "METASHARD_SCATTER: rank %" PRIu32 " did not come to broadcast %" PRIu64
                   " in time, or to another; this communicator's are no longer scattered",
                   i, own->sequence);
            send_to_all(agreement, NO);
            break_up(agreement);
            return false;
        }
        count_in(&tally, &other, i);
    }
    *subject_out = tally.subject;
    if (tally.wanted > 0 && tally.least >= tally.wanted)
        return settle(agreement, tally.subject);
    send_to_all(agreement, NO);
    return false;
}

/* --- a question, of the others */

/* After READY there is an answer as long as the server lives. */
static char wait_for_word(int socket, uint64_t *subject_out)
{
    const uint64_t until = deadline();
    char word = receive_word(socket, until);
    if (word != PREPARE)
        return word;
    if (!receive_all(socket, subject_out, sizeof(*subject_out), until))
        return 0;
    word = send_word(socket, READY) ? receive_word(socket, never) : 0;
    if (word != YES && word != NO)
        ms_log(MS_ERROR, "METASHARD_SCATTER: the connection was lost before the answer: others may "
                         "scatter, and this rank does not");
    return word;
}

static bool ask_as_client(struct ms_agreement *agreement, const struct asked *own,
                          uint64_t *subject_out)
{
    char word = 0;
    if (send_all(agreement->sockets[0], own, sizeof(*own)))
        word = wait_for_word(agreement->sockets[0], subject_out);
    if (word != YES && word != NO) {
        ms_log(MS_INFO,
               "METASHARD_SCATTER: no answer to broadcast %" PRIu64
               "; this communicator's are no longer scattered",
               own->sequence);
        break_up(agreement);
    }
    return word == YES;
}

bool ms_agreement_ask(struct ms_agreement *agreement, const struct ms_question *question,
                      uint64_t *subject_out)
{
    const struct asked own = {.sequence = question->sequence,
                              .bytes = question->bytes,
                              .subject = question->subject,
                              .root = question->root,
                              .can = question->can};
    if (agreement->is_broken)
        return false;
    return agreement->is_server ? ask_as_server(agreement, &own, subject_out)
                                : ask_as_client(agreement, &own, subject_out);
}

/* --- joining */

/* What is not the same, or NULL. */
static const char *difference(const struct record *own, const struct record *other)
{
    if (other->ranks != own->ranks || other->rank >= own->ranks)
        return "the communicator";
    if (other->plan_hash != own->plan_hash || other->world != own->world)
        return "the plan";
    return NULL;
}

/* One connection; whoever does not know the id is sent away. False: there can be no agreement. */
static bool admit(struct ms_agreement *agreement, int connection, const struct record *own,
                  uint32_t *plan_ranks, uint64_t until, uint32_t *missing)
{
    struct record other;
    if (!receive_all(connection, &other, sizeof(other), until) || other.magic != record_magic ||
        other.nonce != own->nonce) {
        close(connection);
        return true;
    }
    const char *what = difference(own, &other);
    if (what == NULL && agreement->sockets[other.rank] < 0 && other.rank != agreement->rank) {
        agreement->sockets[other.rank] = connection;
        plan_ranks[other.rank] = other.plan_rank;
        --*missing;
        return true;
    }
    ms_log(MS_WARN,
           "METASHARD_SCATTER: %s of rank %" PRIu32 " is not that of rank %" PRIu32
           "; broadcasts are not scattered",
           what != NULL ? what : "the number", other.rank, own->rank);
    send_word(connection, NO);
    close(connection);
    return false;
}

static bool gather(struct ms_agreement *agreement, int listener, const struct record *own,
                   uint32_t *plan_ranks)
{
    const uint64_t until = deadline();
    uint32_t missing = agreement->ranks - 1;
    while (missing > 0) {
        if (!wait_for(listener, POLLIN, until)) {
            ms_log(
                MS_WARN,
                "METASHARD_SCATTER: %" PRIu32 " of %" PRIu32
                " ranks did not come: MetaShard is perhaps not preloaded there; broadcasts are not "
                "scattered",
                missing, agreement->ranks);
            return false;
        }
        const int connection = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (connection < 0) {
            /* Who knocks stays there, so the wait above does not wait. */
            if (now_ms() >= until) {
                ms_log(
                    MS_WARN,
                    "METASHARD_SCATTER: a rank cannot be let in: %s; broadcasts are not scattered",
                    strerror(errno));
                return false;
            }
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
            continue;
        }
        no_delay(connection);
        if (!admit(agreement, connection, own, plan_ranks, until, &missing))
            return false;
    }
    return true;
}

static bool join_as_server(struct ms_agreement *agreement, int listener, const struct record *own,
                           uint32_t *plan_ranks)
{
    plan_ranks[own->rank] = own->plan_rank;
    const bool is_good = gather(agreement, listener, own, plan_ranks);
    close(listener);
    if (!is_good)
        send_to_all(agreement, NO);
    if (!is_good || !settle(agreement, 0))
        return false;
    for (uint32_t i = 0; i < agreement->ranks; i++) {
        if (agreement->sockets[i] >= 0 &&
            !send_all(agreement->sockets[i], plan_ranks, agreement->ranks * sizeof(*plan_ranks)))
            return false;
    }
    return true;
}

static bool join_as_client(struct ms_agreement *agreement, const struct offer *offer,
                           const struct record *own, uint32_t *plan_ranks)
{
    uint64_t subject;
    const int connection = connect_to(offer, deadline());
    agreement->sockets[0] = connection;
    if (connection < 0 || !send_all(connection, own, sizeof(*own)) ||
        wait_for_word(connection, &subject) != YES)
        return false;
    return receive_all(connection, plan_ranks, agreement->ranks * sizeof(*plan_ranks), deadline());
}

static struct ms_agreement *create(uint32_t rank, uint32_t ranks, bool is_server)
{
    const uint32_t count = is_server ? ranks : 1;
    struct ms_agreement *agreement =
        ms_heap_alloc(sizeof(*agreement) + count * sizeof(*agreement->sockets));
    if (agreement == NULL)
        return NULL;
    *agreement = (struct ms_agreement){.is_server = is_server, .rank = rank, .ranks = ranks};
    for (uint32_t i = 0; i < count; i++)
        agreement->sockets[i] = -1;
    return agreement;
}

struct ms_agreement *ms_agreement_join(const unsigned char id[MS_ID_BYTES], uint32_t rank,
                                       uint32_t ranks, const struct ms_terms *terms,
                                       uint32_t *plan_ranks_out)
{
    struct offer offer;
    const struct record own = {.magic = record_magic,
                               .nonce = hash_of(id, MS_ID_BYTES),
                               .plan_hash = terms->plan_hash,
                               .ranks = ranks,
                               .rank = rank,
                               .world = terms->world,
                               .plan_rank = terms->plan_rank};
    memcpy(&offer, id + OFFER_AT, sizeof(offer));
    const int listener = take_listener(id);
    if (listener < 0 && memcmp(offer.magic, offer_magic, sizeof(offer.magic)) != 0) {
        ms_log(MS_WARN, "METASHARD_SCATTER: who made the communicator's id does not offer it; "
                        "broadcasts are not scattered");
        return NULL;
    }
    struct ms_agreement *agreement = create(rank, ranks, listener >= 0);
    if (agreement == NULL) {
        if (listener >= 0)
            close(listener);
        return NULL;
    }
    if (listener >= 0 ? join_as_server(agreement, listener, &own, plan_ranks_out)
                      : join_as_client(agreement, &offer, &own, plan_ranks_out))
        return agreement;
    if (listener < 0)
        ms_log(MS_WARN,
               "METASHARD_SCATTER: the ranks have not agreed; broadcasts are not scattered");
    ms_agreement_end(agreement);
    return NULL;
}
