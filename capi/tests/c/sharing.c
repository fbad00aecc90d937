/* Worker whose tasks share its core. Arguments: path of the agent's region, and `timer` of struct wedjat_sharing.
 * The payload of a task names its part. No part depends on speed: tasks wait for each other by flags. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <wedjat.h>
#include <wedjat.h> /* a second time, as by wedjat_dpdk.h */

#include "check.h"

/* Times are in nanoseconds. */
#define SECOND 1000000000ull
/* Time limit even for a busy machine; only a failing test reaches it. */
#define TIMEOUT (300 * SECOND)
/* Shortest quantum: tasks change as often as possible. */
#define QUANTUM 1000ull

static struct wedjat_worker *worker;
/* Argument of the handler. */
static int argument;
/* True after the task "release", until the task "again". */
static int is_released;
/* True during the critical sections of the task "critical". */
static int is_critical;
/* Number of finished tasks "short". */
static int shorts;

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * SECOND + time.tv_nsec;
}

/* Calls yield points for ten quanta. */
static void work_for_quanta(const struct wedjat_cpu *cpu)
{
    uint64_t end = now() + 10 * QUANTUM;
    while (now() < end)
        wedjat_yield_point(cpu);
}

/* Keeps the core until the outer section has ended, and then lets a waiting task "short" run. */
static void critical(const struct wedjat_cpu *cpu)
{
    int before = shorts;
    wedjat_critical_begin(cpu);
    wedjat_critical_begin(cpu);
    is_critical = 1;
    work_for_quanta(cpu);
    wedjat_critical_end(cpu);
    work_for_quanta(cpu);
    CHECK(shorts == before);
    is_critical = 0;
    wedjat_critical_end(cpu);
    while (shorts == before)
        wedjat_yield_point(cpu);
}

/* Uses 1 KiB of the stack for each level. */
static int recurse(int depth)
{
    volatile char bytes[1024];
    bytes[depth % 1024] = depth;
    return depth == 0 ? 0 : recurse(depth - 1) + bytes[depth % 1024];
}

static int64_t handle(const struct wedjat_task *task, uint8_t *answer, const struct wedjat_cpu *cpu, void *given);

/* Checks that calls for the serving worker are refused and counted inside a handler. */
static void call_inside(void)
{
    struct wedjat_task other;
    uint64_t bad_calls = wedjat_worker_bad_calls(worker);
    CHECK(wedjat_worker_poll(worker, &other) == WEDJAT_ERROR_BUSY);
    CHECK(wedjat_worker_reply(worker, NULL, 0) == WEDJAT_ERROR_BUSY);
    CHECK(wedjat_worker_request(worker) == WEDJAT_ERROR_BUSY);
    CHECK(wedjat_worker_check(worker) == WEDJAT_ERROR_BUSY);
    CHECK(wedjat_worker_serve(worker, NULL, handle, NULL, NULL, 0) == WEDJAT_ERROR_BUSY);
    CHECK(wedjat_worker_detach(worker) == WEDJAT_ERROR_BUSY);
    CHECK(wedjat_worker_bad_calls(worker) == bad_calls + 6);
}

/* Handles the task whose payload begins with the name of its part. Answers with the name. */
static int64_t handle(const struct wedjat_task *task, uint8_t *answer, const struct wedjat_cpu *cpu, void *given)
{
    char name[65] = "";
    CHECK(given == &argument && task->length < sizeof name);
    /* Values of `give_all` and `with` in c_worker.rs. */
    CHECK(task->app == 8 && task->task_class == 2 && task->reply_max == 64);
    CHECK(!is_critical);
    memcpy(name, task->payload, task->length);

    if (strcmp(name, "long") == 0)
        while (!is_released)
            wedjat_yield_point(cpu);
    else if (strcmp(name, "release") == 0)
        is_released = 1;
    else if (strcmp(name, "again") == 0)
        is_released = 0;
    else if (strcmp(name, "short") == 0)
        shorts++;
    else if (strcmp(name, "critical") == 0)
        critical(cpu);
    else if (strcmp(name, "unended") == 0)
        wedjat_critical_begin(cpu);
    else if (strcmp(name, "negative") == 0)
        return -1;
    else if (strcmp(name, "lowest") == 0)
        return INT64_MIN;
    else if (strcmp(name, "too long") == 0)
        return task->reply_max + 1;
    else if (strcmp(name, "highest") == 0)
        return INT64_MAX;
    else if (strcmp(name, "inside") == 0)
        call_inside();
    else if (strcmp(name, "overflow") == 0)
        return recurse(1024); /* 1 MiB, with a stack of 64 KiB */
    else
        CHECK(!"a part with this name");

    memcpy(answer, name, task->length);
    return task->length;
}

