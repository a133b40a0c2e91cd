/* autellix_swap: moves the blocks of a KV cache between two memories, in as few transfers as it can.
 *
 * Words. A *plane* is a row of equally large blocks at equal distances: one layer of a cache whose layers lie apart
 * (LBHNC), or the whole cache where all layers of a block are adjacent (BLHNC). A *job* copies, for every pair
 * (source block, destination block) of its table, that block of every source plane to that block of the destination
 * plane with the same number. One block of one plane is a *page*; a *transfer* is one copy that crosses from one
 * memory to the other. The *near* memory is the accelerator's, the *far* memory the host's; on the CPU back end both
 * are host memory and only the order of the copies differs.
 *
 * Rules of the interface. Plain C, no exception leaves it. Every function may be called from any thread, except that
 * nothing else may use a context while `ax_close` runs or afterwards. What a function is given it copies: planes,
 * tables and jobs may be freed when it returns; the memory that the planes describe must stay until the job is done.
 * Functions that can fail return a code of `ax_code` and fill `fault`, which may be NULL.
 *
 * Version 2. A caller sets `struct_bytes` to the size of the structure that it was compiled with.
 */
#ifndef AUTELLIX_SWAP_H
#define AUTELLIX_SWAP_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define AX_API __attribute__((visibility("default")))
#else
#define AX_API
#endif

#define AX_VERSION 2u

/* Limits. Beyond them a job is refused with AX_LIMIT. */
#define AX_MAX_PLANES 1024u
#define AX_MAX_PAIRS (1u << 22)
#define AX_MAX_BLOCKS (UINT64_C(1) << 40)
#define AX_MAX_BLOCK_BYTES (UINT64_C(1) << 30)
#define AX_MAX_PENDING 4096u
#define AX_MAX_THREADS 64u
#define AX_MIN_SLOT_BYTES (UINT64_C(1) << 12)
#define AX_MAX_SLOT_BYTES (UINT64_C(1) << 30)
#define AX_MAX_SLOTS 16u
/* Bases, sizes and strides are multiples of this. */
#define AX_ALIGNMENT 8u

typedef enum ax_code {
  AX_OK = 0,
  AX_NULL = 1,      /* a pointer is null */
  AX_STRUCT = 2,    /* a structure has not the size that this version expects */
  AX_CHOICE = 3,    /* a value is not one of those that exist */
  AX_LIMIT = 4,     /* a count or size is zero or beyond its limit */
  AX_ALIGN = 5,     /* an address or size is not a multiple of AX_ALIGNMENT */
  AX_STRIDE = 6,    /* blocks of a plane overlap: the stride is less than a block */
  AX_OVERFLOW = 7,  /* a plane reaches beyond the address space */
  AX_MISMATCH = 8,  /* a source plane and its destination differ in the size of their blocks */
  AX_RANGE = 9,     /* a block lies outside of a plane */
  AX_TWICE = 10,    /* a destination block is written twice */
  AX_OVERLAP = 11,  /* planes overlap where they must not */
  AX_BACKEND = 12,  /* the back end is not in this build */
  AX_MEMORY = 13,   /* memory could not be had */
  AX_HANDLE = 14,   /* no such job: it never was, or its end was reported already */
  AX_BUSY = 15,     /* too many jobs are under way */
  AX_DEVICE = 16,   /* the device failed; `device_error` says how */
  AX_PLACE = 17,    /* a plane lies in the wrong memory for the job's direction */
  AX_PENDING = 18,  /* no failure: the job is still under way */
  AX_NO_DEVICE = 19,  /* no CUDA device answers; `device_error` is the driver's reason */
  AX_OLD_DRIVER = 20, /* the driver is older than the CUDA runtime of this build */
  AX_CAPABILITY = 21  /* this build has no code for the device's compute capability */
} ax_code;

