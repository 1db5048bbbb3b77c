/* "probe WHAT" does one of the things that programs do with the calls that the preload library takes over, and prints
 * what came of it. If a check fails, it ends with status 1. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct params {
	unsigned usecs;
	unsigned short budget;
	unsigned char prefer, pad;
};
#define GET_PARAMS 0x80088a02

static void must(int yes, const char *what) {
	if (!yes) {
		fprintf(stderr, "failed: %s (errno %d)\n", what, errno);
		exit(1);
	}
}

static void show(const char *name, int epfd) {
	struct params params;
	must(ioctl(epfd, GET_PARAMS, &params) == 0, name);
	printf("%s %u %u %u\n", name, params.usecs, params.budget, params.prefer);
	fflush(stdout);
}

/* Makes contexts in all possible ways. */
static void contexts(void) {
	int first = epoll_create(1), second = epoll_create1(EPOLL_CLOEXEC);
	show("create", first);
	show("create1", second);
	show("dup", dup(first));
	must(fcntl(second, F_GETFD) == FD_CLOEXEC, "the flag of epoll_create1");
	pid_t child = fork();
	if (!child) {
		show("inherited", first);
		show("forked", epoll_create1(0));
		_exit(0);
	}
	int status;
	must(waitpid(child, &status, 0) == child && status == 0, "the child");
	if (!(child = vfork())) {
		execl("/proc/self/exe", "probe", "one", NULL);
		_exit(1);
	}
	must(waitpid(child, &status, 0) == child && status == 0, "the executed child");
}

/* Checks that errno is what it would be without the library. */
static void errors(void) {
	errno = 0;
	must(epoll_create1(-1) == -1 && errno == EINVAL, "epoll_create1(-1)");
	must(epoll_create(0) == -1 && errno == EINVAL, "epoll_create(0)");
	struct epoll_event event;
	must(epoll_wait(-1, &event, 1, 0) == -1 && errno == EBADF, "epoll_wait(-1)");
	must(epoll_pwait(0, &event, 1, 0, NULL) == -1 && errno == EINVAL, "epoll_pwait(0)");
	must(accept(-1, NULL, NULL) == -1 && errno == EBADF, "accept(-1)");
	must(accept4(-1, NULL, NULL, 0) == -1 && errno == EBADF, "accept4(-1)");
	must(socket(-1, SOCK_STREAM, 0) == -1 && errno == EAFNOSUPPORT, "socket(-1)");
	errno = 77;
	int epfd = epoll_create1(0), inet = socket(AF_INET, SOCK_STREAM, 0);
	must(epfd >= 0 && inet >= 0 && errno == 77, "errno of calls that succeed");
	/* The kernel refuses a call without room for events. */
	must(epoll_wait(epfd, &event, 0, 0) == -1 && errno == EINVAL, "no room for events");
	puts("ok");
}

/* Returns a context with a timer that is due after so many milliseconds. */
static int with_timer(int ms) {
	int epfd = epoll_create1(0), timer = timerfd_create(CLOCK_MONOTONIC, 0);
	struct itimerspec due = {{0, 0}, {ms / 1000, (long)(ms % 1000) * 1000000}};
	struct epoll_event event = {EPOLLIN, {0}};
	must(timerfd_settime(timer, 0, &due, NULL) == 0 && epoll_ctl(epfd, EPOLL_CTL_ADD, timer, &event) == 0, "timer");
	return epfd;
}

/* Prints how many events the three calls return: with timeout 0, with 1 ms, and without a timeout. */
static void timeouts(void) {
	struct epoll_event event;
	struct timespec zero = {0, 0}, short_one = {0, 1000000};
	int due = atoi(getenv("DUE_MS")), hour = 3600 * 1000;
	printf("zero %d", epoll_wait(with_timer(due), &event, 1, 0));
	printf(" %d", epoll_pwait(with_timer(due), &event, 1, 0, NULL));
	printf(" %d\n", epoll_pwait2(with_timer(due), &event, 1, &zero, NULL));
	printf("short %d", epoll_wait(with_timer(hour), &event, 1, 1));
	printf(" %d", epoll_pwait(with_timer(hour), &event, 1, 1, NULL));
	printf(" %d\n", epoll_pwait2(with_timer(hour), &event, 1, &short_one, NULL));
	printf("for ever %d", epoll_wait(with_timer(20), &event, 1, -1));
	printf(" %d", epoll_pwait(with_timer(20), &event, 1, -1, NULL));
	printf(" %d\n", epoll_pwait2(with_timer(20), &event, 1, NULL, NULL));
}

/* Returns how often this thread has slept. */
static long sleeps(void) {
	struct rusage usage;
	must(getrusage(RUSAGE_THREAD, &usage) == 0, "getrusage");
	return usage.ru_nvcsw;
}

