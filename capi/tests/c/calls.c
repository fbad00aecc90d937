/* Calls of the library as a C program makes them, right ones and wrong ones; the argument names the case. */
#include <arpa/inet.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <wedjat.h>

#include "check.h"

static unsigned long allocations;
#ifndef __SANITIZE_ADDRESS__ /* which has an allocator of its own */
/* The allocator, counting: these stand before the C library's own, for the shared library as well. */
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void __libc_free(void *);
void *malloc(size_t size) { allocations++; return __libc_malloc(size); }
void *calloc(size_t n, size_t size) { allocations++; return __libc_calloc(n, size); }
void *realloc(void *old, size_t size) { allocations++; return __libc_realloc(old, size); }
void free(void *memory) { allocations++; __libc_free(memory); }
#endif

static const char CONFIG[] =
    "[leaf]\nid = 1\ncores = [0, 1]\nseed = 7\nconnections = 64\n"
    "[[port]]\ndevice = 'c'\nside = 'clients'\nip = '10.0.1.1/24'\n"
    "[[port]]\ndevice = 'w'\nside = 'workers'\nip = '10.0.2.1/24'\n"
    "[[pool]]\nid = 7\npolicy = 'round-robin'\n"
    "[[server]]\nip = '10.0.2.11'\nmac = '02:00:00:00:02:0b'\nworkers = '10-13'\npool = 7\n"
    "[[server]]\nip = '10.0.2.12'\nworkers = '14-17'\npool = 7\n";
static const uint8_t MACS[2][6] = {{2, 0, 0, 0, 0, 1}, {2, 0, 0, 0, 0, 2}};
static struct wedjat_options options = {sizeof options, 1000000000, MACS[0], 2, 0, 0};

static struct wedjat_scheduler *scheduler;
static struct wedjat_context *context;
static uint8_t frames[WEDJAT_BURST + 1][64];
static struct wedjat_packet packets[WEDJAT_BURST + 1];
static struct wedjat_verdict verdicts[WEDJAT_BURST + 1];
static struct wedjat_rewrite rewrites[WEDJAT_BURST + 1];

static struct wedjat_scheduler *create(void)
{
    struct wedjat_scheduler *made;
    char detail[256];
    int code = wedjat_create(CONFIG, strlen(CONFIG), &options, &made, detail, sizeof detail);
    if (code != 0)
        fprintf(stderr, "%s: %s\n", wedjat_error_message(code), detail);
    CHECK(code == 0 && made != NULL && detail[0] == 0);
    return made;
}

/* A client's task, its UDP checksum left out. */
static void task(uint8_t *frame)
{
    static const uint8_t head[] = {
        2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 1, 2, 8, 0,
        0x45, 0, 0, 39, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 1, 2, 10, 0, 1, 1,
        0x9c, 0x40, 4, 210, 0, 19, 0, 0,
        0, 0, 7, 0, 0, 0x7f, 0xff, 0, 0, 0, 1,
    };
    uint32_t sum = 0;
    memset(frame, 0, 64);
    memcpy(frame, head, sizeof head);
    for (int at = 14; at < 34; at += 2)
        sum += frame[at] << 8 | frame[at + 1];
    sum = ~((sum & 0xffff) + (sum >> 16));
    frame[24] = sum >> 8;
    frame[25] = sum;
}

static void tasks(void)
{
    for (int at = 0; at <= WEDJAT_BURST; at++) {
        task(frames[at]);
        packets[at] = (struct wedjat_packet){frames[at], 60, 0};
        verdicts[at] = (struct wedjat_verdict){.action = 99};
    }
}

static uint64_t counter(const char *name)
{
    uint64_t values[128];
    int count = wedjat_counters(scheduler, values, 128);
    CHECK(count > 0 && count <= 128 && wedjat_counter_name(count) == NULL);
    for (int at = 0; at < count; at++)
        if (strcmp(wedjat_counter_name(at), name) == 0)
            return values[at];
    CHECK(!"a counter of that name");
    return 0;
}

static int process(uint32_t count)
{
    return wedjat_process(scheduler, context, 0, 1, packets, count, verdicts);
}

/* After any misuse: it was counted, nothing was touched, and a right call does what it always does. */
static void unharmed(uint64_t bad_calls)
{
    CHECK(counter("bad_calls") == bad_calls);
    CHECK(counter("rx_packets") == 0);
    CHECK(verdicts[0].action == 99);
    tasks();
    CHECK(process(4) == 4);
    for (int at = 0; at < 4; at++)
        CHECK(verdicts[at].action == WEDJAT_FORWARD && verdicts[at].port == 1 && verdicts[at].worker == 10 + at);
}

