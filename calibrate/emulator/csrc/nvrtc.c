/* Stand-in for libnvrtc: kernels that PyTorch compiles at run time (random
 * initialisation, some special functions) need no code here.
 * A library of its own, because PyTorch opens it by name. */
#include <stddef.h>

typedef int Result; /* 0: success */

static int a_program; /* its address is the handle of every program */
#define DONE(name) \
  Result name(void) { return 0; }
DONE(nvrtcCompileProgram) DONE(nvrtcAddNameExpression) DONE(nvrtcDestroyProgram)

Result nvrtcVersion(int *major, int *minor) {
  *major = NVRTC_MAJOR;
  *minor = 0;
  return 0;
}
const char *nvrtcGetErrorString(Result result) {
  (void)result;
  return "emulated GPU";
}
Result nvrtcCreateProgram(void **program, const char *source, const char *name, int count,
                          const char *const *headers, const char *const *names) {
  (void)source, (void)name, (void)count, (void)headers, (void)names;
  *program = &a_program;
  return 0;
}
Result nvrtcGetLoweredName(void *program, const char *expression, const char **name) {
  (void)program, (void)expression;
  *name = "kernel";
  return 0;
}
#define SIZE(function)                             \
  Result function(void *program, size_t *size) {   \
    (void)program;                                 \
    *size = 1;                                     \
    return 0;                                      \
  }
#define TEXT(function)                             \
  Result function(void *program, char *text) {     \
    (void)program;                                 \
    *text = 0;                                     \
    return 0;                                      \
  }
SIZE(nvrtcGetPTXSize) SIZE(nvrtcGetCUBINSize) SIZE(nvrtcGetProgramLogSize)
TEXT(nvrtcGetPTX) TEXT(nvrtcGetCUBIN) TEXT(nvrtcGetProgramLog)
