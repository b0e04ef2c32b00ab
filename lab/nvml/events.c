/* Report the driver's Xid errors, once to each event set that is registered for them. */
#define _GNU_SOURCE
#include "call.h"

#include <stdlib.h>
#include <time.h>

#define POLL_NS 5000000ull

struct nvmlEventSet_st {
    struct {
        unsigned long long types; /* 0 = not registered */
        uint64_t next_xid;
    } devices[MAX_DEVICES];
};

static unsigned long long supported_types(const struct world_device *device)
{
    return nvmlEventTypeXidCriticalError |
           (device->ecc_mode ? nvmlEventTypeSingleBitEccError | nvmlEventTypeDoubleBitEccError : 0);
}

API nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    ENTER(nvmlEventSetCreate, set);
    *set = calloc(1, sizeof **set);
    return *set != NULL ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

API nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    ENTER(nvmlEventSetFree, set);
    free(set);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t handle, unsigned long long *eventTypes)
{
    ENTER_DEVICE(nvmlDeviceGetSupportedEventTypes, handle, eventTypes);
    *eventTypes = supported_types(device);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t handle, unsigned long long eventTypes, nvmlEventSet_t set)
{
    ENTER_DEVICE(nvmlDeviceRegisterEvents, handle, set);
    if ((eventTypes & ~supported_types(device)) != 0)
        return NVML_ERROR_NOT_SUPPORTED;
    if (set->devices[index_of(device)].types == 0)
        set->devices[index_of(device)].next_xid = __atomic_load_n(&world->n_xids, __ATOMIC_ACQUIRE);
    set->devices[index_of(device)].types |= eventTypes;
    return NVML_SUCCESS;
}

/* Return the oldest Xid that the set has not received yet. */
static bool take_xid(nvmlEventSet_t set, nvmlEventData_t *data)
{
    uint64_t n_xids = __atomic_load_n(&world->n_xids, __ATOMIC_ACQUIRE);

    for (uint64_t i = n_xids > MAX_XIDS ? n_xids - MAX_XIDS : 0; i < n_xids; i++) {
        const struct world_xid *xid = &world->xids[i % MAX_XIDS];

        if (!(set->devices[xid->device].types & nvmlEventTypeXidCriticalError) ||
            i < set->devices[xid->device].next_xid)
            continue;
        set->devices[xid->device].next_xid = i + 1;
        *data = (nvmlEventData_t){.device = handle_of(xid->device),
                                  .eventType = nvmlEventTypeXidCriticalError,
                                  .eventData = xid->code,
                                  .gpuInstanceId = xid->gpu_instance,
                                  .computeInstanceId = xid->gpu_instance == NVML_NO_INSTANCE ? NVML_NO_INSTANCE : 0};
        return true;
    }
    return false;
}

static bool has_lost_device(nvmlEventSet_t set)
{
    for (uint32_t i = 0; i < world->n_devices; i++)
        if (set->devices[i].types != 0 && is_lost(&world->devices[i]))
            return true;
    return false;
}

static uint64_t monotonic_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

API nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeoutms)
{
    uint64_t until;

    ENTER(nvmlEventSetWait_v2, data);
    if (set == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    until = monotonic_ns() + timeoutms * 1000000ull;
    for (;;) {
        if (!world_current())
            return NVML_ERROR_UNINITIALIZED;
        if (take_xid(set, data))
            return NVML_SUCCESS;
        if (has_lost_device(set))
            return NVML_ERROR_GPU_IS_LOST;
        if (monotonic_ns() >= until)
            return NVML_ERROR_TIMEOUT;
        sleep_ns(POLL_NS);
    }
}
