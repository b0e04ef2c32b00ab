/* GPU Performance Monitoring: rates between two samples of running totals. */
#include "call.h"

#include <stdlib.h>

#define SHORTEST_NS 100000000ull /* between two samples */

struct nvmlGpmSample_st {
    uint64_t at_ns; /* 0 = never filled */
    uint32_t target;
    uint32_t driver_load;
    double totals[N_TOTALS];
};

API nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t handle, nvmlGpmSupport_t *support)
{
    ENTER_DEVICE(nvmlGpmQueryDeviceSupport, handle, support);
    if (support->version != NVML_GPM_SUPPORT_VERSION)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    support->isSupportedDevice = device->gpm;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample)
{
    ENTER(nvmlGpmSampleAlloc, sample);
    *sample = calloc(1, sizeof **sample);
    return *sample != NULL ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

API nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample)
{
    ENTER(nvmlGpmSampleFree, sample);
    free(sample);
    return NVML_SUCCESS;
}

static nvmlReturn_t fill(nvmlGpmSample_t sample, const struct world_device *device, uint32_t target)
{
    if (!device->gpm)
        return NVML_ERROR_NOT_SUPPORTED;
    sample->at_ns = world_now();
    sample->target = target;
    sample->driver_load = world->driver_loads;
    if (target < MAX_DEVICES)
        load_device_totals(target, sample->at_ns, sample->totals);
    else
        load_totals(target, sample->at_ns, sample->totals);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t handle, nvmlGpmSample_t sample)
{
    ENTER_TARGET(nvmlGpmSampleGet, handle, sample);
    return fill(sample, handled.device, handled.target);
}

API nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t handle, unsigned int gpuInstanceId, nvmlGpmSample_t sample)
{
    ENTER_DEVICE(nvmlGpmMigSampleGet, handle, sample);
    for (uint32_t i = 0; i < MAX_INSTANCES; i++) {
        const struct world_instance *instance = &world->instances[i];

        if (instance->exists && instance->device == index_of(device) && instance->gpu_instance == gpuInstanceId)
            return fill(sample, device, MAX_DEVICES + i);
    }
    return NVML_ERROR_INVALID_ARGUMENT;
}

/* MiB/s at a mean utilisation of the target. */
static double mib_per_s(uint64_t bytes_per_s, double busy_pct)
{
    return (double)bytes_per_s * busy_pct / 100 / MIB;
}

static nvmlReturn_t metric(unsigned int id, uint32_t target, const double mean_pct[N_TOTALS], double *value)
{
    const struct world_instance *instance = instance_of(target);
    const struct world_device *device = &world->devices[instance == NULL ? target : instance->device];
    double busy_pct = mean_pct[TOTAL_BUSY] * (instance == NULL ? 1 : (double)instance->slices / GPU_SLICES);

    switch (id) {
    case NVML_GPM_METRIC_GRAPHICS_UTIL: *value = mean_pct[TOTAL_BUSY]; return NVML_SUCCESS;
    case NVML_GPM_METRIC_SM_UTIL: *value = mean_pct[TOTAL_SM_ACTIVE]; return NVML_SUCCESS;
    case NVML_GPM_METRIC_SM_OCCUPANCY: *value = mean_pct[TOTAL_SM_OCCUPANCY]; return NVML_SUCCESS;
    case NVML_GPM_METRIC_ANY_TENSOR_UTIL: *value = mean_pct[TOTAL_TENSOR]; return NVML_SUCCESS;
    case NVML_GPM_METRIC_DRAM_BW_UTIL: *value = mean_pct[TOTAL_DRAM]; return NVML_SUCCESS;
    case NVML_GPM_METRIC_PCIE_TX_PER_SEC: *value = mib_per_s(device->pcie_tx_bytes_per_s, busy_pct); return NVML_SUCCESS;
    case NVML_GPM_METRIC_PCIE_RX_PER_SEC: *value = mib_per_s(device->pcie_rx_bytes_per_s, busy_pct); return NVML_SUCCESS;
    }
    if (device->nvlink_links == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    switch (id) {
    case NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC:
        *value = mib_per_s(device->nvlink_tx_bytes_per_s, busy_pct);
        return NVML_SUCCESS;
    case NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC:
        *value = mib_per_s(device->nvlink_rx_bytes_per_s, busy_pct);
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_SUPPORTED;
}

API nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *get)
{
    double mean_pct[N_TOTALS];
    nvmlGpmSample_t first, second;

    ENTER(nvmlGpmMetricsGet, get);
    if (get->version != NVML_GPM_METRICS_GET_VERSION)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    take_time_for(FN_nvmlGpmMetricsGet, get->numMetrics);
    first = get->sample1;
    second = get->sample2;
    if (first == NULL || second == NULL || first->at_ns == 0 || first->target != second->target ||
        first->driver_load != second->driver_load || second->at_ns < first->at_ns + SHORTEST_NS)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (int total = 0; total < N_TOTALS; total++)
        mean_pct[total] = (second->totals[total] - first->totals[total]) / (double)(second->at_ns - first->at_ns);
    for (unsigned int i = 0; i < get->numMetrics; i++) {
        nvmlGpmMetric_t *wanted = &get->metrics[i];

        wanted->nvmlReturn = metric(wanted->metricId, first->target, mean_pct, &wanted->value);
        wanted->metricInfo.shortName = wanted->metricInfo.longName = wanted->metricInfo.unit = NULL;
    }
    return NVML_SUCCESS;
}
