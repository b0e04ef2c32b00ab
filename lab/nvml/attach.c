/* Map the world, read its clock, and find which of its processes have ended. */
#define _GNU_SOURCE
#include "simulation.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define ALIVE_CHECK_NS 100000000ull

struct world *world;

static uint32_t attached_load; /* driver_loads of the world when this process attached */

static const char *const function_names[] = {
#define X(name) #name,
#include "functions.def"
#undef X
};

/* Return the kernel's time, since wallclock.c may replace clock_gettime, but steps must not affect schedules. */
static uint64_t clock_ns(clockid_t clock)
{
    struct timespec now;

    syscall(SYS_clock_gettime, clock, &now);
    return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

static const char *mismatch(const struct world *candidate)
{
    if (candidate->magic != WORLD_MAGIC)
        return "is not a world of simulated GPUs";
    if (candidate->version != WORLD_VERSION || candidate->size != sizeof(struct world) ||
        candidate->n_functions != N_FUNCTIONS || candidate->n_devices > MAX_DEVICES)
        return "has the layout of another version of this library";
    for (size_t i = 0; i < N_FUNCTIONS; i++)
        if (strncmp(candidate->calls[i].name, function_names[i], sizeof candidate->calls[i].name) != 0)
            return "has other function numbers than this library";
    return NULL;
}

nvmlReturn_t world_attach(void)
{
    const char *path = getenv("SIMGPU_WORLD");
    const char *wrong;
    struct stat status;
    struct world *candidate;
    int fd;

    if (path == NULL) {
        fputs("simulated NVML: SIMGPU_WORLD must name the world file of this node\n", stderr);
        return NVML_ERROR_DRIVER_NOT_LOADED;
    }
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) /* as on a node without the driver; the caller retries later */
        return NVML_ERROR_DRIVER_NOT_LOADED;
    if (fstat(fd, &status) != 0 || status.st_size != (off_t)sizeof(struct world)) {
        close(fd);
        fprintf(stderr, "simulated NVML: %s must have %zu bytes\n", path, sizeof(struct world));
        return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    }
    candidate = mmap(NULL, sizeof(struct world), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (candidate == MAP_FAILED)
        return NVML_ERROR_UNKNOWN;
    wrong = mismatch(candidate);
    if (wrong != NULL || !candidate->driver_loaded) {
        if (wrong != NULL)
            fprintf(stderr, "simulated NVML: %s %s\n", path, wrong);
        munmap(candidate, sizeof(struct world));
        return wrong != NULL ? NVML_ERROR_LIB_RM_VERSION_MISMATCH : NVML_ERROR_DRIVER_NOT_LOADED;
    }
    attached_load = candidate->driver_loads;
    world = candidate;
    return NVML_SUCCESS;
}

bool world_current(void)
{
    return __atomic_load_n(&world->driver_loaded, __ATOMIC_ACQUIRE) != 0 && world->driver_loads == attached_load;
}

void world_detach(void)
{
    munmap(world, sizeof(struct world));
    world = NULL;
}

uint64_t world_now(void)
{
    uint64_t fake = __atomic_load_n(&world->fake_now_ns, __ATOMIC_RELAXED);

    return fake != 0 ? fake : clock_ns(CLOCK_REALTIME);
}

uint64_t stamp_us(uint64_t at_ns)
{
    int64_t step_ns = at_ns > world->clock_step_at_ns ? world->clock_step_ns : world->clock_before_ns;

    return (at_ns + (uint64_t)step_ns) / 1000;
}

size_t world_slots(void)
{
    uint32_t used = __atomic_load_n(&world->slots_used, __ATOMIC_ACQUIRE);

    return used < MAX_PROCESSES ? used : MAX_PROCESSES;
}

void sleep_ns(uint64_t ns)
{
    struct timespec left = {(time_t)(ns / NS_PER_S), (long)(ns % NS_PER_S)};

    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
}

void compute_ns(uint64_t ns)
{
    uint64_t until = clock_ns(CLOCK_THREAD_CPUTIME_ID) + ns;

    while (clock_ns(CLOCK_THREAD_CPUTIME_ID) < until)
        ;
}

/* Return whether this process is alive; a zombie, or another process with the same ID, does not count. */
static bool alive(uint32_t pid, uint64_t start_ticks)
{
    char path[32], text[1024], state;
    const char *after_name;
    unsigned long long started;
    ssize_t length;
    int fd;

    if (kill((pid_t)pid, 0) != 0 && errno == ESRCH)
        return false;
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno != ENOENT;
    length = read(fd, text, sizeof text - 1);
    close(fd);
    if (length <= 0)
        return false;
    text[length] = '\0';
    after_name = strrchr(text, ')'); /* the process name may contain blanks and brackets */
    if (after_name == NULL ||
        sscanf(after_name + 1, " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu",
               &state, &started) != 2)
        return true;
    return started == start_ticks && state != 'Z' && state != 'X';
}

void world_end_vanished(void)
{
    uint64_t now = world_now();
    size_t slots = world_slots();

    if (world->fake_now_ns == 0) {
        uint64_t last = __atomic_load_n(&world->checked_alive_ns, __ATOMIC_RELAXED);
        uint64_t monotonic = clock_ns(CLOCK_MONOTONIC);

        if (monotonic - last < ALIVE_CHECK_NS)
            return;
        if (!__atomic_compare_exchange_n(&world->checked_alive_ns, &last, monotonic, false, __ATOMIC_RELAXED,
                                         __ATOMIC_RELAXED))
            return; /* another reader is already scanning */
    }
    for (size_t i = 0; i < slots; i++) {
        struct world_process *process = &world->processes[i];
        uint64_t not_ended = 0;

        if (__atomic_load_n(&process->state, __ATOMIC_ACQUIRE) != SLOT_ACTIVE || process->start_ticks == 0 ||
            __atomic_load_n(&process->end_ns, __ATOMIC_RELAXED) != 0)
            continue;
        if (!alive(process->pid, process->start_ticks))
            __atomic_compare_exchange_n(&process->end_ns, &not_ended, now, false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED);
    }
}
