/* Stand-in for libcuda.so.1, the driver: what PyTorch and Triton ask of it. */
#define _GNU_SOURCE
#include "emulator.h"
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static int a_context; /* its address is the handle of the only context */
#define CONTEXT ((CUcontext)&a_context)

CUresult cuInit(unsigned int flags) {
  (void)flags;
  return visible_devices() ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}
CUresult cuDriverGetVersion(int *version) {
  *version = gpu()->driver_version;
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult error, const char **text) {
  *text = error == CUDA_SUCCESS ? "no error"
          : error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "error of the emulated GPU";
  return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult error, const char **text) { return cuGetErrorString(error, text); }

/* --- devices and contexts ----------------------------------------------- */
CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  *device = ordinal;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int *count) {
  *count = visible_devices();
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
  (void)device;
  snprintf(name, length, "%s", gpu()->name);
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
  gpu_uuid(device, uuid->bytes);
  return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device) {
  (void)device;
  *bytes = gpu()->capacity_bytes;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  (void)device;
  *value = gpu_attribute(attribute);
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  (void)device;
  *context = CONTEXT;
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active) {
  (void)device;
  *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext *context) {
  *context = CONTEXT;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice *device) {
  *device = current_device();
  return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext context) {
  (void)context;
  return CUDA_SUCCESS;
}
CUresult cuCtxPushCurrent(CUcontext context) { return cuCtxSetCurrent(context); }
CUresult cuCtxPopCurrent(CUcontext *context) {
  if (context) *context = CONTEXT;
  return CUDA_SUCCESS;
}
CUresult cuCtxSynchronize(void) {
  synchronize();
  return CUDA_SUCCESS;
}

/* --- memory ------------------------------------------------------------- */
CUresult cuMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
  const Gpu *g = gpu();
  *total_bytes = g->capacity_bytes;
  *free_bytes = g->capacity_bytes - g->context_bytes - booked_bytes(current_device());
  return CUDA_SUCCESS;
}
CUresult cuMemAlloc(CUdeviceptr *pointer, size_t bytes) {
  *pointer = (CUdeviceptr)device_malloc(bytes);
  return *pointer ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuMemFree(CUdeviceptr pointer) {
  return device_free((void *)pointer) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr pointer) {
  int on_device = is_device((void *)pointer);
  if (!on_device && !is_pinned((void *)pointer)) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)data = CONTEXT; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER: *(CUdeviceptr *)data = pointer; break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *(unsigned *)data = on_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
      break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: *(unsigned long long *)data = pointer; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)data = owner_device((void *)pointer); break;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

/* Virtual memory (PyTorch's expandable segments): addresses are reserved
 * freely, pages are booked when created and given back when released. */
typedef struct {
  size_t bytes;
  int device, users;
} Pages;
#define MAX_PAGES 65536
static Pages pages[MAX_PAGES]; /* a handle is an index plus one */
static pthread_mutex_t pages_lock = PTHREAD_MUTEX_INITIALIZER;

CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *properties,
                                       CUmemAllocationGranularity_flags option) {
  (void)properties, (void)option;
  *bytes = BOOKING_UNIT;
  return CUDA_SUCCESS;
}
CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t bytes, size_t alignment,
                             CUdeviceptr wish, unsigned long long flags) {
  (void)wish, (void)flags;
  *pointer = reserve_addresses(bytes, alignment);
  return *pointer ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuMemAddressFree(CUdeviceptr pointer, size_t bytes) {
  (void)bytes;
  return release_addresses(pointer) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                     const CUmemAllocationProp *properties, unsigned long long flags) {
  (void)flags;
  int device = properties->location.id;
  if (book(device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  pthread_mutex_lock(&pages_lock);
  int free_index = 0;
  while (free_index < MAX_PAGES && pages[free_index].users) free_index++;
  if (free_index < MAX_PAGES) pages[free_index] = (Pages){bytes, device, 1};
  pthread_mutex_unlock(&pages_lock);
  if (free_index == MAX_PAGES) {
    unbook(device, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *handle = (CUmemGenericAllocationHandle)free_index + 1;
  return CUDA_SUCCESS;
}
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  if (!handle || handle > MAX_PAGES) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&pages_lock);
  Pages *page = &pages[handle - 1];
  int last = page->users > 0 && --page->users == 0;
  pthread_mutex_unlock(&pages_lock);
  if (last) unbook(page->device, page->bytes);
  return CUDA_SUCCESS;
}
CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags) {
  (void)pointer, (void)bytes, (void)offset, (void)handle, (void)flags;
  return CUDA_SUCCESS;
}
CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes) {
  (void)pointer, (void)bytes;
  synchronize();
  return CUDA_SUCCESS;
}
CUresult cuMemSetAccess(CUdeviceptr pointer, size_t bytes, const CUmemAccessDesc *access, size_t n) {
  (void)pointer, (void)bytes, (void)access, (void)n;
  return CUDA_SUCCESS;
}
/* Memory of one process cannot be shown to another here. */
CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
  (void)shareable, (void)handle, (void)type, (void)flags;
  return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
                                        CUmemAllocationHandleType type) {
  (void)handle, (void)shareable, (void)type;
  return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
  (void)handle, (void)address;
  return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties,
                                                CUmemGenericAllocationHandle handle) {
  (void)properties, (void)handle;
  return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult cuMemsetD32Async(CUdeviceptr pointer, unsigned int value, size_t count, CUstream stream) {
  (void)pointer, (void)value, (void)count, (void)stream;
  count_launch();
  return CUDA_SUCCESS;
}
CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr pointer, cuuint32_t value,
                              unsigned int flags) {
  (void)stream, (void)pointer, (void)value, (void)flags;
  return CUDA_SUCCESS;
}