static void versions(void)
{
    CHECK(wedjat_abi_version() == WEDJAT_ABI);
    CHECK(strlen(wedjat_version()) > 0);
    CHECK(strcmp(wedjat_reason_name(WEDJAT_REASON_RUNT), "runt") == 0);
    CHECK(strcmp(wedjat_reason_name(WEDJAT_REASON_SHUTDOWN), "shutdown") == 0);
    CHECK(wedjat_reason_name(UINT16_MAX) == NULL);
    CHECK(strcmp(wedjat_error_message(0), wedjat_error_message(WEDJAT_ERROR_NULL)) != 0);
    CHECK(sizeof(struct wedjat_options) == 40 && sizeof(struct wedjat_packet) == 16);
    CHECK(sizeof(struct wedjat_verdict) == 12 && sizeof(struct wedjat_rewrite) == 28);
    CHECK(wedjat_cores(scheduler) == 2 && wedjat_ports(scheduler) == 2);
}

static void refused(int expected, const char *config, size_t length, struct wedjat_options with, const char *text)
{
    struct wedjat_scheduler *made = scheduler;
    char detail[512] = "untouched", brief[8];
    CHECK(wedjat_create(config, length, &with, &made, detail, sizeof detail) == expected);
    CHECK(made == NULL);
    if (strstr(detail, text) == NULL)
        fprintf(stderr, "the detail is: %s\n", detail);
    CHECK(strstr(detail, text) != NULL);
    CHECK(wedjat_create(config, length, &with, &made, brief, sizeof brief) == expected);
    CHECK(strlen(brief) < sizeof brief && strncmp(brief, detail, strlen(brief)) == 0);
    CHECK(wedjat_create(config, length, &with, &made, NULL, 0) == expected);
}

static void create_refuses(void)
{
    struct wedjat_options no_macs = {sizeof no_macs, 1, NULL, 0, 0, 0}, null_macs = {sizeof no_macs, 1, NULL, 2, 0, 0};
    struct wedjat_options other_size = options, no_clock = options, reserved = options;
    struct wedjat_scheduler *made[2];
    other_size.size = 24;
    no_clock.ticks_hz = 0;
    reserved.reserved = 7;
    refused(WEDJAT_ERROR_CONFIG, "[leaf]\nid = 'one'\n", 18, options, "configuration:2: `leaf.id`");
    refused(WEDJAT_ERROR_CONFIG, "\xff\xfe", 2, options, "utf-8");
    refused(WEDJAT_ERROR_CONFIG, CONFIG, 0, options, "leaf");
    refused(WEDJAT_ERROR_CONFIG, CONFIG, strlen(CONFIG), no_macs, "port 0: no MAC address");
    refused(WEDJAT_ERROR_CONFIG, CONFIG, strlen(CONFIG), no_clock, "ticks_hz");
    refused(WEDJAT_ERROR_NULL, CONFIG, strlen(CONFIG), null_macs, "");
    refused(WEDJAT_ERROR_NULL, NULL, 9, options, "");
    refused(WEDJAT_ERROR_OPTIONS, CONFIG, strlen(CONFIG), other_size, "options.size: found 24; allowed: 40");
    refused(WEDJAT_ERROR_OPTIONS, CONFIG, strlen(CONFIG), reserved, "options.reserved: found 7; allowed: 0");
    no_macs = options;
    no_macs.macs_count = SIZE_MAX;
    refused(WEDJAT_ERROR_OPTIONS, CONFIG, strlen(CONFIG), no_macs, "options.macs_count");
    refused(WEDJAT_ERROR_CONFIG, CONFIG, SIZE_MAX, options, "length: found");
    char detail[512];
    CHECK(wedjat_load("/nowhere/leaf.toml", &options, made, detail, sizeof detail) == WEDJAT_ERROR_CONFIG);
    CHECK(strstr(detail, "/nowhere/leaf.toml") != NULL && made[0] == NULL);
    CHECK(wedjat_create(CONFIG, strlen(CONFIG), NULL, made, NULL, 0) == WEDJAT_ERROR_NULL);
    CHECK(wedjat_create(CONFIG, strlen(CONFIG), &options, NULL, NULL, 0) == WEDJAT_ERROR_NULL);
    CHECK(wedjat_create(CONFIG, strlen(CONFIG), &options, (void *)((char *)made + 1), NULL, 0) == WEDJAT_ERROR_ALIGNMENT);
    CHECK(wedjat_create(CONFIG, strlen(CONFIG), (void *)((char *)&options + 1), made, NULL, 0) == WEDJAT_ERROR_ALIGNMENT);
}

