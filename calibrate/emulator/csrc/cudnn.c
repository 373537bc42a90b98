/* Stand-in for libcudnn: one engine for every graph, without a workspace of its
 * own. The frontend inside PyTorch is host code and computes its own buffers. */
#include "emulator.h"
#include <cudnn.h>

size_t cudnnGetVersion(void) { return CUDNN_VERSION; }
size_t cudnnGetCudartVersion(void) { return gpu()->runtime_version; }
const char *cudnnGetErrorString(cudnnStatus_t status) {
  return status == CUDNN_STATUS_SUCCESS ? "success" : "error of the emulated GPU";
}
void cudnnGetLastErrorString(char *message, size_t size) {
  if (size) *message = 0;
}
cudnnStatus_t cudnnGetProperty(libraryPropertyType type, int *value) {
  int version[] = {CUDNN_MAJOR, CUDNN_MINOR, CUDNN_PATCHLEVEL};
  *value = version[type];
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) {
  *handle = new_handle();
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t *stream) {
  (void)handle;
  *stream = NULL;
  return CUDNN_STATUS_SUCCESS;
}

/* --- graphs ------------------------------------------------------------- */
cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t *descriptor) {
  (void)type;
  *descriptor = new_handle();
  return CUDNN_STATUS_SUCCESS;
}

/* Numbers are 0 (engine index, workspace, shared memory), lists are empty, and
 * there is one heuristic result, whose engine is the caller's own descriptor. */
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t wanted,
                                       int64_t *found, void *values) {
  (void)descriptor;
  int64_t count = 0;
  if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS || name == CUDNN_ATTR_ENGINECFG_ENGINE) {
    count = 1;
  } else if (type == CUDNN_TYPE_INT64 && wanted > 0) {
    count = 1;
    if (values) *(int64_t *)values = name == CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT;
  } else if (type == CUDNN_TYPE_INT32 && wanted > 0) {
    count = 1;
    if (values) *(int32_t *)values = 0;
  }
  if (found) *found = count;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t variant) {
  (void)handle, (void)plan, (void)variant;
  count_launch();
  return CUDNN_STATUS_SUCCESS;
}

/* --- the older interface ------------------------------------------------ */
#define CREATE(name)                                   \
  cudnnStatus_t cudnnCreate##name(cudnn##name##_t *d) { \
    *d = new_handle();                                 \
    return CUDNN_STATUS_SUCCESS;                       \
  }
CREATE(TensorDescriptor) CREATE(FilterDescriptor) CREATE(ConvolutionDescriptor)
CREATE(ActivationDescriptor) CREATE(DropoutDescriptor) CREATE(PoolingDescriptor)
CREATE(RNNDescriptor) CREATE(RNNDataDescriptor) CREATE(CTCLossDescriptor)
CREATE(SpatialTransformerDescriptor)

cudnnStatus_t cudnnDropoutGetStatesSize(cudnnHandle_t handle, size_t *bytes) {
  (void)handle;
  *bytes = 0;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t ops,
    const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t z,
    const cudnnTensorDescriptor_t y, const cudnnTensorDescriptor_t statistics,
    const cudnnActivationDescriptor_t activation, size_t *bytes) {
  (void)handle, (void)mode, (void)ops, (void)x, (void)z, (void)y, (void)statistics;
  (void)activation;
  *bytes = 0;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t ops,
    const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t y,
    const cudnnTensorDescriptor_t dy, const cudnnTensorDescriptor_t dz,
    const cudnnTensorDescriptor_t dx, const cudnnTensorDescriptor_t statistics,
    const cudnnActivationDescriptor_t activation, size_t *bytes) {
  (void)handle, (void)mode, (void)ops, (void)x, (void)y, (void)dy, (void)dz, (void)dx;
  (void)statistics, (void)activation;
  *bytes = 0;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t ops,
    const cudnnActivationDescriptor_t activation, const cudnnTensorDescriptor_t x, size_t *bytes) {
  (void)handle, (void)mode, (void)ops, (void)activation, (void)x;
  *bytes = 0;
  return CUDNN_STATUS_SUCCESS;
}
