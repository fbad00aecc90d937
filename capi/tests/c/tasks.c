/* The level for programs with a header of their own, as a C program uses and misuses it; the argument names the case. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <wedjat.h>

#include "check.h"

static unsigned long allocations;
/* The allocator, counting: these stand before the C library's own, for the shared library as well. */
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void __libc_free(void *);
void *malloc(size_t size) { allocations++; return __libc_malloc(size); }
void *calloc(size_t n, size_t size) { allocations++; return __libc_calloc(n, size); }
void *realloc(void *old, size_t size) { allocations++; return __libc_realloc(old, size); }
void free(void *memory) { allocations++; __libc_free(memory); }

/* No ports: the program has its own. */
#define CONFIG_OF(cores) "[leaf]\nid = 1\ncores = " cores "\nseed = 7\nworkers_max = 8\n" \
    "[[pool]]\nid = 7\npolicy = 'jbsq(k=1)'\nqueue = 2\noverflow = 'refuse'\n" \
    "[[server]]\nip = '10.0.2.11'\nworkers = '10-11'\npool = 7\n"
static const char CONFIG[] = CONFIG_OF("[0]"), OF_TWO_CORES[] = CONFIG_OF("[0, 1]");
static struct wedjat_options options = {.size = sizeof options, .ticks_hz = 1000000000};

static struct wedjat_scheduler *scheduler;
static struct wedjat_picker *picker;
static struct wedjat_description tasks[WEDJAT_BURST + 1];
static struct wedjat_choice choices[WEDJAT_BURST + 1];
static struct wedjat_released released[WEDJAT_BURST];

static int create(const char *config, struct wedjat_scheduler **made)
{
    char detail[512] = "";
    int code = wedjat_create(config, strlen(config), &options, made, detail, sizeof detail);
    if (code != 0)
        fprintf(stderr, "%s: %s\n", wedjat_error_message(code), detail);
    return code;
}

/* Reports a worker's answer; the worker has `queue` tasks left. */
static int answer(uint16_t worker, uint16_t queue)
{
    struct wedjat_worker_report report = {.worker = worker, .queue = queue, .flags = WEDJAT_REPORT_ANSWER};
    return wedjat_report(scheduler, picker, &report, 1);
}

static void decides(void)
{
    CHECK(wedjat_ports(scheduler) == 0 && wedjat_cores(scheduler) == 1);
    CHECK(wedjat_pick(scheduler, picker, 7, 1, tasks, 5, choices) == 5);
    CHECK(choices[0].action == WEDJAT_FORWARD && choices[1].action == WEDJAT_FORWARD);
    CHECK(choices[0].worker + choices[1].worker == 10 + 11);
    CHECK(choices[2].action == WEDJAT_HOLD && choices[3].action == WEDJAT_HOLD);
    CHECK(choices[3].worker == WEDJAT_NO_WORKER);
    CHECK(choices[4].action == WEDJAT_ANSWER);
    CHECK(wedjat_release_tasks(scheduler, picker, 1, released, WEDJAT_BURST) == 0);

    CHECK(answer(11, 0) == 1);
    CHECK(wedjat_release_tasks(scheduler, picker, 2, released, WEDJAT_BURST) == 1);
    CHECK(released[0].id == 102 && released[0].choice.action == WEDJAT_FORWARD && released[0].choice.worker == 11);
    CHECK(wedjat_lost(scheduler, picker, 10, 1) == 0);
    CHECK(wedjat_release_tasks(scheduler, picker, 3, released, WEDJAT_BURST) == 1);
    CHECK(released[0].id == 103 && released[0].choice.worker == 10);

    CHECK(answer(10, 0) == 1 && wedjat_sent(scheduler, picker, 10) == 0);
    CHECK(wedjat_pick(scheduler, picker, 7, 4, tasks, 1, choices) == 1 && choices[0].action == WEDJAT_HOLD);
    CHECK(wedjat_abandon_tasks(scheduler, picker) == 0);
    CHECK(wedjat_release_tasks(scheduler, picker, 5, released, WEDJAT_BURST) == 1);
    CHECK(released[0].id == 100 && released[0].choice.action == WEDJAT_DROP);
    CHECK(released[0].choice.reason == WEDJAT_REASON_SHUTDOWN);
    CHECK(wedjat_pick(scheduler, picker, 8, 6, tasks, 1, choices) == 1);
    CHECK(choices[0].action == WEDJAT_DROP && choices[0].reason == WEDJAT_REASON_UNKNOWN_POOL);
    CHECK(answer(12, 0) == 0); /* nobody knows it: counted */
}