/* What a fault is about. `index` counts planes, or pairs. */
typedef enum ax_field {
  AX_FIELD_NONE = 0,
  AX_FIELD_JOB = 1,
  AX_FIELD_STRATEGY = 2,
  AX_FIELD_DIRECTION = 3,
  AX_FIELD_FLAGS = 4,
  AX_FIELD_PLANES = 5,       /* how many planes */
  AX_FIELD_PAIRS = 6,        /* how many pairs, or their table */
  AX_FIELD_SOURCES = 7,      /* a source plane as a whole, or their list */
  AX_FIELD_SOURCE_BASE = 8,
  AX_FIELD_SOURCE_BLOCK_BYTES = 9,
  AX_FIELD_SOURCE_STRIDE = 10,
  AX_FIELD_SOURCE_BLOCKS = 11,
  AX_FIELD_DESTINATIONS = 12,
  AX_FIELD_DESTINATION_BASE = 13,
  AX_FIELD_DESTINATION_BLOCK_BYTES = 14,
  AX_FIELD_DESTINATION_STRIDE = 15,
  AX_FIELD_DESTINATION_BLOCKS = 16,
  AX_FIELD_PAIR_SOURCE = 17,
  AX_FIELD_PAIR_DESTINATION = 18,
  AX_FIELD_TABLE = 19,
  AX_FIELD_CONTEXT = 20,
  AX_FIELD_BACKEND = 21,
  AX_FIELD_THREADS = 22,
  AX_FIELD_SLOT_BYTES = 23,
  AX_FIELD_SLOTS = 24,
  AX_FIELD_HANDLE = 25,
  AX_FIELD_STATS = 26,
  AX_FIELD_MEMORY = 27
} ax_field;

typedef enum ax_backend { AX_CPU = 0, AX_CUDA = 1 } ax_backend;

typedef enum ax_strategy {
  AX_PER_PAGE = 0,   /* one transfer per page: the measure of the others, which AX_AUTO never takes */
  AX_COALESCED = 1,  /* pages adjacent in both memories share a transfer; CUDA hands them over as one batch */
  AX_STAGED = 2,     /* pages are gathered in near memory, so that whatever is adjacent in far memory shares one */
  AX_AUTO = 3        /* AX_STAGED where the job's calibrated table says that it is faster, else AX_COALESCED */
} ax_strategy;

typedef enum ax_direction {
  AX_STORE = 0, /* near to far: swap out */
  AX_LOAD = 1   /* far to near: swap in */
} ax_direction;

/* Flags of a job. */
#define AX_AFTER_STREAM 1u   /* CUDA: begin after all that is queued on `after_stream` at the time of the call */
#define AX_SOURCE_STABLE 2u  /* CUDA: nothing queued but jobs writes the sources; lets the driver read them early */

typedef struct ax_plane {
  uint64_t base;         /* address of block 0 */
  uint64_t block_bytes;
  uint64_t stride_bytes; /* from one block to the next */
  uint64_t blocks;
} ax_plane;

/* Seconds that one piece took on this machine, by direction, size (4 KiB << i), number of pieces (1, 16, 256, 4096)
 * and strategy (AX_COALESCED, AX_STAGED). Plain data: keep it, store it, pass it to any job of the same back end. */
#define AX_TABLE_SIZES 10
#define AX_TABLE_COUNTS 4
#define AX_TABLE_STRATEGIES 2
typedef struct ax_table {
  uint32_t struct_bytes;
  uint32_t backend;
  double seconds[2][AX_TABLE_SIZES][AX_TABLE_COUNTS][AX_TABLE_STRATEGIES];
} ax_table;

typedef struct ax_job {
  uint32_t struct_bytes;
  uint32_t strategy;
  uint32_t direction;
  uint32_t flags;
  const ax_plane *sources;
  const ax_plane *destinations;
  uint64_t plane_count;  /* of each list */
  const int64_t *pairs;  /* source block, destination block, source block, ... */
  uint64_t pair_count;
  const ax_table *table; /* for AX_AUTO, or NULL */
  uint64_t after_stream; /* a cudaStream_t; 0 is CUDA's default stream. Read with AX_AFTER_STREAM only */
} ax_job;

