/* nccl.h includes this for C++ only; as C it does not compile with some CUDA 12 headers. */
