/* Answers to device-attribute queries. The runtime's and the driver's numbers
 * for an attribute are the same (driver_types.h, cuda.h). */
#include "emulator.h"
#include <driver_types.h>

int gpu_attribute(int attribute) {
  const Gpu *g = gpu();
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY: return 1024;
    case cudaDevAttrMaxBlockDimZ: return 64;
    case cudaDevAttrMaxGridDimX: return 2147483647;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ: return 65535;
    case cudaDevAttrMaxSharedMemoryPerBlock: return g->shared_per_block;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return g->shared_per_block_optin;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return g->shared_per_multiprocessor;
    case cudaDevAttrReservedSharedMemoryPerBlock: return 1024;
    case cudaDevAttrTotalConstantMemory: return 65536;
    case cudaDevAttrWarpSize: return 32;
    case cudaDevAttrMaxPitch: return 2147483647;
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor: return 65536;
    case cudaDevAttrTextureAlignment:
    case cudaDevAttrSurfaceAlignment: return 512;
    case cudaDevAttrTexturePitchAlignment: return 32;
    case cudaDevAttrClockRate: return 1500000;       /* kHz; only printed */
    case cudaDevAttrMemoryClockRate: return 2500000; /* kHz; only printed */
    case cudaDevAttrGlobalMemoryBusWidth: return 5120;
    case cudaDevAttrMultiProcessorCount: return g->multiprocessors;
    case cudaDevAttrL2CacheSize: return (int)g->l2_bytes;
    case cudaDevAttrMaxThreadsPerMultiProcessor: return g->threads_per_multiprocessor;
    case cudaDevAttrMaxBlocksPerMultiprocessor: return g->blocks_per_multiprocessor;
    case cudaDevAttrComputeCapabilityMajor: return g->major;
    case cudaDevAttrComputeCapabilityMinor: return g->minor;
    case cudaDevAttrAsyncEngineCount: return 3;
    case cudaDevAttrClusterLaunch: return g->major >= 9;
    case cudaDevAttrSingleToDoublePrecisionPerfRatio: return 2;
    case cudaDevAttrGpuOverlap:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrEccEnabled:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrStreamPrioritiesSupported:
    case cudaDevAttrGlobalL1CacheSupported:
    case cudaDevAttrLocalL1CacheSupported:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrConcurrentManagedAccess:
    case cudaDevAttrComputePreemptionSupported:
    case cudaDevAttrCanUseHostPointerForRegisteredMem:
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrHostRegisterSupported:
    case cudaDevAttrMemoryPoolsSupported:
    case cudaDevAttrMemoryPoolSupportedHandleTypes:
    case cudaDevAttrIpcEventSupport:
    case 102: /* virtual memory management (expandable segments) */
    case 103: return 1; /* its memory as a file descriptor */
    default: return 0;
  }
}
