/* Stand-in for libcudart: memory is booked, launches are counted. */
#include "emulator.h"
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

static __thread cudaError_t last_error;

static cudaError_t fail(cudaError_t error) { return last_error = error; }

cudaError_t cudaGetLastError(void) {
  cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}
cudaError_t cudaPeekAtLastError(void) { return last_error; }

const char *cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorNotReady: return "device not ready";
    case cudaErrorInvalidValue: return "invalid argument";
    default: return "error of the emulated GPU";
  }
}
const char *cudaGetErrorName(cudaError_t error) { return cudaGetErrorString(error); }

/* --- devices ------------------------------------------------------------ */
cudaError_t cudaGetDeviceCount(int *count) {
  *count = visible_devices();
  return *count ? cudaSuccess : fail(cudaErrorNoDevice);
}
cudaError_t cudaGetDevice(int *device) {
  *device = current_device();
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  return set_current_device(device) ? fail(cudaErrorInvalidDevice) : cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
  (void)device;
  *value = gpu_attribute(attribute);
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *version) {
  *version = gpu()->driver_version;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *version) {
  *version = gpu()->runtime_version;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
  (void)device, (void)peer;
  *can = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char *id, int length, int device) {
  snprintf(id, length, "00000000:%02X:00.0", device + 1);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(void) {
  synchronize();
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
  const Gpu *g = gpu();
  memset(p, 0, sizeof *p);
  strcpy(p->name, g->name);
  gpu_uuid(device, p->uuid.bytes);
  p->totalGlobalMem = g->capacity_bytes;
  p->sharedMemPerBlock = g->shared_per_block;
  p->sharedMemPerBlockOptin = g->shared_per_block_optin;
  p->sharedMemPerMultiprocessor = g->shared_per_multiprocessor;
  p->reservedSharedMemPerBlock = 1024;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->warpSize = 32;
  p->memPitch = 2147483647;
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->totalConstMem = 65536;
  p->major = g->major;
  p->minor = g->minor;
  p->textureAlignment = p->surfaceAlignment = 512;
  p->texturePitchAlignment = 32;
  p->multiProcessorCount = g->multiprocessors;
  p->maxThreadsPerMultiProcessor = g->threads_per_multiprocessor;
  p->maxBlocksPerMultiProcessor = g->blocks_per_multiprocessor;
  p->l2CacheSize = (int)g->l2_bytes;
  p->memoryBusWidth = 5120;
  p->asyncEngineCount = 3;
  p->pciBusID = device + 1;
  p->canMapHostMemory = p->concurrentKernels = p->ECCEnabled = p->unifiedAddressing = 1;
  p->streamPrioritiesSupported = p->globalL1CacheSupported = p->localL1CacheSupported = 1;
  p->managedMemory = p->concurrentManagedAccess = p->computePreemptionSupported = 1;
  p->canUseHostPointerForRegisteredMem = p->cooperativeLaunch = 1;
  p->hostRegisterSupported = p->memoryPoolsSupported = p->ipcEventSupported = 1;
  p->clusterLaunch = g->major >= 9;
  return cudaSuccess;
}

/* --- device memory ------------------------------------------------------ */
cudaError_t cudaMalloc(void **pointer, size_t bytes) {
  *pointer = bytes ? device_malloc(bytes) : NULL;
  return *pointer || !bytes ? cudaSuccess : fail(cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void *pointer) {
  synchronize(); /* as the real one does */
  return !pointer || !device_free(pointer) || !pinned_free(pointer) ? cudaSuccess : fail(cudaErrorInvalidValue);
}
/* The real pool keeps freed memory up to a threshold; this one keeps none. */
cudaError_t cudaMallocAsync(void **pointer, size_t bytes, cudaStream_t stream) {
  (void)stream;
  return cudaMalloc(pointer, bytes);
}
cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream) {
  (void)stream;
  return !pointer || !device_free(pointer) ? cudaSuccess : fail(cudaErrorInvalidValue);
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device) {
  *pool = (cudaMemPool_t)(intptr_t)(16 + 16 * device);
  return cudaSuccess;
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) {
  int device = ((int)(intptr_t)pool - 16) / 16;
  int is_size = attribute >= cudaMemPoolAttrReleaseThreshold; /* before it: 32-bit flags */
  uint64_t bytes = booked_bytes(device);
  if (attribute == cudaMemPoolAttrReleaseThreshold) bytes = 0;
  if (is_size) memcpy(value, &bytes, 8);
  else memset(value, 0, 4);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
  const Gpu *g = gpu();
  *total_bytes = g->capacity_bytes;
  *free_bytes = g->capacity_bytes - g->context_bytes - booked_bytes(current_device());
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *pointer) {
  memset(a, 0, sizeof *a);
  a->type = cudaMemoryTypeUnregistered;
  a->device = -2; /* cudaInvalidDeviceId */
  if (is_device(pointer)) {
    a->type = cudaMemoryTypeDevice;
    a->device = owner_device(pointer);
    a->devicePointer = (void *)pointer;
  } else if (is_pinned(pointer)) {
    a->type = cudaMemoryTypeHost;
    a->device = 0;
    a->devicePointer = a->hostPointer = (void *)pointer;
  }
  return cudaSuccess;
}
cudaError_t cudaGetSymbolAddress(void **pointer, const void *symbol) {
  (void)symbol;
  *pointer = (void *)DEVICE_BASE;
  return cudaSuccess;
}

/* --- host memory and copies --------------------------------------------- */
cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned int flags) {
  (void)flags;
  *pointer = pinned_malloc(bytes);
  return *pointer ? cudaSuccess : fail(cudaErrorMemoryAllocation);
}
cudaError_t cudaMallocHost(void **pointer, size_t bytes) { return cudaHostAlloc(pointer, bytes, 0); }
/* Managed memory is the host's until a kernel touches it, and none does. */
cudaError_t cudaMallocManaged(void **pointer, size_t bytes, unsigned int flags) {
  return cudaHostAlloc(pointer, bytes, flags);
}
cudaError_t cudaFreeHost(void *pointer) {
  return !pointer || !pinned_free(pointer) ? cudaSuccess : fail(cudaErrorInvalidValue);
}
cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned int flags) {
  (void)flags;
  pinned_register(pointer, bytes);
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void *pointer) {
  pinned_unregister(pointer);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
  (void)kind, (void)stream;
  count_launch();
  copy_memory(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
  synchronize();
  return cudaMemcpyAsync(to, from, bytes, kind, NULL);
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t height, enum cudaMemcpyKind kind,
                              cudaStream_t stream) {
  for (size_t row = 0; row < height; row++)
    cudaMemcpyAsync((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width,
                    kind, stream);
  return cudaSuccess;
}

/* --- streams, events, graphs -------------------------------------------- */
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int priority) {
  (void)flags, (void)priority;
  *stream = new_handle();
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamCreate(cudaStream_t *stream) {
  return cudaStreamCreateWithPriority(stream, 0, 0);
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
  (void)stream;
  *priority = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  (void)stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  (void)stream;
  synchronize();
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags) {
  (void)flags;
  *event = (cudaEvent_t)event_create();
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  event_destroy((Event *)event);
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int flags) {
  (void)stream, (void)flags;
  event_record((Event *)event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, 0);
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return event_done((Event *)event) ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  (void)event;
  synchronize();
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end) {
  (void)start, (void)end;
  *milliseconds = 1000.0f; /* made up: long enough that a program that times a kernel (Triton) repeats it only once */
  return cudaSuccess;
}

/* A graph records nothing; the allocator only asks whether one is captured. */
static cudaStream_t capturing;
static int is_capturing;

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
  (void)mode;
  capturing = stream;
  is_capturing = 1;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
  (void)stream;
  is_capturing = 0;
  *graph = new_handle();
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
  int active = is_capturing && stream == capturing;
  *status = active ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
#if CUDART_VERSION >= 13000
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                     unsigned long long *id, cudaGraph_t *graph,
                                     const cudaGraphNode_t **nodes,
                                     const cudaGraphEdgeData **edges, size_t *count) {
  (void)edges;
#else
cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                        unsigned long long *id, cudaGraph_t *graph,
                                        const cudaGraphNode_t **nodes, size_t *count) {
#endif
  (void)graph, (void)nodes, (void)count; /* read only by code that edits graphs */
  if (id) *id = 1;
  return cudaStreamIsCapturing(stream, status);
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *executable, cudaGraph_t graph,
                                          unsigned long long flags) {
  (void)graph, (void)flags;
  *executable = new_handle();
  return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
  (void)graph, (void)nodes;
  *count = 0;
  return cudaSuccess;
}

/* --- kernels ------------------------------------------------------------ */
typedef struct {
  dim3 grid, block;
  size_t shared;
  void *stream;
} Configuration;
static __thread Configuration configuration;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
  configuration = (Configuration){grid, block, shared, stream};
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
  *grid = configuration.grid;
  *block = configuration.block;
  *shared = configuration.shared;
  *(void **)stream = configuration.stream;
  return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments,
                             size_t shared, cudaStream_t stream) {
  (void)function, (void)grid, (void)block, (void)arguments, (void)shared, (void)stream;
  count_launch();
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(void *kernel, dim3 grid, dim3 block, void **arguments,
                               size_t shared, cudaStream_t stream) {
  return cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}
cudaError_t __cudaGetKernel(void **kernel, const void *function) {
  *kernel = (void *)function;
  return cudaSuccess;
}
static void *fat_binary;
void **__cudaRegisterFatBinary(void *binary) {
  (void)binary;
  return &fat_binary;
}
char __cudaInitModule(void **module) {
  (void)module;
  return 0;
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *function) {
  (void)function;
  memset(a, 0, sizeof *a);
  a->maxThreadsPerBlock = 1024;
  a->numRegs = 64;
  a->ptxVersion = a->binaryVersion = gpu()->binary_version;
  a->maxDynamicSharedSizeBytes = gpu()->shared_per_block;
  return cudaSuccess;
}
/* As many blocks as threads and slots allow: registers are not known. */
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function,
                                                                   int threads, size_t shared,
                                                                   unsigned int flags) {
  (void)function, (void)shared, (void)flags;
  int fit = gpu()->threads_per_multiprocessor / (threads > 0 ? threads : 1);
  int slots = gpu()->blocks_per_multiprocessor;
  *blocks = fit < 1 ? 1 : fit < slots ? fit : slots;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function,
                                                          int threads, size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared, 0);
}

/* --- driver functions by name ------------------------------------------- */
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function,
                                             unsigned int version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *status) {
  (void)version, (void)flags;
  *function = driver_function(symbol);
  if (status)
    *status = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags,
                                    enum cudaDriverEntryPointQueryResult *status) {
  return cudaGetDriverEntryPointByVersion(symbol, function, 0, flags, status);
}
