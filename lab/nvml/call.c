/* The first steps of every exported function: count the call, spend its time, and apply injected faults. */
#define _GNU_SOURCE
#include "call.h"

#include <pthread.h>
#include <signal.h>

#define HANG_CHECK_NS 20000000ull

/* A handle is an address in this array; its position is the target. */
static struct nvmlDevice_st {
    char unused;
} handles[MAX_TARGETS];

static bool has_bit(const uint64_t *bits, unsigned int bit)
{
    return __atomic_load_n(&bits[bit / 64], __ATOMIC_RELAXED) >> (bit % 64) & 1;
}

bool is_lost(const struct world_device *device)
{
    return device->faults.lost_at_ns != 0 && world_now() >= device->faults.lost_at_ns;
}

nvmlReturn_t enter_library(enum function function)
{
    struct world_call *call;

    if (world == NULL)
        return NVML_ERROR_UNINITIALIZED;
    call = &world->calls[function];
    __atomic_fetch_add(&call->count, 1, __ATOMIC_RELAXED);
    if (call->cpu_ns != 0)
        compute_ns(call->cpu_ns);
    if (call->wait_ns != 0)
        sleep_ns(call->wait_ns);
    return world_current() ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

void take_time_for(enum function function, size_t n_items)
{
    if (world->calls[function].item_cpu_ns != 0)
        compute_ns(world->calls[function].item_cpu_ns * n_items);
}

/* Hang as a call to a dead GPU hangs in the kernel: no signal handler runs, and only SIGKILL ends it. */
static void hang(const uint64_t *hanging, enum function function)
{
    sigset_t all, before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (has_bit(hanging, function))
        sleep_ns(HANG_CHECK_NS);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void meet_delays(enum function function, const struct world_device *device)
{
    if (has_bit(device->faults.hanging, function))
        hang(device->faults.hanging, function);
    if (device->faults.latency_ns != 0)
        sleep_ns(device->faults.latency_ns);
}

static bool resolve(nvmlDevice_t handle, struct handled *handled)
{
    if (handle < handles || handle >= handles + MAX_TARGETS)
        return false;
    handled->target = (uint32_t)(handle - handles);
    handled->instance = instance_of(handled->target);
    if (handled->instance == NULL && handled->target >= world->n_devices)
        return false;
    if (handled->instance != NULL && !handled->instance->exists)
        return false;
    handled->device = &world->devices[handled->instance == NULL ? handled->target : handled->instance->device];
    return true;
}

nvmlReturn_t enter_target(enum function function, nvmlDevice_t handle, const void *out, struct handled *handled)
{
    nvmlReturn_t entered = enter_library(function);

    if (entered != NVML_SUCCESS)
        return entered;
    if (out == NULL || !resolve(handle, handled))
        return NVML_ERROR_INVALID_ARGUMENT;
    meet_delays(function, handled->device);
    if (is_lost(handled->device))
        return NVML_ERROR_GPU_IS_LOST;
    return has_bit(handled->device->faults.unsupported, function) ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

nvmlReturn_t enter_device(enum function function, nvmlDevice_t handle, const void *out, struct world_device **device)
{
    struct handled handled;
    nvmlReturn_t entered = enter_target(function, handle, out, &handled);

    if (entered != NVML_SUCCESS)
        return entered;
    *device = handled.device;
    return handled.instance == NULL ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

nvmlDevice_t handle_of(uint32_t target)
{
    return &handles[target];
}

nvmlReturn_t give_handle(enum function function, uint32_t target, nvmlDevice_t *handle)
{
    const struct world_instance *instance = instance_of(target);
    const struct world_device *device = &world->devices[instance == NULL ? target : instance->device];

    meet_delays(function, device);
    if (is_lost(device))
        return NVML_ERROR_GPU_IS_LOST;
    *handle = handle_of(target);
    return NVML_SUCCESS;
}
