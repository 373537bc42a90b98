/* Stand-in for libnccl: collectives are launches that move nothing. It lets a
 * job with one rank set its process group up; NCCL's own buffers are missing. */
#include "emulator.h"
#include <nccl.h>
#include <string.h>

ncclResult_t ncclGetVersion(int *version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
const char *ncclGetErrorString(ncclResult_t result) {
  (void)result;
  return "emulated GPU";
}
const char *ncclGetLastError(ncclComm_t communicator) {
  (void)communicator;
  return "";
}
ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
  memset(id, 0, sizeof *id);
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t *communicator, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config) {
  (void)ranks, (void)id, (void)rank, (void)config;
  *communicator = new_handle();
  return ncclSuccess;
}
ncclResult_t ncclCommInitRank(ncclComm_t *communicator, int ranks, ncclUniqueId id, int rank) {
  return ncclCommInitRankConfig(communicator, ranks, id, rank, NULL);
}
ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t *communicator,
                           ncclConfig_t *config) {
  (void)parent, (void)color, (void)key, (void)config;
  *communicator = new_handle();
  return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t *error) {
  (void)communicator;
  *error = ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclMemAlloc(void **pointer, size_t bytes) {
  *pointer = device_malloc(bytes);
  return *pointer ? ncclSuccess : ncclUnhandledCudaError;
}
ncclResult_t ncclMemFree(void *pointer) {
  return device_free(pointer) ? ncclInvalidArgument : ncclSuccess;
}
