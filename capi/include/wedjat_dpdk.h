/* Calls of the library for packets in mbufs. Needs the include path of DPDK's headers. */
#ifndef WEDJAT_DPDK_H
#define WEDJAT_DPDK_H

#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <rte_memcpy.h>
#include <rte_prefetch.h>

#include <wedjat.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the packet in an mbuf. Called by the owner of the mbuf. */
static inline struct wedjat_packet wedjat_packet_of(struct rte_mbuf *mbuf)
{
    const uint64_t checked = RTE_MBUF_F_RX_IP_CKSUM_MASK | RTE_MBUF_F_RX_L4_CKSUM_MASK;
    const uint64_t good = RTE_MBUF_F_RX_IP_CKSUM_GOOD | RTE_MBUF_F_RX_L4_CKSUM_GOOD;
    struct wedjat_packet packet;

    packet.data = rte_pktmbuf_mtod(mbuf, uint8_t *);
    packet.length = rte_pktmbuf_data_len(mbuf);
    packet.flags = (mbuf->ol_flags & checked) == good ? WEDJAT_PACKET_VERIFIED : 0;
    if (mbuf->nb_segs != 1)
        packet.flags |= WEDJAT_PACKET_SEGMENTED;
    return packet;
}

/* wedjat_process() for a burst as rte_eth_rx_burst() gives it. The mbufs stay the caller's. Called from
 * where wedjat_process() may be. */
static inline int32_t wedjat_process_mbufs(const struct wedjat_scheduler *scheduler, struct wedjat_context *context,
                                           uint32_t port, uint64_t now, struct rte_mbuf **mbufs, uint32_t count,
                                           struct wedjat_verdict *verdicts)
{
    struct wedjat_packet packets[WEDJAT_BURST];
    uint32_t at;

    /* wedjat_process() refuses and counts a burst that is too large. */
    for (at = 0; at < count && at < WEDJAT_BURST; at++) {
        packets[at] = wedjat_packet_of(mbufs[at]);
        rte_prefetch0(packets[at].data);
    }
    return wedjat_process(scheduler, context, port, now, packets, count, verdicts);
}

/* wedjat_release() for mbufs that `held` keeps by the places of their verdicts; `mbufs` and `verdicts` have room for
 * WEDJAT_BURST. Send, drop or free each by its verdict, as with a burst. Called from where wedjat_release() may be. */
static inline int32_t wedjat_release_mbufs(const struct wedjat_scheduler *scheduler, struct wedjat_context *context,
                                           uint64_t now, struct rte_mbuf **held, struct rte_mbuf **mbufs,
                                           struct wedjat_verdict *verdicts)
{
    int32_t at, count = wedjat_release(scheduler, context, now, verdicts, WEDJAT_BURST);

    for (at = 0; at < count; at++)
        mbufs[at] = held[verdicts[at].place];
    return count;
}

/* wedjat_question() as an mbuf of the pool's, to be sent out of `*port`; NULL if none is due. If the pool is empty or
 * its mbufs are too small, the question counts as unsent and is repeated at its next time. Called from where
 * wedjat_question() may be, and by a thread that may take from the pool. */
static inline struct rte_mbuf *wedjat_question_mbuf(const struct wedjat_scheduler *scheduler,
                                                    struct wedjat_context *context, uint64_t now,
                                                    struct rte_mempool *pool, uint8_t *port)
{
    uint8_t frame[WEDJAT_QUESTION_SIZE_V6];
    int32_t length = wedjat_question(scheduler, context, now, frame, sizeof(frame), port);
    struct rte_mbuf *mbuf;
    char *data;

    if (length <= 0)
        return NULL;
    mbuf = rte_pktmbuf_alloc(pool);
    data = mbuf != NULL ? rte_pktmbuf_append(mbuf, length) : NULL;
    if (data == NULL) {
        rte_pktmbuf_free(mbuf);
        wedjat_unsent_own(scheduler, context, 1);
        return NULL;
    }
    rte_memcpy(data, frame, length);
    return mbuf;
}

/* Sends packets whose verdicts were WEDJAT_FORWARD. Packets that the device rejects twice are freed and counted.
 * Called from where wedjat_unsent() may be, by the one thread that sends on this queue. */
static inline void wedjat_send_mbufs(const struct wedjat_scheduler *scheduler, struct wedjat_context *context,
                                     uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t count)
{
    uint16_t sent = rte_eth_tx_burst(port, queue, mbufs, count);

    if (sent == count)
        return;
    sent += rte_eth_tx_burst(port, queue, mbufs + sent, count - sent);
    rte_pktmbuf_free_bulk(mbufs + sent, count - sent);
    wedjat_unsent(scheduler, context, count - sent);
}

#ifdef __cplusplus
}
#endif

#endif
