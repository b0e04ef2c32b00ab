/* What lies behind the functions of NVML: access to the world (attach.c) and what happened on a device
 * between two instants (load.c). */
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

/* Map the file that SIMGPU_WORLD names; says on stderr what is wrong with it. */
nvmlReturn_t world_attach(void);
void world_detach(void);

/* Whether the driver is still the one that was there when this process attached. */
bool world_current(void);

/* Wall-clock time in ns, or the world's own stopped clock. */
uint64_t world_now(void);

/* What NVML stamps on something that happened at a time of the world, in µs. */
uint64_t stamp_us(uint64_t at_ns);

/* The number of process slots to scan. */
size_t world_slots(void);

/* Give up to `ns` of real time. */
void sleep_ns(uint64_t ns);

/* Use up `ns` of this thread's processor time. */
void compute_ns(uint64_t ns);

/* End the schedule of each process that is there no more; scans at most every 100 ms. */
void world_end_vanished(void);

/* A process's part in the load of its target. */
struct part {
    const struct world_process *process;
    uint64_t start_ns, end_ns;
    uint32_t cursor;
    double mean_pct; /* set by load_mean */
};

/* The instance that a target is; NULL for a device. */
const struct world_instance *instance_of(uint32_t target);

/* Collect the processes on a target, or on a device and all its instances, at any time in (from, to]: target
 * by target, and in the order of their slots. */
size_t load_parts(uint32_t target, uint64_t from, uint64_t to, struct part parts[MAX_PROCESSES]);
size_t load_device_parts(uint32_t device, uint64_t from, uint64_t to, struct part parts[MAX_PROCESSES]);

/* Mean utilisation of a device in (from, to], at most 100, and each part's share of its target's: where
 * processes ask for more than 100 together, each is cut in proportion. */
double load_mean(struct part *parts, size_t n, uint64_t from, uint64_t to);

/* The mean of any total over what load_mean was last asked of these parts. */
double load_mean_of(const struct part *parts, size_t n, enum total total);

/* Memory of a process in MiB at an instant. */
double part_memory(const struct part *part, uint64_t at);

/* What happened on a target, or on a device and all its instances, since the driver was loaded, in percent × ns. */
void load_totals(uint32_t target, uint64_t now, double totals[N_TOTALS]);
void load_device_totals(uint32_t device, uint64_t now, double totals[N_TOTALS]);

/* One of a device; never goes back. */
uint64_t load_total(uint32_t device, uint64_t now, enum total total);

#endif
