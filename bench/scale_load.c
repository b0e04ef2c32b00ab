/* Posts to slurm-gpudbd as thousands of nodes do, each from its own address, with a credential of its own.
 *
 * scale_load PLAN RESULTS MUNGE_SOCKET PORT SECONDS
 *
 * PLAN and RESULTS are as scale_plan.h has them.
 * A node has one shipment under way at a time. It sends live values every 10 s (+- 10 %), and the rest
 * (a "post", which contains live values too) when that is due. A failed shipment is sent again as by slurm-gpud.
 * Ends after SECONDS, once no post is due and none is under way. SIGUSR1: all posts with due_s < 0 are due now.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "scale_heap.h"
#include "scale_plan.h"

/* As munge.h has it, which comes with the library's development package alone. */
typedef struct munge_ctx *munge_ctx_t;
enum { EMUNGE_SUCCESS = 0, MUNGE_OPT_SOCKET = 8 };
munge_ctx_t munge_ctx_create(void);
int munge_ctx_set(munge_ctx_t context, int option, ...);
const char *munge_ctx_strerror(munge_ctx_t context);
int munge_encode(char **credential, munge_ctx_t context, const void *payload, int length);

#ifndef IP_BIND_ADDRESS_NO_PORT
#define IP_BIND_ADDRESS_NO_PORT 24
#endif

enum { LIVE_S = 10, STEP_TIMEOUT_S = 20, BACKOFF_MAX_S = 60, KEPT = 511 };

struct state { /* of a node */
    double live_due_s, not_before_s, sent_s, due_s;
    const struct body *under_way;
    uint32_t post, tries;
    int fd, has_failed;
    size_t sent, head_length, got;
    char *head;
    char answer[KEPT + 1];
};

static const char *base;
static const struct node *nodes;
static const struct post *posts;
static struct state *states;
static uint32_t n_nodes, n_under_way, n_done;
static double began, until_s, burst_s = -1;
static volatile sig_atomic_t burst_now;
static munge_ctx_t context;
static int poller;
static FILE *results;
static uint16_t port;
static uint64_t n_failed[8];

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9 - began;
}

static double uniform(double low, double high) { return low + (high - low) * drand48(); }

static void fail(const char *what) {
    perror(what);
    exit(3);
}

/* When the next post of a node is due; a year where there is none, or its time is unknown. */
static double post_due_s(uint32_t node) {
    if (states[node].post >= nodes[node].n_posts)
        return 3e7;
    double due_s = posts[nodes[node].first_post + states[node].post].due_s;
    if (due_s >= 0)
        return due_s;
    return burst_s < 0 ? 3e7 : burst_s - due_s;
}

static void plan_next(uint32_t node) {
    struct state *s = &states[node];
    double due_s = post_due_s(node);
    if (s->live_due_s < due_s && s->live_due_s < until_s)
        due_s = s->live_due_s;
    if (due_s < 3e7)
        schedule(node, due_s > s->not_before_s ? due_s : s->not_before_s);
}

static void end(uint32_t node) {
    struct state *s = &states[node];
    epoll_ctl(poller, EPOLL_CTL_DEL, s->fd, NULL);
    close(s->fd);
    free(s->head);
    s->fd = -1;
    n_under_way--;
}

static void failed(uint32_t node, int why) {
    struct state *s = &states[node];
    n_failed[why]++;
    s->has_failed++;
    double pause_s = s->has_failed < 6 ? (double)(1 << s->has_failed) : BACKOFF_MAX_S;
    if (pause_s > BACKOFF_MAX_S)
        pause_s = BACKOFF_MAX_S;
    pause_s *= uniform(0.5, 1.0);
    const char *after = strcasestr(s->answer, "\r\nretry-after: ");
    if (after != NULL)
        pause_s += atof(after + 15);
    s->not_before_s = now_s() + pause_s;
    schedule(node, s->not_before_s);
}

static uint32_t count_of(const char *answer, const char *name) {
    const char *at = strstr(answer, name);
    return at == NULL ? 0 : (uint32_t)strtoul(at + strlen(name), NULL, 10);
}

