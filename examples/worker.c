/* A worker: takes tasks from the agent of its host and answers each with its own bytes in reverse.
 *
 *   cc -O2 -o worker worker.c $(pkg-config --cflags --libs wedjat)
 *   ./worker AGENT [CPU [QUANTUM]]
 *
 * CPU: CPU to run on; -1 for any. With a QUANTUM in microseconds several tasks share the core, so that a long task does
 * not delay short ones. The worker ends when the agent ends. */
#include <stdio.h>
#include <stdlib.h>

#include <wedjat.h>

#define SECOND 1000000000ull /* in nanoseconds */

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Serves one task at a time, until no more will come. Returns the error code of that reason. */
static int serve_in_order(struct wedjat_worker *worker)
{
    struct wedjat_task task;
    uint8_t answer[2048]; /* longer answers are cut */
    int code;

    while ((code = wedjat_worker_recv(worker, SECOND, &task)) >= 0) {
        if (code == 0)
            continue; /* no task in a second */
        uint32_t length = smaller(smaller(task.length, sizeof answer), task.reply_max);
        for (uint32_t at = 0; at < length; at++)
            answer[at] = task.payload[task.length - 1 - at];
        code = wedjat_worker_reply(worker, answer, length);
        if (code != 0)
            fprintf(stderr, "task %u: %s\n", task.seq, wedjat_error_message(code));
    }
    return code;
}

/* Handles a task that shares the core with others. Returns the length of its answer. */
static int64_t reverse(const struct wedjat_task *task, uint8_t *answer, const struct wedjat_cpu *cpu, void *argument)
{
    uint32_t length = smaller(task->length, task->reply_max);

    (void)argument;
    for (uint32_t at = 0; at < length; at++) {
        answer[at] = task->payload[task->length - 1 - at];
        wedjat_yield_point(cpu); /* other tasks run here if this one's quantum has ended */
    }
    return length;
}

int main(int argc, char **argv)
{
    /* Any worker, pool and CPU; waits 300 s for the agent, and spins 50 us before each sleep. */
    struct wedjat_worker_options options = {sizeof options, -1, -1, -1, 0, 300 * SECOND, 50000};
    /* The quantum is set below; stacks of 256 KiB, 64 tasks, no timer. */
    struct wedjat_sharing sharing = {sizeof sharing, 0, 256 << 10, 64, 0};
    struct wedjat_worker *worker;
    char detail[1024] = "";
    int code;

    if (argc < 2) {
        fprintf(stderr, "usage: worker AGENT [CPU [QUANTUM]]\n");
        return 2;
    }
    if (argc > 2)
        options.cpu = atoi(argv[2]);
    code = wedjat_worker_attach(argv[1], &options, &worker, detail, sizeof detail);
    if (code != 0) {
        fprintf(stderr, "%s: %s\n", wedjat_error_message(code), detail);
        return 1;
    }
    if (argc > 3) {
        sharing.quantum_ns = strtoull(argv[3], NULL, 10) * 1000;
        code = wedjat_worker_serve(worker, &sharing, reverse, NULL, detail, sizeof detail);
    } else {
        code = serve_in_order(worker);
    }
    fprintf(stderr, "worker %d: %s %s\n", wedjat_worker_id(worker), wedjat_error_message(code), detail);
    wedjat_worker_detach(worker);
    return code == WEDJAT_ERROR_STOPPED ? 0 : 1;
}
