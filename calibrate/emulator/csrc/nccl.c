/* Stand-in for libnccl: collectives are launches that move nothing. It lets a
 * job with one rank set its process group up. A communicator takes the memory that
 * was injected for it, else none.
 * No header: nccl.h needs compiler files that the PyPI wheels lack. */
#include "emulator.h"
#include <stdlib.h>
#include <string.h>

typedef int Result;
enum { SUCCESS = 0, CUDA_ERROR = 1, INVALID_ARGUMENT = 4 };
typedef struct {
  char bytes[128];
} UniqueId;

Result ncclGetVersion(int *version) {
  *version = NCCL_VERSION_CODE; /* read from nccl.h by build.py */
  return SUCCESS;
}
const char *ncclGetErrorString(Result result) {
  (void)result;
  return "emulated GPU";
}
const char *ncclGetLastError(void *communicator) {
  (void)communicator;
  return "";
}
Result ncclGetUniqueId(UniqueId *id) {
  memset(id, 0, sizeof *id);
  return SUCCESS;
}

typedef struct {
  int ranks, device;
  size_t booked;
} Communicator;

static Result create(void **communicator, int ranks) {
  const Injected *injected = &gpu()->injected;
  size_t bytes = injected->nccl_bytes + injected->nccl_bytes_per_rank * (size_t)ranks;
  if (book(current_device(), bytes)) return CUDA_ERROR;
  Communicator *made = malloc(sizeof *made); /* never freed: a program may query its errors after its end */
  *made = (Communicator){ranks, current_device(), bytes};
  *communicator = made;
  return SUCCESS;
}
Result ncclCommInitRankConfig(void **communicator, int ranks, UniqueId id, int rank, void *config) {
  (void)id, (void)rank, (void)config;
  return create(communicator, ranks);
}
Result ncclCommInitRank(void **communicator, int ranks, UniqueId id, int rank) {
  return ncclCommInitRankConfig(communicator, ranks, id, rank, NULL);
}
/* Only the other ranks know how many share the color. It is assumed that all ranks of the parent do. */
Result ncclCommSplit(void *parent, int color, int key, void **communicator, void *config) {
  (void)color, (void)key, (void)config;
  return create(communicator, ((Communicator *)parent)->ranks);
}
Result ncclCommDestroy(void *communicator) {
  Communicator *ended = communicator;
  if (ended) unbook(ended->device, __atomic_exchange_n(&ended->booked, 0, __ATOMIC_RELAXED));
  return SUCCESS;
}
Result ncclCommAbort(void *communicator) { return ncclCommDestroy(communicator); }
Result ncclCommGetAsyncError(void *communicator, Result *error) {
  (void)communicator;
  *error = SUCCESS;
  return SUCCESS;
}
Result ncclMemAlloc(void **pointer, size_t bytes) {
  *pointer = device_malloc(bytes);
  return *pointer ? SUCCESS : CUDA_ERROR;
}
Result ncclMemFree(void *pointer) { return device_free(pointer) ? INVALID_ARGUMENT : SUCCESS; }
