/* The one function of PyTorch that is replaced: "is a Python dispatch mode on?"
 * Operators inside libtorch_cpu.so that ask it avoid in-place updates under a
 * mode, which would change the memory that is being measured. The integer
 * tracker is such a mode and lets every operator run as it is. So these operators
 * get the answer "no". The Python bindings, which pass operators to the mode, get
 * the true answer. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>

static uintptr_t cpu_start, cpu_end;
static _Bool (*truth)(void);
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* c10::impl::dispatch_mode_enabled() */
#define NAME _ZN3c104impl21dispatch_mode_enabledEv
#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)

static int find_cpu(struct dl_phdr_info *info, size_t size, void *data) {
  (void)size, (void)data;
  if (!strstr(info->dlpi_name, "/libtorch_cpu.so")) return 0;
  cpu_start = info->dlpi_addr;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    uintptr_t end = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz;
    if (info->dlpi_phdr[i].p_type == PT_LOAD && end > cpu_end) cpu_end = end;
  }
  return 1;
}

static void find(void) {
  dl_iterate_phdr(find_cpu, NULL);
  /* Its library is not among the global ones: open it, loaded as it is, by name. */
  void *c10 = dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD);
  truth = (_Bool (*)(void))dlsym(c10 ? c10 : RTLD_NEXT, TEXT(NAME));
}

_Bool NAME(void);
_Bool NAME(void) {
  pthread_once(&once, find);
  uintptr_t caller = (uintptr_t)__builtin_return_address(0);
  if (caller >= cpu_start && caller < cpu_end) return 0;
  return truth && truth();
}