/* Adds a datagram socket on loopback, which has no NAPI id. */
static void add_socket(int epfd) {
	struct epoll_event event = {EPOLLIN, {0}};
	struct sockaddr_in loopback = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	int udp = socket(AF_INET, SOCK_DGRAM, 0);
	must(bind(udp, (struct sockaddr *)&loopback, sizeof loopback) == 0, "bind");
	must(epoll_ctl(epfd, EPOLL_CTL_ADD, udp, &event) == 0, "add");
}

/* Prints how often this thread slept while it waited for a second, and in calls with timeout 0. */
static void slept(void) {
	struct epoll_event event;
	int epfd = with_timer(1000), other = with_timer(3600 * 1000);
	add_socket(epfd);
	add_socket(other);
	long before = sleeps();
	int ready = epoll_wait(epfd, &event, 1, -1);
	printf("for ever %d, slept %s\n", ready, sleeps() - before >= 50 ? "often" : "seldom");
	ready = epoll_wait(other, &event, 1, 50);
	printf("50 ms %d\n", ready);
	before = sleeps();
	for (int nth = 0; nth < 10000; nth++)
		must(epoll_wait(other, &event, 1, 0) == 0, "timeout 0");
	printf("zero, slept %s\n", sleeps() - before >= 50 ? "often" : "seldom");
}

/* Prints how many of five ready members the three calls return with room for ten, and how many the last call finds. */
static void batch(void) {
	struct epoll_event events[10];
	struct timespec soon = {1, 0};
	int epfd = epoll_create1(0), count, left = 0;
	for (int nth = 0; nth < 5; nth++) {
		struct epoll_event event = {EPOLLIN | EPOLLET, {0}};
		int timer = timerfd_create(CLOCK_MONOTONIC, 0);
		struct itimerspec due = {{0, 0}, {0, 1}};
		struct pollfd ready = {timer, POLLIN, 0};
		must(timerfd_settime(timer, 0, &due, NULL) == 0 && poll(&ready, 1, -1) == 1, "timer");
		must(epoll_ctl(epfd, EPOLL_CTL_ADD, timer, &event) == 0, "add");
	}
	for (int last = 1; last > 0; left = last > 0 ? last : left)
		last = epoll_wait(epfd, events, 10, 0);
	add_socket(epfd);
	int calls[3];
	for (int which = 0; which < 3; which++) {
		int all = epoll_create1(0);
		add_socket(all);
		for (int nth = 0; nth < 5; nth++) {
			struct epoll_event event = {EPOLLOUT, {0}};
			must(epoll_ctl(all, EPOLL_CTL_ADD, socket(AF_INET, SOCK_DGRAM, 0), &event) == 0, "add");
		}
		count = which == 0   ? epoll_wait(all, events, 10, 1000)
			: which == 1 ? epoll_pwait(all, events, 10, 0, NULL)
				     : epoll_pwait2(all, events, 10, &soon, NULL);
		calls[which] = count;
	}
	printf("%d %d %d then %d\n", calls[0], calls[1], calls[2], left);
}

static atomic_int handled, interrupted, waiting;

static void on_signal(int number) {
	(void)number;
	atomic_fetch_add(&handled, 1);
}

static atomic_int waiter_tid;

/* Returns whether a thread of this process sleeps. */
static int is_asleep(int tid) {
	char path[64], line[512] = "";
	snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
	int file = open(path, O_RDONLY);
	must(file >= 0 && read(file, line, sizeof line - 1) > 0 && close(file) == 0, path);
	char *state = strrchr(line, ')');
	return state && state[2] == 'S';
}

static void *wait_and_count(void *unused) {
	struct epoll_event event;
	int epfd = epoll_create1(0);
	add_socket(epfd);
	atomic_store(&waiter_tid, gettid());
	for (;;) {
		atomic_store(&waiting, 1);
		int count = epoll_wait(epfd, &event, 1, -1);
		atomic_store(&waiting, 0);
		if (count == -1 && errno == EINTR)
			atomic_fetch_add(&interrupted, 1);
	}
	return unused;
}

/* As in many programs, a handler sets a flag and epoll_wait(-1) ends with EINTR. A signal counts as lost if its handler
 * has run in the wait and the thread sleeps in the same wait again. A few may be lost rightly, as they come between the
 * mark and the call: for that, the thread must have been kept from its CPU just there. */
