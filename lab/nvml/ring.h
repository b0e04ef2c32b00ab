/* The driver's sample rings: one value per tick of 1/6 s, the mean over that tick, 20 s back. */
#ifndef SIMGPU_RING_H
#define SIMGPU_RING_H

#include "simulation.h"

enum { TICKS_PER_S = 6, RING_TICKS = 120 };

struct tick {
    uint64_t number; /* counted from the epoch */
    size_t n_parts;
    double util_pct;
    double power_pct; /* of the range from idle to the limit */
    double clock;     /* what is left of the greatest SM clock */
    uint64_t reasons; /* why */
};

/* The tick that ended last, with the processes that ran in it. */
struct tick last_tick(const struct world_device *device, struct part parts[MAX_PROCESSES]);

/* A whole percentage, as the driver reports it. Rounded up or down alternately, so that the mean over many
 * ticks is that of the unrounded values: the error of rounding must not hide other errors. */
unsigned int whole_percent(double percent, uint64_t tick);

unsigned int power_mw(const struct world_device *device, double power_pct);

/* The SM clock is up while any process has a context, as far as they leave it. */
unsigned int sm_clock_mhz(const struct world_device *device, size_t n_processes, double clock);

#endif