typedef struct ax_stats {
  uint32_t struct_bytes;
  uint32_t strategy;  /* the one that ran, never AX_AUTO */
  uint64_t transfers;
  uint64_t pages;
  uint64_t bytes;
  double seconds;     /* from the first copy to the end, beside what overlaps */
} ax_stats;

typedef struct ax_fault {
  int32_t code;
  int32_t field;         /* ax_field */
  uint64_t index;
  int32_t device_error;  /* cudaError_t with AX_DEVICE, else 0 */
  int32_t reserved;
} ax_fault;

typedef struct ax_options {
  uint32_t struct_bytes;
  uint32_t backend;
  uint32_t device;      /* number of the CUDA device */
  uint32_t threads;     /* CPU: threads that share one large job */
  uint64_t slot_bytes;  /* size of one slot of the staging ring, a multiple of 4,096 */
  uint32_t slots;       /* slots of each ring, of which CUDA has two for a direction; the CPU back end has one slot */
  uint32_t reserved;
} ax_options;

typedef struct ax_context ax_context;

/* The version of this library: AX_VERSION. */
AX_API uint32_t ax_version(void);

/* A sentence for a code, in English, never NULL; it lives as long as the library. */
AX_API const char *ax_error_text(int32_t code);

/* 1 if this build has the back end and a device answers, else 0. */
AX_API int32_t ax_available(uint32_t backend);

/* Open a context: its worker thread, or its streams and its staging ring.
 * AX_NULL, AX_STRUCT, AX_CHOICE, AX_LIMIT, AX_ALIGN, AX_BACKEND, AX_NO_DEVICE, AX_OLD_DRIVER, AX_CAPABILITY,
 * AX_MEMORY, AX_DEVICE. */
AX_API int32_t ax_open(const ax_options *options, ax_context **context, ax_fault *fault);

/* Wait for all jobs, then free the context. NULL is allowed. */
AX_API void ax_close(ax_context *context);

/* Copy and wait. The codes of ax_submit and ax_wait. */
AX_API int32_t ax_copy(ax_context *context, const ax_job *job, ax_stats *stats, ax_fault *fault);

/* Check the job, queue it, and return its handle at once. The memories are left as if jobs ran in the order of their
 * submission: of two jobs of which one writes a block that the other reads or writes, the later waits for the earlier
 * one. On CUDA all others may overlap, and end in any order.
 * AX_NULL to AX_OVERLAP, AX_BUSY, AX_MEMORY, AX_PLACE: nothing was copied. AX_DEVICE: some of it may have been. */
AX_API int32_t ax_submit(ax_context *context, const ax_job *job, uint64_t *handle, ax_fault *fault);

/* AX_PENDING while the job is under way. Any other code reports its end, once: the handle is forgotten with it. */
AX_API int32_t ax_poll(ax_context *context, uint64_t handle, ax_stats *stats, ax_fault *fault);

/* As ax_poll, but blocks until the end. */
AX_API int32_t ax_wait(ax_context *context, uint64_t handle, ax_stats *stats, ax_fault *fault);

/* Measure the machine, for AX_AUTO. Takes its own memory, and a second or so; no job may be under way meanwhile, or
 * the measure is wrong. AX_NULL, AX_MEMORY, AX_DEVICE. */
AX_API int32_t ax_calibrate(ax_context *context, ax_table *table, ax_fault *fault);

/* Page-lock host memory for a CUDA context, piece by piece, as drivers limit one registration; all or nothing. A far
 * plane lies wholly in what one call locked, or in memory that is not locked.
 * Without it CUDA transfers are synchronous and slow, and AX_STAGED and AX_COALESCED may not overlap with anything.
 * The CPU back end accepts it and does nothing. AX_NULL, AX_LIMIT, AX_DEVICE. */
AX_API int32_t ax_pin(ax_context *context, uint64_t base, uint64_t bytes, ax_fault *fault);

/* Undo ax_pin for the same range. */
AX_API int32_t ax_unpin(ax_context *context, uint64_t base, uint64_t bytes, ax_fault *fault);

#ifdef __cplusplus
}
#endif
#endif
