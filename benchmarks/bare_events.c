/* The floor of a sampled launch: what the driver asks for two events with a time and for whether a stream is dry, with
   nothing around it. Built and loaded by online.py. */
#include <dlfcn.h>
#include <stdint.h>
#include <time.h>

typedef int (*create_t)(void **, unsigned);
typedef int (*record_t)(void *, void *);
typedef int (*ask_t)(void *);
typedef int (*wait_t)(void);

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Nanoseconds a sample, the mean of so many on the default stream, each with nothing before it; negative where there is
   no driver, or no context is current. */
int64_t bare_events(int count)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL), *start, *end;
    if (!driver || count < 1)
        return -1;
    create_t create = (create_t)dlsym(driver, "cuEventCreate");
    record_t record = (record_t)dlsym(driver, "cuEventRecord");
    ask_t query = (ask_t)dlsym(driver, "cuStreamQuery");
    wait_t wait = (wait_t)dlsym(driver, "cuCtxSynchronize");
    if (!create || !record || !query || !wait || create(&start, 0) || create(&end, 0))
        return -2;
    int64_t took = 0;
    for (int i = 0; i < count; i++) {
        if (wait())
            return -3;
        int64_t began = now_ns();
        query(0);
        record(start, 0);
        record(end, 0);
        took += now_ns() - began;
    }
    return took / count;
}
