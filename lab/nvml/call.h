/* The first steps of every exported function: count the call, spend its time, and apply injected faults. */
#ifndef SIMGPU_CALL_H
#define SIMGPU_CALL_H

#include "simulation.h"

#define API __attribute__((visibility("default")))

/* Count a call and spend its time; return UNINITIALIZED before nvmlInit, or if the driver was reloaded since. */
nvmlReturn_t enter_library(enum function function);

/* The target of a handle: a device, or one of its MIG instances. */
struct handled {
    struct world_device *device;
    const struct world_instance *instance; /* NULL for the whole device */
    uint32_t target;
};

/* Do the same for a call on a device or instance, and apply the device's faults: lost, slow or unsupported. */
nvmlReturn_t enter_target(enum function function, nvmlDevice_t handle, const void *out, struct handled *handled);

/* Do the same for a call that is not supported on instances. */
nvmlReturn_t enter_device(enum function function, nvmlDevice_t handle, const void *out, struct world_device **device);

/* Spend the time that a call needs for `n_items` requested values. */
void take_time_for(enum function function, size_t n_items);

/* Hang, or sleep for the injected latency, if the device has such a fault. */
void meet_delays(enum function function, const struct world_device *device);

/* Return a target's handle from a function that looks it up. */
nvmlReturn_t give_handle(enum function function, uint32_t target, nvmlDevice_t *handle);

/* Return a target's handle without side effects, for functions that return handles among other values. */
nvmlDevice_t handle_of(uint32_t target);

bool is_lost(const struct world_device *device);

/* Begin function `name`, which returns its result through `out`; return from the function on an error. */
#define ENTER(name, out)                                                        \
    do {                                                                        \
        nvmlReturn_t entered = enter_library(FN_##name);                        \
        if (entered != NVML_SUCCESS)                                            \
            return entered;                                                     \
        if ((const void *)(out) == NULL)                                        \
            return NVML_ERROR_INVALID_ARGUMENT;                                 \
    } while (0)

/* Begin function `name` on the device that `handle` refers to, and set `device` to it. */
#define ENTER_DEVICE(name, handle, out)                                         \
    struct world_device *device;                                                \
    do {                                                                        \
        nvmlReturn_t entered = enter_device(FN_##name, handle, out, &device);   \
        if (entered != NVML_SUCCESS)                                            \
            return entered;                                                     \
    } while (0)

/* Begin function `name` on a device or instance, and set `handled` to its target. */
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
