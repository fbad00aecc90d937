/* A DPDK application that schedules tasks with libwedjat: its own main, EAL, ports and loop.
 *
 *   cc -O2 -o scheduler scheduler.c $(pkg-config --cflags --libs wedjat libdpdk)
 *   ./scheduler -l 0 --no-huge --no-pci --vdev net_memif0,role=server,id=0,socket=@wedjat-clients \
 *       --vdev net_memif1,role=server,id=1,socket=@wedjat-workers -- leaf.toml
 *
 * EAL's ports are the configuration's, in order. Ends on SIGINT or SIGTERM, or, with a number of seconds behind the
 * configuration, when nothing came for so long. */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rte_cycles.h>
#include <rte_eal.h>
#include <rte_ethdev.h>
#include <wedjat_dpdk.h>

#define PORTS_MAX 8

struct queue {
    struct rte_mbuf *mbufs[4 * WEDJAT_BURST + WEDJAT_HELD_MAX];
    uint16_t count;
};

static struct {
    struct rte_mbuf *mbuf;
    struct wedjat_verdict verdict;
} held[WEDJAT_HELD_MAX];

static uint32_t held_count;
static struct queue passing[PORTS_MAX], own[PORTS_MAX]; /* packets that pass, and those made here: ARP */
static struct rte_mempool *pool;
static struct wedjat_scheduler *scheduler;
static struct wedjat_context *context;
static volatile sig_atomic_t stopped;

static void stop(int signal)
{
    stopped = signal;
}

static void push(struct queue *queue, struct rte_mbuf *mbuf)
{
    queue->mbufs[queue->count++] = mbuf;
}

/* What the device does not take at the second try is freed. */
static uint32_t flush(uint16_t port, struct queue *queue)
{
    uint16_t sent = rte_eth_tx_burst(port, 0, queue->mbufs, queue->count);
    sent += rte_eth_tx_burst(port, 0, queue->mbufs + sent, queue->count - sent);
    uint32_t unsent = queue->count - sent;
    rte_pktmbuf_free_bulk(queue->mbufs + sent, unsent);
    queue->count = 0;
    return unsent;
}

static uint16_t receive(uint16_t port, uint64_t now)
{
    struct rte_mbuf *mbufs[WEDJAT_BURST];
    struct wedjat_verdict verdicts[WEDJAT_BURST];
    uint16_t count = rte_eth_rx_burst(port, 0, mbufs, WEDJAT_BURST);
    if (count == 0)
        return 0;
    int code = wedjat_process_mbufs(scheduler, context, port, now, mbufs, count, verdicts);
    if (code < 0)
        rte_exit(EXIT_FAILURE, "%s\n", wedjat_error_message(code));
    for (uint16_t at = 0; at < count; at++) {
        switch (verdicts[at].action) {
        case WEDJAT_FORWARD:
            push(&passing[verdicts[at].port], mbufs[at]);
            break;
        case WEDJAT_HOLD: /* at most WEDJAT_HELD_MAX of them; the library drops what is beyond */
            held[held_count].mbuf = mbufs[at];
            held[held_count++].verdict = verdicts[at];
            break;
        case WEDJAT_ANSWER:
            push(&own[port], mbufs[at]);
            break;
        default:
            rte_pktmbuf_free(mbufs[at]);
        }
    }
    return count;
}

/* Packets whose next hop has answered, or will not. */
static void resume(void)
{
    uint32_t kept = 0;
    for (uint32_t at = 0; at < held_count; at++) {
        wedjat_resume_mbuf(scheduler, context, held[at].mbuf, &held[at].verdict);
        if (held[at].verdict.action == WEDJAT_FORWARD)
            push(&passing[held[at].verdict.port], held[at].mbuf);
        else if (held[at].verdict.action == WEDJAT_HOLD)
            held[kept++] = held[at];
        else
            rte_pktmbuf_free(held[at].mbuf);
    }
    held_count = kept;
}

/* Next hops that have to be asked for. */
static void ask(uint64_t now)
{
    uint8_t frame[WEDJAT_QUESTION_SIZE], port;
    wedjat_tick(scheduler, context, now);
    while (wedjat_question(scheduler, context, now, frame, sizeof frame, &port) > 0) {
        struct rte_mbuf *mbuf = rte_pktmbuf_alloc(pool);
        if (mbuf == NULL)
            return;
        memcpy(rte_pktmbuf_append(mbuf, sizeof frame), frame, sizeof frame);
        push(&own[port], mbuf);
    }
}

