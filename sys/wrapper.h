/* Functions and constants of DPDK that wedjat uses, for bindgen. Constants that Rust cannot read from a macro, and the
 * field offsets of rte_mbuf (opaque in Rust), are evaluated here, by the C compiler, against the installed headers. */
/* A device's clock is read by a function that was experimental for long. */
#define ALLOW_EXPERIMENTAL_API
#include <stddef.h>
#include <stdint.h>

#include <rte_build_config.h>
#include <rte_cycles.h>
#include <rte_dev.h>
#include <rte_distributor.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_interrupts.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <rte_mbuf_dyn.h>
#include <rte_mbuf_pool_ops.h>
#include <rte_mempool.h>
#include <rte_ring.h>
#include <rte_telemetry.h>
#include <rte_thash.h>
#include <rte_version.h>

#include "events.h"
#include "yardsticks.h"

#if RTE_VERSION < RTE_VERSION_NUM(21, 11, 0, 0)
#error "wedjat needs DPDK 21.11 or later"
#endif

enum {
	WEDJAT_MBUF_BUF_ADDR = offsetof(struct rte_mbuf, buf_addr),
	WEDJAT_MBUF_BUF_LEN = offsetof(struct rte_mbuf, buf_len),
	WEDJAT_MBUF_DATA_OFF = offsetof(struct rte_mbuf, data_off),
	WEDJAT_MBUF_DATA_LEN = offsetof(struct rte_mbuf, data_len),
	WEDJAT_MBUF_PKT_LEN = offsetof(struct rte_mbuf, pkt_len),
	WEDJAT_MBUF_NB_SEGS = offsetof(struct rte_mbuf, nb_segs),
	WEDJAT_MBUF_OL_FLAGS = offsetof(struct rte_mbuf, ol_flags),
	WEDJAT_MBUF_VLAN_TCI = offsetof(struct rte_mbuf, vlan_tci),
};