static void decides(void)
{
    uint8_t before[64];
    tasks();
    memcpy(before, frames[0], 64);
    packets[5].length = 10;
    CHECK(wedjat_decide(scheduler, context, 0, 1, packets, 6, verdicts, rewrites) == 6);
    CHECK(memcmp(before, frames[0], 64) == 0);
    CHECK(verdicts[0].action == WEDJAT_FORWARD && verdicts[0].worker == 10 && verdicts[0].port == 1);
    CHECK(verdicts[5].action == WEDJAT_DROP && verdicts[5].reason == WEDJAT_REASON_RUNT);
    CHECK(rewrites[0].src == inet_addr("10.0.1.2") && rewrites[0].dst == inet_addr("10.0.2.11"));
    CHECK(memcmp(rewrites[0].dst_mac, "\2\0\0\0\2\13", 6) == 0 && memcmp(rewrites[0].src_mac, MACS[1], 6) == 0);
    CHECK(rewrites[0].udp_offset == 34 && rewrites[0].worker == 10 && rewrites[0].task == 1);
    tasks();
    CHECK(process(1) == 1 && memcmp(frames[0] + 30, "\12\0\2\14", 4) == 0 && frames[0][22] == 63);
}

/* Worker 14 to 17 are behind a next hop that has to be asked for. */
static void holds(void)
{
    uint8_t frame[WEDJAT_QUESTION_SIZE], port = 99;
    struct wedjat_packet answer = {frame, sizeof frame, 0};
    tasks();
    CHECK(process(8) == 8);
    int kept[256], count = 0;
    CHECK(wedjat_places(scheduler) == 288 + 4096); /* the pool may wait under another policy */
    for (int at = 0; at < 8; at++)
        if (verdicts[at].action == WEDJAT_HOLD) {
            CHECK(verdicts[at].place < 256 && verdicts[at].worker >= 14);
            kept[verdicts[at].place] = at;
            count++;
        }
    CHECK(count == 4 && counter("held") == 4);
    CHECK(wedjat_release(scheduler, context, 2, verdicts, WEDJAT_BURST) == 0);
    CHECK(wedjat_question(scheduler, context, 2, frame, sizeof frame - 1, &port) == WEDJAT_ERROR_ROOM);
    CHECK(wedjat_question(scheduler, context, 2, frame, sizeof frame, &port) == WEDJAT_QUESTION_SIZE && port == 1);
    CHECK(frame[21] == 1 && memcmp(frame + 38, "\12\0\2\14", 4) == 0);
    CHECK(wedjat_question(scheduler, context, 2, answer.data, sizeof frame, &port) == 0);

    /* The server's answer: sender and target change places. */
    frame[21] = 2;
    memcpy(frame, MACS[1], 6);
    memcpy(frame + 32, frame + 22, 10);
    memcpy(frame + 22, "\2\0\0\0\2\14\12\0\2\14", 10);
    CHECK(wedjat_process(scheduler, context, 1, 3, &answer, 1, verdicts) == 1);
    CHECK(verdicts[0].action == WEDJAT_CONSUMED && verdicts[0].worker == WEDJAT_NO_WORKER);
    CHECK(wedjat_release(scheduler, context, 3, verdicts, 0) == 0);
    CHECK(wedjat_release(scheduler, context, 3, verdicts, 1) == 1);
    CHECK(verdicts[0].action == WEDJAT_FORWARD && verdicts[0].port == 1 && verdicts[0].worker >= 14);
    CHECK(memcmp(frames[kept[verdicts[0].place]], "\2\0\0\0\2\14", 6) == 0);
    CHECK(wedjat_abandon(scheduler, context) == 0);
    CHECK(wedjat_release(scheduler, context, 3, verdicts, WEDJAT_BURST) == 3);
    for (int at = 0; at < 3; at++)
        CHECK(verdicts[at].action == WEDJAT_DROP && verdicts[at].reason == WEDJAT_REASON_SHUTDOWN);
    CHECK(wedjat_release(scheduler, context, 3, verdicts, WEDJAT_BURST) == 0);
    CHECK(wedjat_unsent(scheduler, context, 3) == 0);
    CHECK(wedjat_unsent_own(scheduler, context, 2) == 0);
    CHECK(counter("originated") == 1 && counter("originated_unsent") == 1);
    CHECK(counter("held") == 0 && counter("forwarded") == 5 && counter("tx_full") == 3 && counter("shutdown") == 3);
    CHECK(counter("rx_packets") == counter("forwarded") + counter("shutdown") + counter("consumed"));
    CHECK(counter("bad_calls") == 1);
}