static void open_port(uint16_t port, uint8_t *mac)
{
    struct rte_eth_conf conf = {0};
    uint16_t rx = 1024, tx = 1024;
    if (rte_eth_dev_configure(port, 1, 1, &conf) != 0 || rte_eth_dev_adjust_nb_rx_tx_desc(port, &rx, &tx) != 0 ||
        rte_eth_rx_queue_setup(port, 0, rx, SOCKET_ID_ANY, NULL, pool) != 0 ||
        rte_eth_tx_queue_setup(port, 0, tx, SOCKET_ID_ANY, NULL) != 0 || rte_eth_dev_start(port) != 0)
        rte_exit(EXIT_FAILURE, "port %u does not start\n", port);
    rte_eth_promiscuous_enable(port);
    rte_eth_macaddr_get(port, (struct rte_ether_addr *)mac);
}

static void create(const char *path, const struct wedjat_options *options)
{
    static char text[1 << 20], detail[4096];
    FILE *file = fopen(path, "r");
    if (file == NULL)
        rte_exit(EXIT_FAILURE, "%s can't be read\n", path);
    size_t length = fread(text, 1, sizeof text, file);
    fclose(file);
    int code = wedjat_create(text, length, options, &scheduler, detail, sizeof detail);
    if (code == 0)
        code = wedjat_context(scheduler, 0, &context);
    if (code != 0)
        rte_exit(EXIT_FAILURE, "%s: %s\n%s\n", path, wedjat_error_message(code), detail);
}

int main(int argc, char **argv)
{
    static uint8_t macs[PORTS_MAX][6];
    int used = rte_eal_init(argc, argv);
    if (used < 0 || argc - used < 2)
        rte_exit(EXIT_FAILURE, "usage: scheduler [EAL ARGUMENTS] -- CONFIGURATION [SECONDS]\n");
    uint64_t patience = argc - used > 2 ? strtoull(argv[used + 2], NULL, 10) * rte_get_tsc_hz() : UINT64_MAX;
    uint16_t ports = rte_eth_dev_count_avail();
    pool = rte_pktmbuf_pool_create("packets", 8191, 256, 0, RTE_MBUF_DEFAULT_BUF_SIZE, SOCKET_ID_ANY);
    if (pool == NULL || ports > PORTS_MAX)
        rte_exit(EXIT_FAILURE, "no memory for packets, or more than %d ports\n", PORTS_MAX);
    for (uint16_t port = 0; port < ports; port++)
        open_port(port, macs[port]);
    struct wedjat_options options = {sizeof options, rte_get_tsc_hz(), macs[0], ports};
    create(argv[used + 1], &options);
    if (wedjat_ports(scheduler) != ports)
        rte_exit(EXIT_FAILURE, "EAL has %u ports, the configuration %d\n", ports, wedjat_ports(scheduler));
    signal(SIGINT, stop);
    signal(SIGTERM, stop);
    for (uint64_t now = rte_rdtsc(), last = now; !stopped && now - last < patience; now = rte_rdtsc()) {
        for (uint16_t port = 0; port < ports; port++)
            if (receive(port, now) > 0)
                last = now;
        resume();
        ask(now);
        for (uint16_t port = 0; port < ports; port++) {
            wedjat_unsent(scheduler, context, flush(port, &passing[port]));
            flush(port, &own[port]);
        }
    }
    while (held_count > 0) {
        wedjat_abandon(scheduler, context, &held[--held_count].verdict);
        rte_pktmbuf_free(held[held_count].mbuf);
    }
    uint64_t counted[64];
    int counters = RTE_MIN(wedjat_counters(scheduler, counted, RTE_DIM(counted)), (int)RTE_DIM(counted));
    for (int at = 0; at < counters; at++)
        if (counted[at] > 0)
            printf("%s %" PRIu64 "\n", wedjat_counter_name(at), counted[at]);
    for (uint16_t port = 0; port < ports; port++) {
        rte_eth_dev_stop(port);
        rte_eth_dev_close(port);
    }
    return wedjat_free(scheduler) | rte_eal_cleanup();
}