/* The widths that Rust reads these fields with. */
#define WEDJAT_FIELD_IS(field, type) \
	_Static_assert(sizeof(((struct rte_mbuf *)0)->field) == sizeof(type), "rte_mbuf." #field)
WEDJAT_FIELD_IS(buf_addr, void *);
WEDJAT_FIELD_IS(buf_len, uint16_t);
WEDJAT_FIELD_IS(data_off, uint16_t);
WEDJAT_FIELD_IS(data_len, uint16_t);
WEDJAT_FIELD_IS(pkt_len, uint32_t);
WEDJAT_FIELD_IS(nb_segs, uint16_t);
WEDJAT_FIELD_IS(ol_flags, uint64_t);
WEDJAT_FIELD_IS(vlan_tci, uint16_t);

static const uint64_t WEDJAT_RX_CKSUM_MASK = RTE_MBUF_F_RX_IP_CKSUM_MASK | RTE_MBUF_F_RX_L4_CKSUM_MASK;
static const uint64_t WEDJAT_RX_CKSUM_GOOD = RTE_MBUF_F_RX_IP_CKSUM_GOOD | RTE_MBUF_F_RX_L4_CKSUM_GOOD;
static const uint64_t WEDJAT_RX_IP_CKSUM_MASK = RTE_MBUF_F_RX_IP_CKSUM_MASK;
static const uint64_t WEDJAT_RX_IP_CKSUM_GOOD = RTE_MBUF_F_RX_IP_CKSUM_GOOD;
static const uint64_t WEDJAT_RX_L4_CKSUM_MASK = RTE_MBUF_F_RX_L4_CKSUM_MASK;
static const uint64_t WEDJAT_RX_L4_CKSUM_GOOD = RTE_MBUF_F_RX_L4_CKSUM_GOOD;
/* The checksum in the packet is not correct, but its data is: a kernel left the checksum to a device. */
static const uint64_t WEDJAT_RX_L4_CKSUM_NONE = RTE_MBUF_F_RX_L4_CKSUM_NONE;
/* The device has removed the packet's VLAN tag, and the mbuf has it in `vlan_tci`. */
static const uint64_t WEDJAT_RX_VLAN_STRIPPED = RTE_MBUF_F_RX_VLAN_STRIPPED;
static const uint64_t WEDJAT_RX_OFFLOAD_CKSUM = RTE_ETH_RX_OFFLOAD_IPV4_CKSUM | RTE_ETH_RX_OFFLOAD_UDP_CKSUM;
static const uint64_t WEDJAT_RX_OFFLOAD_TIMESTAMP = RTE_ETH_RX_OFFLOAD_TIMESTAMP;
static const uint64_t WEDJAT_RX_OFFLOAD_VLAN_FILTER = RTE_ETH_RX_OFFLOAD_VLAN_FILTER;
static const uint64_t WEDJAT_RSS_UDP = RTE_ETH_RSS_NONFRAG_IPV4_UDP | RTE_ETH_RSS_NONFRAG_IPV6_UDP;
static const uint64_t WEDJAT_RSS_IP = RTE_ETH_RSS_IPV4 | RTE_ETH_RSS_IPV6;
static const uint32_t WEDJAT_MQ_RX_RSS = RTE_ETH_MQ_RX_RSS;
/* Without their low bits, which are zero: constants above INT64_MAX do not get to Rust. */
static const uint32_t WEDJAT_RSS_ONLY_SHIFT = 32;
static const uint64_t WEDJAT_RSS_SRC_ONLY_SHIFTED = (RTE_ETH_RSS_L3_SRC_ONLY | RTE_ETH_RSS_L4_SRC_ONLY) >> 32;
static const uint64_t WEDJAT_RSS_DST_ONLY_SHIFTED = (RTE_ETH_RSS_L3_DST_ONLY | RTE_ETH_RSS_L4_DST_ONLY) >> 32;
static const uint32_t WEDJAT_MBUF_HEADROOM = RTE_PKTMBUF_HEADROOM;
/* Rust writes this value for an unknown address, because constants above INT64_MAX do not get to Rust. */
_Static_assert(RTE_BAD_IOVA == UINT64_MAX, "RTE_BAD_IOVA");
#ifdef RTE_MEMPOOL_F_NO_IOVA_CONTIG
static const uint32_t WEDJAT_POOL_NO_IOVA_CONTIG = RTE_MEMPOOL_F_NO_IOVA_CONTIG;
#else
static const uint32_t WEDJAT_POOL_NO_IOVA_CONTIG = MEMPOOL_F_NO_IOVA_CONTIG;
#endif
static const uint32_t WEDJAT_MBUF_SIZE = sizeof(struct rte_mbuf);
static const uint32_t WEDJAT_POOL_PRIVATE_SIZE = sizeof(struct rte_pktmbuf_pool_private);

/* Folder in which the shared library looks for drivers; a macro of DPDK's own build. */
#ifdef RTE_EAL_PMD_PATH
#define WEDJAT_DRIVER_FOLDER RTE_EAL_PMD_PATH
#else
#define WEDJAT_DRIVER_FOLDER ""
#endif

/* rte_errno is a macro over a thread-local variable. */
static inline int wedjat_errno(void)
{
	return rte_errno;
}

/* A counter of the device, by which it stamps packets; 0 when it could be read. */
static inline int wedjat_read_clock(uint16_t port, uint64_t *clock)
{
	return rte_eth_read_clock(port, clock);
}

/* The layout of struct rte_eth_link differs between releases. Returns whether the link is up. */
static inline int wedjat_link_up(uint16_t port, uint32_t *speed_mbps)
{
	struct rte_eth_link link = {0};
	int error = rte_eth_link_get_nowait(port, &link);

	*speed_mbps = link.link_speed;
	return error == 0 && link.link_status == RTE_ETH_LINK_UP;
}

/* Starts a telemetry answer with a list of numbers; the functions for numbers have other names since 23.03. */
static inline int wedjat_tel_start_numbers(struct rte_tel_data *data)
{
#if RTE_VERSION >= RTE_VERSION_NUM(23, 3, 0, 0)
	return rte_tel_data_start_array(data, RTE_TEL_UINT_VAL);
#else
	return rte_tel_data_start_array(data, RTE_TEL_U64_VAL);
#endif
}

/* Starts an answer with a list of texts. */
static inline int wedjat_tel_start_texts(struct rte_tel_data *data)
{
	return rte_tel_data_start_array(data, RTE_TEL_STRING_VAL);
}

/* Adds a number to a list. */
static inline int wedjat_tel_array_number(struct rte_tel_data *data, uint64_t number)
{
#if RTE_VERSION >= RTE_VERSION_NUM(23, 3, 0, 0)
	return rte_tel_data_add_array_uint(data, number);
#else
	return rte_tel_data_add_array_u64(data, number);
#endif
}

/* Adds a named number to a table. */
static inline int wedjat_tel_dict_number(struct rte_tel_data *data, const char *name, uint64_t number)
{
#if RTE_VERSION >= RTE_VERSION_NUM(23, 3, 0, 0)
	return rte_tel_data_add_dict_uint(data, name, number);
#else
	return rte_tel_data_add_dict_u64(data, name, number);
#endif
}
