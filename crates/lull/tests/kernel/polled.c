/* A program whose epoll context hears from a NAPI: polled ADDRESS PORT WHAT [COUNT]. It prints "ready", then:
 *
 * wait    waits without a timeout. Each wake-up prints how many of its datagrams were sent less than a second ago, and how many
 *         before that. A datagram says when it was sent, as nanoseconds of CLOCK_MONOTONIC.
 * spin    calls epoll_wait with timeout 0 in a loop, and prints the same.
 * signals waits in a second thread while the first sends it COUNT signals. Prints how many of them did not end the wait with
 *         EINTR. A datagram begins it, so that there is a NAPI to poll; it prints "heard" then.
 *
 * It ends with its standard input, if that is one that can be waited for. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static int udp, epfd, wake;
static atomic_int handled, interrupted, waiting, woken, waiter_tid;

static void must(int yes, const char *what) {
	if (!yes) {
		fprintf(stderr, "failed: %s (errno %d)\n", what, errno);
		exit(1);
	}
}

static void add(int fd) {
	struct epoll_event event = {EPOLLIN, {.fd = fd}};
	must(epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
}

/* How many there were: all of them, and those that are a second old. */
struct count {
	int all, late;
};

static struct count datagrams(void) {
	char sent[32];
	struct count count = {0};
	struct timespec now;
	ssize_t bytes;
	while ((bytes = recv(udp, sent, sizeof sent - 1, MSG_DONTWAIT)) >= 0) {
		sent[bytes] = 0;
		must(clock_gettime(CLOCK_MONOTONIC, &now) == 0, "clock_gettime");
		count.all++;
		count.late += now.tv_sec * 1000000000LL + now.tv_nsec - atoll(sent) >= 1000000000;
	}
	return count;
}

/* Prints the datagrams of each wake-up until the standard input ends, and at last how often the thread slept. */
static void events(int timeout) {
	struct epoll_event event;
	struct rusage usage;
	unsigned long calls = 0;
	for (;;) {
		int count = epoll_wait(epfd, &event, 1, timeout);
		calls++;
		must(count >= 0, "epoll_wait");
		if (count == 1 && event.data.fd == udp) {
			struct count read = datagrams();
			printf("%d %d\n", read.all - read.late, read.late);
		} else if (count == 1 && event.data.fd == 0)
			break;
	}
	must(getrusage(RUSAGE_SELF, &usage) == 0, "getrusage");
	printf("calls %lu sleeps %ld\n", calls, usage.ru_nvcsw);
}

static void on_signal(int number) {
	(void)number;
	atomic_fetch_add(&handled, 1);
}

static void *wait_on(void *unused) {
	struct epoll_event event;
	atomic_store(&waiter_tid, gettid());
	for (;;) {
		atomic_store(&waiting, 1);
		int count = epoll_wait(epfd, &event, 1, -1);
		atomic_store(&waiting, 0);
		if (count == -1 && errno == EINTR)
			atomic_fetch_add(&interrupted, 1);
		else if (count == 1 && event.data.fd == udp)
			datagrams();
		else if (count == 1 && event.data.fd == wake) {
			eventfd_t value;
			eventfd_read(wake, &value);
			atomic_fetch_add(&woken, 1);
		}
	}
	return unused;
}

static int is_asleep(int tid) {
	char path[64], line[512] = "";
	snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
	int file = open(path, O_RDONLY);
	must(file >= 0 && read(file, line, sizeof line - 1) > 0 && close(file) == 0, path);
	char *state = strrchr(line, ')');
	return state && state[2] == 'S';
}

static long cpu_ms(clockid_t clock) {
	struct timespec used;
	must(clock_gettime(clock, &used) == 0, "clock_gettime");
	return used.tv_sec * 1000 + used.tv_nsec / 1000000;
}

/* A signal that is handled while the thread waits, and after which it sleeps in the same wait again, or polls in it for a second of
 * its CPU's, was lost. */
static void signals(int count) {
	pthread_t thread;
	struct sigaction action = {.sa_handler = on_signal};
	int lost = 0;
	wake = eventfd(0, EFD_NONBLOCK);
	add(wake);
	must(sigaction(SIGUSR1, &action, NULL) == 0 && pthread_create(&thread, NULL, wait_on, NULL) == 0, "thread");
	clockid_t clock;
	must(pthread_getcpuclockid(thread, &clock) == 0, "the thread's clock");
	srand(1);
	for (int nth = 0; nth < count; nth++) {
		/* An event, so that the next wait begins with what the kernel polls for. */
		eventfd_write(wake, 1);
		while (atomic_load(&woken) <= nth || !atomic_load(&waiting))
			;
		usleep(100 + rand() % 3000);
		int had = atomic_load(&handled), ended = atomic_load(&interrupted);
		must(pthread_kill(thread, SIGUSR1) == 0, "pthread_kill");
		while (atomic_load(&handled) == had)
			;
		/* It has to end now or at the next event, which is the mark of a signal that was lost. */
		long until_ms = cpu_ms(clock) + 1000;
		while (atomic_load(&interrupted) == ended && !is_asleep(atomic_load(&waiter_tid)) && cpu_ms(clock) < until_ms)
			usleep(100);
		lost += atomic_load(&interrupted) == ended;
	}
	printf("lost %d of %d\n", lost, count);
}

int main(int count, char **words) {
	must(count >= 4, "ADDRESS PORT WHAT");
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(words[2]))};
	must(inet_aton(words[1], &address.sin_addr), "address");
	udp = socket(AF_INET, SOCK_DGRAM, 0);
	must(bind(udp, (struct sockaddr *)&address, sizeof address) == 0, "bind");
	epfd = epoll_create1(0);
	add(udp);
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("ready\n");
	if (!strcmp(words[3], "signals")) {
		/* The first one has a NAPI id. */
		struct epoll_event event;
		must(epoll_wait(epfd, &event, 1, -1) == 1, "the first datagram");
		printf("heard\n");
		/* A datagram that comes together with a signal would end the wait rightly. */
		do
			usleep(100000);
		while (datagrams().all);
		signals(atoi(words[4]));
		return 0;
	}
	struct epoll_event of_input = {EPOLLIN, {.fd = 0}};
	must(epoll_ctl(epfd, EPOLL_CTL_ADD, 0, &of_input) == 0 || errno == EPERM, "standard input");
	events(strcmp(words[3], "spin") ? -1 : 0);
	return 0;
}
