/* Compute the load of a target between two times from the schedules of its processes.
 *
 * Between two neighbouring breakpoints, all schedules are straight lines, so sums and integrals are
 * computed exactly, piece by piece. lab/simgpu/load.py is the same in Python. */
#include "simulation.h"

#define FULL_PCT 100.0

const struct world_instance *instance_of(uint32_t target)
{
    return target < MAX_DEVICES ? NULL : &world->instances[target - MAX_DEVICES];
}

static size_t add_parts(uint32_t target, uint64_t from, uint64_t to, struct part *parts)
{
    size_t n = 0, slots = world_slots();

    for (size_t i = 0; i < slots; i++) {
        const struct world_process *process = &world->processes[i];
        uint32_t points;
        uint64_t start, end, ended;

        if (__atomic_load_n(&process->state, __ATOMIC_ACQUIRE) != SLOT_ACTIVE || process->target != target)
            continue;
        points = process->n_points;
        if (points < 2 || points > MAX_POINTS)
            continue;
        start = process->points[0].time_ns;
        end = process->points[points - 1].time_ns;
        ended = __atomic_load_n(&process->end_ns, __ATOMIC_RELAXED);
        if (ended != 0 && ended < end)
            end = ended;
        if (start < end && start <= to && end > from)
            parts[n++] = (struct part){.process = process, .start_ns = start, .end_ns = end};
    }
    return n;
}

size_t load_parts(uint32_t target, uint64_t from, uint64_t to, struct part parts[MAX_PROCESSES])
{
    world_end_vanished();
    return add_parts(target, from, to, parts);
}

static bool is_on(uint32_t target, uint32_t device)
{
    const struct world_instance *instance = instance_of(target);

    return instance == NULL ? target == device : instance->exists && instance->device == device;
}

static double weight_of(uint32_t target)
{
    const struct world_instance *instance = instance_of(target);

    return instance == NULL ? 1 : (double)instance->slices / GPU_SLICES;
}

size_t load_device_parts(uint32_t device, uint64_t from, uint64_t to, struct part parts[MAX_PROCESSES])
{
    size_t n = 0;

    world_end_vanished();
    for (uint32_t target = device; target < MAX_TARGETS; target++)
        if (is_on(target, device))
            n += add_parts(target, from, to, parts + n);
    return n;
}

static double between(double left, double right, uint64_t from, uint64_t to, uint64_t at)
{
    return from == to ? right : left + (right - left) * ((double)(at - from) / (double)(to - from));
}

/* Move the cursor to the last vertex at or before `at`; vertices of a step share one time. */
static void seek(struct part *part, uint64_t at)
{
    const struct world_process *process = part->process;

    while (part->cursor + 2 < process->n_points && process->points[part->cursor + 1].time_ns <= at)
        part->cursor++;
}

static double util_at(const struct part *part, uint64_t at)
{
    const struct world_point *left = &part->process->points[part->cursor];

    return between(left[0].util_pct, left[1].util_pct, left[0].time_ns, left[1].time_ns, at);
}

double part_memory(const struct part *part, uint64_t at)
{
    struct part here = *part;
    const struct world_point *left;

    if (at < part->start_ns || at >= part->end_ns)
        return 0;
    here.cursor = 0;
    seek(&here, at);
    left = &part->process->points[here.cursor];
    return between(left[0].memory_mib, left[1].memory_mib, left[0].time_ns, left[1].time_ns, at);
}

/* Return the first time after `at`, and not after `to`, at which a part begins, ends or has a vertex. */
static uint64_t next_breakpoint(const struct part *parts, size_t n, uint64_t at, uint64_t to)
{
    for (size_t i = 0; i < n; i++) {
        const struct part *part = &parts[i];
        uint64_t next = part->process->points[part->cursor + 1].time_ns;

        if (at < part->start_ns)
            next = part->start_ns;
        else if (next > part->end_ns || next <= at)
            next = part->end_ns;
        if (next > at && next < to)
            to = next;
    }
    return to;
}

