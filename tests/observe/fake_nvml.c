/* A small NVML at the C boundary: two devices, the second of which supports nothing. */
#include <string.h>

typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned int gpu, memory; } rates_t;
typedef struct { unsigned int pid; unsigned long long used; unsigned int gi, ci; } process_t;

enum { OK = 0, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7 };

static char first, second;

int nvmlInitWithFlags(unsigned int flags) { (void)flags; return OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return code == NOT_SUPPORTED ? "Not Supported" : "Fake"; }
int nvmlDeviceGetCount_v2(unsigned int *count) { *count = 2; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device)
{
    *device = index == 0 ? &first : &second;
    return OK;
}
static int text(char *to, unsigned int size, const char *from) { strncpy(to, from, size); return OK; }
int nvmlDeviceGetName(void *device, char *name, unsigned int size)
{
    return device == &first ? text(name, size, "Fake H1") : NOT_SUPPORTED;
}
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned int size)
{
    return device == &first ? text(uuid, size, "GPU-1") : NOT_SUPPORTED;
}
int nvmlSystemGetDriverVersion(char *version, unsigned int size) { return text(version, size, "999.1"); }
int nvmlDeviceGetMemoryInfo(void *device, memory_t *memory)
{
    if (device != &first) return NOT_SUPPORTED;
    memory->total = 80ull << 30;
    memory->used = 60ull << 30;
    memory->free = 20ull << 30;
    return OK;
}
int nvmlDeviceGetUtilizationRates(void *device, rates_t *rates)
{
    if (device != &first) return NOT_SUPPORTED;
    rates->gpu = 42;
    rates->memory = 7;
    return OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned int *count, process_t *processes)
{
    if (device != &first) return NOT_SUPPORTED;
    if (*count < 2) { *count = 2; return INSUFFICIENT_SIZE; }
    *count = 2;
    processes[0] = (process_t){ 4242, 5ull << 30, ~0u, ~0u };
    processes[1] = (process_t){ 4243, ~0ull, ~0u, ~0u };
    return OK;
}
