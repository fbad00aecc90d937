/* DPDK's own ways to hand tasks to a worker core and get them back, for comparison. The loops are C, so that
 * DPDK's inline functions are inlined as in any of its applications. Workers that find nothing pause, as ours do;
 * dispatchers do not. */
#include <rte_distributor.h>
#include <rte_mbuf.h>
#include <rte_pause.h>
#include <rte_ring.h>

#define WEDJAT_YARDSTICK_BURST 32

enum { WEDJAT_BURST_MODE = RTE_DIST_ALG_BURST };

/* The dispatcher: keeps up to `depth` tasks in flight until `tasks` have come back. A task is a number from 1 on. */
static inline void wedjat_rings_drive(struct rte_ring *forth, struct rte_ring *back, uint32_t depth, uint64_t tasks)
{
	void *objects[WEDJAT_YARDSTICK_BURST];
	uint64_t sent = 0, done = 0;

	while (done < tasks) {
		uint64_t room;
		uint32_t i;

		done += rte_ring_sc_dequeue_burst(back, objects, WEDJAT_YARDSTICK_BURST, NULL);
		room = depth - (sent - done);
		if (room > tasks - sent)
			room = tasks - sent;
		if (room == 0)
			continue;
		for (i = 0; i < room; i++)
			objects[i] = (void *)(uintptr_t)(sent + i + 1);
		sent += rte_ring_sp_enqueue_burst(forth, objects, (uint32_t)room, NULL);
	}
}

/* The worker: returns each task that it receives, until `*stop` is set. */
static inline void wedjat_rings_serve(struct rte_ring *forth, struct rte_ring *back, const volatile uint8_t *stop)
{
	void *objects[WEDJAT_YARDSTICK_BURST];

	while (!*stop) {
		uint32_t count = rte_ring_sc_dequeue_burst(forth, objects, WEDJAT_YARDSTICK_BURST, NULL);

		if (count > 0)
			rte_ring_sp_enqueue_burst(back, objects, count, NULL);
		else
			rte_pause();
	}
}

/* The dispatcher: sends the packets again as they come back, until `tasks` have. Then gets all of them back. */
static inline void wedjat_distributor_drive(struct rte_distributor *distributor, struct rte_mbuf **packets,
					    uint32_t depth, uint64_t tasks)
{
	struct rte_mbuf *returned[WEDJAT_YARDSTICK_BURST];
	uint64_t sent = depth, done = 0;
	uint32_t i;

	for (i = 0; i < depth; i++)
		packets[i]->hash.usr = i + 1; /* flows of their own */
	/* The distributor refuses packets until the worker's first request. */
	while (rte_distributor_process(distributor, packets, depth) == 0)
		;
	while (done < sent) {
		int count = rte_distributor_returned_pkts(distributor, returned, depth);

		done += (uint32_t)count;
		if (sent >= tasks)
			count = 0;
		sent += (uint32_t)count;
		rte_distributor_process(distributor, returned, (uint32_t)count);
	}
}

/* Lets the distributor answer a waiting worker, which can then end. */
static inline void wedjat_distributor_turn(struct rte_distributor *distributor)
{
	rte_distributor_process(distributor, NULL, 0);
}

/* The worker: returns the packets that it receives with its next request, until `*stop` is set. */
static inline void wedjat_distributor_serve(struct rte_distributor *distributor, const volatile uint8_t *stop)
{
	struct rte_mbuf *packets[8];
	int count = 0;

	while (!*stop) {
		rte_distributor_request_pkt(distributor, 0, packets, (uint32_t)count);
		while ((count = rte_distributor_poll_pkt(distributor, 0, packets)) < 0 && !*stop)
			rte_pause();
		if (count < 0)
			count = 0;
	}
}
