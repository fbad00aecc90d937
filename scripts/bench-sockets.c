/* Both ends of scripts/bench-sockets.py over sockets of the kernel: workers that answer at once, and a client that keeps a window of
 * tasks under way, or sends one after a pause, and prints what came of them as JSON. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

enum {
	PORT = 1234,
	POOL = 1,
	HEADER = 11, /* kind, pool, src, dst, qlen, seq */
	DONE_AND_IDLE = 3,
	NOBODY = 0x7FFF,
	WINDOW_MOST = 1024,
	TASK = 64,
	LOST_NS = 200000000, /* a task without an answer for so long is lost */
};

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static struct sockaddr_in address(const char *text)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(PORT)};

	if (inet_pton(AF_INET, text, &address.sin_addr) != 1) {
		fprintf(stderr, "%s is no IPv4 address\n", text);
		exit(1);
	}
	return address;
}

/* One socket for each address, each a worker. */
static _Noreturn void serve(int count, char **addresses)
{
	struct pollfd sockets[64];
	uint8_t task[2048];

	for (int at = 0; at < count; at++) {
		struct sockaddr_in own = address(addresses[at]);

		sockets[at] = (struct pollfd){.fd = socket(AF_INET, SOCK_DGRAM, 0), .events = POLLIN};
		if (sockets[at].fd < 0 || bind(sockets[at].fd, (struct sockaddr *)&own, sizeof(own)) != 0)
			fail("bind");
	}
	puts("ready");
	fflush(stdout);
	for (;;) {
		if (poll(sockets, count, -1) < 0)
			fail("poll");
		for (int at = 0; at < count; at++) {
			struct sockaddr_in client;
			socklen_t len = sizeof(client);
			ssize_t got = recvfrom(sockets[at].fd, task, sizeof(task), MSG_DONTWAIT, (struct sockaddr *)&client, &len);

			if (got < HEADER)
				continue;
			task[0] = DONE_AND_IDLE;
			memmove(task + 3, task + 5, 2); /* the worker that was chosen is the reply's source */
			memset(task + 5, 0, 4);
			sendto(sockets[at].fd, task, got, 0, (struct sockaddr *)&client, len);
		}
	}
}

static int by_size(const void *left, const void *right)
{
	uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;

	return (a > b) - (a < b);
}

static void send_task(int socket, uint16_t seq, uint64_t *sent)
{
	uint8_t task[TASK] = {0, POOL >> 8, POOL & 0xFF, 0, 1, NOBODY >> 8, NOBODY & 0xFF, 0, 0, seq >> 8, seq & 0xFF};

	*sent = now_ns();
	send(socket, task, sizeof(task), 0);
}

/* Prints what came of tasks, the latencies in nanoseconds; exit status 1 if no task was answered. */
static int report(uint32_t *latency, uint64_t room, uint64_t answered, uint64_t lost, uint64_t begin)
{
	uint64_t kept = answered < room ? answered : room;
	double took = (now_ns() - begin) / 1e9;

	qsort(latency, kept, sizeof(*latency), by_size);
	printf("{\"tasks\": %.1f, \"p50\": %.2f, \"p99\": %.2f, \"lost\": %llu}\n", answered / took,
	       kept ? latency[kept / 2] / 1e3 : 0.0, kept ? latency[kept * 99 / 100] / 1e3 : 0.0, (unsigned long long)lost);
	return kept == 0;
}

