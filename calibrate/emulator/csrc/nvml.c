/* Stand-in for libnvidia-ml.so.1. Reports what this process has booked. The
 * wheels have no nvml.h: the few structures are part of NVML's interface. */
#include "emulator.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int Result; /* 0: success */
enum { INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6 };

static void *handle_of(int device) { return (void *)(intptr_t)(device + 1); }
static int device_of(void *handle) { return (int)(intptr_t)handle - 1; }

Result nvmlInit_v2(void) { return 0; }
Result nvmlInit(void) { return 0; }
Result nvmlInitWithFlags(unsigned flags) { return (void)flags, 0; }
Result nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(Result result) { return result ? "not supported by the emulated GPU" : "success"; }

static Result text(char *buffer, unsigned length, const char *value) {
  snprintf(buffer, length, "%s", value);
  return 0;
}
Result nvmlSystemGetDriverVersion(char *buffer, unsigned length) { return text(buffer, length, "0.0-emulated"); }
Result nvmlSystemGetNVMLVersion(char *buffer, unsigned length) { return text(buffer, length, "0.0-emulated"); }
Result nvmlSystemGetCudaDriverVersion_v2(int *version) {
  *version = gpu()->driver_version;
  return 0;
}
Result nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

/* NVML counts the machine's devices, whatever CUDA_VISIBLE_DEVICES says. */
Result nvmlDeviceGetCount_v2(unsigned *count) {
  *count = gpu()->devices;
  return 0;
}
Result nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }
Result nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
  if (index >= (unsigned)gpu()->devices) return INVALID_ARGUMENT;
  *handle = handle_of(index);
  return 0;
}
Result nvmlDeviceGetHandleByIndex(unsigned index, void **handle) {
  return nvmlDeviceGetHandleByIndex_v2(index, handle);
}
Result nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **handle) {
  unsigned domain, bus;
  if (sscanf(id, "%x:%x", &domain, &bus) != 2 || bus < 1) return NOT_FOUND;
  return nvmlDeviceGetHandleByIndex_v2(bus - 1, handle);
}
static void uuid_text(int device, char text[48]) {
  snprintf(text, 48, "GPU-00000000-0000-0000-0000-%012d", device);
}
Result nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
  char own[48];
  for (int device = 0; device < gpu()->devices; device++) {
    uuid_text(device, own);
    if (!strcmp(own, uuid)) return nvmlDeviceGetHandleByIndex_v2(device, handle);
  }
  return NOT_FOUND;
}
Result nvmlDeviceGetUUID(void *handle, char *buffer, unsigned length) {
  char own[48];
  uuid_text(device_of(handle), own);
  return text(buffer, length, own);
}
Result nvmlDeviceGetIndex(void *handle, unsigned *index) {
  *index = device_of(handle);
  return 0;
}
Result nvmlDeviceGetMinorNumber(void *handle, unsigned *index) { return nvmlDeviceGetIndex(handle, index); }
Result nvmlDeviceGetName(void *handle, char *buffer, unsigned length) {
  (void)handle;
  return text(buffer, length, gpu()->name);
}
Result nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
  (void)handle;
  *major = gpu()->major;
  *minor = gpu()->minor;
  return 0;
}

/* --- memory and processes ----------------------------------------------- */
static size_t used(void *handle) { return gpu()->context_bytes + booked_bytes(device_of(handle)); }

typedef struct {
  unsigned long long total, free, used;
} Memory;
typedef struct {
  unsigned version;
  unsigned long long total, reserved, free, used;
} Memory_v2;

Result nvmlDeviceGetMemoryInfo(void *handle, Memory *memory) {
  size_t total = gpu()->capacity_bytes;
  *memory = (Memory){total, total - used(handle), used(handle)};
  return 0;
}
Result nvmlDeviceGetMemoryInfo_v2(void *handle, Memory_v2 *memory) {
  size_t total = gpu()->capacity_bytes;
  *memory = (Memory_v2){memory->version, total, 0, total - used(handle), used(handle)};
  return 0;
}

typedef struct {
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance, compute_instance;
} Process;

Result nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, Process *processes) {
  unsigned room = *count;
  *count = used(handle) ? 1 : 0;
  if (room < *count) return 7; /* insufficient size: the caller asks again */
  if (*count) processes[0] = (Process){(unsigned)getpid(), used(handle), ~0u, ~0u};
  return 0;
}
Result nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, unsigned *count, Process *processes) {
  (void)handle, (void)processes;
  *count = 0;
  return 0;
}
/* The unversioned call, by which PyTorch means version 1 or later, adds the
 * processes to its out-of-memory message; none is the safe answer. */
Result nvmlDeviceGetComputeRunningProcesses(void *handle, unsigned *count, void *processes) {
  (void)handle, (void)processes;
  *count = 0;
  return 0;
}

/* --- what only hardware can tell ---------------------------------------- */
#define UNSUPPORTED(name) Result name(void) { return NOT_SUPPORTED; }
UNSUPPORTED(nvmlDeviceGetNvLinkRemoteDeviceType) UNSUPPORTED(nvmlDeviceGetNvLinkRemotePciInfo_v2)
UNSUPPORTED(nvmlDeviceGetGpuFabricInfoV) UNSUPPORTED(nvmlDeviceGetUtilizationRates)
UNSUPPORTED(nvmlDeviceGetTemperature) UNSUPPORTED(nvmlDeviceGetPowerUsage)
UNSUPPORTED(nvmlDeviceGetClockInfo) UNSUPPORTED(nvmlDeviceGetPciInfo_v3)
UNSUPPORTED(nvmlDeviceGetTotalEnergyConsumption)