/* A worker has one task at a time; the others wait here until a reply makes room. */
static void waits(void)
{
    static const char ONE[] =
        "[leaf]\nid = 1\ncores = [0]\nseed = 7\nconnections = 64\n"
        "[[port]]\ndevice = 'c'\nside = 'both'\nip = '10.0.1.1/16'\n"
        "[[pool]]\nid = 7\npolicy = 'jbsq(k=1)'\nqueue = 20\n"
        "[[server]]\nip = '10.0.2.11'\nmac = '02:00:00:00:02:0b'\nworkers = '10-13'\npool = 7\n";
    uint8_t reply[64];
    struct wedjat_packet done = {reply, 60, 0};
    CHECK(wedjat_free(scheduler) == 0);
    CHECK(wedjat_create(ONE, strlen(ONE), &options, &scheduler, NULL, 0) == 0);
    CHECK(wedjat_context(scheduler, 0, &context) == 0 && wedjat_places(scheduler) == 308);
    tasks();
    CHECK(process(WEDJAT_BURST) == WEDJAT_BURST);
    for (int at = 0; at < WEDJAT_BURST; at++) {
        int expected = at < 4 ? WEDJAT_FORWARD : at < 24 ? WEDJAT_HOLD : WEDJAT_DROP;
        CHECK(verdicts[at].action == expected);
        CHECK(expected != WEDJAT_HOLD || verdicts[at].worker == WEDJAT_NO_WORKER);
        CHECK(expected != WEDJAT_DROP || verdicts[at].reason == WEDJAT_REASON_QUEUE_FULL);
    }
    CHECK(counter("queued") == 20 && counter("held") == 20);
    uint32_t first = verdicts[4].place;
    CHECK(wedjat_release(scheduler, context, 2, verdicts, WEDJAT_BURST) == 0);

    /* Worker 12 has done its task. */
    task(reply);
    memcpy(reply + 6, "\2\0\0\0\2\13", 6);
    memcpy(reply + 26, "\12\0\2\13\12\0\1\2", 8);
    memcpy(reply + 34, "\4\322\234\100", 4);
    memcpy(reply + 42, "\3\0\7\0\14\0\1\0\0\0\1", 11);
    memset(reply + 24, 0, 2);
    uint32_t sum = 0;
    for (int at = 14; at < 34; at += 2)
        sum += reply[at] << 8 | reply[at + 1];
    sum = ~((sum & 0xffff) + (sum >> 16));
    reply[24] = sum >> 8;
    reply[25] = sum;
    CHECK(wedjat_process(scheduler, context, 0, 3, &done, 1, verdicts) == 1);
    CHECK(verdicts[0].action == WEDJAT_FORWARD && verdicts[0].worker == 12); /* the tasks showed the client's MAC address */
    CHECK(wedjat_release(scheduler, context, 4, verdicts, WEDJAT_BURST) == 1);
    CHECK(verdicts[0].action == WEDJAT_FORWARD && verdicts[0].worker == 12 && verdicts[0].place == first);
    CHECK(memcmp(frames[4], "\2\0\0\0\2\13", 6) == 0 && memcmp(frames[4] + 30, "\12\0\2\13", 4) == 0);
    CHECK(counter("queued") == 19 && counter("held") == 19 && counter("forwarded") == 6);
    CHECK(wedjat_abandon(scheduler, context) == 0);
    CHECK(wedjat_release(scheduler, context, 5, verdicts, WEDJAT_BURST) == 19);
    CHECK(counter("held") == 0 && counter("rx_packets") == 33 && counter("shutdown") == 19);
}

static void members(void)
{
    CHECK(wedjat_set_active(scheduler, context, 9, 0) == WEDJAT_ERROR_WORKER);
    for (int worker = 10; worker < 18; worker++)
        CHECK(wedjat_set_active(scheduler, context, worker, worker == 12) == 0);
    tasks();
    CHECK(process(WEDJAT_BURST) == WEDJAT_BURST);
    for (int at = 0; at < WEDJAT_BURST; at++)
        CHECK(verdicts[at].action == WEDJAT_FORWARD && verdicts[at].worker == 12);
}