/* Serves one task of this class, which takes `service_ns`. */
static void serve(uint64_t now, uint16_t task_class, uint32_t service_ns)
{
    struct wedjat_worker_report report = {.service_ns = service_ns, .flags = WEDJAT_REPORT_ANSWER};
    tasks[0].task_class = report.task_class = task_class;
    CHECK(wedjat_pick(scheduler, picker, 7, now, tasks, 1, choices) == 1 && choices[0].action == WEDJAT_FORWARD);
    report.worker = choices[0].worker;
    CHECK(wedjat_report(scheduler, picker, &report, 1) == 1);
}

/* Tasks of class 2 take 1 ms, and those of class 1 take 10 us. One of class 1 overtakes one of class 2. */
static void classes(void)
{
    uint64_t now = 1000000000;
    CHECK(wedjat_apply(scheduler, "set-policy pool=7 policy=jbsq(k=1,boost=1)", NULL, NULL, 0) == 0);
    CHECK(wedjat_release_tasks(scheduler, picker, now, released, WEDJAT_BURST) == 0);
    for (int pairs = 0; pairs < 100; pairs++) {
        serve(now, 1, 10000);
        serve(now, 2, 1000000);
    }
    for (int at = 0; at < 4; at++)
        tasks[at].task_class = at < 3 ? 2 : 1;
    CHECK(wedjat_pick(scheduler, picker, 7, now, tasks, 3, choices) == 3 && choices[2].action == WEDJAT_HOLD);
    now += 100000; /* less than the difference of the classes' times */
    CHECK(wedjat_pick(scheduler, picker, 7, now, tasks + 3, 1, choices) == 1 && choices[0].action == WEDJAT_HOLD);
    CHECK(answer(10, 0) == 1 && answer(11, 0) == 1);
    CHECK(wedjat_release_tasks(scheduler, picker, now, released, WEDJAT_BURST) == 2);
    CHECK(released[0].id == 103 && released[1].id == 102);
}

