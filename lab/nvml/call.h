/* What every exported function does first: be counted, take its time, meet the injected faults. */
#ifndef SIMGPU_CALL_H
#define SIMGPU_CALL_H

#include "simulation.h"

#define API __attribute__((visibility("default")))

/* Count a call and take its time; UNINITIALIZED before nvmlInit, or if the driver was reloaded since. */
nvmlReturn_t enter_library(enum function function);

/* The target of a handle: a device, or one of its MIG instances. */
struct handled {
    struct world_device *device;
    const struct world_instance *instance; /* NULL for the whole device */
    uint32_t target;
};

/* The same for a call on a device or an instance; the device may be lost, slow, or not support the function. */
nvmlReturn_t enter_target(enum function function, nvmlDevice_t handle, const void *out, struct handled *handled);

/* The same for a call that is not supported on instances. */
nvmlReturn_t enter_device(enum function function, nvmlDevice_t handle, const void *out, struct world_device **device);

/* Take the time that a call needs for each of the values it is asked for. */
void take_time_for(enum function function, size_t n_items);

/* Hang or be slow where the device does. */
void meet_delays(enum function function, const struct world_device *device);

/* Return a target's handle from a function that looks it up. */
nvmlReturn_t give_handle(enum function function, uint32_t target, nvmlDevice_t *handle);

/* The same without side effects, for functions that return handles among other values. */
nvmlDevice_t handle_of(uint32_t target);

bool is_lost(const struct world_device *device);

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

/* The same where the handle may be that of an instance; `handled` has its target. */
#define ENTER_TARGET(name, handle, out)                                         \
    struct handled handled;                                                     \
    do {                                                                        \
        nvmlReturn_t entered = enter_target(FN_##name, handle, out, &handled);  \
        if (entered != NVML_SUCCESS)                                            \
            return entered;                                                     \
    } while (0)

static inline uint32_t index_of(const struct world_device *device)
{
    return (uint32_t)(device - world->devices);
}

#endif
