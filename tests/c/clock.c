/* The time of day leaps a day ahead and back each second, whatever it is; for LD_PRELOAD. Time that passes passes as ever. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec *time)
{
    int (*asked)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    struct timespec passed;
    int failed = asked(clock, time);
    if (failed || clock != CLOCK_REALTIME || asked(CLOCK_MONOTONIC, &passed))
        return failed;
    time->tv_sec += passed.tv_sec % 2 ? 86400 : -86400;
    return 0;
}
