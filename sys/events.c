/* DPDK's event devices as ways to hand tasks to a worker core and get them back (see `events.h`). A task is an event.
 * It goes through one queue to the worker's port, and through another queue back to the dispatcher's port. Workers that
 * find nothing pause, as ours do; dispatchers do not. */
#include "events.h"

#if !__has_include(<rte_eventdev.h>)
/* A DPDK that was built without event devices: no functions. */
const struct wedjat_event_functions wedjat_event_functions = {0};
#else
#include <errno.h>
#include <stddef.h>

#include <rte_common.h>
#include <rte_eventdev.h>
#include <rte_pause.h>
#include <rte_service.h>

/* Capacity of a burst array, and the maximum number of events of a burst. */
#define BURST 8

/* Queues: each has the port of the same number. */
enum { TO_WORKER, TO_DISPATCHER, SIDES };
/* Ports. */
enum { WORKER = TO_WORKER, DISPATCHER = TO_DISPATCHER };

/* Configures a queue for tasks that any worker may take, or for the dispatcher alone, and the queue's port. */
static int set_up(uint8_t id, uint8_t side)
{
	struct rte_event_queue_conf queue;
	struct rte_event_port_conf port;
	int error = rte_event_queue_default_conf_get(id, side, &queue);

	if (error == 0)
		error = rte_event_port_default_conf_get(id, side, &port);
	if (error != 0)
		return error;
	queue.schedule_type = RTE_SCHED_TYPE_PARALLEL;
	if (side == TO_DISPATCHER) {
		queue.event_queue_cfg = RTE_EVENT_QUEUE_CFG_SINGLE_LINK;
		port.event_port_cfg = RTE_EVENT_PORT_CFG_SINGLE_LINK;
	}
	error = rte_event_queue_setup(id, side, &queue);
	return error != 0 ? error : rte_event_port_setup(id, side, &port);
}

/* Configures the device, with the limits of its driver. */
static int configure(uint8_t id)
{
	struct rte_event_dev_config config = {.nb_event_queues = SIDES, .nb_event_ports = SIDES};
	struct rte_event_dev_info info;
	int error = rte_event_dev_info_get(id, &info);

	if (error != 0)
		return error;
	config.dequeue_timeout_ns = info.min_dequeue_timeout_ns;
	config.nb_events_limit = info.max_num_events;
	config.nb_event_queue_flows = info.max_event_queue_flows;
	config.nb_event_port_dequeue_depth = info.max_event_port_dequeue_depth;
	config.nb_event_port_enqueue_depth = info.max_event_port_enqueue_depth;
	config.nb_single_link_event_port_queues = 1;
	return rte_event_dev_configure(id, &config);
}

/* Lets the dispatcher run the device's scheduler, unless the device schedules by itself. */
static int prepare_scheduler(struct wedjat_event_device *device)
{
	struct rte_event_dev_info info;
	int error = rte_event_dev_info_get(device->id, &info);

	if (error != 0)
		return error;
	device->needs_scheduler = !(info.event_dev_cap & RTE_EVENT_DEV_CAP_DISTRIBUTED_SCHED);
	if (!device->needs_scheduler)
		return 0;
	error = rte_event_dev_service_id_get(device->id, &device->service);
	if (error == 0)
		error = rte_service_runstate_set(device->service, 1);
	/* No service core has the service: the dispatcher calls it. */
	return error != 0 ? error : rte_service_set_runstate_mapped_check(device->service, 0);
}

static int start(const char *name, struct wedjat_event_device *device)
{
	int id = rte_event_dev_get_dev_id(name);
	int error;

	if (id < 0)
		return id;
	device->id = (uint8_t)id;
	error = configure(device->id);
	for (uint8_t side = 0; side < SIDES && error == 0; side++) {
		error = set_up(device->id, side);
		if (error == 0 && rte_event_port_link(device->id, side, &side, NULL, 1) != 1)
			error = -EINVAL;
	}
	if (error == 0)
		error = prepare_scheduler(device);
	return error != 0 ? error : rte_event_dev_start(device->id);
}

static void drive(const struct wedjat_event_device *device, uint32_t depth, uint64_t tasks)
{
	struct rte_event arrived[BURST], events[BURST] = {0};
	uint64_t sent = 0, done = 0;

	for (int i = 0; i < BURST; i++) {
		events[i].op = RTE_EVENT_OP_NEW;
		events[i].queue_id = TO_WORKER;
		events[i].sched_type = RTE_SCHED_TYPE_PARALLEL;
		events[i].flow_id = (uint32_t)i + 1; /* flows of their own */
	}
	while (done < tasks) {
		uint64_t room;

		done += rte_event_dequeue_burst(device->id, DISPATCHER, arrived, BURST, 0);
		room = RTE_MIN(RTE_MIN(depth - (sent - done), tasks - sent), (uint64_t)BURST);
		if (room > 0)
			sent += rte_event_enqueue_burst(device->id, DISPATCHER, events, (uint16_t)room);
		if (device->needs_scheduler)
			rte_service_run_iter_on_app_lcore(device->service, 0);
	}
}

static void serve(const struct wedjat_event_device *device, const volatile uint8_t *stop)
{
	struct rte_event events[BURST];

	while (!*stop) {
		uint16_t count = rte_event_dequeue_burst(device->id, WORKER, events, BURST, 0);
		uint16_t sent = 0;

		for (uint16_t i = 0; i < count; i++) {
			events[i].op = RTE_EVENT_OP_FORWARD;
			events[i].queue_id = TO_DISPATCHER;
		}
		while (sent < count)
			sent += rte_event_enqueue_burst(device->id, WORKER, events + sent, (uint16_t)(count - sent));
		if (count == 0)
			rte_pause();
	}
}

static void close_device(const struct wedjat_event_device *device)
{
	rte_event_dev_stop(device->id);
	rte_event_dev_close(device->id);
}

const struct wedjat_event_functions wedjat_event_functions = {start, drive, serve, close_device};
#endif
