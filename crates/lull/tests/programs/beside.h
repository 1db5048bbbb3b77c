// The common part of programs with both ends of their connections (`beside.sh`).
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: not so: %s (%s)\n", __FILE__, __LINE__, #condition, strerror(errno));              \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = 0};

// Prints what a call returned, or its error.
static long said(const char *what, long result) {
    if (result < 0)
        printf("%s: %s\n", what, strerrorname_np(errno));
    else
        printf("%s: %ld\n", what, result);
    fflush(stdout);
    return result;
}
#define SAY(call) said(#call, call)

static void set(int fd, int level, int name, int value) {
    CHECK(setsockopt(fd, level, name, &value, sizeof value) == 0);
}

static int get(int fd, int level, int name) {
    int value = -1;
    socklen_t length = sizeof value;
    CHECK(getsockopt(fd, level, name, &value, &length) == 0);
    return value;
}

static int count(int fd, unsigned long what) {
    int value = -1;
    CHECK(ioctl(fd, what, &value) == 0);
    return value;
}

// Whether there is something to read. "comes" waits for it.
static int is_readable(int fd) {
    struct pollfd polled = {.fd = fd, .events = POLLIN};
    return poll(&polled, 1, 0);
}
static void comes(int fd) {
    struct pollfd polled = {.fd = fd, .events = POLLIN};
    CHECK(poll(&polled, 1, 60000) == 1);
}

static void reads(int fd) {
    char letters[64];
    comes(fd);
    long got = read(fd, letters, sizeof letters);
    printf("read %ld: %.*s\n", got, got < 0 ? 0 : (int)got, letters);
    fflush(stdout);
}

static int listening(void) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in here = at;
    socklen_t length = sizeof here;
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&here, sizeof here) == 0 && listen(fd, 8) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&here, &length) == 0);
    at.sin_port = here.sin_port;
    return fd;
}

static void accepted(int listener, int ends[2]) {
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(ends[0] >= 0 && connect(ends[0], (struct sockaddr *)&at, sizeof at) == 0);
    comes(listener);
    ends[1] = accept(listener, NULL, NULL);
    CHECK(ends[1] >= 0);
}

static void pair(int ends[2]) {
    at.sin_port = 0;
    int listener = listening();
    accepted(listener, ends);
    CHECK(close(listener) == 0);
}

static void datagrams(int ends[2]) {
    for (int nth = 0; nth < 2; nth++) {
        struct sockaddr_in here = at;
        socklen_t length = sizeof here;
        here.sin_port = 0;
        ends[nth] = socket(AF_INET, SOCK_DGRAM, 0);
        CHECK(ends[nth] >= 0 && bind(ends[nth], (struct sockaddr *)&here, sizeof here) == 0);
        CHECK(getsockname(ends[nth], (struct sockaddr *)&here, &length) == 0);
        at.sin_port = here.sin_port;
    }
}

static pid_t main_thread;

static void until_main_sleeps(void) {
    char path[64], stat[256];
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", main_thread);
    for (int times = 0; times < 20;) {
        FILE *file = fopen(path, "r");
        CHECK(file && fgets(stat, sizeof stat, file));
        times = strstr(stat, ") S ") ? times + 1 : 0;
        fclose(file);
        usleep(1000);
    }
}

static int open_numbers(void) {
    int all = 0;
    DIR *directory = opendir("/proc/self/fd");
    CHECK(directory);
    while (readdir(directory)) all++;
    closedir(directory);
    return all;
}
