/* A DPDK application that schedules tasks with libwedjat: its own main, EAL, ports and loop.
 *
 *   cc -O2 -o scheduler scheduler.c $(pkg-config --cflags --libs wedjat libdpdk)
 *   ./scheduler -l 0 --no-huge --no-pci --vdev net_memif0,role=server,id=0,socket=@wedjat-clients \
 *       --vdev net_memif1,role=server,id=1,socket=@wedjat-workers -- leaf.toml
 *
 * Its memif sockets are abstract, as DPDK has them unless told otherwise: its peers name them with the @.
 * EAL's ports are the configuration's, in order. Ends on SIGINT or SIGTERM, or, with a number of seconds behind the
 * configuration, when nothing came for so long. */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include <rte_cycles.h>
#include <rte_eal.h>
#include <rte_ethdev.h>
#include <wedjat_dpdk.h>

#define PORTS_MAX 8

static struct rte_mbuf **held; /* by the places of their verdicts */
static struct rte_mempool *pool;
static struct wedjat_scheduler *scheduler;
static struct wedjat_context *context;
static volatile sig_atomic_t stopped;

static void stop(int signal)
{
    stopped = signal;
}

/* Packets that are made here: answers and questions. */
static void send_own(uint16_t port, struct rte_mbuf *mbuf)
{
    if (rte_eth_tx_burst(port, 0, &mbuf, 1) == 0) {
        rte_pktmbuf_free(mbuf);
        wedjat_unsent_own(scheduler, context, 1);
    }
}

static void act(struct rte_mbuf **mbufs, const struct wedjat_verdict *verdicts, int count)
{
    struct rte_mbuf *passing[PORTS_MAX][WEDJAT_BURST];
    uint16_t counts[PORTS_MAX] = {0};
    for (int at = 0; at < count; at++) {
        uint8_t port = verdicts[at].port;
        switch (verdicts[at].action) {
        case WEDJAT_FORWARD:
            passing[port][counts[port]++] = mbufs[at];
            break;
        case WEDJAT_HOLD: /* for its next hop's MAC address, or for a worker */
            held[verdicts[at].place] = mbufs[at];
            break;
        case WEDJAT_ANSWER:
            send_own(port, mbufs[at]);
            break;
        default: /* WEDJAT_CONSUMED, WEDJAT_DROP */
            rte_pktmbuf_free(mbufs[at]);
        }
    }
    for (uint16_t port = 0; port < PORTS_MAX; port++)
        if (counts[port] > 0)
            wedjat_send_mbufs(scheduler, context, port, 0, passing[port], counts[port]);
}

static int receive(uint16_t port, uint64_t now)
{
    struct rte_mbuf *mbufs[WEDJAT_BURST];
    struct wedjat_verdict verdicts[WEDJAT_BURST];
    int count = rte_eth_rx_burst(port, 0, mbufs, WEDJAT_BURST);
    int code = wedjat_process_mbufs(scheduler, context, port, now, mbufs, count, verdicts);
    if (code < 0)
        rte_exit(EXIT_FAILURE, "%s\n", wedjat_error_message(code));
    act(mbufs, verdicts, count);
    return count;
}

/* What was held and need not be any more; what has to be asked. */
static void catch_up(uint64_t now)
{
    struct rte_mbuf *mbufs[WEDJAT_BURST], *question;
    struct wedjat_verdict verdicts[WEDJAT_BURST];
    uint8_t port;
    int count;
    while ((count = wedjat_release_mbufs(scheduler, context, now, held, mbufs, verdicts)) > 0)
        act(mbufs, verdicts, count);
    while ((question = wedjat_question_mbuf(scheduler, context, now, pool, &port)) != NULL)
        send_own(port, question);
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
    static char detail[4096];
    int code = wedjat_load(path, options, &scheduler, detail, sizeof detail);
    if (code == 0)
        code = wedjat_context(scheduler, 0, &context);
    if (code != 0)
        rte_exit(EXIT_FAILURE, "%s: %s\n%s\n", path, wedjat_error_message(code), detail);
    if (wedjat_ports(scheduler) != (int)options->macs_count)
        rte_exit(EXIT_FAILURE, "EAL has %zu ports, %s %d\n", options->macs_count, path, wedjat_ports(scheduler));
    if ((held = calloc(wedjat_places(scheduler), sizeof *held)) == NULL)
        rte_exit(EXIT_FAILURE, "no memory\n");
}

int main(int argc, char **argv)
{
    static uint8_t macs[PORTS_MAX][6];
    int used = rte_eal_init(argc, argv);
    if (used < 0 || argc - used < 2)
        rte_exit(EXIT_FAILURE, "usage: scheduler [EAL ARGUMENTS] -- CONFIGURATION [SECONDS]\n");
    uint64_t idle_timeout = argc - used > 2 ? strtoull(argv[used + 2], NULL, 10) * rte_get_tsc_hz() : UINT64_MAX;
    uint16_t ports = rte_eth_dev_count_avail();
    pool = rte_pktmbuf_pool_create("packets", 8191, 256, 0, RTE_MBUF_DEFAULT_BUF_SIZE, SOCKET_ID_ANY);
    if (pool == NULL || ports > PORTS_MAX)
        rte_exit(EXIT_FAILURE, "no memory for packets, or more than %d ports\n", PORTS_MAX);
    for (uint16_t port = 0; port < ports; port++)
        open_port(port, macs[port]);
    struct wedjat_options options = {.size = sizeof options, .ticks_hz = rte_get_tsc_hz(), .macs = macs[0], .macs_count = ports};
    create(argv[used + 1], &options);
    signal(SIGINT, stop);
    signal(SIGTERM, stop);
    /* Over when a poll finds nothing so long after the last packet, however long this program itself stood still. */
    for (uint64_t now = rte_rdtsc(), last = now; !stopped && now - last < idle_timeout;) {
        now = rte_rdtsc();
        for (uint16_t port = 0; port < ports; port++)
            if (receive(port, now) > 0)
                last = now;
        catch_up(now);
    }
    wedjat_abandon(scheduler, context);
    catch_up(rte_rdtsc());
    uint64_t counted[128] = {0};
    wedjat_counters(scheduler, counted, RTE_DIM(counted));
    for (unsigned at = 0; at < RTE_DIM(counted); at++)
        if (counted[at] > 0)
            printf("%s %" PRIu64 "\n", wedjat_counter_name(at), counted[at]);
    for (uint16_t port = 0; port < ports; port++) {
        rte_eth_dev_stop(port);
        rte_eth_dev_close(port);
    }
    return wedjat_free(scheduler) | rte_eal_cleanup();
}
