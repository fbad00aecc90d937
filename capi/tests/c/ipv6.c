/* The library with ports that have IPv6 addresses, from C; the argument names the case. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <wedjat.h>

#include "check.h"

enum { IP = 14, SRC = IP + 8, DST = IP + 24, NEXT = IP + 40, TASK = NEXT + 8, LENGTH = TASK + 11 };

static const char CONFIG[] =
    "[leaf]\nid = 1\ncores = [0]\nseed = 7\nconnections = 64\n"
    "[[port]]\ndevice = 'c'\nside = 'clients'\nip = 'fd00:1::1/64'\n"
    "[[port]]\ndevice = 'w'\nside = 'workers'\nip = 'fd00:2::1/64'\n"
    "[[port]]\ndevice = 'b'\nside = 'both'\nip = '10.0.1.1/24'\n"
    "[[pool]]\nid = 7\npolicy = 'round-robin'\n"
    "[[server]]\nip = 'fd00:2::b'\nmac = '02:00:00:00:02:0b'\nworkers = '10-13'\npool = 7\n"
    "[[server]]\nip = 'fd00:2::c'\nworkers = '14-17'\npool = 7\n"
    "[[pool]]\nid = 8\npolicy = 'round-robin'\n"
    "[[server]]\nip = '10.0.1.11'\nmac = '02:00:00:00:01:0b'\nworkers = '20'\npool = 8\n";
static const char CLIENT[] = "fd00:1::2", LEAF[] = "fd00:1::1", INSIDE[] = "fd00:2::1";
static const char *const SERVERS[] = {"fd00:2::b", "fd00:2::c"};
static const uint8_t MACS[3][6] = {{2, 0, 0, 0, 0, 1}, {2, 0, 0, 0, 0, 2}, {2, 0, 0, 0, 0, 3}};
static const uint8_t CLIENT_MAC[] = {2, 0, 0, 0, 1, 2}, SERVER_MACS[2][6] = {{2, 0, 0, 0, 2, 11}, {2, 0, 0, 0, 2, 12}};

static struct wedjat_options options = {sizeof options, 1000000000, MACS[0], 3, 0, 0};
static struct wedjat_scheduler *scheduler;
static struct wedjat_context *context;
static uint8_t frames[WEDJAT_BURST][96];
static struct wedjat_packet packets[WEDJAT_BURST];
static struct wedjat_verdict verdicts[WEDJAT_BURST];

static void put(uint8_t *at, const char *address)
{
    CHECK(inet_pton(AF_INET6, address, at) == 1);
}

static int is(const uint8_t *at, const char *address)
{
    uint8_t bytes[16];
    put(bytes, address);
    return memcmp(at, bytes, sizeof bytes) == 0;
}

/* Sum of all that the checksum of UDP or ICMPv6 covers, itself included: 0xffff if it is right. */
static uint16_t sum(const uint8_t *frame)
{
    uint32_t length = frame[IP + 4] << 8 | frame[IP + 5], total = length + frame[IP + 6];
    for (uint32_t at = SRC; at < NEXT + length; at++)
        total += at % 2 == 0 ? frame[at] << 8 : frame[at];
    total = (total & 0xffff) + (total >> 16);
    return (total & 0xffff) + (total >> 16);
}

static void seal(uint8_t *frame, int at)
{
    frame[at] = frame[at + 1] = 0;
    uint16_t checksum = ~sum(frame);
    frame[at] = checksum >> 8;
    frame[at + 1] = checksum;
}

static void headers(uint8_t *frame, const uint8_t *to, const uint8_t *from, const char *src, const char *dst, int next, int length)
{
    memcpy(frame, to, 6);
    memcpy(frame + 6, from, 6);
    memcpy(frame + 12, "\x86\xdd\x60\0\0\0\0", 7);
    frame[IP + 5] = length;
    frame[IP + 6] = next;
    frame[IP + 7] = 64;
    put(frame + SRC, src);
    put(frame + DST, dst);
}

