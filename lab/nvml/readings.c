/* Implement the current readings of a device and its cumulative totals. */
#include "readings.h"

#include "call.h"
#include "ring.h"

#include <stddef.h>

#define PCIE_WINDOW_NS 20000000ull

/* A device with all its instances, or one instance alone. */
static nvmlMemory_v2_t memory_of(const struct handled *handled)
{
    struct part parts[MAX_PROCESSES];
    uint64_t now = world_now();
    bool whole = handled->instance == NULL;
    size_t n = whole ? load_device_parts(handled->target, now, now, parts)
                     : load_parts(handled->target, now, now, parts);
    nvmlMemory_v2_t memory = {.total = (whole ? handled->device->memory_mib : handled->instance->memory_mib) * MIB,
                              .reserved = whole ? handled->device->reserved_mib * MIB : 0};
    double room = (double)(memory.total - memory.reserved), used = 0;

    for (size_t i = 0; i < n; i++)
        used += part_memory(&parts[i], now) * MIB;
    memory.used = (uint64_t)(used < room ? used : room);
    memory.free = memory.total - memory.reserved - memory.used;
    return memory;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, nvmlMemory_t *memory)
{
    ENTER_TARGET(nvmlDeviceGetMemoryInfo, handle, memory);
    nvmlMemory_v2_t found = memory_of(&handled);
    *memory = (nvmlMemory_t){.total = found.total, .free = found.free, .used = found.used + found.reserved};
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t handle, nvmlMemory_v2_t *memory)
{
    unsigned int version;

    ENTER_TARGET(nvmlDeviceGetMemoryInfo_v2, handle, memory);
    version = memory->version;
    if (version != NVML_MEMORY_V2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    *memory = memory_of(&handled);
    memory->version = version;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t handle, nvmlUtilization_t *utilization)
{
    struct part parts[MAX_PROCESSES];

    ENTER_DEVICE(nvmlDeviceGetUtilizationRates, handle, utilization);
    if (device->mig_mode == 1) /* "on MIG-enabled GPUs … not currently supported": nvml.h */
        return NVML_ERROR_NOT_SUPPORTED;
    struct tick tick = last_tick(device, parts);
    utilization->gpu = whole_percent(tick.util_pct, tick.number);
    utilization->memory = whole_percent(tick.util_pct * device->memory_util_factor, tick.number);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t handle, unsigned int *power)
{
    struct part parts[MAX_PROCESSES];

    ENTER_DEVICE(nvmlDeviceGetPowerUsage, handle, power);
    *power = power_mw(device, last_tick(device, parts).power_pct);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t handle, unsigned int *limit)
{
    ENTER_DEVICE(nvmlDeviceGetEnforcedPowerLimit, handle, limit);
    *limit = device->power_limit_mw;
    return NVML_SUCCESS;
}

uint64_t energy_mj(struct world_device *device)
{
    uint64_t now = world_now(), high, value;
    double idle_s = now > world->boot_ns ? (double)(now - world->boot_ns) / NS_PER_S : 0;
    double full_s = (double)load_total(index_of(device), now, TOTAL_POWER) / 100 / NS_PER_S;

    value = (uint64_t)(idle_s * device->idle_power_mw +
                       full_s * (device->power_limit_mw - device->idle_power_mw));
    high = __atomic_load_n(&device->energy_high_mj, __ATOMIC_RELAXED);
    while (value > high && !__atomic_compare_exchange_n(&device->energy_high_mj, &high, value, false,
                                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
    return (value > high ? value : high) + device->faults.energy_offset_mj;
}

API nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t handle, unsigned long long *energy)
{
    ENTER_DEVICE(nvmlDeviceGetTotalEnergyConsumption, handle, energy);
    *energy = energy_mj(device);
    return NVML_SUCCESS;
}

static unsigned int temperature(const struct world_device *device)
{
    struct part parts[MAX_PROCESSES];
    double range = (double)device->full_temperature_c - device->idle_temperature_c;

    return device->idle_temperature_c + (unsigned int)(range * last_tick(device, parts).util_pct / 100 + 0.5);
}

API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t handle, int sensor, unsigned int *celsius)
{
    ENTER_DEVICE(nvmlDeviceGetTemperature, handle, celsius);
    if (sensor != NVML_TEMPERATURE_GPU)
        return NVML_ERROR_INVALID_ARGUMENT;
    *celsius = temperature(device);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t handle, nvmlTemperature_v1_t *reading)
{
    ENTER_DEVICE(nvmlDeviceGetTemperatureV, handle, reading);
    if (reading->version != NVML_TEMPERATURE_V1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (reading->sensorType != NVML_TEMPERATURE_GPU)
        return NVML_ERROR_INVALID_ARGUMENT;
    reading->temperature = (int)temperature(device);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t handle, int type, unsigned int *mhz)
{
    struct part parts[MAX_PROCESSES];

    ENTER_DEVICE(nvmlDeviceGetClockInfo, handle, mhz);
    if (type < NVML_CLOCK_GRAPHICS || type > NVML_CLOCK_VIDEO)
        return NVML_ERROR_INVALID_ARGUMENT;
    struct tick tick = last_tick(device, parts);
    *mhz = type == NVML_CLOCK_MEM ? device->memory_clock_mhz : sm_clock_mhz(device, tick.n_parts, tick.clock);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t handle, int type, unsigned int *mhz)
{
    ENTER_DEVICE(nvmlDeviceGetMaxClockInfo, handle, mhz);
    if (type < NVML_CLOCK_GRAPHICS || type > NVML_CLOCK_VIDEO)
        return NVML_ERROR_INVALID_ARGUMENT;
    *mhz = type == NVML_CLOCK_MEM ? device->memory_clock_mhz : device->max_sm_clock_mhz;
    return NVML_SUCCESS;
}

static uint64_t clocks_event_reasons(const struct world_device *device)
{
    struct part parts[MAX_PROCESSES];
    struct tick tick = last_tick(device, parts);
    const struct world_faults *faults = &device->faults;
    uint64_t now = world_now();
    bool injected = now >= faults->reasons_from_ns && (faults->reasons_until_ns == 0 || now < faults->reasons_until_ns);

    return (tick.n_parts == 0 ? NVML_CLOCKS_EVENT_REASON_GPU_IDLE : tick.reasons) |
           (injected ? faults->clocks_event_reasons : 0);
}

API nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t handle, unsigned long long *reasons)
{
    ENTER_DEVICE(nvmlDeviceGetCurrentClocksEventReasons, handle, reasons);
    *reasons = clocks_event_reasons(device);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t handle, unsigned long long *reasons)
{
    ENTER_DEVICE(nvmlDeviceGetCurrentClocksThrottleReasons, handle, reasons);
    *reasons = clocks_event_reasons(device);
    return NVML_SUCCESS;
}

uint64_t ecc_errors(const struct world_device *device, int error_type, int counter_type)
{
    bool corrected = error_type == NVML_MEMORY_ERROR_TYPE_CORRECTED;
    uint64_t since = corrected ? device->faults.ecc_corrected : device->faults.ecc_uncorrected;
    uint64_t before = corrected ? device->ecc_corrected_before : device->ecc_uncorrected_before;

    return counter_type == NVML_AGGREGATE_ECC ? before + since : since;
}

API nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t handle, int errorType, int counterType,
                                             unsigned long long *errors)
{
    ENTER_DEVICE(nvmlDeviceGetTotalEccErrors, handle, errors);
    if (!device->ecc_mode)
        return NVML_ERROR_NOT_SUPPORTED;
    *errors = ecc_errors(device, errorType, counterType);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t handle, int *current, int *pending)
{
    ENTER_DEVICE(nvmlDeviceGetEccMode, handle, current);
    if (pending == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *current = *pending = (int)device->ecc_mode;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t handle, int counter, unsigned int *kib_per_s)
{
    struct part parts[MAX_PROCESSES];
    uint64_t now;
    double rate;
    size_t n;

    ENTER_DEVICE(nvmlDeviceGetPcieThroughput, handle, kib_per_s);
    if (counter != NVML_PCIE_UTIL_TX_BYTES && counter != NVML_PCIE_UTIL_RX_BYTES)
        return NVML_ERROR_INVALID_ARGUMENT;
    sleep_ns(PCIE_WINDOW_NS); /* a real driver measures for this time */
    now = world_now();
    n = load_device_parts(index_of(device), now - PCIE_WINDOW_NS, now, parts);
    rate = (double)(counter == NVML_PCIE_UTIL_TX_BYTES ? device->pcie_tx_bytes_per_s : device->pcie_rx_bytes_per_s);
    load_mean(parts, n, now - PCIE_WINDOW_NS, now);
    *kib_per_s = (unsigned int)(rate / 1024 * load_mean_of(parts, n, TOTAL_PCIE) / 100);
    return NVML_SUCCESS;
}