static void signals(void) {
	pthread_t waiter;
	struct sigaction action = {.sa_handler = on_signal};
	int lost = 0, count = 300;
	must(sigaction(SIGUSR1, &action, NULL) == 0 && pthread_create(&waiter, NULL, wait_and_count, NULL) == 0, "thread");
	srand(1);
	for (int nth = 0; nth < count; nth++) {
		while (!atomic_load(&waiting))
			;
		usleep(100 + rand() % 1500);
		int had = atomic_load(&handled), ended = atomic_load(&interrupted);
		must(pthread_kill(waiter, SIGUSR1) == 0, "pthread_kill");
		while (atomic_load(&handled) == had)
			;
		while (!is_asleep(atomic_load(&waiter_tid)) && atomic_load(&interrupted) == ended)
			usleep(100);
		if (atomic_load(&interrupted) == ended && ++lost == 15)
			break;
	}
	printf("%s\n", lost < 15 ? "heard" : "many were lost");
}

static int busy_poll(int fd) {
	int usecs = -1;
	socklen_t size = sizeof usecs;
	must(getsockopt(fd, SOL_SOCKET, SO_BUSY_POLL, &usecs, &size) == 0, "SO_BUSY_POLL");
	return usecs;
}

static int connection(int listener) {
	struct sockaddr_in address;
	socklen_t size = sizeof address;
	must(getsockname(listener, (struct sockaddr *)&address, &size) == 0, "getsockname");
	int client = socket(AF_INET, SOCK_STREAM, 0);
	must(connect(client, (struct sockaddr *)&address, size) == 0, "connect");
	return client;
}

static void sockets(void) {
	int unix_pair[2], zero = 0, own = 7;
	must(socketpair(AF_UNIX, SOCK_STREAM, 0, unix_pair) == 0, "socketpair");
	printf("udp %d\n", busy_poll(socket(AF_INET6, SOCK_DGRAM, 0)));
	printf("unix %d\n", busy_poll(socket(AF_UNIX, SOCK_DGRAM, 0)));
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in loopback = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	must(bind(listener, (struct sockaddr *)&loopback, sizeof loopback) == 0 && listen(listener, 9) == 0, "listen");
	printf("listener %d\n", busy_poll(listener));
	connection(listener);
	printf("accepted %d\n", busy_poll(accept(listener, NULL, NULL)));
	/* The listener is now like one that a service manager has made. */
	setsockopt(listener, SOL_SOCKET, SO_BUSY_POLL, &zero, sizeof zero);
	connection(listener);
	printf("of another's listener %d\n", busy_poll(accept4(listener, NULL, NULL, SOCK_CLOEXEC)));
	setsockopt(listener, SOL_SOCKET, SO_BUSY_POLL, &own, sizeof own);
	connection(listener);
	printf("of a listener with its own %d\n", busy_poll(accept(listener, NULL, NULL)));
}

static void *wait_for_ever(void *epfd) {
	struct epoll_event event;
	atomic_store(&waiter_tid, gettid());
	epoll_wait(*(int *)epfd, &event, 1, -1);
	return NULL;
}

/* Cancels a thread, which unwinds its stack through the library's functions. */
static void cancelled(void) {
	int epfd = epoll_create1(0);
	pthread_t thread;
	void *result = NULL;
	must(pthread_create(&thread, NULL, wait_for_ever, &epfd) == 0, "thread");
	while (!atomic_load(&waiter_tid) || !is_asleep(atomic_load(&waiter_tid)))
		usleep(1000);
	must(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0, "cancel");
	must(result == PTHREAD_CANCELED, "the thread was cancelled");
	puts("cancelled");
}

/* Makes contexts without rights, so that a budget above 64 is refused. Descriptor 2 may be a client's by then. */
static void refused(int stderr_is_a_client) {
	int pair[2];
	char got[256] = "";
	must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0, "socketpair");
	if (stderr_is_a_client)
		must(dup2(pair[0], 2) == 2, "dup2");
	if (geteuid() == 0)
		must(setuid(65534) == 0, "setuid");
	show("first", epoll_create1(0));
	show("second", epoll_create1(0));
	printf("client got %zd\n", read(pair[1], got, sizeof got));
}

int main(int count, char **words) {
	const char *what = count > 1 ? words[1] : "";
	if (!strcmp(what, "contexts"))
		contexts();
	else if (!strcmp(what, "one"))
		show("executed", epoll_create1(0));
	else if (!strcmp(what, "errors"))
		errors();
	else if (!strcmp(what, "timeouts"))
		timeouts();
	else if (!strcmp(what, "slept"))
		slept();
	else if (!strcmp(what, "batch"))
		batch();
	else if (!strcmp(what, "signals"))
		signals();
	else if (!strcmp(what, "sockets"))
		sockets();
	else if (!strcmp(what, "cancelled"))
		cancelled();
	else if (!strcmp(what, "refused"))
		refused(0);
	else if (!strcmp(what, "refused-after-close"))
		refused(1);
	else
		must(0, "no such thing");
	return 0;
}
