/* The floor of a sampled launch: what the driver asks for two events with a time around a launch, and for whether the
   stream is dry, with nothing else around it. Built and loaded by online.py. */
#include <dlfcn.h>
#include <stdint.h>
#include <time.h>

typedef int (*create_t)(void **, unsigned);
typedef int (*record_t)(void *, void *);
typedef int (*ask_t)(void *);
typedef int (*wait_t)(void);
typedef int (*launch_t)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                        void **);

enum { LAUNCH, WITH_EVENTS, WITH_QUESTION, KINDS };

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Into ``took`` the nanoseconds of each kind, the mean of so many on the default stream, in turn and each with nothing
   before it. ``values`` holds one 8-byte word a parameter. Negative where there is no driver, or it refuses. */
int bare_events(uint64_t function, unsigned grid, unsigned block, unsigned shared, uint64_t *values, int parameters,
                int count, int64_t *took)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL), *start, *end, *pointers[64];
    if (!driver || count < 1 || parameters > 64)
        return -1;
    create_t create = (create_t)dlsym(driver, "cuEventCreate");
    record_t record = (record_t)dlsym(driver, "cuEventRecord");
    ask_t query = (ask_t)dlsym(driver, "cuStreamQuery");
    wait_t wait = (wait_t)dlsym(driver, "cuCtxSynchronize");
    launch_t launch = (launch_t)dlsym(driver, "cuLaunchKernel");
    if (!create || !record || !query || !wait || !launch || create(&start, 0) || create(&end, 0))
        return -2;
    for (int i = 0; i < parameters; i++)
        pointers[i] = &values[i];
    for (int kind = 0; kind < KINDS; kind++)
        took[kind] = 0;
    for (int i = 0; i < count * KINDS; i++) {
        int kind = i % KINDS;
        if (wait())
            return -3;
        int64_t began = now_ns();
        if (kind >= WITH_QUESTION)
            query(0);
        if (kind >= WITH_EVENTS)
            record(start, 0);
        if (launch((void *)function, grid, 1, 1, block, 1, 1, shared, 0, pointers, 0))
            return -4;
        if (kind >= WITH_EVENTS)
            record(end, 0);
        took[kind] += now_ns() - began;
    }
    for (int kind = 0; kind < KINDS; kind++)
        took[kind] /= count;
    return 0;
}
