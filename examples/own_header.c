/* A program with a header and sockets of its own, whose tasks wedjat gives workers.
 *
 * own_header CONFIGURATION PORT: serves on that UDP port for ever. The configuration has no ports, one core, and a pool 1. Every
 * packet begins with eight bytes: 'h' a worker is there, 't' a task, 'r' its reply, or 'f' a task that is refused; how many tasks the
 * worker has left; the worker's id in two bytes, and in four a ticket, which a worker copies from the task into its reply. */
#define _DEFAULT_SOURCE
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>

#include <wedjat.h>

#define TASKS 4096 /* that are not answered; a newer one takes an older one's place */

static struct task {
    struct sockaddr_in client;
    size_t length;
    uint8_t bytes[2048];
} tasks[TASKS];
static struct sockaddr_in workers[WEDJAT_NO_WORKER];
static struct wedjat_scheduler *scheduler;
static struct wedjat_picker *picker;
static int own;

static void check(int code, const char *detail)
{
    if (code < 0) {
        fprintf(stderr, "own_header: %s %s\n", wedjat_error_message(code), detail);
        exit(1);
    }
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static void go(uint64_t ticket, uint16_t worker)
{
    struct task *task = &tasks[ticket % TASKS];
    uint16_t id = htons(worker);
    uint32_t number = htonl(ticket);
    memcpy(task->bytes + 2, &id, sizeof id);
    memcpy(task->bytes + 4, &number, sizeof number);
    if (workers[worker].sin_port == 0
        || sendto(own, task->bytes, task->length, 0, (void *)&workers[worker], sizeof workers[worker]) < 0)
        check(wedjat_lost(scheduler, picker, worker, 1), "");
}

/* Acts on the choice for a task, of wedjat_pick() or wedjat_release_tasks(). */
static void act(uint64_t ticket, struct wedjat_choice choice)
{
    struct task *task = &tasks[ticket % TASKS];
    switch (choice.action) {
    case WEDJAT_FORWARD:
        go(ticket, choice.worker);
        break;
    case WEDJAT_HOLD: /* until wedjat_release_tasks() returns it */
        break;
    case WEDJAT_DROP:
        fprintf(stderr, "own_header: a task is dropped: %s\n", wedjat_reason_name(choice.reason));
        break;
    default: /* WEDJAT_ANSWER: the queue is full, under overflow = "refuse" */
        task->bytes[0] = 'f';
        sendto(own, task->bytes, task->length, 0, (void *)&task->client, sizeof task->client);
        break;
    }
}

static void take(uint8_t *bytes, size_t length, const struct sockaddr_in *from)
{
    static uint32_t last;
    struct wedjat_worker_report report = {.queue = bytes[1], .flags = bytes[0] == 'r' ? WEDJAT_REPORT_ANSWER : 0};
    struct wedjat_choice choice;
    uint32_t ticket;
    memcpy(&report.worker, bytes + 2, 2);
    memcpy(&ticket, bytes + 4, 4);
    report.worker = ntohs(report.worker);
    switch (bytes[0]) {
    case 'h':
        if (report.worker < WEDJAT_NO_WORKER)
            workers[report.worker] = *from;
        check(wedjat_report(scheduler, picker, &report, 1), "");
        break;
    case 't': {
        struct wedjat_description task = {.id = ++last};
        tasks[last % TASKS] = (struct task){.client = *from, .length = length};
        memcpy(tasks[last % TASKS].bytes, bytes, length);
        check(wedjat_pick(scheduler, picker, 1, now_ns(), &task, 1, &choice), "");
        act(last, choice);
        break;
    }
    case 'r': /* a report of an unknown worker is counted, and no error */
        check(wedjat_report(scheduler, picker, &report, 1), "");
        struct task *answered = &tasks[ntohl(ticket) % TASKS];
        sendto(own, bytes, length, 0, (void *)&answered->client, sizeof answered->client);
        break;
    default: /* somebody else's */
        break;
    }
}

int main(int argc, char **argv)
{
    struct wedjat_options options = {.size = sizeof options, .ticks_hz = 1000000000};
    struct wedjat_released released[WEDJAT_BURST];
    struct timeval timeout = {.tv_usec = 1000};
    char detail[1024];
    if (argc != 3) {
        fprintf(stderr, "usage: own_header CONFIGURATION PORT\n");
        return 2;
    }
    check(wedjat_load(argv[1], &options, &scheduler, detail, sizeof detail), detail);
    check(wedjat_picker(scheduler, 0, &picker), "");
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[2]))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    own = socket(AF_INET, SOCK_DGRAM, 0);
    setsockopt(own, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    if (own < 0 || bind(own, (void *)&address, sizeof address) < 0) {
        perror("own_header");
        return 1;
    }
    for (;;) {
        uint8_t bytes[2048];
        struct sockaddr_in from;
        socklen_t size = sizeof from;
        ssize_t length = recvfrom(own, bytes, sizeof bytes, 0, (void *)&from, &size);
        int count;
        if (length >= 8)
            take(bytes, length, &from);
        while ((count = wedjat_release_tasks(scheduler, picker, now_ns(), released, WEDJAT_BURST)) > 0)
            for (int at = 0; at < count; at++)
                act(released[at].id, released[at].choice);
        check(count, "");
    }
}
