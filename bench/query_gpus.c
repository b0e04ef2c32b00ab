/* What nvidia-smi --query-gpu=… --query-compute-apps=… does per call, and nothing more: initialise NVML, read
 * each GPU once, print a line for it and one for each of its processes, shut down.
 *
 *     cc -O2 -I. -o query_gpus bench/query_gpus.c DIR/libnvidia-ml.so.1
 */
#include <stdio.h>

#include "../lab/nvml/types.h"

extern nvmlReturn_t nvmlInitWithFlags(unsigned int flags);
extern nvmlReturn_t nvmlShutdown(void);
extern nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count);
extern nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device);
extern nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length);
extern nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization);
extern nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory);
extern nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts);
extern nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned int *celsius);
extern nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, int type, unsigned int *mhz);
extern nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                            nvmlProcessInfo_t *processes);

enum { MAX_PROCESSES = 256, UUID_LENGTH = 96 };

static int query(unsigned int index)
{
    nvmlDevice_t device;
    nvmlUtilization_t utilization;
    nvmlMemory_v2_t memory = {.version = NVML_MEMORY_V2};
    nvmlProcessInfo_t processes[MAX_PROCESSES];
    unsigned int power, temperature, clock, n = MAX_PROCESSES;
    char uuid[UUID_LENGTH];

    if (nvmlDeviceGetHandleByIndex_v2(index, &device) != NVML_SUCCESS ||
        nvmlDeviceGetUUID(device, uuid, sizeof uuid) != NVML_SUCCESS ||
        nvmlDeviceGetUtilizationRates(device, &utilization) != NVML_SUCCESS ||
        nvmlDeviceGetMemoryInfo_v2(device, &memory) != NVML_SUCCESS ||
        nvmlDeviceGetPowerUsage(device, &power) != NVML_SUCCESS ||
        nvmlDeviceGetTemperature(device, NVML_TEMPERATURE_GPU, &temperature) != NVML_SUCCESS ||
        nvmlDeviceGetClockInfo(device, NVML_CLOCK_SM, &clock) != NVML_SUCCESS ||
        nvmlDeviceGetComputeRunningProcesses_v3(device, &n, processes) != NVML_SUCCESS)
        return 1;
    printf("%u, %s, %u, %u, %llu, %.2f, %u, %u\n", index, uuid, utilization.gpu, utilization.memory,
           memory.used >> 20, power / 1000.0, temperature, clock);
    for (unsigned int i = 0; i < n; i++)
        printf("%s, %u, %llu\n", uuid, processes[i].pid, processes[i].usedGpuMemory >> 20);
    return 0;
}

int main(void)
{
    unsigned int count;

    if (nvmlInitWithFlags(0) != NVML_SUCCESS || nvmlDeviceGetCount_v2(&count) != NVML_SUCCESS)
        return 1;
    for (unsigned int i = 0; i < count; i++)
        if (query(i) != 0)
            return 1;
    return nvmlShutdown() == NVML_SUCCESS ? 0 : 1;
}