/* Workers come and go under traffic; both contexts take each change at their next release. */
static void changes(void)
{
    static const char *MADE[] = {"add-server ip=10.0.2.13 mac=02:00:00:00:02:0d",
                                 "add-workers server=10.0.2.13 pool=7 workers=30-31",
                                 "remove-workers workers=10-17", "set-policy pool=7 policy=horus"};
    char detail[256] = "";
    uint64_t epoch = 0, reached = 0, now = 1000000000;
    struct wedjat_context *other;
    CHECK(wedjat_context(scheduler, 1, &other) == 0);
    for (int at = 0; at < 4; at++) {
        CHECK(wedjat_apply(scheduler, MADE[at], &epoch, detail, sizeof detail) == 0);
        CHECK(epoch == 2 + (uint64_t)at && detail[0] == 0);
    }
    CHECK(wedjat_acknowledged(scheduler, &reached) == 0 && reached == 1);
    unsigned long before = allocations;
    CHECK(wedjat_release(scheduler, context, now, verdicts, 1) == 0);
    CHECK(wedjat_acknowledged(scheduler, &reached) == 0 && reached == 1);
    CHECK(wedjat_release(scheduler, other, now, verdicts, 1) == 0);
    CHECK(allocations == before);
    CHECK(wedjat_acknowledged(scheduler, &reached) == 0 && reached == epoch);
    tasks();
    CHECK(process(WEDJAT_BURST) == WEDJAT_BURST);
    for (int at = 0; at < WEDJAT_BURST; at++)
        CHECK(verdicts[at].action == WEDJAT_FORWARD && (verdicts[at].worker == 30 || verdicts[at].worker == 31));
    while (wedjat_tend(scheduler, now) != 1) {
        now += 1000000;
        CHECK(now < 2000000000);
        CHECK(wedjat_release(scheduler, context, now, verdicts, 1) == 0);
        CHECK(wedjat_release(scheduler, other, now, verdicts, 1) == 0);
    }
    CHECK(wedjat_set_active(scheduler, context, 10, 1) == WEDJAT_ERROR_WORKER); /* it has gone */

    CHECK(wedjat_apply(scheduler, "remove-workers workers=10", &epoch, detail, sizeof detail) == WEDJAT_ERROR_CHANGE);
    CHECK(strstr(detail, "worker 10: does not exist") != NULL);
    CHECK(wedjat_apply(scheduler, "grow", NULL, detail, 9) == WEDJAT_ERROR_CHANGE && strlen(detail) < 9);
    CHECK(wedjat_apply(scheduler, NULL, &epoch, NULL, 0) == WEDJAT_ERROR_NULL);
    CHECK(wedjat_apply(NULL, MADE[0], &epoch, NULL, 0) == WEDJAT_ERROR_NULL);
    CHECK(wedjat_apply(scheduler, "remove-pool id=9", (void *)((char *)&epoch + 1), NULL, 0) == WEDJAT_ERROR_ALIGNMENT);
    CHECK(wedjat_acknowledged(scheduler, NULL) == WEDJAT_ERROR_NULL && wedjat_tend(NULL, 1) == WEDJAT_ERROR_NULL);
}

static void null(void)
{
    uint64_t values[1];
    uint8_t frame[64], port;
    struct wedjat_context *other;
    tasks();
    CHECK(wedjat_process(NULL, context, 0, 1, packets, 1, verdicts) == WEDJAT_ERROR_NULL);
    CHECK(wedjat_free(NULL) == WEDJAT_ERROR_NULL && wedjat_cores(NULL) == WEDJAT_ERROR_NULL);
    CHECK(wedjat_context(NULL, 0, &other) == WEDJAT_ERROR_NULL && wedjat_counters(NULL, values, 1) == WEDJAT_ERROR_NULL);
    /* From here on there is somebody to count. */
    CHECK(wedjat_process(scheduler, NULL, 0, 1, packets, 1, verdicts) == WEDJAT_ERROR_NULL);
    CHECK(wedjat_process(scheduler, context, 0, 1, NULL, 1, verdicts) == WEDJAT_ERROR_NULL);
    CHECK(wedjat_process(scheduler, context, 0, 1, packets, 1, NULL) == WEDJAT_ERROR_NULL);
    packets[3].data = NULL;
    CHECK(process(4) == WEDJAT_ERROR_NULL);
    packets[3].data = frames[3];
    CHECK(wedjat_decide(scheduler, context, 0, 1, packets, 1, verdicts, NULL) == WEDJAT_ERROR_NULL);
    CHECK(wedjat_release(scheduler, context, 1, NULL, 1) == WEDJAT_ERROR_NULL);
    CHECK(wedjat_release(scheduler, NULL, 1, verdicts, 1) == WEDJAT_ERROR_NULL);
    CHECK(wedjat_abandon(scheduler, NULL) == WEDJAT_ERROR_NULL);
    CHECK(wedjat_unsent_own(scheduler, NULL, 1) == WEDJAT_ERROR_NULL);
    CHECK(wedjat_load(NULL, &options, (void *)&other, NULL, 0) == WEDJAT_ERROR_NULL);
    CHECK(wedjat_places(NULL) == WEDJAT_ERROR_NULL);
    CHECK(wedjat_question(scheduler, context, 1, NULL, 64, &port) == WEDJAT_ERROR_NULL);
    CHECK(wedjat_question(scheduler, context, 1, frame, 64, NULL) == WEDJAT_ERROR_NULL);
    CHECK(wedjat_context(scheduler, 1, NULL) == WEDJAT_ERROR_NULL);
    CHECK(wedjat_counters(scheduler, NULL, 9) == WEDJAT_ERROR_NULL);
    unharmed(13);
}

static void burst(void)
{
    tasks();
    CHECK(process(WEDJAT_BURST + 1) == WEDJAT_ERROR_BURST);
    CHECK(process(UINT32_MAX) == WEDJAT_ERROR_BURST);
    CHECK(wedjat_decide(scheduler, context, 0, 1, packets, WEDJAT_BURST + 1, verdicts, rewrites) == WEDJAT_ERROR_BURST);
    CHECK(process(0) == 0);
    unharmed(3);
}

