/* Implement the library's initialisation, and the identifiers and facts of devices. */
#include "call.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned int n_users;

API nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    nvmlReturn_t result = NVML_SUCCESS;

    (void)flags;
    pthread_mutex_lock(&init_lock);
    if (n_users == 0)
        result = world_attach();
    if (result == NVML_SUCCESS)
        n_users++;
    pthread_mutex_unlock(&init_lock);
    if (result == NVML_SUCCESS) {
        enter_library(FN_nvmlInitWithFlags);
        for (uint32_t i = 0; i < world->n_devices; i++)
            meet_delays(FN_nvmlInitWithFlags, &world->devices[i]);
    }
    return result;
}

API nvmlReturn_t nvmlShutdown(void)
{
    nvmlReturn_t result = NVML_ERROR_UNINITIALIZED;

    enter_library(FN_nvmlShutdown);
    pthread_mutex_lock(&init_lock);
    if (n_users > 0) {
        result = NVML_SUCCESS;
        if (--n_users == 0)
            world_detach();
    }
    pthread_mutex_unlock(&init_lock);
    return result;
}

API const char *nvmlErrorString(nvmlReturn_t result)
{
    enter_library(FN_nvmlErrorString);
    switch (result) {
    case NVML_SUCCESS: return "Success";
    case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_TIMEOUT: return "Timeout";
    case NVML_ERROR_FUNCTION_NOT_FOUND: return "Function Not Found";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "Argument version mismatch";
    case NVML_ERROR_UNKNOWN: return "Unknown Error";
    }
    return "Unknown Error";
}

static nvmlReturn_t copy_text(char *to, unsigned int size, const char *text)
{
    if (strlen(text) >= size)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(to, text);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    ENTER(nvmlSystemGetDriverVersion, version);
    return copy_text(version, length, "550.54.15");
}

API nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    ENTER(nvmlSystemGetNVMLVersion, version);
    return copy_text(version, length, "12.550.54.15");
}

API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *deviceCount)
{
    ENTER(nvmlDeviceGetCount_v2, deviceCount);
    *deviceCount = world->n_devices;
    return NVML_SUCCESS;
}


API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *handle)
{
    ENTER(nvmlDeviceGetHandleByIndex_v2, handle);
    if (index >= world->n_devices)
        return NVML_ERROR_INVALID_ARGUMENT;
    return give_handle(FN_nvmlDeviceGetHandleByIndex_v2, index, handle);
}

API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *handle)
{
    ENTER(nvmlDeviceGetHandleByUUID, handle);
    if (uuid == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (uint32_t i = 0; i < world->n_devices; i++)
        if (strcmp(world->devices[i].uuid, uuid) == 0)
            return give_handle(FN_nvmlDeviceGetHandleByUUID, i, handle);
    for (uint32_t i = 0; i < MAX_INSTANCES; i++)
        if (world->instances[i].exists && strcmp(world->instances[i].uuid, uuid) == 0)
            return give_handle(FN_nvmlDeviceGetHandleByUUID, MAX_DEVICES + i, handle);
    return NVML_ERROR_NOT_FOUND;
}

API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *pciBusId, nvmlDevice_t *handle)
{
    unsigned int domain, bus, slot;

    ENTER(nvmlDeviceGetHandleByPciBusId_v2, handle);
    if (pciBusId == NULL || sscanf(pciBusId, "%x:%x:%x", &domain, &bus, &slot) != 3)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (uint32_t i = 0; i < world->n_devices; i++) {
        const struct world_device *device = &world->devices[i];

        if (device->pci_domain == domain && device->pci_bus == bus && device->pci_device == slot)
            return give_handle(FN_nvmlDeviceGetHandleByPciBusId_v2, i, handle);
    }
    return NVML_ERROR_NOT_FOUND;
}

API nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t handle, unsigned int *index)
{
    ENTER_TARGET(nvmlDeviceGetIndex, handle, index);
    *index = handled.instance == NULL ? handled.target : handled.instance->index;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t handle, char *name, unsigned int length)
{
    char text[NVML_DEVICE_NAME_V2_BUFFER_SIZE];

    ENTER_TARGET(nvmlDeviceGetName, handle, name);
    if (handled.instance == NULL)
        return copy_text(name, length, handled.device->name);
    snprintf(text, sizeof text, "%s MIG %s", handled.device->name, handled.instance->profile);
    return copy_text(name, length, text);
}

API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t handle, char *uuid, unsigned int length)
{
    ENTER_TARGET(nvmlDeviceGetUUID, handle, uuid);
    return copy_text(uuid, length, handled.instance == NULL ? handled.device->uuid : handled.instance->uuid);
}

API nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t handle, unsigned int *minorNumber)
{
    ENTER_DEVICE(nvmlDeviceGetMinorNumber, handle, minorNumber);
    *minorNumber = device->minor_number;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t handle, nvmlPciInfo_t *pci)
{
    ENTER_DEVICE(nvmlDeviceGetPciInfo_v3, handle, pci);
    memset(pci, 0, sizeof *pci);
    pci->domain = device->pci_domain;
    pci->bus = device->pci_bus;
    pci->device = device->pci_device;
    pci->pciDeviceId = device->pci_device_id;
    pci->pciSubSystemId = device->pci_device_id;
    snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", pci->domain, pci->bus, pci->device);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", pci->domain & 0xffff,
             pci->bus & 0xff, pci->device & 0xff);
    return NVML_SUCCESS;
}

/* Define the four functions that each return one fixed number. */
#define LINK_FACT(name, member)                                                 \
    API nvmlReturn_t name(nvmlDevice_t handle, unsigned int *value)             \
    {                                                                           \
        ENTER_DEVICE(name, handle, value);                                      \
        *value = device->member;                                                \
        return NVML_SUCCESS;                                                    \
    }

LINK_FACT(nvmlDeviceGetCurrPcieLinkGeneration, pcie_generation)
LINK_FACT(nvmlDeviceGetMaxPcieLinkGeneration, pcie_generation)
LINK_FACT(nvmlDeviceGetCurrPcieLinkWidth, pcie_width)
LINK_FACT(nvmlDeviceGetMaxPcieLinkWidth, pcie_width)
