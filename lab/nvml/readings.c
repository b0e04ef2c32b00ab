/* What a device does: instantaneous readings and running totals. */
#include "call.h"
#include "ring.h"

#include <stddef.h>

#define PCIE_WINDOW_NS 20000000ull

static double memory_mib(const struct world_device *device)
{
    struct part parts[MAX_PROCESSES];
    uint64_t now = world_now();
    size_t n = load_parts(index_of(device), now, now, parts);
    double room = (double)(device->memory_mib - device->reserved_mib), used = 0;

    for (size_t i = 0; i < n; i++)
        used += part_memory(&parts[i], now);
    return used < room ? used : room;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, nvmlMemory_t *memory)
{
    ENTER_DEVICE(nvmlDeviceGetMemoryInfo, handle, memory);
    memory->total = device->memory_mib * MIB;
    memory->used = device->reserved_mib * MIB + (uint64_t)(memory_mib(device) * MIB);
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t handle, nvmlMemory_v2_t *memory)
{
    ENTER_DEVICE(nvmlDeviceGetMemoryInfo_v2, handle, memory);
    if (memory->version != NVML_MEMORY_V2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    memory->total = device->memory_mib * MIB;
    memory->reserved = device->reserved_mib * MIB;
    memory->used = (uint64_t)(memory_mib(device) * MIB);
    memory->free = memory->total - memory->reserved - memory->used;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t handle, nvmlUtilization_t *utilization)
{
    struct part parts[MAX_PROCESSES];

    ENTER_DEVICE(nvmlDeviceGetUtilizationRates, handle, utilization);
    struct tick tick = last_tick(device, parts);
    utilization->gpu = whole_percent(tick.util_pct, tick.number);
    utilization->memory = whole_percent(tick.util_pct * device->memory_util_factor, tick.number);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t handle, unsigned int *power)
{
    struct part parts[MAX_PROCESSES];

    ENTER_DEVICE(nvmlDeviceGetPowerUsage, handle, power);
    *power = power_mw(device, last_tick(device, parts).util_pct);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t handle, unsigned int *limit)
{
    ENTER_DEVICE(nvmlDeviceGetEnforcedPowerLimit, handle, limit);
    *limit = device->power_limit_mw;
    return NVML_SUCCESS;
}

static uint64_t energy_mj(struct world_device *device)
{
    uint64_t now = world_now(), high, value;
    double idle_s = now > world->boot_ns ? (double)(now - world->boot_ns) / NS_PER_S : 0;
    double busy_s = (double)load_busy(index_of(device), now) / 100 / NS_PER_S;

    value = (uint64_t)(idle_s * device->idle_power_mw +
                       busy_s * (device->power_limit_mw - device->idle_power_mw));
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
    *mhz = type == NVML_CLOCK_MEM ? device->memory_clock_mhz : sm_clock_mhz(device, last_tick(device, parts).n_parts);
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
    bool idle = last_tick(device, parts).n_parts == 0;

    return (idle ? NVML_CLOCKS_EVENT_REASON_GPU_IDLE : 0) | device->faults.clocks_event_reasons;
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

API nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t handle, int errorType, int counterType, unsigned long long *errors)
{
    (void)counterType; /* volatile and aggregate are the same here: nothing survives a reboot */
    ENTER_DEVICE(nvmlDeviceGetTotalEccErrors, handle, errors);
    if (!device->ecc_mode)
        return NVML_ERROR_NOT_SUPPORTED;
    *errors = errorType == NVML_MEMORY_ERROR_TYPE_CORRECTED ? device->faults.ecc_corrected
                                                            : device->faults.ecc_uncorrected;
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
    sleep_ns(PCIE_WINDOW_NS); /* the driver really measures this long */
    now = world_now();
    n = load_parts(index_of(device), now - PCIE_WINDOW_NS, now, parts);
    rate = (double)(counter == NVML_PCIE_UTIL_TX_BYTES ? device->pcie_tx_bytes_per_s : device->pcie_rx_bytes_per_s);
    *kib_per_s = (unsigned int)(rate / 1024 * load_mean(parts, n, now - PCIE_WINDOW_NS, now) / 100);
    return NVML_SUCCESS;
}

static void set_int(nvmlFieldValue_t *field, uint32_t value)
{
    field->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
    field->value.uiVal = value;
}

static void set_long(nvmlFieldValue_t *field, uint64_t value)
{
    field->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
    field->value.ullVal = value;
}

/* Bytes moved since boot, in a counter of 64 or 32 bits that wraps. */
static void set_bytes(nvmlFieldValue_t *field, const struct world_device *device, uint64_t per_s, uint64_t offset)
{
    double busy_s = (double)load_busy(index_of(device), world_now()) / 100 / NS_PER_S;
    uint64_t bytes = (uint64_t)(busy_s * (double)per_s) + offset;

    if (device->faults.pcie_counter_bits == 32)
        set_int(field, (uint32_t)bytes);
    else
        set_long(field, bytes);
}

static nvmlReturn_t read_field(struct world_device *device, nvmlFieldValue_t *field)
{
    struct part parts[MAX_PROCESSES];
    const struct world_faults *faults = &device->faults;
    unsigned int id = field->fieldId;

    if (id >= MAX_FIELDS)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (faults->unsupported_fields[id / 64] >> (id % 64) & 1)
        return NVML_ERROR_NOT_SUPPORTED;
    switch (id) {
    case NVML_FI_DEV_ECC_CURRENT:
    case NVML_FI_DEV_ECC_PENDING:
        set_int(field, device->ecc_mode);
        return NVML_SUCCESS;
    case NVML_FI_DEV_ECC_SBE_VOL_TOTAL:
    case NVML_FI_DEV_ECC_SBE_AGG_TOTAL:
        set_long(field, faults->ecc_corrected);
        return device->ecc_mode ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
    case NVML_FI_DEV_ECC_DBE_VOL_TOTAL:
    case NVML_FI_DEV_ECC_DBE_AGG_TOTAL:
        set_long(field, faults->ecc_uncorrected);
        return device->ecc_mode ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
    case NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION:
        set_long(field, energy_mj(device));
        return NVML_SUCCESS;
    case NVML_FI_DEV_POWER_AVERAGE:
    case NVML_FI_DEV_POWER_INSTANT:
        set_int(field, power_mw(device, last_tick(device, parts).util_pct));
        return NVML_SUCCESS;
    case NVML_FI_DEV_POWER_CURRENT_LIMIT:
        set_int(field, device->power_limit_mw);
        return NVML_SUCCESS;
    case NVML_FI_DEV_PCIE_COUNT_TX_BYTES:
        set_bytes(field, device, device->pcie_tx_bytes_per_s, faults->pcie_tx_offset);
        return NVML_SUCCESS;
    case NVML_FI_DEV_PCIE_COUNT_RX_BYTES:
        set_bytes(field, device, device->pcie_rx_bytes_per_s, faults->pcie_rx_offset);
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_SUPPORTED;
}

API nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t handle, int valuesCount, nvmlFieldValue_t *values)
{
    ENTER_DEVICE(nvmlDeviceGetFieldValues, handle, values);
    take_time_for(FN_nvmlDeviceGetFieldValues, valuesCount > 0 ? (size_t)valuesCount : 0);
    for (int i = 0; i < valuesCount; i++) {
        values[i].timestamp = (long long)(world_now() / 1000);
        values[i].latencyUsec = 0;
        values[i].nvmlReturn = read_field(device, &values[i]);
    }
    return NVML_SUCCESS;
}
