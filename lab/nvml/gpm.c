/* Implement GPU Performance Monitoring: rates between two samples of cumulative totals. */
#include "call.h"

#include <stdlib.h>

#define SHORTEST_NS 100000000ull /* shortest time between two samples */

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

/* Return the rate at full load for a metric that is a rate, and NULL for other metrics. */
static const uint64_t *rate_of(unsigned int id, const struct world_device *device)
{
    switch (id) {
    case NVML_GPM_METRIC_PCIE_TX_PER_SEC: return &device->pcie_tx_bytes_per_s;
    case NVML_GPM_METRIC_PCIE_RX_PER_SEC: return &device->pcie_rx_bytes_per_s;
    case NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC: return &device->nvlink_tx_bytes_per_s;
    case NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC: return &device->nvlink_rx_bytes_per_s;
    }
    return NULL;
}

/* Return the total from which a metric is computed, or N_TOTALS for an unsupported metric. */
static enum total mean_of(unsigned int id, const struct world_device *device)
{
    switch (id) {
    case NVML_GPM_METRIC_GRAPHICS_UTIL: return TOTAL_BUSY;
    case NVML_GPM_METRIC_SM_UTIL: return TOTAL_SM_ACTIVE;
    case NVML_GPM_METRIC_SM_OCCUPANCY: return TOTAL_SM_OCCUPANCY;
    case NVML_GPM_METRIC_ANY_TENSOR_UTIL: return TOTAL_TENSOR;
    case NVML_GPM_METRIC_DRAM_BW_UTIL: return TOTAL_DRAM;
    case NVML_GPM_METRIC_PCIE_TX_PER_SEC:
    case NVML_GPM_METRIC_PCIE_RX_PER_SEC: return TOTAL_PCIE;
    case NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC:
    case NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC: return device->nvlink_links ? TOTAL_NVLINK : N_TOTALS;
    }
    return N_TOTALS;
}

static nvmlReturn_t metric(unsigned int id, uint32_t target, const double mean_pct[N_TOTALS], double *value)
{
    const struct world_instance *instance = instance_of(target);
    const struct world_device *device = &world->devices[instance == NULL ? target : instance->device];
    double of_device = instance == NULL ? 1 : (double)instance->slices / GPU_SLICES;
    const uint64_t *bytes_per_s = rate_of(id, device);
    enum total total = mean_of(id, device);

    if (total == N_TOTALS)
        return NVML_ERROR_NOT_SUPPORTED;
    if (bytes_per_s == NULL)
        *value = mean_pct[total];
    else
        *value = (double)*bytes_per_s / MIB * of_device * mean_pct[total] / 100;
    return NVML_SUCCESS;
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
