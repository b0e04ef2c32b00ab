/* Whose turn is next: a heap of nodes by the time at which something is due. */
#ifndef SCALE_HEAP_H
#define SCALE_HEAP_H
#include <stdint.h>
#include <stdlib.h>

struct turn {
    double at_s;
    uint32_t place; /* in the heap; UINT32_MAX: not in it */
};

static struct turn *turns; /* by node */
static uint32_t *heap, n_heap;

/* Allocate an empty heap for `n_nodes` nodes; 0 without memory. */
static int make_heap(uint32_t n_nodes) {
    turns = calloc(n_nodes, sizeof *turns);
    heap = calloc(n_nodes, sizeof *heap);
    if (turns == NULL || heap == NULL)
        return 0;
    for (uint32_t node = 0; node < n_nodes; node++)
        turns[node].place = UINT32_MAX;
    return 1;
}

static void put(uint32_t place, uint32_t node) {
    heap[place] = node;
    turns[node].place = place;
}

static void sift(uint32_t place) {
    uint32_t node = heap[place];
    double at_s = turns[node].at_s;
    while (place > 0 && turns[heap[(place - 1) / 2]].at_s > at_s) {
        put(place, heap[(place - 1) / 2]);
        place = (place - 1) / 2;
    }
    for (;;) {
        uint32_t child = 2 * place + 1;
        if (child >= n_heap)
            break;
        if (child + 1 < n_heap && turns[heap[child + 1]].at_s < turns[heap[child]].at_s)
            child++;
        if (turns[heap[child]].at_s >= at_s)
            break;
        put(place, heap[child]);
        place = child;
    }
    put(place, node);
}

/* Its turn comes then, whether it had one or not. */
static void schedule(uint32_t node, double at_s) {
    turns[node].at_s = at_s;
    if (turns[node].place == UINT32_MAX)
        put(n_heap++, node);
    sift(turns[node].place);
}

/* The first node has no turn any more. */
static void unschedule_first(void) {
    uint32_t node = heap[0];
    turns[node].place = UINT32_MAX;
    if (--n_heap > 0) {
        put(0, heap[n_heap]);
        sift(0);
    }
}

/* When the next turn is; only where the heap is not empty. */
static double next_turn_s(void) { return turns[heap[0]].at_s; }
#endif
