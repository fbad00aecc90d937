/* A worker core: takes tasks from the agent of its host and answers each with its own bytes in reverse.
 *
 *   cc -O2 -o worker worker.c $(pkg-config --cflags --libs wedjat)
 *   ./worker AGENT [CPU]
 *
 * Ends when the agent ends. */
#include <stdio.h>
#include <stdlib.h>

#include <wedjat.h>

#define SECOND 1000000000ull

int main(int argc, char **argv)
{
    struct wedjat_worker_options options = {sizeof options, -1, -1, -1, 0, 300 * SECOND, 50000};
    struct wedjat_worker *worker;
    struct wedjat_task task;
    uint8_t answer[2048];
    char detail[1024];
    int code;

    if (argc < 2) {
        fprintf(stderr, "usage: worker AGENT [CPU]\n");
        return 2;
    }
    if (argc > 2)
        options.cpu = atoi(argv[2]);
    code = wedjat_worker_attach(argv[1], &options, &worker, detail, sizeof detail);
    if (code != 0) {
        fprintf(stderr, "%s: %s\n", wedjat_error_message(code), detail);
        return 1;
    }
    while ((code = wedjat_worker_recv(worker, SECOND, &task)) >= 0) {
        if (code == 0)
            continue; /* nothing came in a second */
        uint32_t length = task.length < sizeof answer ? task.length : sizeof answer;
        for (uint32_t at = 0; at < length; at++)
            answer[at] = task.payload[task.length - 1 - at]; /* long work would ask wedjat_worker_yield_point() here */
        code = wedjat_worker_reply(worker, answer, length < task.reply_max ? length : task.reply_max);
        if (code != 0)
            fprintf(stderr, "task %u: %s\n", task.seq, wedjat_error_message(code));
    }
    fprintf(stderr, "worker %d: %s\n", wedjat_worker_id(worker), wedjat_error_message(code));
    wedjat_worker_detach(worker);
    return code == WEDJAT_ERROR_STOPPED ? 0 : 1;
}
