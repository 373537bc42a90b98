/* The CUDA headers in the PyPI wheels need this file but do not contain it.
 * Only the words that host declarations use are defined, each as nothing. */
#pragma once
#define __no_return__ __attribute__((noreturn))
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)
#define __location__(a)
#define CUDARTAPI
#define CUDARTAPI_CDECL
#define CUDA_CB
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __host__
#define __device__
