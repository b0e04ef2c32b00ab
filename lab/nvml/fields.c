/* Implement nvmlDeviceGetFieldValues, and the link functions, since only fields report all values of links. */
#include "call.h"
#include "readings.h"
#include "ring.h"

static nvmlReturn_t set_int(nvmlFieldValue_t *field, uint32_t value)
{
    field->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
    field->value.uiVal = value;
    return NVML_SUCCESS;
}

static nvmlReturn_t set_long(nvmlFieldValue_t *field, uint64_t value)
{
    field->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
    field->value.ullVal = value;
    return NVML_SUCCESS;
}

static nvmlReturn_t set_ecc(nvmlFieldValue_t *field, const struct world_device *device, int error_type,
                            int counter_type)
{
    if (!device->ecc_mode)
        return NVML_ERROR_NOT_SUPPORTED;
    return set_long(field, ecc_errors(device, error_type, counter_type));
}

/* Return the bytes moved since the driver was loaded. */
static uint64_t bytes_moved(const struct world_device *device, enum total total, uint64_t per_s)
{
    double full_s = (double)load_total(index_of(device), world_now(), total) / 100 / NS_PER_S;

    return (uint64_t)(full_s * (double)per_s);
}

/* Set the bytes in a counter of 64 or 32 bits that wraps. */
static nvmlReturn_t set_pcie(nvmlFieldValue_t *field, const struct world_device *device, uint64_t per_s,
                             uint64_t offset)
{
    uint64_t bytes = bytes_moved(device, TOTAL_PCIE, per_s) + offset;

    return device->faults.pcie_counter_bits == 32 ? set_int(field, (uint32_t)bytes) : set_long(field, bytes);
}

static bool is_link(const struct world_device *device, unsigned int link)
{
    return link < device->nvlink_links;
}

/* Set the KiB of one link, or of all links together. */
static nvmlReturn_t set_throughput(nvmlFieldValue_t *field, const struct world_device *device, uint64_t per_s,
                                   uint64_t offset)
{
    uint64_t kib = (bytes_moved(device, TOTAL_NVLINK, per_s) + offset) / 1024;

    if (field->scopeId == NVML_SCOPE_ALL_LINKS)
        return set_long(field, kib);
    return is_link(device, field->scopeId) ? set_long(field, kib / device->nvlink_links) : NVML_ERROR_INVALID_ARGUMENT;
}

/* Set the bytes of one link, from the fifth generation on. */
static nvmlReturn_t set_link_bytes(nvmlFieldValue_t *field, const struct world_device *device, uint64_t per_s,
                                   uint64_t offset)
{
    if (device->nvlink_version < NVML_NVLINK_VERSION_5_0)
        return NVML_ERROR_NOT_SUPPORTED;
    if (!is_link(device, field->scopeId))
        return NVML_ERROR_INVALID_ARGUMENT;
    return set_long(field, (bytes_moved(device, TOTAL_NVLINK, per_s) + offset) / device->nvlink_links);
}

static nvmlReturn_t set_link_fact(nvmlFieldValue_t *field, const struct world_device *device, uint32_t value)
{
    return is_link(device, field->scopeId) ? set_int(field, value) : NVML_ERROR_INVALID_ARGUMENT;
}

static nvmlReturn_t read_nvlink(const struct world_device *device, nvmlFieldValue_t *field)
{
    const struct world_faults *faults = &device->faults;

    if (device->nvlink_links == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    switch (field->fieldId) {
    case NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON: return set_int(field, device->nvlink_mb_per_s);
    case NVML_FI_DEV_NVLINK_LINK_COUNT: return set_int(field, device->nvlink_links);
    case NVML_FI_DEV_NVLINK_GET_SPEED: return set_link_fact(field, device, device->nvlink_mb_per_s);
    case NVML_FI_DEV_NVLINK_GET_STATE: return set_link_fact(field, device, NVML_FEATURE_ENABLED);
    case NVML_FI_DEV_NVLINK_GET_VERSION: return set_link_fact(field, device, device->nvlink_version);
    case NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX:
        return set_throughput(field, device, device->nvlink_tx_bytes_per_s, faults->nvlink_tx_offset);
    case NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX:
        return set_throughput(field, device, device->nvlink_rx_bytes_per_s, faults->nvlink_rx_offset);
    case NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES:
        return set_link_bytes(field, device, device->nvlink_tx_bytes_per_s, faults->nvlink_tx_offset);
    case NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES:
        return set_link_bytes(field, device, device->nvlink_rx_bytes_per_s, faults->nvlink_rx_offset);
    }
    return NVML_ERROR_NOT_SUPPORTED;
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
        return set_int(field, device->ecc_mode);
    case NVML_FI_DEV_ECC_SBE_VOL_TOTAL:
        return set_ecc(field, device, NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_VOLATILE_ECC);
    case NVML_FI_DEV_ECC_SBE_AGG_TOTAL:
        return set_ecc(field, device, NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_AGGREGATE_ECC);
    case NVML_FI_DEV_ECC_DBE_VOL_TOTAL:
        return set_ecc(field, device, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC);
    case NVML_FI_DEV_ECC_DBE_AGG_TOTAL:
        return set_ecc(field, device, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_AGGREGATE_ECC);
    case NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION:
        return set_long(field, energy_mj(device));
    case NVML_FI_DEV_POWER_AVERAGE:
    case NVML_FI_DEV_POWER_INSTANT:
        return set_int(field, power_mw(device, last_tick(device, parts).power_pct));
    case NVML_FI_DEV_POWER_CURRENT_LIMIT:
        return set_int(field, device->power_limit_mw);
    case NVML_FI_DEV_PCIE_COUNT_TX_BYTES:
        return set_pcie(field, device, device->pcie_tx_bytes_per_s, faults->pcie_tx_offset);
    case NVML_FI_DEV_PCIE_COUNT_RX_BYTES:
        return set_pcie(field, device, device->pcie_rx_bytes_per_s, faults->pcie_rx_offset);
    }
    return read_nvlink(device, field);
}

API nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t handle, int valuesCount, nvmlFieldValue_t *values)
{
    ENTER_DEVICE(nvmlDeviceGetFieldValues, handle, values);
    take_time_for(FN_nvmlDeviceGetFieldValues, valuesCount > 0 ? (size_t)valuesCount : 0);
    for (int i = 0; i < valuesCount; i++) {
        values[i].timestamp = (long long)stamp_us(world_now());
        values[i].latencyUsec = 0;
        values[i].nvmlReturn = read_field(device, &values[i]);
    }
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t handle, unsigned int link, int *isActive)
{
    ENTER_DEVICE(nvmlDeviceGetNvLinkState, handle, isActive);
    if (device->nvlink_links == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    if (!is_link(device, link))
        return NVML_ERROR_INVALID_ARGUMENT;
    *isActive = NVML_FEATURE_ENABLED;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t handle, unsigned int link, unsigned int *version)
{
    ENTER_DEVICE(nvmlDeviceGetNvLinkVersion, handle, version);
    if (device->nvlink_links == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    if (!is_link(device, link))
        return NVML_ERROR_INVALID_ARGUMENT;
    *version = device->nvlink_version;
    return NVML_SUCCESS;
}
