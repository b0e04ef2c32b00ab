/* The world: one memory-mapped file per simulated node, shared by the processes that simulate work on its
 * GPUs (lab/simgpu) and the simulated libnvidia-ml.so.1 that reports it.
 *
 *   header | devices[] in NVML order | calls[] | history[2] | instances[] | xids[] | processes[]
 *
 * lab/simgpu/layout.py mirrors these structures; magic, version and sizes are checked on both sides.
 *
 * These rules define which process writes which part, so that a kill -9 of any writer does no harm:
 * - Python writers lock the file with flock(2); the kernel releases the lock when the writer ends. The library
 *   never takes the lock, so that a stopped job cannot stop a monitor.
 * - A process slot is filled first and then published by setting `state`. Afterwards, only `end_ns` (0 until the
 *   process ends) changes until the slot is freed.
 * - A slot is freed once its process ended before the start of all sample rings. The integral of its load until
 *   `until_ns` is then written to the unused history entry, and published by incrementing `folds`, whose parity
 *   selects the current entry. A reader retries if `folds` changed while it was reading.
 * - A Xid is written first and then published by incrementing `n_xids`.
 *
 * A process runs on a *target*: the index of a device, or MAX_DEVICES plus the number of a MIG instance. The load
 * of an instance counts for its device in proportion to the instance's share of the slices.
 *
 * Times are ns of CLOCK_REALTIME, because NVML's timestamps are wall-clock times. A test may stop this clock by
 * setting `fake_now_ns`. It may also step the wall clock of NVML's timestamps and of programs that preload
 * wallclock.c, while the simulated time continues evenly.
 */
#ifndef SIMGPU_WORLD_H
#define SIMGPU_WORLD_H

#include <assert.h>
#include <stdint.h>

#define WORLD_MAGIC 0x444c524f57555047ull /* "GPUWORLD" */
#define WORLD_VERSION 7u

enum {
    MAX_DEVICES = 16,
    MAX_INSTANCES = 56, /* MIG instances on all devices together */
    MAX_TARGETS = MAX_DEVICES + MAX_INSTANCES,
    GPU_SLICES = 7, /* into which MIG divides a device */
    MAX_XIDS = 64,  /* only the newest Xids are kept */
    MAX_FUNCTIONS = 128,
    MAX_FIELDS = 512,
    MAX_PROCESSES = 1024, /* process slots: one per process and target */
    MAX_POINTS = 512,
    APPLICATION_BYTES = 36
};

enum slot_state { SLOT_FREE = 0, SLOT_ACTIVE = 1 };

enum samples_fault { SAMPLES_PRESENT = 0, SAMPLES_MISSING = 1, SAMPLES_MISSING_IF_IDLE = 2 };

/* The quantities that are integrated over time, in percent × ns. */
enum total {
    TOTAL_BUSY,
    TOTAL_SM_ACTIVE,
    TOTAL_SM_OCCUPANCY,
    TOTAL_TENSOR,
    TOTAL_DRAM,
    TOTAL_POWER, /* of the range from idle power to the limit */
    TOTAL_PCIE,
    TOTAL_NVLINK,
    N_TOTALS
};

enum { PROCESS_MPS = 1 }; /* flag of a process that uses the Multi-Process Service */

/* One vertex of a piecewise linear schedule; two vertices at one time make a step. */
struct world_point {
    uint64_t time_ns;
    double util_pct;
    double memory_mib;
};

/* The faults injected into one device; all fields of a healthy device are 0. */
struct world_faults {
    uint64_t lost_at_ns;       /* calls return GPU_IS_LOST from then on; 0 = never */
    uint64_t latency_ns;       /* additional sleep in every call on the device */
    uint64_t energy_offset_mj; /* added to the energy counter, modulo 2^64 */
    uint64_t pcie_tx_offset;   /* added to the byte counters, modulo 2^pcie_counter_bits */
    uint64_t pcie_rx_offset;
    uint64_t nvlink_tx_offset; /* added to the byte counters, modulo 2^64 */
    uint64_t nvlink_rx_offset;
    uint64_t clocks_event_reasons; /* bits added to the reported reasons */
    uint64_t reasons_from_ns;      /* time from which the bits are added */
    uint64_t reasons_until_ns;     /* time until which the bits are added; 0 = indefinitely */
    uint64_t ecc_corrected; /* since the driver was loaded */
    uint64_t ecc_uncorrected;
    uint64_t unsupported[MAX_FUNCTIONS / 64];     /* bit = number of the function */
    uint64_t unsupported_fields[MAX_FIELDS / 64]; /* bit = field id */
    uint64_t hanging[MAX_FUNCTIONS / 64];         /* bit = function that hangs until the fault is removed */
    uint32_t samples;                             /* enum samples_fault */
    uint32_t pcie_counter_bits;                   /* 32 or 64; 0 = 64 */
};