static void misuse(void)
{
    struct wedjat_scheduler *with_ports = NULL;
    struct wedjat_context *context;
    struct wedjat_picker *other;
    struct wedjat_worker_report report = {.worker = 10};
    CHECK(wedjat_picker(scheduler, 0, &other) == WEDJAT_ERROR_CORE); /* it has been given out */
    CHECK(wedjat_picker(scheduler, 1, &other) == WEDJAT_ERROR_CORE);
    CHECK(wedjat_picker(scheduler, 1, NULL) == WEDJAT_ERROR_NULL);
    CHECK(wedjat_context(scheduler, 0, &context) == WEDJAT_ERROR_CORE); /* no ports */
    CHECK(wedjat_pick(NULL, picker, 7, 1, tasks, 1, choices) == WEDJAT_ERROR_NULL);
    CHECK(wedjat_pick(scheduler, NULL, 7, 1, tasks, 1, choices) == WEDJAT_ERROR_NULL);
    CHECK(wedjat_pick(scheduler, picker, 7, 1, NULL, 1, choices) == WEDJAT_ERROR_NULL);
    CHECK(wedjat_pick(scheduler, picker, 7, 1, tasks, 1, NULL) == WEDJAT_ERROR_NULL);
    CHECK(wedjat_pick(scheduler, picker, 7, 1, (void *)((char *)tasks + 1), 1, choices) == WEDJAT_ERROR_ALIGNMENT);
    CHECK(wedjat_pick(scheduler, picker, 7, 1, tasks, WEDJAT_BURST + 1, choices) == WEDJAT_ERROR_BURST);
    CHECK(wedjat_pick(scheduler, (void *)((char *)picker + 8), 7, 1, tasks, 1, choices) == WEDJAT_ERROR_CONTEXT);
    CHECK(wedjat_report(scheduler, picker, NULL, 1) == WEDJAT_ERROR_NULL);
    CHECK(wedjat_report(scheduler, picker, &report, UINT32_MAX) == WEDJAT_ERROR_ROOM);
    CHECK(wedjat_sent(scheduler, picker, 12) == WEDJAT_ERROR_WORKER);
    CHECK(wedjat_lost(scheduler, picker, 12, 1) == WEDJAT_ERROR_WORKER);
    CHECK(wedjat_release_tasks(scheduler, picker, 1, NULL, 1) == WEDJAT_ERROR_NULL);
    CHECK(create("[leaf]\nid = 1\ncores = [0]\n[[port]]\ndevice = 'c'\nside = 'both'\nip = '10.0.2.1/24'\n"
                 "mac = '02:00:00:00:00:01'\n[[pool]]\nid = 7\npolicy = 'random'\n"
                 "[[server]]\nip = '10.0.2.11'\nworkers = '10'\npool = 7\n", &with_ports) == 0);
    CHECK(wedjat_picker(with_ports, 0, &other) == WEDJAT_ERROR_CORE);
    CHECK(wedjat_pick(with_ports, picker, 7, 1, tasks, 1, choices) == WEDJAT_ERROR_CONTEXT);
    CHECK(wedjat_free(with_ports) == 0);
    /* Nothing of it has harmed anything. */
    CHECK(wedjat_pick(scheduler, picker, 7, 1, tasks, 2, choices) == 2);
    CHECK(choices[0].action == WEDJAT_FORWARD && choices[1].action == WEDJAT_FORWARD);
    CHECK(wedjat_errno(WEDJAT_ERROR_WORKER) == ESRCH && wedjat_errno(WEDJAT_ERROR_BURST) == E2BIG);
    CHECK(wedjat_errno(3) == 0 && wedjat_errno(-12345) == EINVAL);
}

/* Makes both pickers adopt the changes. */
static void take_change(struct wedjat_picker *other, uint64_t *now)
{
    *now += 1000000000;
    CHECK(wedjat_release_tasks(scheduler, picker, *now, released, WEDJAT_BURST) == 0);
    CHECK(wedjat_release_tasks(scheduler, other, *now, released, WEDJAT_BURST) == 0);
}

static void statistics(void)
{
    struct wedjat_worker_state workers[4];
    struct wedjat_picker *other;
    uint64_t now = 1;
    memset(workers, 0xff, sizeof workers);
    CHECK(wedjat_picker(scheduler, 1, &other) == 0);
    CHECK(wedjat_apply(scheduler, "add-workers server=10.0.2.11 pool=7 workers=12 speed=2", NULL, NULL, 0) == 0);
    CHECK(wedjat_apply(scheduler, "drain workers=10", NULL, NULL, 0) == 0);
    CHECK(wedjat_apply(scheduler, "set-policy pool=7 policy=round-robin", NULL, NULL, 0) == 0);
    take_change(other, &now);
    CHECK(wedjat_pick(scheduler, picker, 7, now, tasks, 4, choices) == 4);
    CHECK(wedjat_pick(scheduler, other, 7, now, tasks, 2, choices) == 2);
    CHECK(answer(11, 1) == 1);
    CHECK(wedjat_workers(scheduler, workers, 1) == 3 && workers[1].worker == 0xffff);
    CHECK(wedjat_workers(scheduler, workers, 4) == 3);
    CHECK(workers[0].worker == 10 && workers[0].drained == 1 && workers[0].outstanding == 0);
    CHECK(workers[1].worker == 11 && workers[1].drained == 0 && workers[1].outstanding == 2);
    CHECK(workers[1].pool == 7 && workers[1].load == 1.0 && workers[1].reports == 1);
    CHECK(workers[2].worker == 12 && workers[2].outstanding == 3 && workers[2].speed == 2.0);
    CHECK(workers[2].presence == WEDJAT_WORKER_CONFIGURED && workers[2].leaving == 0);
    CHECK(wedjat_workers(scheduler, NULL, 4) == WEDJAT_ERROR_NULL);
}