/* Sends a task, waits for its answer, and pauses for so many milliseconds before the next. */
static int ask_seldom(const char *scheduler, double pause_ms, double seconds)
{
	struct sockaddr_in to = address(scheduler);
	int own = socket(AF_INET, SOCK_DGRAM, 0);
	uint64_t sent, begin = now_ns(), end = begin + (uint64_t)(seconds * 1e9), answered = 0, lost = 0, room = 1 << 16;
	uint32_t *latency = malloc(room * sizeof(*latency));
	struct timespec pause = {.tv_nsec = (long)(pause_ms * 1e6)};
	uint8_t reply[2048];

	if (!(pause_ms > 0 && pause_ms < 1000)) {
		fputs("a pause is more than 0 and less than 1000 ms\n", stderr);
		exit(2);
	}
	if (latency == NULL || own < 0 || connect(own, (struct sockaddr *)&to, sizeof(to)) != 0)
		fail("client");
	for (uint16_t seq = 0; now_ns() < end; seq++) {
		struct pollfd ready = {.fd = own, .events = POLLIN};
		int is_answered = 0;

		nanosleep(&pause, NULL);
		send_task(own, seq, &sent);
		while (!is_answered && poll(&ready, 1, LOST_NS / 1000000) > 0) {
			ssize_t got = recv(own, reply, sizeof(reply), MSG_DONTWAIT);

			is_answered = got >= HEADER && (reply[9] << 8 | reply[10]) == seq;
		}
		if (!is_answered)
			lost++;
		else if (answered < room)
			latency[answered++] = (uint32_t)(now_ns() - sent);
	}
	return report(latency, room, answered, lost, begin);
}

/* Keeps a window of tasks under way for so many seconds. */
static int ask(const char *scheduler, int window, double seconds)
{
	struct sockaddr_in to = address(scheduler);
	int own = socket(AF_INET, SOCK_DGRAM, 0);
	uint64_t sent[WINDOW_MOST], begin = now_ns(), end = begin + (uint64_t)(seconds * 1e9), looked = begin;
	uint64_t answered = 0, lost = 0, room = 1 << 22;
	uint16_t turns[WINDOW_MOST] = {0};
	uint32_t *latency = malloc(room * sizeof(*latency));
	uint8_t reply[2048];

	if (window < 1 || window > WINDOW_MOST || latency == NULL || own < 0 || connect(own, (struct sockaddr *)&to, sizeof(to)) != 0)
		fail("client");
	/* A task's sequence: its place in the window, and how often that was used, to tell late answers. */
	int turns_of_place = 65536 / window;

	for (int place = 0; place < window; place++)
		send_task(own, place, &sent[place]);
	while (now_ns() < end) {
		struct pollfd ready = {.fd = own, .events = POLLIN};
		uint64_t now;

		poll(&ready, 1, 20);
		for (;;) {
			ssize_t got = recv(own, reply, sizeof(reply), MSG_DONTWAIT);

			if (got < HEADER)
				break;
			uint16_t seq = reply[9] << 8 | reply[10];
			int place = seq % window;

			if (seq / window != turns[place])
				continue;
			if (answered < room)
				latency[answered] = (uint32_t)(now_ns() - sent[place]);
			answered++;
			turns[place] = (turns[place] + 1) % turns_of_place;
			send_task(own, turns[place] * window + place, &sent[place]);
		}
		now = now_ns();
		if (now - looked < LOST_NS / 4)
			continue;
		looked = now;
		for (int place = 0; place < window; place++) {
			if (now - sent[place] < LOST_NS)
				continue;
			lost++;
			turns[place] = (turns[place] + 1) % turns_of_place;
			send_task(own, turns[place] * window + place, &sent[place]);
		}
	}
	return report(latency, room, answered, lost, begin);
}

int main(int argc, char **argv)
{
	if (argc > 2 && argc <= 2 + 64 && strcmp(argv[1], "serve") == 0)
		serve(argc - 2, argv + 2);
	if (argc == 5 && strcmp(argv[1], "ask") == 0)
		return ask(argv[2], atoi(argv[3]), atof(argv[4]));
	if (argc == 5 && strcmp(argv[1], "ask-seldom") == 0)
		return ask_seldom(argv[2], atof(argv[3]), atof(argv[4]));
	fprintf(stderr, "usage: %s serve ADDRESS... | ask ADDRESS WINDOW SECONDS | ask-seldom ADDRESS PAUSE_MS SECONDS\n", argv[0]);
	return 2;
}
