/* The driver's sample rings, computed from the schedules when they are read. */
#include "ring.h"
#include "call.h"

static uint64_t tick_end_ns(uint64_t number)
{
    return number * NS_PER_S / TICKS_PER_S;
}

static uint64_t tick_at(uint64_t at_ns)
{
    return at_ns * TICKS_PER_S / NS_PER_S;
}

/* Compute one tick; `parts` must contain all processes that ran in it. */
static double compute(struct part *parts, size_t n, uint64_t number)
{
    return load_mean(parts, n, tick_end_ns(number - 1), tick_end_ns(number));
}

static double smaller(double one, double other)
{
    return one < other ? one : other;
}

struct tick last_tick(const struct world_device *device, struct part parts[MAX_PROCESSES])
{
    struct tick tick = {.number = tick_at(world_now())};

    tick.n_parts = load_device_parts(index_of(device), tick_end_ns(tick.number - 1), tick_end_ns(tick.number), parts);
    tick.util_pct = compute(parts, tick.n_parts, tick.number);
    tick.power_pct = load_mean_of(parts, tick.n_parts, TOTAL_POWER);
    tick.clock = 1;
    for (size_t i = 0; i < tick.n_parts; i++) {
        tick.clock = smaller(tick.clock, parts[i].process->clock);
        tick.reasons |= parts[i].process->reasons;
    }
    return tick;
}

unsigned int whole_percent(double percent, uint64_t tick)
{
    /* Use multiples of the golden ratio, modulo 1, because consecutive values are distributed evenly. */
    double threshold = (double)(uint32_t)(tick * 2654435769u) / 4294967296.0;
    unsigned int whole = (unsigned int)(percent + threshold);

    return whole < 100 ? whole : 100;
}

unsigned int power_mw(const struct world_device *device, double power_pct)
{
    double range = (double)device->power_limit_mw - device->idle_power_mw;

    return device->idle_power_mw + (unsigned int)(range * power_pct / 100 + 0.5);
}

unsigned int sm_clock_mhz(const struct world_device *device, size_t n_processes, double clock)
{
    unsigned int scaled = (unsigned int)(device->max_sm_clock_mhz * clock + 0.5);

    return n_processes > 0 && scaled > device->idle_sm_clock_mhz ? scaled : device->idle_sm_clock_mhz;
}

/* The ticks in the ring. */
struct range {
    uint64_t first, last; /* none if first > last */
};

static struct range ring_ticks(void)
{
    struct range range = {.last = tick_at(world_now())};

    range.first = range.last - RING_TICKS + 1;
    if (range.first < tick_at(world->boot_ns) + 1)
        range.first = tick_at(world->boot_ns) + 1;
    return range;
}

static uint64_t tick_stamp_us(uint64_t number)
{
    return stamp_us(tick_end_ns(number));
}

static bool is_any_unseen(struct range ticks, uint64_t last_seen_us)
{
    for (uint64_t tick = ticks.first; tick <= ticks.last; tick++)
        if (tick_stamp_us(tick) > last_seen_us)
            return true;
    return false;
}

static unsigned int sample(const struct world_device *device, int type, struct part *parts, size_t n, uint64_t number)
{
    double util_pct = compute(parts, n, number), clock = 1;
    size_t n_running = 0;

    switch (type) {
    case NVML_TOTAL_POWER_SAMPLES:
        return power_mw(device, load_mean_of(parts, n, TOTAL_POWER));
    case NVML_GPU_UTILIZATION_SAMPLES:
        return whole_percent(util_pct, number);
    case NVML_MEMORY_UTILIZATION_SAMPLES:
        return whole_percent(util_pct * device->memory_util_factor, number);
    case NVML_PROCESSOR_CLK_SAMPLES:
        for (size_t i = 0; i < n; i++)
            if (parts[i].start_ns < tick_end_ns(number) && parts[i].end_ns > tick_end_ns(number - 1)) {
                n_running++;
                clock = smaller(clock, parts[i].process->clock);
            }
        return sm_clock_mhz(device, n_running, clock);
    case NVML_MEMORY_CLK_SAMPLES:
        return device->memory_clock_mhz;
    default: /* encoder and decoder are never used */
        return 0;
    }
}

API nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t handle, int type, unsigned long long lastSeenTimeStamp,
                                      int *sampleValType, unsigned int *sampleCount, nvmlSample_t *samples)
{
    struct part parts[MAX_PROCESSES];
    unsigned int filled = 0;
    size_t n;

    ENTER_DEVICE(nvmlDeviceGetSamples, handle, sampleCount);
    if (sampleValType == NULL || type < NVML_TOTAL_POWER_SAMPLES || type > NVML_MEMORY_CLK_SAMPLES)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (device->mig_mode == 1 && type >= NVML_GPU_UTILIZATION_SAMPLES && type <= NVML_DEC_UTILIZATION_SAMPLES)
        return NVML_ERROR_NOT_SUPPORTED; /* as nvml.h says */
    struct range ticks = ring_ticks();
    if (device->faults.samples == SAMPLES_MISSING || !is_any_unseen(ticks, lastSeenTimeStamp))
        return NVML_ERROR_NOT_FOUND;
    n = load_device_parts(index_of(device), tick_end_ns(ticks.first - 1), tick_end_ns(ticks.last), parts);
    if (n == 0 && device->faults.samples == SAMPLES_MISSING_IF_IDLE)
        return NVML_ERROR_NOT_FOUND;
    *sampleValType = NVML_VALUE_TYPE_UNSIGNED_INT;
    if (samples == NULL) { /* the caller asks for the required size */
        *sampleCount = RING_TICKS;
        return NVML_SUCCESS;
    }
    for (uint64_t tick = ticks.first; tick <= ticks.last && filled < *sampleCount; tick++) {
        if (tick_stamp_us(tick) <= lastSeenTimeStamp)
            continue;
        samples[filled].timeStamp = tick_stamp_us(tick);
        samples[filled++].sampleValue.ullVal = sample(device, type, parts, n, tick);
    }
    *sampleCount = filled;
    return NVML_SUCCESS;
}

/* Return one record per process and tick in which the process did work. Prefix sums are rounded instead of
 * shares, so that the processes of a tick add up to the value in the device's own ring. */
API nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t handle, nvmlProcessUtilizationSample_t *utilization,
                                                 unsigned int *processSamplesCount,
                                                 unsigned long long lastSeenTimeStamp)
{
    struct part parts[MAX_PROCESSES];
    unsigned int found = 0;
    size_t n;

    ENTER_DEVICE(nvmlDeviceGetProcessUtilization, handle, processSamplesCount);
    if (device->mig_mode == 1)
        return NVML_ERROR_NOT_SUPPORTED; /* as nvml.h says */
    struct range ticks = ring_ticks();
    if (device->faults.samples == SAMPLES_MISSING || !is_any_unseen(ticks, lastSeenTimeStamp))
        return NVML_ERROR_NOT_FOUND;
    n = load_device_parts(index_of(device), tick_end_ns(ticks.first - 1), tick_end_ns(ticks.last), parts);
    for (uint64_t tick = ticks.first; tick <= ticks.last; tick++) {
        double sum = 0;

        if (tick_stamp_us(tick) <= lastSeenTimeStamp)
            continue;
        compute(parts, n, tick);
        for (size_t i = 0; i < n; i++) {
            double before = sum;
            nvmlProcessUtilizationSample_t record = {.pid = parts[i].process->pid,
                                                     .timeStamp = tick_stamp_us(tick)};

            if (parts[i].mean_pct <= 0)
                continue;
            sum += parts[i].mean_pct;
            record.smUtil = whole_percent(sum, tick) - whole_percent(before, tick);
            record.memUtil = whole_percent(sum * device->memory_util_factor, tick) -
                             whole_percent(before * device->memory_util_factor, tick);
            if (utilization != NULL && found < *processSamplesCount)
                utilization[found] = record;
            found++;
        }
    }
    if (found == 0)
        return NVML_ERROR_NOT_FOUND;
    if (utilization == NULL || found > *processSamplesCount) {
        *processSamplesCount = found + (unsigned int)n; /* a tick may pass before the caller calls again */
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    *processSamplesCount = found;
    return NVML_SUCCESS;
}