static void answered(uint32_t node) {
    struct state *s = &states[node];
    end(node);
    s->answer[s->got < KEPT ? s->got : KEPT] = 0;
    int status = s->got > 12 ? atoi(s->answer + 9) : 0;
    if (status != 200) {
        failed(node, status == 429 ? 1 : status == 503 ? 2 : status == 0 ? 3 : 4);
        if (status != 0 && status != 429 && status != 503) { /* what a node would never get over */
            fprintf(stderr, "%s\n", s->answer);
            exit(3);
        }
        return;
    }
    const char *rejected = strstr(s->answer, "\"rejected\":[");
    struct result result = {
        .due_s = s->due_s, .sent_s = s->sent_s, .done_s = now_s(), .node = node,
        .n_records = s->under_way->n_records, .tries = s->tries,
        .stored = count_of(s->answer, "\"stored\":"), .stale = count_of(s->answer, "\"stale\":"),
        .rejected = rejected != NULL && rejected[12] != ']',
    };
    fwrite(&result, sizeof result, 1, results);
    if (s->under_way != &nodes[node].live && s->under_way != &nodes[node].idle)
        n_done += ++s->post == nodes[node].n_posts;
    s->under_way = NULL;
    s->tries = s->has_failed = 0;
    plan_next(node);
}

static void begin(uint32_t node, double now) {
    struct state *s = &states[node];
    const struct node *n = &nodes[node];
    if (s->under_way == NULL || s->has_failed) {
        double due_s = post_due_s(node);
        const struct body *live = s->post < n->n_posts ? &n->live : &n->idle;
        const struct body *wanted = due_s <= now ? &posts[n->first_post + s->post].body : live;
        if (s->under_way == NULL)
            s->due_s = wanted == live ? s->live_due_s : due_s;
        s->under_way = wanted;
        s->live_due_s = now + LIVE_S * uniform(0.9, 1.1);
    }
    const struct body *body = s->under_way;
    char *credential;
    int error = munge_encode(&credential, context, body->digest, DIGEST);
    if (error != EMUNGE_SUCCESS) {
        fprintf(stderr, "munge_encode: %s\n", munge_ctx_strerror(context));
        exit(3);
    }
    int length = asprintf(&s->head, "POST /v1/node HTTP/1.0\r\nHost: 127.0.0.1:%d\r\nAuthorization: MUNGE %s\r\n"
        "Content-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: %u\r\n\r\n",
        port, credential, body->length);
    if (length < 0)
        fail("asprintf");
    free(credential);
    s->head_length = (size_t)length;
    s->sent = s->got = 0;
    s->answer[0] = 0;
    s->sent_s = now_s();
    s->tries++;
    n_under_way++;
    int one = 1;
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = n->address};
    struct sockaddr_in there = {.sin_family = AF_INET, .sin_port = htons(port),
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    s->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (s->fd < 0)
        fail("socket");
    setsockopt(s->fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
    if (bind(s->fd, (struct sockaddr *)&here, sizeof here) < 0)
        fail("bind");
    struct epoll_event event = {.events = EPOLLOUT, .data.u32 = node};
    if (epoll_ctl(poller, EPOLL_CTL_ADD, s->fd, &event) < 0)
        fail("epoll_ctl");
    if (connect(s->fd, (struct sockaddr *)&there, sizeof there) < 0 && errno != EINPROGRESS) {
        end(node);
        failed(node, 5);
    }
}

static void send_more(uint32_t node) {
    struct state *s = &states[node];
    const struct body *body = s->under_way;
    struct iovec parts[2] = {
        {s->head + s->sent, s->sent < s->head_length ? s->head_length - s->sent : 0},
        {(void *)(base + body->offset), body->length},
    };
    if (s->sent > s->head_length) {
        parts[1].iov_base = (void *)(base + body->offset + (s->sent - s->head_length));
        parts[1].iov_len = body->length - (s->sent - s->head_length);
    }
    ssize_t n = writev(s->fd, parts, 2);
    if (n < 0) {
        if (errno == EAGAIN)
            return;
        if (errno != EPIPE && errno != ECONNRESET) {
            end(node);
            failed(node, 5);
            return;
        }
        n = (ssize_t)(s->head_length + body->length - s->sent); /* it may have answered before it had read all */
    }
    s->sent += (size_t)n;
    if (s->sent == s->head_length + body->length) {
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = node};
        epoll_ctl(poller, EPOLL_CTL_MOD, s->fd, &event);
    }
}