static char records[4096];
static int levels;

static void take_record(void *user, int level, const char *text)
{
    CHECK(user == &levels);
    levels |= 1 << level;
    snprintf(records + strlen(records), sizeof records - strlen(records), "%s\n", text);
}

static void logs(void)
{
    CHECK(wedjat_set_log(take_record, &levels, 9) == WEDJAT_ERROR_OPTIONS);
    CHECK(wedjat_set_log(take_record, &levels, WEDJAT_LOG_INFO) == 0);
    CHECK(wedjat_apply(scheduler, "drain workers=10", NULL, NULL, 0) == 0);
    CHECK(strcmp(records, "change 2: drain workers=10\n") == 0 && levels == 1 << WEDJAT_LOG_INFO);
    CHECK(wedjat_set_log(take_record, &levels, WEDJAT_LOG_WARN) == 0);
    CHECK(wedjat_apply(scheduler, "undrain workers=10", NULL, NULL, 0) == 0);
    CHECK(wedjat_set_log(NULL, NULL, WEDJAT_LOG_DEBUG) == 0);
    CHECK(wedjat_apply(scheduler, "drain workers=10", NULL, NULL, 0) == 0);
    CHECK(strcmp(records, "change 2: drain workers=10\n") == 0);
}

/* A node that every machine has, unless the process may not choose; and one that none has. */
static void memory_nodes(void)
{
    struct wedjat_scheduler *made;
    options.memory_node = 1;
    int code = create(CONFIG, &made);
    CHECK(code == 0 ? wedjat_free(made) == 0 : code == WEDJAT_ERROR_NODE);
    options.memory_node = 1025;
    CHECK(create(CONFIG, &made) == WEDJAT_ERROR_NODE && made == NULL);
    /* The options as they were before there was a node. */
    options.size = 32;
    CHECK(create(CONFIG, &made) == 0 && wedjat_free(made) == 0);
    options.size = 36;
    CHECK(create(CONFIG, &made) == WEDJAT_ERROR_OPTIONS);
}

static void nothing_is_allocated(void)
{
    unsigned long before = allocations;
    struct wedjat_scheduler *made;
    CHECK(create(CONFIG, &made) == 0 && wedjat_free(made) == 0 && allocations > before + 10);
    before = allocations;
    for (uint64_t now = 0; now < 1000000000; now += 1000000) {
        CHECK(wedjat_pick(scheduler, picker, 7, now, tasks, WEDJAT_BURST, choices) == WEDJAT_BURST);
        CHECK(answer(10, 0) == 1 && answer(11, 0) == 1);
        CHECK(wedjat_release_tasks(scheduler, picker, now, released, WEDJAT_BURST) == 2);
        CHECK(wedjat_sent(scheduler, picker, 10) == 0 && wedjat_lost(scheduler, picker, 10, 1) == 0);
        CHECK(wedjat_pick(scheduler, picker, 7, now, tasks, 99, choices) == WEDJAT_ERROR_BURST);
    }
    CHECK(allocations == before);
}

static const struct {
    const char *name;
    void (*run)(void);
} CASES[] = {
    {"decides", decides}, {"classes", classes}, {"misuse", misuse}, {"statistics", statistics}, {"logs", logs},
    {"memory_nodes", memory_nodes}, {"nothing_is_allocated", nothing_is_allocated},
};

int main(int argc, char **argv)
{
    for (int at = 0; at <= WEDJAT_BURST; at++)
        tasks[at].id = 100 + at;
    const char *config = argc == 2 && strcmp(argv[1], "statistics") == 0 ? OF_TWO_CORES : CONFIG;
    CHECK(create(config, &scheduler) == 0 && wedjat_picker(scheduler, 0, &picker) == 0);
    for (size_t at = 0; at < sizeof CASES / sizeof *CASES; at++)
        if (argc == 2 && strcmp(argv[1], CASES[at].name) == 0) {
            CASES[at].run();
            CHECK(wedjat_free(scheduler) == 0 && wedjat_free(scheduler) == WEDJAT_ERROR_HANDLE);
            return 0;
        }
    fprintf(stderr, "no such case\n");
    return 2;
}