/* --- modules and launches (Triton, kernels compiled at run time) -------- */
CUresult cuModuleLoadData(CUmodule *module, const void *image) {
  (void)image;
  *module = new_handle();
  return CUDA_SUCCESS;
}
CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count,
                            CUjit_option *options, void **values) {
  (void)count, (void)options, (void)values;
  return cuModuleLoadData(module, image);
}
CUresult cuModuleLoad(CUmodule *module, const char *path) { return cuModuleLoadData(module, path); }
CUresult cuModuleUnload(CUmodule module) {
  (void)module;
  return CUDA_SUCCESS;
}
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  (void)module, (void)name;
  *function = new_handle();
  return CUDA_SUCCESS;
}
CUresult cuModuleGetGlobal(CUdeviceptr *pointer, size_t *bytes, CUmodule module, const char *name) {
  (void)module, (void)name;
  if (pointer) *pointer = DEVICE_BASE;
  if (bytes) *bytes = 0;
  return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
  (void)function;
  *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024
           : attribute == CU_FUNC_ATTRIBUTE_NUM_REGS ? 64 : 0;
  return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  (void)function, (void)attribute, (void)value;
  return CUDA_SUCCESS;
}
CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) {
  (void)function, (void)config;
  return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads,
                                                     size_t shared) {
  (void)function, (void)shared;
  *blocks = gpu()->threads_per_multiprocessor / (threads > 0 ? threads : 1);
  return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction function,
                                      const CUlaunchConfig *config) {
  (void)function, (void)config;
  *clusters = gpu()->multiprocessors;
  return CUDA_SUCCESS;
}
CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                        unsigned by, unsigned bz, unsigned shared, CUstream stream,
                        void **arguments, void **extra) {
  (void)function, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz;
  (void)shared, (void)stream, (void)arguments, (void)extra;
  count_launch();
  return CUDA_SUCCESS;
}
CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz,
                                   unsigned bx, unsigned by, unsigned bz, unsigned shared,
                                   CUstream stream, void **arguments) {
  return cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, arguments, NULL);
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **arguments,
                          void **extra) {
  (void)config, (void)function, (void)arguments, (void)extra;
  count_launch();
  return CUDA_SUCCESS;
}
CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank,
                                void *address, const cuuint64_t *sizes, const cuuint64_t *strides,
                                const cuuint32_t *box, const cuuint32_t *steps,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  (void)type, (void)rank, (void)address, (void)sizes, (void)strides, (void)box, (void)steps;
  (void)interleave, (void)swizzle, (void)promotion, (void)fill;
  memset(map, 0, sizeof *map);
  return CUDA_SUCCESS;
}

/* Tables of functions that only NVIDIA's own tools know, such as CUPTI, which PyTorch's profiler asks for activities. */
CUresult cuGetExportTable(const void **table, const CUuuid *id) {
  (void)id;
  *table = NULL;
  return CUDA_ERROR_NOT_FOUND;
}

void *driver_function(const char *name) {
  static const char *const versions[] = {"%s_v3", "%s_v2", "%s"};
  char versioned[128];
  void *function = NULL;
  for (int i = 0; i < 3 && !function; i++) {
    snprintf(versioned, sizeof versioned, versions[i], name);
    function = dlsym(RTLD_DEFAULT, versioned);
  }
  return function;
}
CUresult cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags,
                          CUdriverProcAddressQueryResult *status) {
  (void)version, (void)flags;
  *function = driver_function(symbol);
  if (status)
    *status = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
