/* A small NVML at the C boundary: five devices.
   0 offers everything; 1 supports nothing; 2 is cut into two MIG instances; 3 falls off the bus at its
   third memory reading; 4 knows only the old memory structure and no events. */
#include <string.h>

typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned int version; unsigned long long total, reserved, free, used; } memory_v2_t;
typedef struct { unsigned int gpu, memory; } rates_t;
typedef struct { unsigned int pid; unsigned long long used; unsigned int gi, ci; } process_t;
typedef struct { void *device; unsigned long long type, data; unsigned int gi, ci; } event_t;

enum { OK = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, TIMEOUT = 10, LOST = 15 };
enum { ALL, NOTHING, MIG, LOSING, OLD, DEVICES, MIG_A, MIG_B };

static char devices[8];
static int readings_of_losing, events_told, set;
#define IS(device, which) ((char *)(device) == &devices[which])
#define GIB (1ull << 30)

int nvmlInitWithFlags(unsigned int flags) { (void)flags; return OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return code == NOT_SUPPORTED ? "Not Supported" : "Fake"; }
int nvmlDeviceGetCount_v2(unsigned int *count) { *count = DEVICES; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device) { *device = &devices[index]; return OK; }
int nvmlDeviceGetIndex(void *device, unsigned int *index) { *index = (char *)device - devices; return OK; }
static int text(char *to, unsigned int size, const char *from) { strncpy(to, from, size); return OK; }
int nvmlDeviceGetName(void *device, char *name, unsigned int size)
{
    if (IS(device, NOTHING)) return NOT_SUPPORTED;
    return text(name, size, IS(device, ALL) ? "Fake H1" : IS(device, MIG_A) ? "Fake MIG 1g" : "Fake other");
}
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned int size)
{
    return IS(device, ALL) ? text(uuid, size, "GPU-1") : NOT_SUPPORTED;
}
int nvmlSystemGetDriverVersion(char *version, unsigned int size) { return text(version, size, "999.1"); }
static int lost(void *device)
{
    return IS(device, LOSING) && ++readings_of_losing > 3;
}
int nvmlDeviceGetMemoryInfo(void *device, memory_t *memory)
{
    if (IS(device, NOTHING)) return NOT_SUPPORTED;
    if (lost(device)) return LOST;
    *memory = (memory_t){ 80 * GIB, 20 * GIB, 60 * GIB };
    return OK;
}
int nvmlDeviceGetMemoryInfo_v2(void *device, memory_v2_t *memory)
{
    if (IS(device, NOTHING) || IS(device, OLD)) return NOT_SUPPORTED;
    if (lost(device)) return LOST;
    unsigned long long total = IS(device, MIG_A) || IS(device, MIG_B) ? 10 * GIB : 80 * GIB;
    *memory = (memory_v2_t){ memory->version, total, GIB, total / 4, total - total / 4 - GIB };
    return OK;
}
int nvmlDeviceGetUtilizationRates(void *device, rates_t *rates)
{
    if (!IS(device, ALL)) return NOT_SUPPORTED;
    *rates = (rates_t){ 42, 7 };
    return OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned int *count, process_t *processes)
{
    if (!IS(device, ALL) && !IS(device, MIG_A)) return NOT_SUPPORTED;
    unsigned int found = IS(device, ALL) ? 3 : 1;
    if (*count < found) { *count = found; return INSUFFICIENT_SIZE; }
    *count = found;
    processes[0] = (process_t){ 4242, 5 * GIB, ~0u, ~0u };
    if (found == 1) return OK;
    processes[1] = (process_t){ 4243, ~0ull, ~0u, ~0u };
    processes[2] = (process_t){ 77, 3 * GIB, ~0u, ~0u };
    return OK;
}
int nvmlDeviceGetMigMode(void *device, unsigned int *now, unsigned int *later)
{
    if (!IS(device, MIG)) return NOT_SUPPORTED;
    *now = *later = 1;
    return OK;
}
int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned int *count) { (void)device; *count = 3; return OK; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned int index, void **instance)
{
    (void)device;
    if (index == 1) return NOT_FOUND;
    *instance = &devices[index == 0 ? MIG_A : MIG_B];
    return OK;
}
static int only(void *device, unsigned int *to, unsigned int value)
{
    if (!IS(device, ALL)) return NOT_SUPPORTED;
    *to = value;
    return OK;
}
int nvmlDeviceGetPowerUsage(void *device, unsigned int *mw) { return only(device, mw, 350500); }
int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned int *mw) { return only(device, mw, 700000); }
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned int *c) { return sensor ? NOT_FOUND : only(device, c, 61); }
int nvmlDeviceGetClockInfo(void *device, int which, unsigned int *mhz)
{
    return only(device, mhz, which == 1 ? 1980 : 2619);
}
int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *mask)
{
    if (!IS(device, ALL)) return NOT_SUPPORTED;
    *mask = 1 | 4 | 64;
    return OK;
}
int nvmlDeviceGetTotalEccErrors(void *device, int type, int counter, unsigned long long *count)
{
    if (!IS(device, ALL) || counter != 0) return NOT_SUPPORTED;
    *count = type == 1 ? 2 : 17;
    return OK;
}
int nvmlEventSetCreate(void **made) { *made = &set; return OK; }
int nvmlEventSetFree(void *made) { (void)made; return OK; }
int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *made)
{
    (void)made;
    return types == 8 && IS(device, ALL) ? OK : NOT_SUPPORTED;
}
int nvmlEventSetWait_v2(void *made, event_t *event, unsigned int timeout_ms)
{
    (void)made;
    (void)timeout_ms;
    if (events_told++) return TIMEOUT;
    *event = (event_t){ &devices[ALL], 8, 79, ~0u, ~0u };
    return OK;
}
