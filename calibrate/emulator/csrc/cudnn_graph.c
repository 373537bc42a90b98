/* Stand-in for cuDNN's graphs: one engine for every graph. The frontend inside
 * PyTorch is host code and computes its own buffers. The engine's private
 * workspace is what was measured on an H200 for heads that share keys, and what
 * was injected for the kind of graph. */
#include "emulator.h"
#include <cudnn.h>
#include <stdlib.h>

/* What a graph computes, and the elements of the tensor that its workspace goes
 * by: the result of attention, the gradient of attention's query (as many as
 * the query has), and what a convolution writes (y, dx or dw). */
typedef enum { OTHER, ATTENTION_FORWARD, ATTENTION_BACKWARD, CONVOLUTION } Kind;
typedef struct {
  Kind kind;
  int64_t elements;
  int64_t own_bytes; /* of the engine itself, whatever is injected */
} Work;

typedef struct {
  int64_t elements, heads; /* 0 of a virtual tensor inside a graph, which has no memory */
} Tensor;

/* Tensors have sizes; operations keep those of their first two inputs and of
 * their output; graphs, and whatever leads from one to an execution plan, have
 * work. */
typedef struct {
  cudnnBackendDescriptorType_t type;
  Tensor tensor;
  int is_virtual;
  Tensor left, right, writes;
  Work work;
} Descriptor;

/* Attention as one operation: older headers lack the names, the numbers are
 * part of the library's interface. */
enum { SDPA_FORWARD = 41, SDPA_BACKWARD = 43 };            /* descriptor types */
enum { SDPA_FORWARD_RESULT = 2803, SDPA_BACKWARD_K = 2852, SDPA_BACKWARD_DQ = 2859 }; /* their attributes */

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t *descriptor) {
  Descriptor *made = calloc(1, sizeof *made);
  made->type = type;
  *descriptor = made;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  free(descriptor);
  return CUDNN_STATUS_SUCCESS;
}

/* If query heads share keys, the engine writes dK and dV of all query heads, of
 * two bytes, and then adds them up. */
static Work attention_backward(Tensor query, Tensor keys) {
  Work work = {ATTENTION_BACKWARD, query.elements, 0};
  if (keys.heads && keys.heads != query.heads) work.own_bytes = 2 * 2 * (keys.elements / keys.heads * query.heads);
  return work;
}

/* Attention comes as one operation, or spelled out: two matrix products forward
 * (Q K' and P V) and five backward, of which Q K' comes first. */
static Work work_of(Descriptor *const *operations, int64_t count) {
  int products = 0;
  int64_t result = 0;
  Tensor query = {0}, keys = {0};
  for (int64_t at = 0; at < count; at++) {
    const Descriptor *operation = operations[at];
    switch ((int)operation->type) {
      case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
      case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
      case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
        return (Work){CONVOLUTION, operation->writes.elements, 0};
      case SDPA_FORWARD: return (Work){ATTENTION_FORWARD, operation->writes.elements, 0};
      case SDPA_BACKWARD: return attention_backward(operation->writes, operation->right);
      case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        products++;
        if (!query.elements) query = operation->left, keys = operation->right;
        if (operation->writes.elements) result = operation->writes.elements;
        break;
      default: break;
    }
  }
  if (products == 2) return (Work){ATTENTION_FORWARD, result, 0};
  if (products == 5) return attention_backward(query, keys);
  return (Work){OTHER, 0, 0};
}

static Tensor in_memory(const Descriptor *tensor) { return tensor->is_virtual ? (Tensor){0} : tensor->tensor; }

static void take_reference(Descriptor *descriptor, cudnnBackendAttributeName_t name, int64_t count,
                           Descriptor *const *values) {
  if (count < 1 || !values[0]) return;
  switch ((int)name) {
    case CUDNN_ATTR_OPERATION_MATMUL_ADESC: descriptor->left = in_memory(values[0]); return;
    case CUDNN_ATTR_OPERATION_MATMUL_BDESC:
    case SDPA_BACKWARD_K:
      descriptor->right = in_memory(values[0]);
      return;
    case CUDNN_ATTR_OPERATION_MATMUL_CDESC:
    case CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y:
    case CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX:
    case CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW:
    case SDPA_FORWARD_RESULT:
    case SDPA_BACKWARD_DQ:
      descriptor->writes = in_memory(values[0]);
      return;
    case CUDNN_ATTR_OPERATIONGRAPH_OPS: descriptor->work = work_of(values, count); return;
    case CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH:
    case CUDNN_ATTR_ENGINE_OPERATION_GRAPH:
    case CUDNN_ATTR_ENGINECFG_ENGINE:
    case CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG: descriptor->work = values[0]->work; return;
    default: return;
  }
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void *values) {
  Descriptor *own = descriptor;
  if (name == CUDNN_ATTR_TENSOR_DIMENSIONS) {
    const int64_t *dimensions = values; /* batch, heads, ... */
    own->tensor = (Tensor){1, count > 1 ? dimensions[1] : 1};
    for (int64_t at = 0; at < count; at++) own->tensor.elements *= dimensions[at];
  } else if (name == CUDNN_ATTR_TENSOR_IS_VIRTUAL) {
    own->is_virtual = *(const char *)values;
  } else if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    take_reference(own, name, count, values);
  }
  return CUDNN_STATUS_SUCCESS;
}

static int64_t workspace_bytes(Work work) {
  const Injected *injected = &gpu()->injected;
  const Workspace *of_kind[] = {
      [ATTENTION_FORWARD] = &injected->attention_forward,
      [ATTENTION_BACKWARD] = &injected->attention_backward,
      [CONVOLUTION] = &injected->convolution,
  };
  if (work.kind == OTHER) return 0;
  const Workspace *w = of_kind[work.kind];
  unsigned __int128 scaled = (unsigned __int128)w->numerator * (uint64_t)work.elements;
  size_t by_elements = w->denominator ? (size_t)((scaled + w->denominator - 1) / w->denominator) : 0;
  return work.own_bytes + (int64_t)(w->fixed_bytes + by_elements);
}

/* CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE, which the headers of cuDNN 9.1 do not name. */
enum { ENGINECFG_WORKSPACE_SIZE = 303 };

/* Numbers are 0 (engine index, shared memory) but for the workspace, lists are
 * empty, and there is one heuristic result, which is the caller's own
 * descriptor, as is its engine. */
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t wanted,
                                       int64_t *found, void *values) {
  Work work = ((Descriptor *)descriptor)->work;
  int64_t count = 0;
  if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS || name == CUDNN_ATTR_ENGINECFG_ENGINE) {
    count = 1;
    Descriptor *const *results = values;
    if (wanted > 0 && results && results[0]) results[0]->work = work;
  } else if (type == CUDNN_TYPE_INT64 && wanted > 0) {
    count = 1;
    int64_t value = name == CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT;
    if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE || (int)name == ENGINECFG_WORKSPACE_SIZE)
      value = workspace_bytes(work);
    if (values) *(int64_t *)values = value;
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
