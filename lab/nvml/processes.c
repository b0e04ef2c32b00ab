/* List the processes with a context on a device and all its instances, or on one instance. */
#include "call.h"

static nvmlReturn_t list(enum function function, const struct handled *handled, uint32_t flags, unsigned int *count,
                         nvmlProcessInfo_t *infos)
{
    struct part parts[MAX_PROCESSES];
    uint64_t now = world_now();
    unsigned int room = *count;
    size_t n = handled->instance == NULL ? load_device_parts(handled->target, now, now, parts)
                                         : load_parts(handled->target, now, now, parts);

    *count = 0;
    for (size_t i = 0; i < n; i++) {
        const struct world_process *process = parts[i].process;
        const struct world_instance *instance = instance_of(process->target);

        if ((process->flags & flags) != flags)
            continue;
        if (*count < room && infos != NULL)
            infos[*count] = (nvmlProcessInfo_t){.pid = process->pid,
                                                .usedGpuMemory = (uint64_t)(part_memory(&parts[i], now) * MIB),
                                                .gpuInstanceId = instance ? instance->gpu_instance : NVML_NO_INSTANCE,
                                                .computeInstanceId = instance ? 0 : NVML_NO_INSTANCE};
        (*count)++;
    }
    take_time_for(function, *count);
    return *count > room || (*count > 0 && infos == NULL) ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t handle, unsigned int *infoCount,
                                                         nvmlProcessInfo_t *infos)
{
    ENTER_TARGET(nvmlDeviceGetComputeRunningProcesses_v3, handle, infoCount);
    return list(FN_nvmlDeviceGetComputeRunningProcesses_v3, &handled, 0, infoCount, infos);
}

API nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t handle, unsigned int *infoCount,
                                                            nvmlProcessInfo_t *infos)
{
    ENTER_TARGET(nvmlDeviceGetMPSComputeRunningProcesses_v3, handle, infoCount);
    return list(FN_nvmlDeviceGetMPSComputeRunningProcesses_v3, &handled, PROCESS_MPS, infoCount, infos);
}
