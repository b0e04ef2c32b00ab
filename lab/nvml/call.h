/* What every exported function does first: be counted, take its time, meet the injected faults. */
#ifndef SIMGPU_CALL_H
#define SIMGPU_CALL_H

#include "simulation.h"

#define API __attribute__((visibility("default")))

/* Count a call and take its time; UNINITIALIZED before nvmlInit. */
nvmlReturn_t enter_library(enum function function);

/* The same for a call on a device, which may be lost, slow, or not support the function. */
nvmlReturn_t enter_device(enum function function, nvmlDevice_t handle, const void *out, struct world_device **device);

/* Take the time that a call needs for each of the values it is asked for. */
void take_time_for(enum function function, size_t n_items);

/* Hang or be slow where the device does. */
void meet_delays(enum function function, const struct world_device *device);

/* Return a device's handle from a function that looks it up. */
nvmlReturn_t give_handle(enum function function, uint32_t index, nvmlDevice_t *handle);

/* Begin function `name`, which returns through `out`; leaves it on an error. */
#define ENTER(name, out)                                                        \
    do {                                                                        \
        nvmlReturn_t entered = enter_library(FN_##name);                        \
        if (entered != NVML_SUCCESS)                                            \
            return entered;                                                     \
        if ((const void *)(out) == NULL)                                        \
            return NVML_ERROR_INVALID_ARGUMENT;                                 \
    } while (0)

/* Begin function `name` on the device behind `handle`, which becomes `device`. */
#define ENTER_DEVICE(name, handle, out)                                         \
    struct world_device *device;                                                \
    do {                                                                        \
        nvmlReturn_t entered = enter_device(FN_##name, handle, out, &device);   \
        if (entered != NVML_SUCCESS)                                            \
            return entered;                                                     \
    } while (0)

static inline uint32_t index_of(const struct world_device *device)
{
    return (uint32_t)(device - world->devices);
}

#endif