/* Integrate one piece of straight lines on one target, and add to each part its share of the integral. */
static double piece(struct part *parts, size_t n, uint64_t from, uint64_t to)
{
    double left[MAX_PROCESSES], right[MAX_PROCESSES], sum_left = 0, sum_right = 0, total = 0, cuts[4];
    size_t n_cuts = 0;

    for (size_t i = 0; i < n; i++) {
        bool there = parts[i].start_ns <= from && parts[i].end_ns >= to;

        left[i] = there ? util_at(&parts[i], from) : 0;
        right[i] = there ? util_at(&parts[i], to) : 0;
        sum_left += left[i];
        sum_right += right[i];
    }
    cuts[n_cuts++] = 0;
    if ((sum_left < FULL_PCT) != (sum_right < FULL_PCT))
        cuts[n_cuts++] = (FULL_PCT - sum_left) / (sum_right - sum_left);
    cuts[n_cuts++] = 1;
    for (size_t c = 0; c + 1 < n_cuts; c++) {
        double width = (cuts[c + 1] - cuts[c]) * (double)(to - from);

        /* Simpson's rule: exact for straight lines, close for a share of a full device. */
        for (int step = 0; step <= 2; step++) {
            double x = cuts[c] + (cuts[c + 1] - cuts[c]) * step / 2;
            double sum = sum_left + (sum_right - sum_left) * x;
            double weight = width * (step == 1 ? 4 : 1) / 6;
            double cut = sum > FULL_PCT ? FULL_PCT / sum : 1;

            total += weight * (sum > FULL_PCT ? FULL_PCT : sum);
            for (size_t i = 0; i < n; i++)
                parts[i].mean_pct += weight * cut * (left[i] + (right[i] - left[i]) * x);
        }
    }
    return total;
}

static double integrate(struct part *parts, size_t n, uint64_t from, uint64_t to)
{
    double total = 0;

    for (size_t i = 0; i < n; i++) {
        parts[i].cursor = 0;
        parts[i].mean_pct = 0;
    }
    while (from < to) {
        uint64_t next;

        for (size_t i = 0; i < n; i++)
            seek(&parts[i], from);
        next = next_breakpoint(parts, n, from, to);
        total += piece(parts, n, from, next);
        from = next;
    }
    return total;
}

double load_mean(struct part *parts, size_t n, uint64_t from, uint64_t to)
{
    double width = (double)(to - from), total = 0;

    for (size_t begin = 0, end; begin < n; begin = end) {
        uint32_t target = parts[begin].process->target;

        for (end = begin; end < n && parts[end].process->target == target; end++)
            ;
        total += weight_of(target) * integrate(parts + begin, end - begin, from, to);
    }
    for (size_t i = 0; i < n; i++)
        parts[i].mean_pct /= width;
    return total / width;
}

double load_mean_of(const struct part *parts, size_t n, enum total total)
{
    double mean = 0;

    for (size_t i = 0; i < n; i++)
        mean += weight_of(parts[i].process->target) * parts[i].mean_pct * parts[i].process->factors[total];
    return mean;
}

/* Add a target's totals, multiplied by its weight, from the history entry that is currently published. */
static void add_totals(uint32_t target, uint64_t now, double weight, double totals[N_TOTALS])
{
    struct part parts[MAX_PROCESSES];
    const struct world_history *history = &world->history[__atomic_load_n(&world->folds, __ATOMIC_ACQUIRE) & 1];
    size_t n = 0;

    for (int total = 0; total < N_TOTALS; total++)
        totals[total] += weight * history->pct_ns[target][total];
    if (now > history->until_ns) {
        n = add_parts(target, history->until_ns, now, parts);
        integrate(parts, n, history->until_ns, now);
    }
    for (size_t i = 0; i < n; i++)
        for (int total = 0; total < N_TOTALS; total++)
            totals[total] += weight * parts[i].mean_pct * parts[i].process->factors[total];
}

/* Return the totals of one target, or the weighted sum of all targets on a device; retry if a process was folded
 * meanwhile. */
static void sum_totals(uint32_t of, bool whole_device, uint64_t now, double totals[N_TOTALS])
{
    uint32_t folds;

    world_end_vanished();
    do {
        folds = __atomic_load_n(&world->folds, __ATOMIC_ACQUIRE);
        for (int total = 0; total < N_TOTALS; total++)
            totals[total] = 0;
        if (!whole_device)
            add_totals(of, now, 1, totals);
        for (uint32_t target = of; whole_device && target < MAX_TARGETS; target++)
            if (is_on(target, of))
                add_totals(target, now, weight_of(target), totals);
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
    } while (__atomic_load_n(&world->folds, __ATOMIC_RELAXED) != folds);
}

void load_totals(uint32_t target, uint64_t now, double totals[N_TOTALS])
{
    sum_totals(target, false, now, totals);
}

void load_device_totals(uint32_t device, uint64_t now, double totals[N_TOTALS])
{
    sum_totals(device, true, now, totals);
}

uint64_t load_total(uint32_t device, uint64_t now, enum total total)
{
    uint64_t *highest = &world->devices[device].high_pct_ns[total];
    double totals[N_TOTALS];
    uint64_t high, value;

    load_device_totals(device, now, totals);
    value = (uint64_t)totals[total];
    high = __atomic_load_n(highest, __ATOMIC_RELAXED);
    while (value > high &&
           !__atomic_compare_exchange_n(highest, &high, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
    return value > high ? value : high;
}
