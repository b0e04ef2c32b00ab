/* The driver's sample rings: the mean over each tick of 1/6 s, for the last 20 s. */
#ifndef SIMGPU_RING_H
#define SIMGPU_RING_H

#include "simulation.h"

enum { TICKS_PER_S = 6, RING_TICKS = 120 };

struct tick {
    uint64_t number; /* counted from the epoch */
    size_t n_parts;
    double util_pct;
    double power_pct; /* of the range from idle to the limit */
    double clock;     /* fraction of the maximum SM clock */
    uint64_t reasons; /* clocks event reasons */
};

/* Return the last complete tick and the processes that ran in it. */
struct tick last_tick(const struct world_device *device, struct part parts[MAX_PROCESSES]);

/* Return a whole percentage, as the driver reports it. Values are rounded up or down alternately, so that the mean
 * over many ticks is unbiased: rounding errors must not hide other errors. */
unsigned int whole_percent(double percent, uint64_t tick);

unsigned int power_mw(const struct world_device *device, double power_pct);

/* Return the SM clock: idle without processes, and otherwise the fraction `clock` of the maximum. */
unsigned int sm_clock_mhz(const struct world_device *device, size_t n_processes, double clock);

#endif
