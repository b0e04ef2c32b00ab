/* Implement Multi-Instance GPU: the instances of a device. */
#include "call.h"

enum { MIG_DISABLED = 0, MIG_ENABLED = 1, MIG_NOT_SUPPORTED = 2 };

API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t handle, unsigned int *currentMode, unsigned int *pendingMode)
{
    ENTER_DEVICE(nvmlDeviceGetMigMode, handle, currentMode);
    if (pendingMode == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (device->mig_mode == MIG_NOT_SUPPORTED)
        return NVML_ERROR_NOT_SUPPORTED;
    *currentMode = *pendingMode = device->mig_mode;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t handle, unsigned int *count)
{
    ENTER_DEVICE(nvmlDeviceGetMaxMigDeviceCount, handle, count);
    *count = device->mig_mode == MIG_ENABLED ? GPU_SLICES : 0;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t handle, unsigned int index, nvmlDevice_t *migDevice)
{
    ENTER_DEVICE(nvmlDeviceGetMigDeviceHandleByIndex, handle, migDevice);
    if (device->mig_mode == MIG_NOT_SUPPORTED)
        return NVML_ERROR_NOT_SUPPORTED;
    for (uint32_t i = 0; i < MAX_INSTANCES; i++) {
        const struct world_instance *instance = &world->instances[i];

        if (instance->exists && instance->device == index_of(device) && instance->index == index) {
            *migDevice = handle_of(MAX_DEVICES + i);
            return NVML_SUCCESS;
        }
    }
    return index < GPU_SLICES ? NVML_ERROR_NOT_FOUND : NVML_ERROR_INVALID_ARGUMENT;
}

API nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t handle, unsigned int *isMigDevice)
{
    ENTER_TARGET(nvmlDeviceIsMigDeviceHandle, handle, isMigDevice);
    *isMigDevice = handled.instance != NULL;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t migDevice, nvmlDevice_t *handle)
{
    ENTER_TARGET(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, migDevice, handle);
    if (handled.instance == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *handle = handle_of(index_of(handled.device));
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t handle, unsigned int *id)
{
    ENTER_TARGET(nvmlDeviceGetGpuInstanceId, handle, id);
    if (handled.instance == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *id = handled.instance->gpu_instance;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t handle, unsigned int *id)
{
    ENTER_TARGET(nvmlDeviceGetComputeInstanceId, handle, id);
    if (handled.instance == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *id = 0; /* each GPU instance has only one compute instance */
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t handle, nvmlDeviceAttributes_t *attributes)
{
    ENTER_TARGET(nvmlDeviceGetAttributes_v2, handle, attributes);
    if (handled.instance == NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    *attributes = (nvmlDeviceAttributes_t){.multiprocessorCount = handled.instance->sm_count,
                                           .sharedCopyEngineCount = handled.instance->slices,
                                           .gpuInstanceSliceCount = handled.instance->slices,
                                           .computeInstanceSliceCount = handled.instance->slices,
                                           .memorySizeMB = handled.instance->memory_mib};
    return NVML_SUCCESS;
}
