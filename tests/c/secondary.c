/* A DPDK primary process that owns the packets, and a secondary that schedules them with the library.
 *
 *   secondary [EAL ARGUMENTS] --proc-type=primary|secondary */
#include <stdio.h>
#include <string.h>

#include <rte_cycles.h>
#include <rte_eal.h>
#include <rte_ring.h>
#include <wedjat_dpdk.h>

#define TIMEOUT_SECONDS 30

static const char CONFIG[] =
    "[leaf]\nid = 1\ncores = [0]\nseed = 7\n"
    "[[port]]\ndevice = 'any'\nside = 'both'\nip = '10.0.0.1/16'\nmac = '02:00:00:00:00:01'\n"
    "[[pool]]\nid = 7\npolicy = 'random'\n"
    "[[pool]]\nid = 8\npolicy = 'random'\n"
    "[[server]]\nip = '10.0.2.11'\nmac = '02:00:00:00:02:0b'\nworkers = '10-13'\npool = 7\n"
    "[[server]]\nip = '10.0.2.12'\nworkers = '14'\npool = 8\n";

/* A client's task, its UDP checksum left out. */
static const uint8_t TASK[] = {
    2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 1, 2, 8, 0,
    0x45, 0, 0, 39, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 1, 2, 10, 0, 0, 1,
    0x9c, 0x40, 4, 210, 0, 19, 0, 0,
    0, 0, 7, 0, 0, 0x7f, 0xff, 0, 0, 0, 1,
};

static int fail(const char *what)
{
    fprintf(stderr, "%s\n", what);
    return 1;
}

/* Takes `count` packets from a ring, none when they do not come. */
static unsigned wait_for(struct rte_ring *ring, void **packets, unsigned count)
{
    uint64_t end = rte_rdtsc() + TIMEOUT_SECONDS * rte_get_tsc_hz();
    unsigned got = 0;
    while (got == 0 && rte_rdtsc() < end)
        got = rte_ring_dequeue_bulk(ring, packets, count, NULL);
    return got;
}

static void write_task(struct rte_mbuf *mbuf)
{
    uint8_t *frame = (uint8_t *)rte_pktmbuf_append(mbuf, sizeof TASK);
    uint32_t sum = 0;
    memcpy(frame, TASK, sizeof TASK);
    for (int at = 14; at < 34; at += 2)
        sum += frame[at] << 8 | frame[at + 1];
    sum = ~((sum & 0xffff) + (sum >> 16));
    frame[24] = sum >> 8;
    frame[25] = sum;
}

static int primary(void)
{
    struct rte_mempool *pool = rte_pktmbuf_pool_create("packets", 1023, 0, 0, RTE_MBUF_DEFAULT_BUF_SIZE, 0);
    struct rte_mempool *small = rte_pktmbuf_pool_create("small", 3, 0, 0, RTE_PKTMBUF_HEADROOM + 16, 0);
    struct rte_ring *there = rte_ring_create("there", 64, 0, 0), *back = rte_ring_create("back", 64, 0, 0);
    struct rte_mbuf *mbufs[WEDJAT_BURST];
    if (pool == NULL || small == NULL || there == NULL || back == NULL || rte_pktmbuf_alloc_bulk(pool, mbufs, WEDJAT_BURST) != 0)
        return fail("primary: no memory");
    for (int at = 0; at < WEDJAT_BURST; at++)
        write_task(mbufs[at]);
    rte_ring_enqueue_bulk(there, (void **)mbufs, WEDJAT_BURST, NULL);
    puts("ready");
    fflush(stdout);
    if (wait_for(back, (void **)mbufs, WEDJAT_BURST) == 0)
        return fail("primary: no packets came back");
    for (int at = 0; at < WEDJAT_BURST; at++)
        if (memcmp(rte_pktmbuf_mtod(mbufs[at], uint8_t *), "\2\0\0\0\2\13\2\0\0\0\0\1", 12) != 0 ||
            memcmp(rte_pktmbuf_mtod_offset(mbufs[at], uint8_t *, 30), "\12\0\2\13", 4) != 0)
            return fail("primary: a packet does not go to the server");
    rte_pktmbuf_free_bulk(mbufs, WEDJAT_BURST);
    return rte_mempool_in_use_count(pool) == 0 && rte_mempool_in_use_count(small) == 0 ? 0 : fail("primary: a packet is missing");
}

/* Returns a counter's value by its name. */
static uint64_t counter(const struct wedjat_scheduler *scheduler, const char *name)
{
    uint64_t values[128] = {0};
    wedjat_counters(scheduler, values, RTE_DIM(values));
    for (size_t at = 0; at < RTE_DIM(values) && wedjat_counter_name(at) != NULL; at++)
        if (strcmp(wedjat_counter_name(at), name) == 0)
            return values[at];
    return UINT64_MAX;
}

static int secondary(void)
{
    struct wedjat_options options = {.size = sizeof options, .ticks_hz = rte_get_tsc_hz()};
    struct rte_ring *there = rte_ring_lookup("there"), *back = rte_ring_lookup("back");
    struct wedjat_verdict verdicts[WEDJAT_BURST];
    struct rte_mbuf *mbufs[WEDJAT_BURST];
    struct wedjat_scheduler *scheduler;
    struct wedjat_context *context;
    char detail[1024];
    uint8_t port;
    if (there == NULL || back == NULL)
        return fail("secondary: no rings");
    if (wedjat_create(CONFIG, strlen(CONFIG), &options, &scheduler, detail, sizeof detail) != 0)
        return fail(detail);
    if (wedjat_context(scheduler, 0, &context) != 0 || wait_for(there, (void **)mbufs, WEDJAT_BURST) == 0)
        return fail("secondary: no context, or no packets");
    int code = wedjat_process_mbufs(scheduler, context, 0, rte_rdtsc(), mbufs, WEDJAT_BURST, verdicts);
    if (code != WEDJAT_BURST)
        return fail(wedjat_error_message(code));
    for (int at = 0; at < WEDJAT_BURST; at++)
        if (verdicts[at].action != WEDJAT_FORWARD || verdicts[at].worker < 10 || verdicts[at].worker > 13)
            return fail("secondary: a task is not forwarded");
    /* The question for the second server's address does not fit into these mbufs. */
    if (wedjat_release(scheduler, context, rte_rdtsc(), verdicts, WEDJAT_BURST) != 0 ||
        wedjat_question_mbuf(scheduler, context, rte_rdtsc(), rte_mempool_lookup("small"), &port) != NULL ||
        counter(scheduler, "originated") != 1 || counter(scheduler, "originated_unsent") != 1)
        return fail("secondary: a question without room is not counted as unsent");
    rte_ring_enqueue_bulk(back, (void **)mbufs, WEDJAT_BURST, NULL);
    return wedjat_free(scheduler);
}

int main(int argc, char **argv)
{
    if (rte_eal_init(argc, argv) < 0)
        return fail("EAL does not start");
    int result = rte_eal_process_type() == RTE_PROC_PRIMARY ? primary() : secondary();
    return rte_eal_cleanup() != 0 ? 1 : result;
}
