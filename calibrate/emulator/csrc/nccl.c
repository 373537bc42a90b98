/* Stand-in for libnccl: collectives are launches that move nothing. It lets a
 * job with one rank set its process group up; NCCL's own buffers are missing.
 * No header: nccl.h needs compiler files that the PyPI wheels lack. */
#include "emulator.h"
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
Result ncclCommInitRankConfig(void **communicator, int ranks, UniqueId id, int rank, void *config) {
  (void)ranks, (void)id, (void)rank, (void)config;
  *communicator = new_handle();
  return SUCCESS;
}
Result ncclCommInitRank(void **communicator, int ranks, UniqueId id, int rank) {
  return ncclCommInitRankConfig(communicator, ranks, id, rank, NULL);
}
Result ncclCommSplit(void *parent, int color, int key, void **communicator, void *config) {
  (void)parent, (void)color, (void)key, (void)config;
  *communicator = new_handle();
  return SUCCESS;
}
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