/* Checks that wrong parameters are refused with this code and reason. */
static void refused(struct wedjat_sharing sharing, const char *reason)
{
    char detail[512] = "former";
    CHECK(wedjat_worker_serve(worker, &sharing, handle, NULL, detail, sizeof detail) == WEDJAT_ERROR_OPTIONS);
    if (strncmp(detail, reason, strlen(reason)) != 0)
        fprintf(stderr, "found '%s', expected '%s'\n", detail, reason);
    CHECK(strncmp(detail, reason, strlen(reason)) == 0);
    CHECK(wedjat_worker_serve(worker, &sharing, handle, NULL, NULL, 0) == WEDJAT_ERROR_OPTIONS);
    /* A text that does not fit is cut. */
    CHECK(wedjat_worker_serve(worker, &sharing, handle, NULL, detail, 4) == WEDJAT_ERROR_OPTIONS);
    CHECK(strlen(detail) == 3 && strncmp(detail, reason, 3) == 0);
}

/* Checks that null or misaligned pointers and wrong parameters are refused. */
static void refusing(struct wedjat_sharing sharing)
{
    struct wedjat_sharing wrong[6];
    char detail[512] = "former";
    CHECK(wedjat_worker_serve(NULL, &sharing, handle, NULL, NULL, 0) == WEDJAT_ERROR_NULL);
    CHECK(wedjat_worker_serve(worker, &sharing, NULL, NULL, detail, sizeof detail) == WEDJAT_ERROR_NULL);
    CHECK(detail[0] == 0);
    strcpy(detail, "former");
    CHECK(wedjat_worker_serve(worker, (void *)((char *)wrong + 1), handle, NULL, detail, sizeof detail) == WEDJAT_ERROR_ALIGNMENT);
    CHECK(detail[0] == 0);
    for (int at = 0; at < 6; at++)
        wrong[at] = sharing;
    wrong[0].size = 8;
    wrong[1].timer = 2;
    wrong[2].quantum_ns = 0;
    wrong[3].quantum_ns = SECOND + 1;
    wrong[4].slots = 0;
    wrong[5].stack = (size_t)1 << 50;
    refused(wrong[0], "sharing.size: found 8; allowed: 32, sizeof(struct wedjat_sharing)");
    refused(wrong[1], "sharing.timer: found 2; allowed: 0 or 1");
    refused(wrong[2], "quantum: found 0ns; allowed: 1us to 1s");
    refused(wrong[3], "quantum: found 1.000000001s; allowed: 1us to 1s");
    refused(wrong[4], "slots: found 0; allowed: at least 1");
    refused(wrong[5], "cannot allocate a stack of 1125899906842624 bytes: ");
    /* Two calls above, and three by each `refused`. A call without a worker is not counted. */
    CHECK(wedjat_worker_bad_calls(worker) == 2 + 6 * 3);
    /* No refused call has an effect. */
    CHECK(wedjat_worker_check(worker) == 0);
}

int main(int argc, char **argv)
{
    /* Any worker of any pool, not pinned, without spinning. */
    struct wedjat_worker_options options = {sizeof options, -1, -1, -1, 0, TIMEOUT, 0};
    /* Stacks of 64 KiB, at most 64 tasks. */
    struct wedjat_sharing sharing = {sizeof sharing, QUANTUM, 64 << 10, 64, 0};
    struct wedjat_task task;
    char detail[512] = "former";
    CHECK(argc == 3);
    sharing.timer = atoi(argv[2]);
    CHECK(wedjat_worker_attach(argv[1], &options, &worker, NULL, 0) == 0);
    refusing(sharing);
    CHECK(wedjat_worker_serve(worker, &sharing, handle, &argument, detail, sizeof detail) == WEDJAT_ERROR_STOPPED);
    CHECK(detail[0] == 0);
    CHECK(wedjat_worker_serve(worker, NULL, handle, &argument, NULL, 0) == WEDJAT_ERROR_STOPPED);
    CHECK(wedjat_worker_recv(worker, 0, &task) == WEDJAT_ERROR_STOPPED);
    CHECK(wedjat_worker_detach(worker) == 0);
    CHECK(wedjat_worker_serve(worker, &sharing, handle, NULL, detail, sizeof detail) == WEDJAT_ERROR_HANDLE);
    return 0;
}
