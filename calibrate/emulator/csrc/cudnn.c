/* Stand-in for libcudnn's handles and its older interface; its graphs are in
 * cudnn_graph.c. */
#include "emulator.h"
#include <cudnn.h>

size_t cudnnGetVersion(void) { return CUDNN_VERSION; }
size_t cudnnGetCudartVersion(void) { return gpu()->runtime_version; }
const char *cudnnGetErrorString(cudnnStatus_t status) {
  if (status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED)
    return "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED";
  return status == CUDNN_STATUS_SUCCESS ? "success"
       : "the emulated GPU does not have this part of cuDNN, such as recurrent layers: use a real GPU";
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
  if (book_first_use(CUDNN, gpu()->injected.cudnn_bytes))
    return CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
  *handle = new_handle();
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t *stream) {
  (void)handle;
  *stream = NULL;
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
