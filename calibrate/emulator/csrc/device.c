/* The device behind all stand-in libraries: its description, its memory
 * bookkeeping and its clock. */
#define _GNU_SOURCE
#include "emulator.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SETTING "PEAKCAST_EMULATED_GPU" /* written by calibrate.emulator.environment */

static Gpu the_gpu;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static long long number(const char *settings, const char *key) {
  char pattern[64];
  snprintf(pattern, sizeof pattern, ";%s=", key);
  const char *found = strstr(settings, pattern);
  return found ? atoll(found + strlen(pattern)) : 0;
}

static void read_again(void) { once = PTHREAD_ONCE_INIT; }

static void read_settings(void) {
  const char *settings = getenv(SETTING);
  if (!settings) {
    fprintf(stderr, "peakcast: the emulated GPU was loaded without its setting " SETTING
                    "; start the job with `python -m calibrate.emulator run`\n");
    _exit(2);
  }
  const char *name = strstr(settings, "name=");
  if (name) sscanf(name, "name=%95[^;]", the_gpu.name);
#define READ(field) the_gpu.field = number(settings, #field)
  READ(capacity_bytes); READ(context_bytes); READ(l2_bytes); READ(devices);
  READ(major); READ(minor); READ(binary_version); READ(multiprocessors);
  READ(threads_per_multiprocessor); READ(blocks_per_multiprocessor);
  READ(shared_per_block); READ(shared_per_block_optin); READ(shared_per_multiprocessor);
  READ(driver_version); READ(runtime_version); READ(event_launches);
#undef READ
#define READ(field) the_gpu.injected.field = number(settings, #field)
#define READ_WORKSPACE(operation)                                                                  \
  the_gpu.injected.operation = (Workspace){number(settings, #operation "_fixed_bytes"),            \
                                           number(settings, #operation "_numerator"),              \
                                           number(settings, #operation "_denominator")}
  READ_WORKSPACE(attention_forward);
  READ_WORKSPACE(attention_backward);
  READ_WORKSPACE(convolution);
  READ(cublas_bytes); READ(cudnn_bytes); READ(nccl_bytes); READ(nccl_bytes_per_rank);
  READ(cuda_malloc_granularity_bytes); READ(address_step_bytes);
  READ(address_seed);
#undef READ
  pthread_atfork(NULL, NULL, read_again); /* a forked job may be on another GPU (calibrate/measure/warm_workers.py) */
}

const Gpu *gpu(void) {
  pthread_once(&once, read_settings);
  return &the_gpu;
}

/* --- which device ------------------------------------------------------- */
static __thread int selected;

int visible_devices(void) {
  const char *list = getenv("CUDA_VISIBLE_DEVICES");
  if (!list) return gpu()->devices;
  if (!*list || *list == '-') return 0;
  int count = 1;
  for (; *list; list++) count += *list == ',';
  return count < gpu()->devices ? count : gpu()->devices;
}

int current_device(void) { return selected; }

int set_current_device(int device) {
  if (device < 0 || device >= visible_devices()) return -1;
  selected = device;
  return 0;
}

void gpu_uuid(int device, char bytes[16]) {
  memcpy(bytes, "peakcast-emulat", 15);
  bytes[15] = (char)device;
}

/* --- device memory ------------------------------------------------------ */
static size_t booked[MAX_DEVICES];

static size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

static int book_locked(int device, size_t bytes) {
  int fits = booked[device] + bytes <= gpu()->capacity_bytes - gpu()->context_bytes;
  if (fits) booked[device] += bytes;
  return fits;
}

int book(int device, size_t bytes) {
  pthread_mutex_lock(&lock);
  int fits = book_locked(device, bytes);
  pthread_mutex_unlock(&lock);
  return fits ? 0 : -1;
}

void unbook(int device, size_t bytes) {
  pthread_mutex_lock(&lock);
  booked[device] -= bytes;
  pthread_mutex_unlock(&lock);
}

size_t booked_bytes(int device) { return booked[device]; }

int book_first_use(Library library, size_t bytes) {
  static char used[MAX_DEVICES][LIBRARIES];
  pthread_mutex_lock(&lock);
  char *own = &used[selected][library];
  if (!*own) *own = book_locked(selected, bytes);
  int done = *own;
  pthread_mutex_unlock(&lock);
  return done ? 0 : -1;
}

/* Ranges in use, by address. The same calls give the same addresses in every run. */
typedef struct {
  uintptr_t start;
  size_t bytes;
  int device;
} Range;
typedef struct {
  Range *items;
  size_t count, room;
} Ranges;
static Ranges device_ranges, pinned_ranges;

static void insert_range(Ranges *ranges, size_t at, Range range) {
  if (ranges->count == ranges->room) {
    ranges->room = ranges->room ? 2 * ranges->room : 256;
    ranges->items = realloc(ranges->items, ranges->room * sizeof(Range));
  }
  memmove(ranges->items + at + 1, ranges->items + at, (ranges->count - at) * sizeof(Range));
  ranges->items[at] = range;
  ranges->count++;
}

static size_t position(const Ranges *ranges, uintptr_t address) {
  size_t low = 0, high = ranges->count; /* ranges that start at or below the address */
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (ranges->items[middle].start <= address) low = middle + 1;
    else high = middle;
  }
  return low;
}

static const Range *range_of(const Ranges *ranges, const void *pointer) {
  size_t at = position(ranges, (uintptr_t)pointer);
  if (!at) return NULL;
  const Range *range = &ranges->items[at - 1];
  return (uintptr_t)pointer < range->start + range->bytes ? range : NULL;
}

static Range remove_range(Ranges *ranges, uintptr_t start) {
  Range none = {0, 0, 0};
  size_t at = position(ranges, start);
  if (!at || ranges->items[at - 1].start != start) return none;
  Range range = ranges->items[at - 1];
  ranges->count--;
  memmove(ranges->items + at - 1, ranges->items + at, (ranges->count - at + 1) * sizeof(Range));
  return range;
}

/* The highest free range at a multiple of the step, and where it goes among the ranges in use; 0: exhausted. */
static uintptr_t highest_free(size_t bytes, size_t step, size_t *at) {
  uintptr_t end = DEVICE_END;
  for (*at = device_ranges.count;; (*at)--) {
    const Range *below = *at ? &device_ranges.items[*at - 1] : NULL;
    uintptr_t first = below ? below->start + below->bytes : DEVICE_BASE;
    uintptr_t start = end - bytes < end ? (end - bytes) / step * step : 0;
    if (start >= first) return start;
    if (!below) return 0;
    end = below->start;
  }
}

/* The lowest free range at a multiple of the alignment, and where it goes among the ranges in use; 0: exhausted. */
static uintptr_t lowest_free(size_t bytes, size_t alignment, size_t *at) {
  uintptr_t start = DEVICE_BASE;
  for (*at = 0; *at < device_ranges.count; (*at)++) {
    const Range *range = &device_ranges.items[*at];
    if (start + bytes <= range->start) break;
    start = round_up(range->start + range->bytes, alignment);
  }
  return start + bytes <= DEVICE_END ? start : 0;
}

/* A free range at a random multiple of the alignment, and where it goes among the ranges in use; 0: none was found. */
static uintptr_t random_free(size_t bytes, size_t alignment, size_t *at) {
  static uint64_t state; /* of xorshift64 */
  if (!state) state = gpu()->injected.address_seed * UINT64_C(0x9E3779B97F4A7C15);
  size_t places = (DEVICE_END - DEVICE_BASE - bytes) / alignment + 1;
  for (int tries = 0; tries < 1000; tries++) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    uintptr_t start = DEVICE_BASE + state % places * alignment;
    *at = position(&device_ranges, start);
    const Range *range = device_ranges.items + *at;
    if ((!*at || range[-1].start + range[-1].bytes <= start) &&
        (*at == device_ranges.count || start + bytes <= range->start)) return start;
  }
  return 0;
}

uintptr_t reserve_addresses(size_t bytes, size_t alignment) {
  bytes = round_up(bytes ? bytes : 1, BOOKING_UNIT);
  alignment = alignment > BOOKING_UNIT ? alignment : BOOKING_UNIT;
  const Injected *injected = &gpu()->injected;
  size_t step = injected->address_step_bytes, at;
  pthread_mutex_lock(&lock);
  uintptr_t start = step ? highest_free(round_up(bytes, step), step > alignment ? step : alignment, &at)
                  : injected->address_seed ? random_free(bytes, alignment, &at) : lowest_free(bytes, alignment, &at);
  if (start) insert_range(&device_ranges, at, (Range){start, bytes, selected});
  pthread_mutex_unlock(&lock);
  return start;
}

size_t release_addresses(uintptr_t start) {
  pthread_mutex_lock(&lock);
  Range range = remove_range(&device_ranges, start);
  pthread_mutex_unlock(&lock);
  return range.bytes;
}

void *device_malloc(size_t bytes) {
  size_t unit = gpu()->injected.cuda_malloc_granularity_bytes;
  bytes = round_up(bytes ? bytes : 1, unit ? unit : BOOKING_UNIT);
  if (book(selected, bytes)) return NULL;
  uintptr_t start = reserve_addresses(bytes, BOOKING_UNIT);
  if (!start) unbook(selected, bytes);
  return (void *)start;
}

int device_free(void *pointer) {
  int device = owner_device(pointer);
  size_t bytes = release_addresses((uintptr_t)pointer);
  if (!bytes) return -1;
  unbook(device, bytes);
  return 0;
}

int is_device(const void *pointer) {
  return (uintptr_t)pointer >= DEVICE_BASE && (uintptr_t)pointer < DEVICE_END;
}

int owner_device(const void *pointer) {
  pthread_mutex_lock(&lock);
  const Range *range = range_of(&device_ranges, pointer);
  int device = range ? range->device : selected;
  pthread_mutex_unlock(&lock);
  return device;
}

/* --- pinned host memory ------------------------------------------------- */
void pinned_register(void *pointer, size_t bytes) {
  pthread_mutex_lock(&lock);
  insert_range(&pinned_ranges, position(&pinned_ranges, (uintptr_t)pointer),
               (Range){(uintptr_t)pointer, bytes, -1});
  pthread_mutex_unlock(&lock);
}

void pinned_unregister(void *pointer) {
  pthread_mutex_lock(&lock);
  remove_range(&pinned_ranges, (uintptr_t)pointer);
  pthread_mutex_unlock(&lock);
}

int is_pinned(const void *pointer) {
  pthread_mutex_lock(&lock);
  int found = range_of(&pinned_ranges, pointer) != NULL;
  pthread_mutex_unlock(&lock);
  return found;
}

/* Pages come from mmap: memory that nobody writes occupies nothing. */
void *pinned_malloc(size_t bytes) {
  bytes = round_up(bytes ? bytes : 1, 4096);
  void *pointer = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pointer == MAP_FAILED) return NULL;
  pthread_mutex_lock(&lock);
  insert_range(&pinned_ranges, position(&pinned_ranges, (uintptr_t)pointer),
               (Range){(uintptr_t)pointer, bytes, 0});
  pthread_mutex_unlock(&lock);
  return pointer;
}

int pinned_free(void *pointer) {
  pthread_mutex_lock(&lock);
  Range range = remove_range(&pinned_ranges, (uintptr_t)pointer);
  pthread_mutex_unlock(&lock);
  return range.bytes ? munmap(pointer, range.bytes) : -1;
}

/* --- read-backs --------------------------------------------------------- */
/* The values that the next read-backs in this thread return: set by the integer tracker
 * around an operator whose result size depends on data. */
static __thread const char *answer;
static __thread const size_t *answer_sizes; /* ends with 0 */

void peakcast_answer(const char *bytes, const size_t *sizes) {
  answer = bytes;
  answer_sizes = sizes;
}

static int take_answer(void *to, size_t bytes) {
  if (!answer || *answer_sizes != bytes) return 0;
  memcpy(to, answer, bytes);
  answer += bytes;
  answer_sizes++;
  return 1;
}

/* Small read-backs that were answered with zero: a test looks for operators
 * that the tracker should know and does not. */
static unsigned long blind_reads;
unsigned long peakcast_blind_reads(void) { return blind_reads; }

static void zero_host(void *to, size_t bytes) {
  pthread_mutex_lock(&lock);
  const Range *range = range_of(&pinned_ranges, to);
  int ours = range && range->device == 0; /* mapped by pinned_malloc */
  pthread_mutex_unlock(&lock);
  uintptr_t first = round_up((uintptr_t)to, 4096), end = ((uintptr_t)to + bytes) & ~(uintptr_t)4095;
  if (!ours || bytes < MIB) {
    memset(to, 0, bytes);
    return;
  }
  /* Dropping the pages of a private mapping zeroes it and frees host memory. */
  memset(to, 0, first - (uintptr_t)to);
  madvise((void *)first, end - first, MADV_DONTNEED);
  memset((void *)end, 0, (uintptr_t)to + bytes - end);
}

/* The last small copy to the device in this thread. `torch.tensor(...)` makes
 * one out of sight of the integer tracker, which asks for it right after. */
#define MOST_UPLOADED (16 * MIB)
static __thread struct {
  const void *to;
  size_t bytes, room;
  char *copy;
} upload;

static void remember_upload(const void *to, const void *from, size_t bytes) {
  upload.to = NULL;
  if (bytes > MOST_UPLOADED || is_device(from)) return;
  if (bytes > upload.room) {
    upload.copy = realloc(upload.copy, bytes);
    upload.room = bytes;
  }
  memcpy(upload.copy, from, bytes);
  upload.to = to;
  upload.bytes = bytes;
}

const char *peakcast_last_upload(const void *to, size_t bytes) {
  return upload.to == to && upload.bytes == bytes ? upload.copy : NULL;
}

void copy_memory(void *to, const void *from, size_t bytes) {
  if (is_device(to)) {
    remember_upload(to, from, bytes);
    return;
  }
  if (!is_device(from)) {
    memmove(to, from, bytes);
    return;
  }
  if (take_answer(to, bytes)) return;
  blind_reads += bytes <= 64;
  zero_host(to, bytes);
}

/* --- clock -------------------------------------------------------------- */
static unsigned long launches, synchronizations, handles;

void count_launch(void) { __atomic_add_fetch(&launches, 1, __ATOMIC_RELAXED); }
void synchronize(void) { __atomic_add_fetch(&synchronizations, 1, __ATOMIC_RELAXED); }

/* Handles are only compared, never dereferenced. */
void *new_handle(void) {
  return (void *)(0x1000 + 16 * __atomic_add_fetch(&handles, 1, __ATOMIC_RELAXED));
}

Event *event_create(void) { return calloc(1, sizeof(Event)); }
void event_destroy(Event *event) { free(event); }

void event_record(Event *event) {
  event->launch = launches;
  event->synchronization = synchronizations;
  event->recorded = 1;
}

int event_done(const Event *event) {
  long wait = gpu()->event_launches;
  if (!event->recorded || wait == 0 || synchronizations > event->synchronization) return 1;
  return wait > 0 && launches - event->launch >= (unsigned long)wait;
}

int peakcast_is_emulated(void) { return 1; }
