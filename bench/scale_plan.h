/* What scale_bodies.py writes for scale_load, and what scale.py reads of it.
 *
 * PLAN is struct plan, then n_nodes struct node, then n_posts struct post by node and time, then all bodies.
 * RESULTS gets a struct result of each shipment that was answered with 200, in their order.
 */
#ifndef SCALE_PLAN_H
#define SCALE_PLAN_H
#include <stdint.h>

enum { DIGEST = 64 };

struct plan {
    uint32_t n_nodes, n_posts;
};
struct body {
    uint64_t offset; /* from the beginning of PLAN */
    uint32_t length, n_records;
    char digest[DIGEST]; /* what the credential binds: sha256 in hexadecimal, of method, path and body */
};
struct node {
    uint32_t address; /* network order */
    uint32_t n_posts, first_post, unused;
    struct body live, idle; /* before and after its last post */
};
struct post {
    double due_s; /* since the beginning; < 0: when SIGUSR1 comes, and so much (times -1) later */
    struct body body;
};
struct result {
    double due_s, sent_s, done_s;
    uint32_t node, n_records, tries, stored, stale, rejected;
};
#endif
