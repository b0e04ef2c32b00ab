/* The basis of NVML's functions: access to the world (attach.c), and the load of a device between two times
 * (load.c). */
#ifndef SIMGPU_SIMULATION_H
#define SIMGPU_SIMULATION_H

#include <stdbool.h>
#include <stddef.h>

#include "types.h"
#include "world.h"

#define X(name) FN_##name,
enum function {
#include "functions.def"
    N_FUNCTIONS
};
#undef X

static_assert((int)N_FUNCTIONS <= (int)MAX_FUNCTIONS, "raise MAX_FUNCTIONS and WORLD_VERSION");

#define NS_PER_S 1000000000ull
#define MIB 1048576ull

extern struct world *world; /* NULL until attached */

/* Map the file that SIMGPU_WORLD names; if the file is invalid, print the reason to stderr. */
nvmlReturn_t world_attach(void);
void world_detach(void);

/* Return whether the driver has stayed loaded since this process attached. */
bool world_current(void);

/* Return the wall-clock time in ns, or the time of the world's stopped clock. */
uint64_t world_now(void);

/* Return NVML's timestamp, in µs, for a time of the world. */
uint64_t stamp_us(uint64_t at_ns);

/* Return the number of process slots to scan. */
size_t world_slots(void);

/* Sleep for `ns` of real time. */
void sleep_ns(uint64_t ns);

/* Use up `ns` of this thread's processor time. */
void compute_ns(uint64_t ns);

/* End the schedules of processes that no longer exist; scan for them at most every 100 ms. */
void world_end_vanished(void);

/* A process's part in the load of its target. */
struct part {
    const struct world_process *process;
    uint64_t start_ns, end_ns;
    uint32_t cursor;
    double mean_pct; /* set by load_mean */
};

/* Return the MIG instance of a target, or NULL if the target is a device. */
const struct world_instance *instance_of(uint32_t target);

/* Collect the processes that were on a target, or on a device and its instances, at any time in (from, to]. They
 * are sorted by target, and then by slot. */
size_t load_parts(uint32_t target, uint64_t from, uint64_t to, struct part parts[MAX_PROCESSES]);
size_t load_device_parts(uint32_t device, uint64_t from, uint64_t to, struct part parts[MAX_PROCESSES]);

/* Return the mean utilisation of a device in (from, to], at most 100, and set each part's share of its target's
 * utilisation. If processes request more than 100 together, all shares are reduced in proportion. */
double load_mean(struct part *parts, size_t n, uint64_t from, uint64_t to);

/* Return the mean of any total over the interval of the last call of load_mean for these parts. */
double load_mean_of(const struct part *parts, size_t n, enum total total);

/* Return the memory of a process in MiB at a given time. */
double part_memory(const struct part *part, uint64_t at);

/* Compute the totals of a target, or of a device and its instances, since the driver was loaded, in percent × ns. */
void load_totals(uint32_t target, uint64_t now, double totals[N_TOTALS]);
void load_device_totals(uint32_t device, uint64_t now, double totals[N_TOTALS]);

/* Return one total of a device; it never decreases. */
uint64_t load_total(uint32_t device, uint64_t now, enum total total);

#endif