/* Any length, also none; and bytes that begin anywhere. */
static void lengths_and_places(void)
{
    static uint8_t any[64 + 8], expected[64];
    for (uint32_t length = 0; length < 53; length++) {
        tasks();
        packets[0].length = length;
        CHECK(process(1) == 1 && verdicts[0].action == WEDJAT_DROP && verdicts[0].place == 0);
        task(expected);
        CHECK(memcmp(frames[0], expected, sizeof expected) == 0);
    }
    CHECK(counter("runt") > 0 && counter("rx_packets") == 53 && counter("forwarded") == 0);
    for (int worker = 11; worker < 18; worker++)
        CHECK(wedjat_set_active(scheduler, context, worker, 0) == 0);
    tasks();
    packets[0].flags = ~(WEDJAT_PACKET_VERIFIED | WEDJAT_PACKET_SEGMENTED); /* which mean nothing */
    CHECK(process(1) == 1 && verdicts[0].action == WEDJAT_FORWARD);
    memcpy(expected, frames[0], sizeof expected);
    for (int at = 0; at < 8; at++) {
        task(any + at);
        packets[0] = (struct wedjat_packet){any + at, 60, 0};
        CHECK(process(1) == 1 && verdicts[0].action == WEDJAT_FORWARD);
        CHECK(memcmp(any + at, expected, sizeof expected) == 0);
    }
    task(any);
    packets[0] = (struct wedjat_packet){any, 60, WEDJAT_PACKET_SEGMENTED};
    CHECK(process(1) == 1 && verdicts[0].action == WEDJAT_DROP && counter("bad_calls") == 0);
}

/* Counts and numbers beyond all that there is, and a clock that leaps and goes back. */
static void limits(void)
{
    static const uint64_t times[] = {UINT64_MAX, 0, UINT64_MAX - 1, 1, UINT64_MAX / 2};
    uint8_t frame[WEDJAT_QUESTION_SIZE], out;
    tasks();
    CHECK(wedjat_unsent(scheduler, context, UINT32_MAX) == 0 && counter("tx_full") == 0);
    CHECK(wedjat_set_active(scheduler, context, UINT16_MAX, 1) == WEDJAT_ERROR_WORKER);
    CHECK(wedjat_set_active(scheduler, context, WEDJAT_NO_WORKER, 1) == WEDJAT_ERROR_WORKER);
    CHECK(wedjat_context(scheduler, UINT32_MAX, &context) == WEDJAT_ERROR_CORE);
    CHECK(wedjat_counter_name(SIZE_MAX) == NULL && wedjat_error_message(INT32_MIN) != NULL);
    CHECK(wedjat_release(scheduler, context, 1, verdicts, UINT32_MAX) == 0);
    unharmed(3);
    for (size_t at = 0; at < sizeof times / sizeof *times; at++) {
        tasks();
        CHECK(wedjat_process(scheduler, context, 0, times[at], packets, 8, verdicts) == 8);
        CHECK(wedjat_release(scheduler, context, times[at], verdicts, WEDJAT_BURST) >= 0);
        CHECK(wedjat_question(scheduler, context, times[at], frame, sizeof frame, &out) >= 0);
    }
    CHECK(counter("rx_packets") == 4 + 8 * sizeof times / sizeof *times && counter("bad_calls") == 3);
}

static void port(void)
{
    tasks();
    CHECK(wedjat_process(scheduler, context, 2, 1, packets, 1, verdicts) == WEDJAT_ERROR_PORT);
    CHECK(wedjat_process(scheduler, context, UINT32_MAX, 1, packets, 1, verdicts) == WEDJAT_ERROR_PORT);
    unharmed(2);
}

static void foreign_context(void)
{
    struct wedjat_scheduler *other = create();
    struct wedjat_context *foreign, *again, *second;
    tasks();
    CHECK(wedjat_context(other, 0, &foreign) == 0);
    CHECK(wedjat_process(scheduler, foreign, 0, 1, packets, 1, verdicts) == WEDJAT_ERROR_CONTEXT);
    /* Anything at all; it is not followed. */
    CHECK(wedjat_process(scheduler, (void *)(uintptr_t)0xdead0, 0, 1, packets, 1, verdicts) == WEDJAT_ERROR_CONTEXT);
    CHECK(wedjat_unsent(scheduler, (void *)((char *)context + 64), 1) == WEDJAT_ERROR_CONTEXT);
    CHECK(wedjat_context(scheduler, 0, &again) == WEDJAT_ERROR_CORE);
    CHECK(wedjat_context(scheduler, 2, &again) == WEDJAT_ERROR_CORE);
    /* Core 1's context is right only once it was given out. */
    CHECK(wedjat_context(other, 1, &second) == 0);
    second = (void *)((char *)context + ((char *)second - (char *)foreign));
    CHECK(wedjat_unsent(scheduler, second, 0) == WEDJAT_ERROR_CONTEXT);
    CHECK(wedjat_context(scheduler, 1, &again) == 0 && again == second);
    CHECK(wedjat_unsent(scheduler, second, 0) == 0);
    CHECK(wedjat_free(other) == 0);
    unharmed(6);
}

