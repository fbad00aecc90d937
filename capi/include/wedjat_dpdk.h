/* The library's calls for those who have their packets in mbufs. Include after DPDK's headers are to be found. */
#ifndef WEDJAT_DPDK_H
#define WEDJAT_DPDK_H

#include <rte_mbuf.h>
#include <rte_prefetch.h>

#include <wedjat.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The packet that lies in an mbuf. */
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

/* wedjat_process() for a burst as rte_eth_rx_burst() gives it. The mbufs stay the caller's. */
static inline int32_t wedjat_process_mbufs(const struct wedjat_scheduler *scheduler, struct wedjat_context *context,
                                           uint32_t port, uint64_t now, struct rte_mbuf **mbufs, uint32_t count,
                                           struct wedjat_verdict *verdicts)
{
    struct wedjat_packet packets[WEDJAT_BURST];
    uint32_t at;

    /* A burst too large is refused, and counted, where all other bad calls are. */
    for (at = 0; at < count && at < WEDJAT_BURST; at++) {
        packets[at] = wedjat_packet_of(mbufs[at]);
        rte_prefetch0(packets[at].data);
    }
    return wedjat_process(scheduler, context, port, now, packets, count, verdicts);
}

/* wedjat_resume() for a packet that is held. */
static inline int32_t wedjat_resume_mbuf(const struct wedjat_scheduler *scheduler, struct wedjat_context *context,
                                         struct rte_mbuf *mbuf, struct wedjat_verdict *verdict)
{
    struct wedjat_packet packet = wedjat_packet_of(mbuf);

    return wedjat_resume(scheduler, context, &packet, verdict);
}

#ifdef __cplusplus
}
#endif

#endif
