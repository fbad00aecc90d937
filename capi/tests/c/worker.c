/* A worker's calls, right ones and wrong ones, at the agent that the argument names: it has four tasks ready, "task0" to
 * "task3", and ends when this program says that it waits. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <wedjat.h>

#include "check.h"

#define SECOND 1000000000ull
/* Time limit even for a busy machine; only a failing test reaches it. */
#define TIMEOUT (300 * SECOND)

static struct wedjat_worker *worker;

static void attaching(const char *agent)
{
    struct wedjat_worker_options options = {sizeof options, -1, -1, -1, 0, TIMEOUT, 0}, other = options, absent = options, beyond = options;
    struct wedjat_worker *made = (void *)&options;
    char detail[512];
    other.size = 8;
    absent.worker = 99;
    beyond.pool = 65536;
    CHECK(wedjat_worker_attach("/nowhere/agent", NULL, &made, detail, sizeof detail) == WEDJAT_ERROR_ATTACH);
    CHECK(made == NULL && strstr(detail, "/nowhere/agent") != NULL);
    CHECK(wedjat_worker_attach(agent, &absent, &made, detail, sizeof detail) == WEDJAT_ERROR_ATTACH);
    CHECK(strstr(detail, "99") != NULL);
    CHECK(wedjat_worker_attach(agent, &beyond, &made, detail, sizeof detail) == WEDJAT_ERROR_OPTIONS);
    CHECK(strstr(detail, "options.pool: found 65536") != NULL && made == NULL);
    beyond = options;
    beyond.cpu = -2;
    CHECK(wedjat_worker_attach(agent, &beyond, &made, detail, sizeof detail) == WEDJAT_ERROR_OPTIONS);
    CHECK(strstr(detail, "options.cpu: found -2") != NULL && wedjat_free((void *)made) == WEDJAT_ERROR_NULL);
    CHECK(wedjat_worker_attach(NULL, NULL, &made, NULL, 0) == WEDJAT_ERROR_NULL);
    CHECK(wedjat_worker_attach(agent, NULL, NULL, NULL, 0) == WEDJAT_ERROR_NULL);
    CHECK(wedjat_worker_attach(agent, &other, &made, detail, sizeof detail) == WEDJAT_ERROR_OPTIONS);
    CHECK(strstr(detail, "options.size: found 8; allowed: ") != NULL && made == NULL);
    CHECK(wedjat_worker_attach(agent, NULL, (void *)((char *)&made + 1), NULL, 0) == WEDJAT_ERROR_ALIGNMENT);
    int code = wedjat_worker_attach(agent, &options, &worker, detail, sizeof detail);
    if (code != 0)
        fprintf(stderr, "%s: %s\n", wedjat_error_message(code), detail);
    CHECK(code == 0 && wedjat_worker_id(worker) == 3 && wedjat_worker_check(worker) == 0);
}

static void answering(void)
{
    uint8_t large[128] = {0};
    struct wedjat_task task, none;
    CHECK(wedjat_worker_reply(worker, large, 1) == WEDJAT_ERROR_NO_TASK);
    CHECK(wedjat_worker_give_up(worker) == WEDJAT_ERROR_NO_TASK);
    CHECK(wedjat_worker_request(worker) == WEDJAT_ERROR_NO_TASK);
    CHECK(wedjat_worker_recv(worker, SECOND, NULL) == WEDJAT_ERROR_NULL);
    CHECK(wedjat_worker_poll(worker, (void *)((char *)&task + 1)) == WEDJAT_ERROR_ALIGNMENT);

    CHECK(wedjat_worker_recv(worker, TIMEOUT, &task) == 1);
    CHECK(task.length == 5 && memcmp(task.payload, "task0", 5) == 0 && task.reply_max == 64);
    CHECK(task.app == 8 && task.seq == 0 && task.task_class == 2);
    CHECK(wedjat_worker_request(worker) == WEDJAT_REQUEST_TASK_WAITS);
    CHECK(wedjat_worker_yield_point(worker) == WEDJAT_WISH_TASK_WAITS); /* the former name */
    CHECK(wedjat_worker_reply(worker, large, 65) == WEDJAT_ERROR_TOO_LONG);
    CHECK(wedjat_worker_reply(worker, NULL, 1) == WEDJAT_ERROR_NULL);
    CHECK(memcmp(task.payload, "task0", 5) == 0);
    CHECK(wedjat_worker_reply(worker, (const uint8_t *)"answer", 6) == 0);
    CHECK(wedjat_worker_reply(worker, (const uint8_t *)"again", 5) == WEDJAT_ERROR_NO_TASK);

    CHECK(wedjat_worker_recv(worker, TIMEOUT, &task) == 1 && task.seq == 1);
    CHECK(wedjat_worker_give_up(worker) == 0);
    /* Forgotten: completed when the next one is taken, which is answered with its own bytes. */
    CHECK(wedjat_worker_recv(worker, TIMEOUT, &task) == 1 && task.seq == 2);
    CHECK(wedjat_worker_recv(worker, TIMEOUT, &task) == 1 && task.seq == 3);
    CHECK(wedjat_worker_reply(worker, task.payload, task.length) == 0);
    CHECK(wedjat_worker_poll(worker, &none) == 0);
    CHECK(wedjat_worker_recv(worker, 1000, &none) == 0);
    CHECK(wedjat_worker_bad_calls(worker) == 8);
}

static void *wait_for_the_end(void *unused)
{
    struct wedjat_task task;
    int code;
    (void)unused;
    do
        code = wedjat_worker_recv(worker, UINT64_MAX, &task);
    while (code == WEDJAT_ERROR_BUSY); /* the other thread was asking */
    CHECK(code == WEDJAT_ERROR_STOPPED);
    return NULL;
}

static void waiting(void)
{
    const struct timespec nap = {0, 1000000};
    pthread_t waits;
    int code;
    CHECK(pthread_create(&waits, NULL, wait_for_the_end, NULL) == 0);
    while ((code = wedjat_worker_check(worker)) == 0)
        nanosleep(&nap, NULL);
    CHECK(code == WEDJAT_ERROR_BUSY);
    puts("waits");
    fflush(stdout);
    CHECK(pthread_join(waits, NULL) == 0);
    CHECK(wedjat_worker_check(worker) == WEDJAT_ERROR_STOPPED);
}

static void detaching(void)
{
    struct wedjat_task task;
    CHECK(wedjat_worker_detach(NULL) == WEDJAT_ERROR_NULL);
    CHECK(wedjat_worker_detach((void *)((char *)worker + 1)) == WEDJAT_ERROR_HANDLE);
    CHECK(wedjat_free((void *)worker) == WEDJAT_ERROR_HANDLE); /* a worker is no scheduler */
    CHECK(wedjat_worker_detach(worker) == 0);
    CHECK(wedjat_worker_detach(worker) == WEDJAT_ERROR_HANDLE);
    CHECK(wedjat_worker_poll(worker, &task) == WEDJAT_ERROR_HANDLE);
    CHECK(wedjat_worker_bad_calls(worker) == 0);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    attaching(argv[1]);
    answering();
    waiting();
    detaching();
    return 0;
}