/* A datagram with a task header: a client's task, or the reply of worker 10. */
static void datagram(uint8_t *frame, int is_reply)
{
    static const uint8_t TASK_OF_7[] = {0x9c, 0x40, 4, 210, 0, 19, 0, 0, 0, 0, 7, 0, 0, 0x7f, 0xff, 0, 0, 0, 1};
    static const uint8_t REPLY[] = {4, 210, 0x9c, 0x40, 0, 19, 0, 0, 3, 0, 7, 0, 10, 0, 1, 0, 0, 0, 1};
    memset(frame, 0, sizeof frames[0]);
    if (is_reply)
        headers(frame, MACS[1], SERVER_MACS[0], SERVERS[0], CLIENT, 17, 19);
    else
        headers(frame, MACS[0], CLIENT_MAC, CLIENT, LEAF, 17, 19);
    memcpy(frame + NEXT, is_reply ? REPLY : TASK_OF_7, 19);
    seal(frame, NEXT + 6);
}

static void tasks(void)
{
    for (int at = 0; at < WEDJAT_BURST; at++) {
        datagram(frames[at], 0);
        packets[at] = (struct wedjat_packet){frames[at], LENGTH, 0};
        verdicts[at] = (struct wedjat_verdict){.action = 99};
    }
}

static int process(uint32_t port, uint64_t now, struct wedjat_packet *packet, uint32_t count)
{
    return wedjat_process(scheduler, context, port, now, packet, count, verdicts);
}

/* Tasks go to workers and wait for a server's MAC address, a reply goes to its client. */
static void processes(void)
{
    uint8_t frame[WEDJAT_QUESTION_SIZE_V6], out = 99;
    struct wedjat_packet other = {frame, sizeof frame, 0};
    int kept[288];
    tasks();
    CHECK(process(0, 1, packets, 8) == 8);
    for (int at = 0; at < 8; at++) {
        CHECK(verdicts[at].action == (at < 4 ? WEDJAT_FORWARD : WEDJAT_HOLD) && verdicts[at].worker == 10 + at);
        CHECK(is(frames[at] + SRC, CLIENT) && is(frames[at] + DST, SERVERS[at / 4]) && frames[at][IP + 7] == 63);
        CHECK(sum(frames[at]) == 0xffff && frames[at][TASK + 6] == 10 + at);
        if (at < 4)
            CHECK(verdicts[at].port == 1 && memcmp(frames[at], SERVER_MACS[0], 6) == 0 && memcmp(frames[at] + 6, MACS[1], 6) == 0);
        else
            kept[verdicts[at].place] = at;
    }

    /* The second server is asked for by neighbour discovery. */
    CHECK(wedjat_release(scheduler, context, 2, verdicts, WEDJAT_BURST) == 0);
    CHECK(wedjat_question(scheduler, context, 2, frame, WEDJAT_QUESTION_SIZE, &out) == WEDJAT_ERROR_ROOM);
    CHECK(wedjat_question(scheduler, context, 2, frame, sizeof frame, &out) == WEDJAT_QUESTION_SIZE_V6 && out == 1);
    CHECK(frame[NEXT] == 135 && is(frame + NEXT + 8, SERVERS[1]) && is(frame + SRC, INSIDE) && sum(frame) == 0xffff);
    CHECK(wedjat_question(scheduler, context, 2, frame, sizeof frame, &out) == 0);
    headers(frame, MACS[1], SERVER_MACS[1], SERVERS[1], INSIDE, 58, 32);
    frame[IP + 7] = 255;
    frame[NEXT] = 136;
    frame[NEXT + 4] = 0x60;
    frame[NEXT + 24] = 2;
    memcpy(frame + NEXT + 26, SERVER_MACS[1], 6);
    seal(frame, NEXT + 2);
    CHECK(process(1, 3, &other, 1) == 1 && verdicts[0].action == WEDJAT_CONSUMED);
    CHECK(wedjat_release(scheduler, context, 3, verdicts, WEDJAT_BURST) == 4);
    for (int at = 0; at < 4; at++) {
        CHECK(verdicts[at].action == WEDJAT_FORWARD && verdicts[at].port == 1 && verdicts[at].worker >= 14);
        CHECK(memcmp(frames[kept[verdicts[at].place]], SERVER_MACS[1], 6) == 0);
    }

    /* The tasks have shown where the client is. */
    datagram(frames[0], 1);
    CHECK(process(1, 4, packets, 1) == 1 && verdicts[0].action == WEDJAT_FORWARD && verdicts[0].port == 0);
    CHECK(verdicts[0].worker == 10 && memcmp(frames[0], CLIENT_MAC, 6) == 0);
    CHECK(is(frames[0] + SRC, LEAF) && is(frames[0] + DST, CLIENT) && sum(frames[0]) == 0xffff);

    /* A client asks who has the address that it sends tasks to. */
    headers(frame, (const uint8_t *)"\x33\x33\xff\0\0\1", CLIENT_MAC, CLIENT, "ff02::1:ff00:1", 58, 32);
    frame[IP + 7] = 255;
    memset(frame + NEXT, 0, 32);
    frame[NEXT] = 135;
    put(frame + NEXT + 8, LEAF);
    frame[NEXT + 24] = frame[NEXT + 25] = 1;
    memcpy(frame + NEXT + 26, CLIENT_MAC, 6);
    seal(frame, NEXT + 2);
    CHECK(process(0, 5, &other, 1) == 1 && verdicts[0].action == WEDJAT_ANSWER && verdicts[0].port == 0);
    CHECK(memcmp(frame, CLIENT_MAC, 6) == 0 && frame[NEXT] == 136 && is(frame + NEXT + 8, LEAF));
    CHECK(frame[NEXT + 24] == 2 && memcmp(frame + NEXT + 26, MACS[0], 6) == 0 && sum(frame) == 0xffff);

    /* Packets of the other family, or without a checksum, are dropped. */
    tasks();
    memset(frames[1] + NEXT + 6, 0, 2);
    CHECK(process(2, 6, packets, 1) == 1 && verdicts[0].action == WEDJAT_DROP);
    CHECK(verdicts[0].reason == WEDJAT_REASON_ETHER_TYPE);
    CHECK(process(0, 6, packets + 1, 1) == 1 && verdicts[0].reason == WEDJAT_REASON_UDP_NO_CHECKSUM);
}