static void freed_twice(void)
{
    struct wedjat_scheduler *other = create();
    struct wedjat_context *stale;
    uint64_t values[1];
    tasks();
    CHECK(wedjat_context(other, 0, &stale) == 0);
    CHECK(wedjat_free(other) == 0);
    CHECK(wedjat_free(other) == WEDJAT_ERROR_HANDLE);
    CHECK(wedjat_process(other, stale, 0, 1, packets, 1, verdicts) == WEDJAT_ERROR_HANDLE);
    CHECK(wedjat_counters(other, values, 1) == WEDJAT_ERROR_HANDLE);
    CHECK(wedjat_cores(other) == WEDJAT_ERROR_HANDLE && wedjat_ports(other) == WEDJAT_ERROR_HANDLE);
    CHECK(wedjat_places(other) == WEDJAT_ERROR_HANDLE && wedjat_context(other, 1, &stale) == WEDJAT_ERROR_HANDLE);
    CHECK(wedjat_release(other, stale, 1, verdicts, 1) == WEDJAT_ERROR_HANDLE);
    CHECK(wedjat_abandon(other, stale) == WEDJAT_ERROR_HANDLE);
    CHECK(wedjat_process(scheduler, stale, 0, 1, packets, 1, verdicts) == WEDJAT_ERROR_CONTEXT);
    CHECK(wedjat_free(other) == WEDJAT_ERROR_HANDLE);
    unharmed(1);
}

static struct wedjat_scheduler *in_use;
static uint8_t *page;
static int ended;

/* In the middle of a call, which has come to a packet that it can't read yet. */
static void on_fault(int number)
{
    (void)number;
    ended = wedjat_free(in_use);
    if (mprotect(page, 4096, PROT_READ | PROT_WRITE) != 0)
        _exit(3);
}

/* A scheduler that is told to end in the middle of a call goes on as if nobody had asked. */
static void free_refused(void)
{
    struct wedjat_context *first, *second;
    struct wedjat_verdict verdict;
    tasks();
    in_use = create();
    CHECK(wedjat_context(in_use, 1, &second) == 0);
    page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(page != MAP_FAILED);
    CHECK(signal(SIGSEGV, on_fault) != SIG_ERR);
    for (int round = 0; round < 2; round++) {
        struct wedjat_packet packet = {page, 60, 0};
        task(page);
        CHECK(mprotect(page, 4096, PROT_NONE) == 0);
        ended = 0;
        CHECK(wedjat_process(in_use, second, 0, 1, &packet, 1, &verdict) == 1);
        CHECK(ended == WEDJAT_ERROR_BUSY && verdict.action != WEDJAT_DROP);
        /* The other context was not given out before, and is in use in the second round. */
        if (round == 0)
            CHECK(wedjat_context(in_use, 0, &first) == 0);
        CHECK(wedjat_process(in_use, first, 0, 1, packets, 1, &verdict) == 1);
        CHECK(verdict.action != WEDJAT_DROP);
        tasks();
    }
    CHECK(wedjat_context(in_use, 0, &first) == WEDJAT_ERROR_CORE);
    CHECK(wedjat_free(in_use) == 0 && wedjat_free(in_use) == WEDJAT_ERROR_HANDLE);
    CHECK(wedjat_process(in_use, second, 0, 1, packets, 1, &verdict) == WEDJAT_ERROR_HANDLE);
    CHECK(munmap(page, 4096) == 0);
    unharmed(0);
}