struct world_device {
    char uuid[64];
    char name[64];
    uint32_t minor_number;
    uint32_t pci_domain;
    uint32_t pci_bus;
    uint32_t pci_device;
    uint32_t pci_device_id;
    uint32_t pcie_generation;
    uint32_t pcie_width;
    uint32_t idle_power_mw;
    uint32_t power_limit_mw; /* drawn at 100 % */
    uint32_t idle_temperature_c;
    uint32_t full_temperature_c; /* at 100 % */
    uint32_t idle_sm_clock_mhz;
    uint32_t max_sm_clock_mhz;
    uint32_t memory_clock_mhz;
    uint32_t mig_mode; /* 0 disabled, 1 enabled, 2 not supported */
    uint32_t ecc_mode; /* 0 off, 1 on */
    uint32_t gpm;      /* 0 no, 1 yes */
    uint32_t nvlink_links;
    uint32_t nvlink_version; /* nvmlNvlinkVersion_t */
    uint32_t nvlink_mb_per_s; /* of one link in one direction */
    uint64_t memory_mib;
    uint64_t reserved_mib; /* reserved by the driver, counted as used by the first MemoryInfo */
    uint64_t pcie_tx_bytes_per_s; /* at 100 % */
    uint64_t pcie_rx_bytes_per_s;
    uint64_t nvlink_tx_bytes_per_s; /* all links together, at 100 % */
    uint64_t nvlink_rx_bytes_per_s;
    double memory_util_factor; /* ratio of the memory controller's utilisation to the GPU's */
    uint64_t high_pct_ns[N_TOTALS]; /* highest values reported so far; counters never decrease */
    uint64_t energy_high_mj;
    uint64_t ecc_corrected_before; /* count before the driver was last loaded */
    uint64_t ecc_uncorrected_before;
    struct world_faults faults;
};

/* A MIG instance: a GPU instance whose only compute instance has all of its resources. */
struct world_instance {
    char uuid[64];
    char profile[24]; /* such as 1g.5gb */
    uint32_t exists;
    uint32_t device;
    uint32_t index; /* among the instances of the device */
    uint32_t gpu_instance;
    uint32_t slices;
    uint32_t sm_count;
    uint64_t memory_mib;
};

/* One process on one target. */
struct world_process {
    uint32_t state; /* enum slot_state */
    uint32_t target;
    uint32_t pid;
    uint32_t n_points;
    uint32_t flags;
    char application[APPLICATION_BYTES]; /* key in the table of speeds; "" if it slows no other process */
    uint64_t start_ticks; /* /proc/PID/stat, field 22; 0 = invented process, not checked in /proc */
    uint64_t end_ns;      /* time at which its end occurred or was detected; 0 = not yet */
    double factors[N_TOTALS]; /* multiplied by its share of the utilisation; 1 for TOTAL_BUSY */
    double clock;             /* fraction of the maximum SM clock while the process runs */
    uint64_t reasons;         /* clocks event reasons while the process runs */
    struct world_point points[MAX_POINTS];
};

/* The totals of ended processes before until_ns, by target. */
struct world_history {
    uint64_t until_ns;
    double pct_ns[MAX_TARGETS][N_TOTALS];
};

/* An error that the driver reported. */
struct world_xid {
    uint64_t time_ns;
    uint64_t code;
    uint32_t device;
    uint32_t gpu_instance; /* ID of the MIG GPU instance, or 0xffffffff */
};

/* The number of calls of a function, and the time that each call takes, to imitate real hardware. */
struct world_call {
    char name[56];
    uint64_t count;
    uint64_t cpu_ns;      /* processor time */
    uint64_t wait_ns;     /* time for which the call then sleeps */
    uint64_t item_cpu_ns; /* processor time for each value, if the call requests a list of values */
};

struct world {
    uint64_t magic;
    uint32_t version;
    uint32_t size; /* of this structure */
    uint32_t n_devices;
    uint32_t n_functions;
    uint64_t boot_ns; /* time at which the driver was loaded and counters started */
    uint64_t fake_now_ns;
    uint64_t clock_step_at_ns; /* time at which the wall clock was last set */
    int64_t clock_step_ns;   /* offset of timestamps since then */
    int64_t clock_before_ns; /* offset of earlier timestamps */
    uint32_t driver_loaded;
    uint32_t folds;
    uint32_t slots_used; /* number of slots to scan; later slots were never used */
    uint32_t driver_loads; /* number of times that the driver was loaded; earlier handles are invalid */
    uint64_t checked_alive_ns; /* CLOCK_MONOTONIC of the last scan for vanished processes */
    struct world_device devices[MAX_DEVICES];
    struct world_call calls[MAX_FUNCTIONS];
    struct world_history history[2];
    struct world_instance instances[MAX_INSTANCES];
    uint64_t n_xids; /* number of all Xids so far; Xid i is xids[i % MAX_XIDS] */
    struct world_xid xids[MAX_XIDS];
    struct world_process processes[MAX_PROCESSES];
};

static_assert(sizeof(struct world_point) == 24, "world_point");
static_assert(sizeof(struct world_faults) == 200, "world_faults");
static_assert(sizeof(struct world_device) == 552, "world_device");
static_assert(sizeof(struct world_instance) == 120, "world_instance");
static_assert(sizeof(struct world_process) == 152 + 24 * MAX_POINTS, "world_process");
static_assert(sizeof(struct world_history) == 8 + 8 * MAX_TARGETS * N_TOTALS, "world_history");
static_assert(sizeof(struct world_xid) == 24, "world_xid");
static_assert(sizeof(struct world_call) == 88, "world_call");

#endif
