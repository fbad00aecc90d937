/* DPDK's event devices as ways to hand tasks to a worker core and get them back, for comparison. The functions are in
 * an object of their own (`events.c`), because only a benchmark needs librte_eventdev. */
#pragma once
#include <stdint.h>

/* A started event device with one dispatcher and one worker. */
struct wedjat_event_device {
	uint8_t id;
	/* Whether the device needs a core for its scheduler. */
	uint8_t needs_scheduler;
	/* The scheduler's service. */
	uint32_t service;
};

/* The functions of `events.c`; null if DPDK was built without event devices. */
struct wedjat_event_functions {
	/* Configures and starts the event device of this name, which exists. Returns 0 or a negative errno. */
	int (*start)(const char *name, struct wedjat_event_device *device);
	/* The dispatcher: keeps up to `depth` tasks in flight until `tasks` have come back. Runs the device's scheduler
	 * between its bursts. An EAL thread calls it. */
	void (*drive)(const struct wedjat_event_device *device, uint32_t depth, uint64_t tasks);
	/* The worker: returns each task that it receives, until `*stop` is set. */
	void (*serve)(const struct wedjat_event_device *device, const volatile uint8_t *stop);
	/* Stops and closes the device. */
	void (*close)(const struct wedjat_event_device *device);
};
