/* Stand-in for libcublas and libcublasLt. PyTorch allocates their workspaces
 * itself, so that part stays real. No header: cublas_api.h needs compiler
 * files that the PyPI wheels lack. */
#include "emulator.h"
#include <string.h>

typedef int Status; /* 0: success */
enum { ALLOC_FAILED = 3 };

Status cublasCreate_v2(void **handle) {
  if (book_first_use(CUBLAS, gpu()->injected.cublas_bytes)) return ALLOC_FAILED;
  *handle = new_handle();
  return 0;
}
Status cublasGetPointerMode_v2(void *handle, int *mode) {
  (void)handle;
  *mode = 0;
  return 0;
}
Status cublasGetMathMode(void *handle, int *mode) {
  (void)handle;
  *mode = 0;
  return 0;
}
Status cublasGetVersion_v2(void *handle, int *version) {
  (void)handle;
  *version = gpu()->runtime_version / 1000 * 10000;
  return 0;
}

/* Every matrix product passes one of these: they count as launches. */
#define GEMM(name)      \
  Status name(void) {   \
    count_launch();     \
    return 0;           \
  }
GEMM(cublasGemmEx) GEMM(cublasGemmStridedBatchedEx) GEMM(cublasSgemm_v2) GEMM(cublasDgemm_v2)
GEMM(cublasSgemmStridedBatched) GEMM(cublasDgemmStridedBatched) GEMM(cublasLtMatmul)

size_t cublasLtGetVersion(void) { return gpu()->runtime_version / 1000 * 10000; }
Status cublasLtCreate(void **handle) { return cublasCreate_v2(handle); }
Status cublasLtMatmulDescCreate(void **descriptor, int compute_type, int scale_type) {
  (void)compute_type, (void)scale_type;
  *descriptor = new_handle();
  return 0;
}
Status cublasLtMatmulPreferenceCreate(void **preference) {
  *preference = new_handle();
  return 0;
}
Status cublasLtMatrixLayoutCreate(void **layout, int type, uint64_t rows, uint64_t columns,
                                  int64_t leading_dimension) {
  (void)type, (void)rows, (void)columns, (void)leading_dimension;
  *layout = new_handle();
  return 0;
}

/* cublasLtMatmulHeuristicResult_t, which is part of the library's interface. */
typedef struct {
  uint64_t algorithm[8];
  size_t workspace_bytes;
  Status state;
  float waves;
  int reserved[4];
} Heuristic;

Status cublasLtMatmulAlgoGetHeuristic(void *handle, void *descriptor, void *a, void *b, void *c,
                                      void *d, void *preference, int wanted, Heuristic *results,
                                      int *found) {
  (void)handle, (void)descriptor, (void)a, (void)b, (void)c, (void)d, (void)preference;
  *found = wanted > 0;
  if (wanted > 0) memset(results, 0, sizeof *results);
  return 0;
}