/* Decisions as values: wedjat_decide_v6() takes packets of both families, wedjat_decide() none of an IPv6 port. */
static void decides(void)
{
    static const uint8_t V4[] = {
        2, 0, 0, 0, 0, 3, 2, 0, 0, 0, 1, 2, 8, 0,
        0x45, 0, 0, 39, 0, 0, 0, 0, 64, 17, 0x64, 0xc4, 10, 0, 1, 2, 10, 0, 1, 1,
        0x9c, 0x40, 4, 210, 0, 19, 0, 0, 0, 0, 8, 0, 0, 0x7f, 0xff, 0, 0, 0, 1,
    };
    struct wedjat_rewrite v4[1];
    struct wedjat_rewrite_v6 rewrites[2];
    uint8_t before[96];
    CHECK(sizeof *v4 == 28 && sizeof *rewrites == 52);
    tasks();
    memcpy(before, frames[0], sizeof before);
    CHECK(wedjat_decide(scheduler, context, 0, 1, packets, 1, verdicts, v4) == WEDJAT_ERROR_FAMILY);
    CHECK(verdicts[0].action == 99 && strstr(wedjat_error_message(WEDJAT_ERROR_FAMILY), "IPv6") != NULL);
    CHECK(wedjat_decide_v6(scheduler, context, 0, 1, packets, 1, verdicts, NULL) == WEDJAT_ERROR_NULL);
    CHECK(wedjat_decide_v6(scheduler, context, 9, 1, packets, 1, verdicts, rewrites) == WEDJAT_ERROR_PORT);
    CHECK(wedjat_decide_v6(scheduler, context, 0, 1, packets, 1, verdicts, rewrites) == 1);
    CHECK(memcmp(before, frames[0], sizeof before) == 0);
    CHECK(verdicts[0].action == WEDJAT_FORWARD && verdicts[0].port == 1 && verdicts[0].worker == 10);
    CHECK(is(rewrites[0].src, CLIENT) && is(rewrites[0].dst, SERVERS[0]) && rewrites[0].v6 == 1);
    CHECK(memcmp(rewrites[0].dst_mac, SERVER_MACS[0], 6) == 0 && memcmp(rewrites[0].src_mac, MACS[1], 6) == 0);
    CHECK(rewrites[0].udp_offset == NEXT && rewrites[0].worker == 10 && rewrites[0].task == 1 && rewrites[0].reserved == 0);
    datagram(frames[0], 1);
    CHECK(wedjat_decide_v6(scheduler, context, 1, 2, packets, 1, verdicts, rewrites) == 1);
    CHECK(verdicts[0].action == WEDJAT_FORWARD && is(rewrites[0].src, LEAF) && is(rewrites[0].dst, CLIENT));
    CHECK(rewrites[0].task == 0 && memcmp(rewrites[0].dst_mac, CLIENT_MAC, 6) == 0);

    memcpy(frames[0], V4, sizeof V4);
    CHECK(wedjat_decide_v6(scheduler, context, 2, 3, packets, 1, verdicts, rewrites) == 1);
    CHECK(verdicts[0].action == WEDJAT_FORWARD && rewrites[0].v6 == 0 && rewrites[0].udp_offset == 34);
    CHECK(is(rewrites[0].src, "::ffff:10.0.1.2") && is(rewrites[0].dst, "::ffff:10.0.1.11"));
    CHECK(wedjat_decide(scheduler, context, 2, 4, packets, 1, verdicts, v4) == 1 && v4[0].dst == inet_addr("10.0.1.11"));
}

