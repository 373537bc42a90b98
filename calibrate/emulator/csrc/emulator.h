/* The emulated GPU: what its stand-in libraries share (defined in device.c).
 *
 * Nothing computes. Device memory is a range of addresses that is never
 * touched, plus a count of booked bytes; kernels are counted and forgotten. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#define MIB ((size_t)1 << 20)
#define BOOKING_UNIT (2 * MIB) /* the driver backs device memory with 2 MiB pages */
#define MAX_DEVICES 64

/* Device addresses lie where neither heap, stack nor mappings of a Linux
 * x86-64 process do (0x55.. and 0x7f..). */
#define DEVICE_BASE ((uintptr_t)0x100000000000)
#define DEVICE_END ((uintptr_t)0x400000000000)

/* Kept out of sight of the programs that load this. */
#pragma GCC visibility push(hidden)

/* Workspace of a cuDNN engine: fixed_bytes + numerator / denominator * elements,
 * rounded up; a denominator of 0 stands for none by element. */
typedef struct {
  size_t fixed_bytes, numerator, denominator;
} Workspace;

/* What was injected, so that this device differs from what a predictor knows
 * (injection.py). All zero: nothing. */
typedef struct {
  Workspace attention_forward, attention_backward, convolution;
  size_t cublas_bytes, cudnn_bytes;            /* taken once, when its first handle is made */
  size_t nccl_bytes, nccl_bytes_per_rank;      /* taken by every communicator */
  size_t cuda_malloc_granularity_bytes;        /* cudaMalloc books multiples of it; 0: BOOKING_UNIT */
  size_t address_step_bytes;                   /* addresses go down, at multiples of it; 0: they go up */
  size_t address_seed;                         /* addresses are drawn at random, beginning with it; 0: they are not */
} Injected;

typedef struct {
  char name[96];
  size_t capacity_bytes, context_bytes, l2_bytes;
  int devices, major, minor, binary_version, multiprocessors;
  int threads_per_multiprocessor, blocks_per_multiprocessor;
  int shared_per_block, shared_per_block_optin, shared_per_multiprocessor;
  int driver_version, runtime_version;
  /* An event completes at once (0), after so many later launches (n), or only
   * when something synchronises (-1). */
  long event_launches;
  Injected injected;
} Gpu;

const Gpu *gpu(void);
int visible_devices(void);
int current_device(void);
int set_current_device(int device); /* 0, or -1 for a bad ordinal */
int gpu_attribute(int attribute);   /* cudaDeviceAttr and CUdevice_attribute agree */
void gpu_uuid(int device, char bytes[16]);

/* Device memory. Booking fails (-1) past the capacity. */
int book(int device, size_t bytes);
void unbook(int device, size_t bytes);
size_t booked_bytes(int device);
typedef enum { CUBLAS, CUDNN, LIBRARIES } Library;
int book_first_use(Library library, size_t bytes); /* on the current device; for good */
uintptr_t reserve_addresses(size_t bytes, size_t alignment); /* 0: range exhausted */
size_t release_addresses(uintptr_t start);                   /* bytes, 0: unknown */
void *device_malloc(size_t bytes);                           /* NULL: does not fit */
int device_free(void *pointer);
int is_device(const void *pointer);
int owner_device(const void *pointer);

/* Pinned host memory is real: the host reads and writes it. */
void *pinned_malloc(size_t bytes);
int pinned_free(void *pointer);
void pinned_register(void *pointer, size_t bytes);
void pinned_unregister(void *pointer);
int is_pinned(const void *pointer);
void copy_memory(void *to, const void *from, size_t bytes);

/* Time: launches and synchronisations are the only clock. */
void count_launch(void);
void synchronize(void);
void *new_handle(void);

/* A driver function by name, in its newest version (`cuMemAlloc` is cuMemAlloc_v2). */
void *driver_function(const char *name);

typedef struct {
  unsigned long launch, synchronization;
  int recorded;
} Event;
Event *event_create(void);
void event_destroy(Event *event);
void event_record(Event *event);
int event_done(const Event *event);

#pragma GCC visibility pop
