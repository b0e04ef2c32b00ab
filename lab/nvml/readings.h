/* Readings that more than one function returns. */
#ifndef SIMGPU_READINGS_H
#define SIMGPU_READINGS_H

#include "simulation.h"

uint64_t energy_mj(struct world_device *device);

uint64_t ecc_errors(const struct world_device *device, int error_type, int counter_type);

#endif