static void misaligned(void)
{
    static uint64_t nothing[32];
    struct wedjat_context *other;
    tasks();
    CHECK(wedjat_process((void *)((char *)scheduler + 1), context, 0, 1, packets, 1, verdicts) == WEDJAT_ERROR_HANDLE);
    CHECK(wedjat_process((void *)nothing, context, 0, 1, packets, 1, verdicts) == WEDJAT_ERROR_HANDLE);
    CHECK(wedjat_process(scheduler, (void *)((char *)context + 1), 0, 1, packets, 1, verdicts) == WEDJAT_ERROR_CONTEXT);
    CHECK(wedjat_process(scheduler, context, 0, 1, (void *)((char *)packets + 4), 1, verdicts) == WEDJAT_ERROR_ALIGNMENT);
    CHECK(wedjat_process(scheduler, context, 0, 1, packets, 1, (void *)((char *)verdicts + 2)) == WEDJAT_ERROR_ALIGNMENT);
    CHECK(wedjat_context(scheduler, 1, (void *)((char *)&other + 1)) == WEDJAT_ERROR_ALIGNMENT);
    CHECK(wedjat_counters(scheduler, (void *)((char *)nothing + 1), 9) == WEDJAT_ERROR_ALIGNMENT);
    CHECK(wedjat_decide(scheduler, context, 0, 1, packets, 1, verdicts, (void *)((char *)rewrites + 2)) == WEDJAT_ERROR_ALIGNMENT);
    CHECK(wedjat_release(scheduler, context, 1, (void *)((char *)verdicts + 2), 1) == WEDJAT_ERROR_ALIGNMENT);
    /* A scheduler is no worker. */
    CHECK(wedjat_worker_check((void *)scheduler) == WEDJAT_ERROR_HANDLE);
    CHECK(wedjat_worker_detach((void *)scheduler) == WEDJAT_ERROR_HANDLE);
    unharmed(7);
}

static const char *volatile texts[4];

static void on_signal(int number)
{
    texts[0] = wedjat_error_message(-number);
    texts[1] = wedjat_version();
    texts[2] = wedjat_reason_name(WEDJAT_REASON_RUNT);
    texts[3] = wedjat_counter_name(0);
}

static void *one_burst(void *unused)
{
    (void)unused;
    tasks();
    CHECK(process(8) == 8 && verdicts[0].action == WEDJAT_FORWARD);
    return NULL;
}

/* Where the header says that functions may be called from: texts from a signal handler, a context from one thread after
 * another, a scheduler from the child of a fork that it is left to. */
static void from_anywhere(void)
{
    pthread_t other;
    int status;
    CHECK(signal(SIGUSR1, on_signal) != SIG_ERR && raise(SIGUSR1) == 0);
    for (int at = 0; at < 4; at++)
        CHECK(texts[at] != NULL && strlen(texts[at]) > 0);
    one_burst(NULL);
    CHECK(pthread_create(&other, NULL, one_burst, NULL) == 0 && pthread_join(other, NULL) == 0);
    CHECK(counter("rx_packets") == 16);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child > 0) {
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        scheduler = create(); /* the parent leaves the other alone */
        return;
    }
    one_burst(NULL);
    CHECK(counter("rx_packets") == 24 && counter("bad_calls") == 0);
    CHECK(wedjat_free(scheduler) == 0);
    scheduler = create();
    CHECK(wedjat_context(scheduler, 0, &context) == 0);
    one_burst(NULL);
}

static void nothing_is_allocated(void)
{
    unsigned long before = allocations;
    uint8_t frame[64], out;
    uint64_t values[128];
    CHECK(wedjat_free(create()) == 0);
    CHECK(allocations > before + 10);
    before = allocations;
    for (int round = 0; round < 1000; round++) {
        uint64_t now = round * 1000000ull;
        tasks();
        CHECK(wedjat_process(scheduler, context, 0, now, packets, WEDJAT_BURST, verdicts) == WEDJAT_BURST);
        CHECK(wedjat_release(scheduler, context, now, verdicts, WEDJAT_BURST) >= 0);
        CHECK(wedjat_decide(scheduler, context, 0, now, packets, 9, verdicts, rewrites) == 9);
        CHECK(process(99) == WEDJAT_ERROR_BURST);
        CHECK(wedjat_question(scheduler, context, now, frame, 64, &out) >= 0);
        CHECK(wedjat_set_active(scheduler, context, 11, round % 2) == 0);
        CHECK(wedjat_counters(scheduler, values, 128) > 40);
        CHECK(wedjat_error_message(round) != NULL && wedjat_counter_name(3) != NULL);
    }
    CHECK(allocations == before);
}

static const struct {
    const char *name;
    void (*run)(void);
} CASES[] = {
    {"versions", versions}, {"create_refuses", create_refuses}, {"decides", decides}, {"holds", holds},
    {"waits", waits}, {"members", members}, {"changes", changes}, {"null", null}, {"burst", burst}, {"lengths_and_places", lengths_and_places},
    {"limits", limits}, {"port", port}, {"foreign_context", foreign_context},
    {"freed_twice", freed_twice}, {"free_refused", free_refused}, {"misaligned", misaligned}, {"from_anywhere", from_anywhere},
    {"nothing_is_allocated", nothing_is_allocated},
};

int main(int argc, char **argv)
{
    scheduler = create();
    CHECK(wedjat_context(scheduler, 0, &context) == 0);
    for (size_t at = 0; at < sizeof CASES / sizeof *CASES; at++)
        if (argc == 2 && strcmp(argv[1], CASES[at].name) == 0) {
            CASES[at].run();
            CHECK(wedjat_free(scheduler) == 0);
            return 0;
        }
    fprintf(stderr, "no such case\n");
    return 2;
}
