/* Provide the wall clock of one simulated host to programs that preload this library: the machine's clock plus
 * the steps in the host's world. NVML's timestamps use the same world, so both clocks step at the same time. The
 * machine's clock does not change.
 *
 * This library replaces only the time of day. Monotonic clocks, sleeps, timeouts and the times of files are
 * those of the kernel. */
#define _GNU_SOURCE
#include "world.h"

#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))
#define NS_PER_S 1000000000ll
#define HEAD offsetof(struct world, devices) /* the only part that this library needs */

static const struct world *world;

static const struct world *map(const char *path)
{
    struct stat status;
    void *mapped = MAP_FAILED;
    int fd = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return NULL;
    if (fstat(fd, &status) == 0 && status.st_size >= (off_t)HEAD)
        mapped = mmap(NULL, HEAD, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    return mapped == MAP_FAILED ? NULL : mapped;
}

__attribute__((constructor)) static void attach(void)
{
    const struct world *candidate = map(getenv("SIMGPU_WORLD"));

    if (candidate != NULL && candidate->magic == WORLD_MAGIC && candidate->version == WORLD_VERSION)
        world = candidate;
    else
        fputs("simulated clock: SIMGPU_WORLD must name the world file of this host\n", stderr);
}

static int64_t step_ns(void)
{
    return world == NULL ? 0 : __atomic_load_n(&world->clock_step_ns, __ATOMIC_RELAXED);
}

EXPORTED int clock_gettime(clockid_t clock, struct timespec *now)
{
    if (syscall(SYS_clock_gettime, clock, now) != 0)
        return -1;
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) {
        int64_t ns = now->tv_sec * NS_PER_S + now->tv_nsec + step_ns();

        now->tv_sec = ns / NS_PER_S;
        now->tv_nsec = ns % NS_PER_S;
    }
    return 0;
}

static struct timespec time_of_day(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return now;
}

EXPORTED int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec at = time_of_day();

    (void)zone; /* Linux ignores it */
    *now = (struct timeval){.tv_sec = at.tv_sec, .tv_usec = at.tv_nsec / 1000};
    return 0;
}

EXPORTED time_t time(time_t *now)
{
    struct timespec at = time_of_day();

    if (now != NULL)
        *now = at.tv_sec;
    return at.tv_sec;
}

EXPORTED int timespec_get(struct timespec *now, int base)
{
    if (base != TIME_UTC)
        return 0;
    *now = time_of_day();
    return base;
}