/* Impossible configurations are refused at creation. Without ports a server's address is only its host's name. */
static void configurations(void)
{
    static const char TOLD[] =
        "[leaf]\nid = 1\ncores = [0]\n[[pool]]\nid = 7\npolicy = 'round-robin'\n"
        "[[server]]\nip = 'fd00:2::b'\nworkers = '10-13'\npool = 7\n"
        "[[pool]]\nid = 8\npolicy = 'random'\n[[server]]\nip = '10.0.2.11'\nworkers = '20'\npool = 8\n";
    struct wedjat_description told[4] = {{.id = 1}, {.id = 2}, {.id = 3}, {.id = 4}};
    struct wedjat_choice choices[4];
    struct wedjat_scheduler *made;
    struct wedjat_picker *picker;
    char detail[1024], text[2048];
    CHECK(wedjat_create(TOLD, strlen(TOLD), &options, &made, detail, sizeof detail) == 0);
    CHECK(wedjat_ports(made) == 0 && wedjat_picker(made, 0, &picker) == 0);
    CHECK(wedjat_pick(made, picker, 7, 1, told, 4, choices) == 4);
    for (int at = 0; at < 4; at++)
        CHECK(choices[at].action == WEDJAT_FORWARD && choices[at].worker == 10 + at);
    CHECK(wedjat_pick(made, picker, 8, 1, told, 1, choices) == 1 && choices[0].worker == 20);
    CHECK(wedjat_free(made) == 0);
    snprintf(text, sizeof text, "%s[[server]]\nip = '10.0.1.12'\nworkers = '21'\npool = 7\n", CONFIG);
    CHECK(wedjat_create(text, strlen(text), &options, &made, detail, sizeof detail) == WEDJAT_ERROR_CONFIG);
    CHECK(strstr(detail, "of IPv4 or of IPv6 for all [[server]] of a pool") != NULL);
}

static const struct {
    const char *name;
    void (*run)(void);
} CASES[] = {{"processes", processes}, {"decides", decides}, {"configurations", configurations}};

int main(int argc, char **argv)
{
    char detail[1024] = "";
    int code = wedjat_create(CONFIG, strlen(CONFIG), &options, &scheduler, detail, sizeof detail);
    if (code != 0)
        fprintf(stderr, "%s: %s\n", wedjat_error_message(code), detail);
    CHECK(code == 0 && wedjat_context(scheduler, 0, &context) == 0);
    for (size_t at = 0; at < sizeof CASES / sizeof *CASES; at++)
        if (argc == 2 && strcmp(argv[1], CASES[at].name) == 0) {
            CASES[at].run();
            CHECK(wedjat_free(scheduler) == 0);
            return 0;
        }
    fprintf(stderr, "no such case\n");
    return 2;
}
