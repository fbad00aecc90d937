/* Cost of a call from C, for comparison with Rust: see scripts/bench-library.py. Prints the mean nanoseconds of a packet,
 * without the time of copying the task into each packet. With `copies`, only copies. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <wedjat.h>

/* Far enough from a power of two that frames do not share sets of the cache. */
#define STRIDE 192

static char text[1 << 16], task[STRIDE], detail[1024];
static uint8_t frames[WEDJAT_BURST][STRIDE];

static size_t read_file(const char *path, char *into, size_t size)
{
    FILE *file = fopen(path, "r");
    if (file == NULL)
        exit(2);
    size_t length = fread(into, 1, size, file);
    fclose(file);
    return length;
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

int main(int argc, char **argv)
{
    struct wedjat_options options = {.size = sizeof options, .ticks_hz = 1000000000};
    struct wedjat_packet packets[WEDJAT_BURST];
    struct wedjat_verdict verdicts[WEDJAT_BURST];
    struct wedjat_scheduler *scheduler;
    struct wedjat_context *context;
    if (argc != 5)
        return 2;
    size_t length = read_file(argv[1], text, sizeof text), size = read_file(argv[2], task, sizeof task);
    unsigned long rounds = strtoul(argv[3], NULL, 10);
    if (wedjat_create(text, length, &options, &scheduler, detail, sizeof detail) != 0 ||
        wedjat_context(scheduler, 0, &context) != 0) {
        fprintf(stderr, "%s\n", detail);
        return 1;
    }
    for (int at = 0; at < WEDJAT_BURST; at++)
        packets[at] = (struct wedjat_packet){frames[at], size, 0};
    double start = seconds();
    for (unsigned long now = 0; now < rounds; now++) {
        for (int at = 0; at < WEDJAT_BURST; at++)
            memcpy(frames[at], task, size);
        __asm__ volatile("" ::: "memory");
    }
    double alone = seconds() - start;
    if (strcmp(argv[4], "copies") == 0) /* baseline for counts of instructions */
        return 0;
    start = seconds();
    for (unsigned long now = 0; now < rounds; now++) {
        for (int at = 0; at < WEDJAT_BURST; at++)
            memcpy(frames[at], task, size);
        if (wedjat_process(scheduler, context, 0, now, packets, WEDJAT_BURST, verdicts) != WEDJAT_BURST)
            return 1;
        __asm__ volatile("" ::: "memory");
    }
    double all = seconds() - start;
    for (int at = 0; at < WEDJAT_BURST; at++)
        if (verdicts[at].action != WEDJAT_FORWARD)
            return 1;
    printf("%.3f\n", (all - alone) * 1e9 / (rounds * WEDJAT_BURST + !rounds));
    return wedjat_free(scheduler);
}