static void receive(uint32_t node) {
    struct state *s = &states[node];
    char piece[65536];
    for (;;) {
        ssize_t n = read(s->fd, piece, sizeof piece);
        if (n < 0 && errno == EAGAIN)
            return;
        if (n <= 0) {
            answered(node);
            return;
        }
        if (s->got < KEPT)
            memcpy(s->answer + s->got, piece, (size_t)n < KEPT - s->got ? (size_t)n : KEPT - s->got);
        s->got += (size_t)n;
    }
}

static void give_up(double now) {
    for (uint32_t node = 0; node < n_nodes; node++)
        if (states[node].fd >= 0 && now - states[node].sent_s > STEP_TIMEOUT_S) {
            end(node);
            failed(node, 6);
        }
}

static void on_signal(int number) {
    (void)number;
    burst_now = 1;
}

int main(int argc, char **argv) {
    if (argc != 6) {
        fprintf(stderr, "usage: scale_load PLAN RESULTS MUNGE_SOCKET PORT SECONDS\n");
        return 2;
    }
    int file = open(argv[1], O_RDONLY);
    struct stat info;
    if (file < 0 || fstat(file, &info) < 0)
        fail(argv[1]);
    base = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED | MAP_POPULATE, file, 0);
    if (base == MAP_FAILED)
        fail("mmap");
    const struct plan *plan = (const struct plan *)base;
    n_nodes = plan->n_nodes;
    nodes = (const struct node *)(plan + 1);
    posts = (const struct post *)(nodes + n_nodes);
    results = fopen(argv[2], "wb");
    states = calloc(n_nodes, sizeof *states);
    context = munge_ctx_create();
    poller = epoll_create1(0);
    if (results == NULL || states == NULL || !make_heap(n_nodes) || context == NULL || poller < 0)
        fail("start");
    munge_ctx_set(context, MUNGE_OPT_SOCKET, argv[3]);
    port = (uint16_t)atoi(argv[4]);
    until_s = atof(argv[5]);
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGUSR1, on_signal);
    srand48(1);
    began = 0;
    began = now_s();
    for (uint32_t node = 0; node < n_nodes; node++) {
        states[node].fd = -1;
        states[node].live_due_s = uniform(0, LIVE_S);
        plan_next(node);
    }
    double looked_s = 0;
    for (;;) {
        double now = now_s();
        if (burst_now && burst_s < 0) {
            burst_s = now;
            for (uint32_t node = 0; node < n_nodes; node++)
                if (states[node].fd < 0)
                    plan_next(node);
            printf("burst %.6f\n", burst_s);
            fflush(stdout);
        }
        /* Answers come first, and no more than a few begin in between: they are not to be counted as waiting. */
        for (int n = 0; n < 16 && n_heap > 0 && next_turn_s() <= now; n++) {
            uint32_t node = heap[0];
            unschedule_first();
            begin(node, now);
        }
        if (burst_s >= 0 && n_done == n_nodes && until_s > now + LIVE_S)
            until_s = now + LIVE_S; /* no longer than it takes to see how the others fare */
        if (now > until_s && n_under_way == 0 && (n_heap == 0 || next_turn_s() > now + 90))
            break;
        if (now - looked_s > 1) {
            looked_s = now;
            give_up(now);
            fflush(results);
        }
        double wait_s = n_heap > 0 ? next_turn_s() - now_s() : 0.1;
        int wait_ms = wait_s <= 0 ? 0 : wait_s > 0.1 ? 100 : (int)(wait_s * 1000) + 1;
        struct epoll_event events[256];
        int n = epoll_wait(poller, events, 256, wait_ms);
        for (int i = 0; i < n; i++) {
            uint32_t node = events[i].data.u32;
            if (states[node].fd < 0)
                continue;
            if (states[node].sent < states[node].head_length + states[node].under_way->length)
                send_more(node);
            else
                receive(node);
        }
    }
    fclose(results);
    printf("failed 429=%lu 503=%lu cut=%lu other=%lu connect=%lu timeout=%lu\n", n_failed[1], n_failed[2],
        n_failed[3], n_failed[4], n_failed[5], n_failed[6]);
    return 0;
}
