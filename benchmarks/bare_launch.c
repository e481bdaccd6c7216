/* The floor of a launch: cuLaunchKernel in a loop of C, with nothing around it. Built and loaded by launch_overhead.py. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

typedef int (*launch_t)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                        void **);

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Nanoseconds that ``count`` launches of ``function`` took; negative where the driver refused one. ``values`` holds one
   8-byte word a parameter. */
int64_t bare_launches(uint64_t function, unsigned grid, unsigned block, unsigned shared, uint64_t stream,
                      uint64_t *values, int parameters, int count)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    launch_t launch = driver ? (launch_t)dlsym(driver, "cuLaunchKernel") : NULL;
    void *pointers[64];
    if (!launch || parameters > 64)
        return -1;
    for (int i = 0; i < parameters; i++)
        pointers[i] = &values[i];
    int64_t start = now_ns();
    for (int i = 0; i < count; i++)
        if (launch((void *)function, grid, 1, 1, block, 1, 1, shared, (void *)stream, pointers, NULL))
            return -2;
    return now_ns() - start;
}
