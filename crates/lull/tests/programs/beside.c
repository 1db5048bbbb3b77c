// Both ends of connections in one program, which prints what each call returned; it prints the same on the kernel and
// on lull. usage: beside CASE ADDRESS
#include "beside.h"

// A cork lasts for 200 ms. On a busy machine a program may have no turn for that long; then it exits with this status,
// and is started again.
enum { TOO_LATE = 75 };
static struct timespec corked_at;
static void corked(void) { CHECK(clock_gettime(CLOCK_MONOTONIC, &corked_at) == 0); }
static void is_corked_still(void) {
    struct timespec now;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    if ((now.tv_sec - corked_at.tv_sec) * 1000 + (now.tv_nsec - corked_at.tv_nsec) / 1000000 > 150) exit(TOO_LATE);
}

static void corks(void) {
    int ends[2], other[2];
    pair(ends);
    corked();
    SAY(send(ends[0], "one", 3, MSG_MORE));
    SAY(send(ends[0], "two", 3, MSG_MORE));
    SAY(is_readable(ends[1]));
    SAY(count(ends[0], SIOCOUTQ));
    is_corked_still();
    SAY(send(ends[0], "three", 5, 0));
    reads(ends[1]);
    set(ends[0], IPPROTO_TCP, TCP_CORK, 1);
    SAY(get(ends[0], IPPROTO_TCP, TCP_CORK));
    corked();
    SAY(write(ends[0], "head", 4));
    SAY(write(ends[0], "body", 4));
    SAY(is_readable(ends[1]));
    is_corked_still();
    set(ends[0], IPPROTO_TCP, TCP_CORK, 0);
    reads(ends[1]);
    // This is within the time that a cork lasts.
    SAY(send(ends[0], "late", 4, MSG_MORE));
    reads(ends[1]);
    set(ends[0], IPPROTO_TCP, TCP_CORK, 1);
    SAY(write(ends[0], "pushed", 6));
    set(ends[0], IPPROTO_TCP, TCP_NODELAY, 1);
    reads(ends[1]);
    corked();
    SAY(write(ends[0], "last", 4));
    SAY(is_readable(ends[1]));
    is_corked_still();
    SAY(shutdown(ends[0], SHUT_WR));
    reads(ends[1]);
    reads(ends[1]);
    // A connection inherits the cork of its listener.
    at.sin_port = 0;
    int listener = listening();
    set(listener, IPPROTO_TCP, TCP_CORK, 1);
    accepted(listener, ends);
    SAY(get(ends[1], IPPROTO_TCP, TCP_CORK));
    corked();
    SAY(write(ends[1], "corked", 6));
    SAY(is_readable(ends[0]));
    is_corked_still();
    CHECK(close(ends[1]) == 0);
    reads(ends[0]);
    // The first part of a corked datagram says where it goes.
    datagrams(other);
    SAY(sendto(other[0], "a", 1, MSG_MORE, (struct sockaddr *)&at, sizeof at));
    SAY(sendto(other[0], "bc", 2, MSG_MORE, NULL, 0));
    SAY(is_readable(other[1]));
    SAY(sendto(other[0], "def", 3, 0, NULL, 0));
    reads(other[1]);
    set(other[0], SOL_UDP, UDP_CORK, 1);
    SAY(sendto(other[0], "g", 1, 0, (struct sockaddr *)&at, sizeof at));
    SAY(sendto(other[0], "h", 1, 0, NULL, 0));
    SAY(is_readable(other[1]));
    set(other[0], SOL_UDP, UDP_CORK, 0);
    reads(other[1]);
    SAY(sendto(other[0], "", 0, MSG_MORE, NULL, 0));
    SAY(sendto(other[0], "i", 1, 0, (struct sockaddr *)&at, sizeof at));
    reads(other[1]);
}

static void *writes_twice(void *fd) {
    until_main_sleeps();
    CHECK(write(*(int *)fd, "1234", 4) == 4);
    until_main_sleeps();
    CHECK(write(*(int *)fd, "5678", 4) == 4);
    return NULL;
}

static void low_water(void) {
    int ends[2], epfd = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    char letters[64];
    pair(ends);
    set(ends[1], SOL_SOCKET, SO_RCVLOWAT, 8);
    SAY(get(ends[1], SOL_SOCKET, SO_RCVLOWAT));
    CHECK(epoll_ctl(epfd, EPOLL_CTL_ADD, ends[1], &event) == 0);
    SAY(write(ends[0], "1234", 4));
    while (count(ends[1], FIONREAD) != 4) usleep(1000);
    SAY(is_readable(ends[1]));
    SAY(epoll_wait(epfd, &event, 1, 0));
    SAY(write(ends[0], "5678", 4));
    comes(ends[1]);
    SAY(epoll_wait(epfd, &event, 1, 60000));
    SAY(epoll_wait(epfd, &event, 1, 0));
    SAY(recv(ends[1], letters, 5, 0));
    SAY(is_readable(ends[1]));
    SAY(recv(ends[1], letters, 5, MSG_DONTWAIT));
    // A read that blocks waits for this many bytes.
    pthread_t thread;
    main_thread = gettid();
    CHECK(pthread_create(&thread, NULL, writes_twice, &ends[0]) == 0);
    SAY(recv(ends[1], letters, sizeof letters, 0));
    CHECK(pthread_join(thread, NULL) == 0);
    // It also returns at the end of the stream.
    SAY(write(ends[0], "9", 1));
    while (count(ends[1], FIONREAD) != 1) usleep(1000);
    SAY(is_readable(ends[1]));
    set(ends[1], SOL_SOCKET, SO_RCVLOWAT, 0);
    SAY(get(ends[1], SOL_SOCKET, SO_RCVLOWAT));
    SAY(is_readable(ends[1]));
    set(ends[1], SOL_SOCKET, SO_RCVLOWAT, 100);
    SAY(is_readable(ends[1]));
    SAY(shutdown(ends[0], SHUT_WR));
    reads(ends[1]);
    // A connection inherits its listener's value, and a socket that connects has its own.
    at.sin_port = 0;
    int listener = listening();
    set(listener, SOL_SOCKET, SO_RCVLOWAT, 3);
    accepted(listener, ends);
    SAY(get(ends[1], SOL_SOCKET, SO_RCVLOWAT));
    SAY(write(ends[0], "ab", 2));
    while (count(ends[1], FIONREAD) != 2) usleep(1000);
    SAY(is_readable(ends[1]));
    SAY(write(ends[0], "c", 1));
    reads(ends[1]);
}

static int is_writable(int fd) {
    struct pollfd polled = {.fd = fd, .events = POLLOUT};
    return poll(&polled, 1, 0);
}

static void drains(int fd) {
    char letters[4096];
    long all = 0, got;
    while ((got = read(fd, letters, sizeof letters)) > 0) all += got;
    said("all that was there", all);
}

static struct tcp_info told_of(int fd) {
    struct tcp_info info = {0};
    socklen_t length = sizeof info;
    CHECK(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0);
    return info;
}

// Splices into a connection until it takes no more, also after everything that was under way to its peer is
// acknowledged, which makes room once more. What it has not taken stays in the pipe. Returns how much it took.
static long splices_all(int pipes[2], int fd) {
    static char letters[4096];
    long all = 0, before, got;
    int under_way;
    do {
        before = all, under_way = told_of(fd).tcpi_unacked;
        for (;; all += got) {
            if (!count(pipes[0], FIONREAD)) CHECK(write(pipes[1], letters, sizeof letters) == sizeof letters);
            if ((got = splice(pipes[0], NULL, fd, NULL, sizeof letters, SPLICE_F_NONBLOCK)) < 0) break;
        }
        CHECK(errno == EAGAIN);
        usleep(1000);
    } while (under_way || all > before);
    return all;
}

static void splices(void) {
    int ends[2], pipes[2], others[2];
    loff_t nowhere = 0;
    char big[40000], back[40000];
    for (size_t nth = 0; nth < sizeof big; nth++) big[nth] = (char)(nth * 7 % 251);
    pair(ends);
    CHECK(pipe(pipes) == 0 && pipe(others) == 0);
    SAY(splice(ends[0], &nowhere, pipes[1], NULL, 5, 0));
    SAY(splice(ends[0], NULL, ends[1], NULL, 5, 0));
    SAY(splice(ends[0], NULL, pipes[1], NULL, 5, 64));
    SAY(splice(ends[0], NULL, pipes[1], NULL, 0, 0));
    SAY(splice(ends[0], NULL, pipes[0], NULL, 5, 0) < 0);
    // A splice into a pipe moves what is there.
    SAY(write(ends[0], "hello", 5));
    comes(ends[1]);
    SAY(splice(ends[1], NULL, pipes[1], NULL, 3, 0));
    SAY(splice(ends[1], NULL, pipes[1], NULL, 100, 0));
    reads(pipes[0]);
    CHECK(fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0);
    SAY(splice(ends[1], NULL, pipes[1], NULL, 100, 0));
    // This is a splice out of a pipe.
    SAY(write(pipes[1], "goodbye", 7));
    corked();
    SAY(splice(pipes[0], NULL, ends[1], NULL, 4, SPLICE_F_MORE));
    SAY(is_readable(ends[0]));
    is_corked_still();
    SAY(splice(pipes[0], NULL, ends[1], NULL, 100, 0));
    reads(ends[0]);
    SAY(splice(pipes[0], NULL, ends[1], NULL, 100, SPLICE_F_NONBLOCK));
    // A full pipe takes what it has room for, and nothing is lost.
    CHECK(fcntl(pipes[0], F_SETFL, O_NONBLOCK) == 0 && fcntl(pipes[1], F_SETFL, O_NONBLOCK) == 0);
    CHECK(fcntl(pipes[1], F_SETPIPE_SZ, 4096) == 4096);
    CHECK(fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
    for (size_t put = 0, all = 0; all < sizeof big;) {
        long sent = write(ends[0], big + put, sizeof big - put);
        if (sent > 0) put += sent;
        comes(ends[1]);
        CHECK(splice(ends[1], NULL, pipes[1], NULL, sizeof big, SPLICE_F_NONBLOCK) > 0);
        long got;
        while ((got = read(pipes[0], back + all, sizeof back - all)) > 0) all += got;
    }
    SAY(memcmp(big, back, sizeof big));
    CHECK(fcntl(pipes[1], F_SETPIPE_SZ, 65536) == 65536);
    // A connection whose peer does not read does the same.
    long into = splices_all(pipes, ends[1]);
    SAY(splice(pipes[0], NULL, ends[1], NULL, 65536, 0));
    long left = count(pipes[0], FIONREAD), out = 0;
    while (out < into + left) {
        long got = read(ends[0], back, sizeof back);
        if (got > 0) out += got;
        splice(pipes[0], NULL, ends[1], NULL, 65536, SPLICE_F_NONBLOCK);
    }
    said("more or less than was written", out - into - left);
    // These are the ends of both streams.
    CHECK(close(pipes[1]) == 0);
    SAY(splice(pipes[0], NULL, ends[1], NULL, 5, 0));
    SAY(shutdown(ends[0], SHUT_WR));
    comes(ends[1]);
    SAY(splice(ends[1], NULL, others[1], NULL, 5, 0));
    SAY(write(others[1], "left", 4));
    SAY(shutdown(ends[1], SHUT_WR));
    SAY(splice(others[0], NULL, ends[1], NULL, 5, 0));
    reads(others[0]);
    // sendfile needs a file that can be read at an offset.
    SAY(sendfile(ends[0], others[0], NULL, 5));
    SAY(sendfile(ends[0], others[0], &nowhere, 5));
    SAY(sendfile(ends[0], ends[1], NULL, 5));
    drains(ends[0]);
}

// A connection that takes no more from a pipe is not writable, and becomes so when its peer has read.
static void splices_until_full(void) {
    static const int sizes[] = {0, 4096, 300000};
    for (size_t size = 0; size < sizeof sizes / sizeof *sizes; size++) {
        int ends[2], pipes[2], epfd = epoll_create1(0);
        struct epoll_event event = {.events = EPOLLOUT | EPOLLET};
        pair(ends);
        CHECK(pipe(pipes) == 0 && fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0);
        if (sizes[size]) set(ends[1], SOL_SOCKET, SO_SNDBUF, sizes[size]);
        CHECK(epoll_ctl(epfd, EPOLL_CTL_ADD, ends[1], &event) == 0);
        long all = 0;
        do all += splices_all(pipes, ends[1]);
        while (epoll_wait(epfd, &event, 1, 0) == 1);
        SAY(is_writable(ends[1]));
        SAY(count(pipes[0], FIONREAD) > 0);
        char letters[16384];
        for (long got; all > 0; all -= got) CHECK((got = read(ends[0], letters, sizeof letters)) > 0);
        SAY(epoll_wait(epfd, &event, 1, 60000));
        SAY(splice(pipes[0], NULL, ends[1], NULL, 4096, 0) > 0);
        int fds[] = {ends[0], ends[1], pipes[0], pipes[1], epfd};
        for (int nth = 0; nth < 5; nth++) CHECK(close(fds[nth]) == 0);
    }
}

// Threads are cancelled while they wait.
enum { READ, RECV, PEEK, ALL, WRITE, ACCEPT, POLL, SELECT, EPOLL, KERNELS_EPOLL, CONNECT, WAYS };
static const char *const WAY[] = {"read", "recv", "recvmsg", "recv all", "write", "accept", "poll", "select",
                                  "epoll", "epoll of a pipe", "connect"};

struct waiting {
    int way, asynchronous, disabled, fd, cleaned, epfd, connecting;
    _Atomic pid_t thread;
};

static void cleans(void *argument) {
    struct waiting *of = argument;
    of->cleaned = close(of->epfd) == 0 && (of->way != CONNECT || close(of->connecting) == 0);
}

static void waits(struct waiting *of) {
    char letters[65536];
    struct epoll_event event = {.events = EPOLLIN};
    struct pollfd polled = {.fd = of->fd, .events = POLLIN};
    struct iovec room = {letters, sizeof letters};
    struct msghdr message = {.msg_iov = &room, .msg_iovlen = 1};
    of->epfd = epoll_create1(0);
    fd_set set;
    FD_ZERO(&set);
    FD_SET(of->fd, &set);
    CHECK(epoll_ctl(of->epfd, EPOLL_CTL_ADD, of->fd, &event) == 0);
    of->thread = gettid();
    switch (of->way) {
    case READ: said("it read", read(of->fd, letters, sizeof letters)); break;
    case RECV: recv(of->fd, letters, sizeof letters, 0); break;
    case PEEK: recvmsg(of->fd, &message, MSG_PEEK); break;
    case ALL: recv(of->fd, letters, sizeof letters, MSG_WAITALL); break;
    case WRITE: for (;;) CHECK(write(of->fd, letters, sizeof letters) > 0);
    case ACCEPT: accept(of->fd, NULL, NULL); break;
    case POLL: poll(&polled, 1, -1); break;
    case SELECT: select(of->fd + 1, &set, NULL, NULL, NULL); break;
    case EPOLL:
    case KERNELS_EPOLL: epoll_wait(of->epfd, &event, 1, -1); break;
    case CONNECT:
        of->connecting = socket(AF_INET, SOCK_STREAM, 0);
        connect(of->connecting, (struct sockaddr *)&at, sizeof at);
    }
}

static void *is_cancelled(void *argument) {
    struct waiting *of = argument;
    pthread_cleanup_push(cleans, of);
    if (of->asynchronous) CHECK(pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL) == 0);
    if (of->disabled) CHECK(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL) == 0);
    waits(of);
    if (of->disabled) {
        CHECK(pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL) == 0);
        pthread_testcancel();
    }
    pthread_cleanup_pop(0);
    return NULL;
}

static void cancelled(struct waiting *of, const char *data, int other) {
    pthread_t thread;
    void *result = NULL;
    CHECK(pthread_create(&thread, NULL, is_cancelled, of) == 0);
    while (!(main_thread = of->thread)) usleep(1000);
    until_main_sleeps();
    CHECK(pthread_cancel(thread) == 0);
    if (data) {
        until_main_sleeps();
        CHECK(write(other, data, strlen(data)) > 0);
    }
    CHECK(pthread_join(thread, &result) == 0);
    printf("%s%s%s: cancelled %d, cleaned %d\n", WAY[of->way], of->asynchronous ? ", asynchronous" : "",
           of->disabled ? ", disabled" : "", result == PTHREAD_CANCELED, of->cleaned);
    fflush(stdout);
}

static void *cancels_itself(void *fd) {
    char letters[8];
    pthread_cancel(pthread_self());
    read(*(int *)fd, letters, sizeof letters);
    return NULL;
}

static void cancels(void) {
    int open_before = 0;
    for (int asynchronous = 0; asynchronous < 2; asynchronous++) {
        for (int way = 0; way < WAYS; way++) {
            int ends[2], pipes[2];
            pair(ends);
            CHECK(pipe(pipes) == 0);
            struct waiting of = {.way = way, .asynchronous = asynchronous, .fd = ends[0]};
            int listener = -1, first = -1;
            if (way == ACCEPT || way == CONNECT) {
                at.sin_port = 0;
                of.fd = listener = listening();
            }
            if (way == CONNECT) {
                // One connection more than the queue has room for waits.
                CHECK(listen(listener, 0) == 0);
                is_readable(listener);
                first = socket(AF_INET, SOCK_STREAM, 0);
                CHECK(connect(first, (struct sockaddr *)&at, sizeof at) == 0);
                of.fd = ends[0];
            }
            if (way == KERNELS_EPOLL) of.fd = pipes[0];
            cancelled(&of, NULL, -1);
            // No lock is held: the sockets go on working.
            if (way != WRITE) {
                SAY(write(ends[1], "on", 2));
                reads(ends[0]);
            }
            int all[] = {ends[0], ends[1], pipes[0], pipes[1], listener, first};
            for (int nth = 0; nth < 6; nth++) close(all[nth]);
        }
        // Descriptors that a thread had open are closed with it.
        int open_now = open_numbers();
        CHECK(!open_before || open_now < open_before + WAYS / 2);
        open_before = open_now;
    }
    int ends[2];
    pair(ends);
    struct waiting of = {.way = READ, .disabled = 1, .fd = ends[0]};
    cancelled(&of, "data", ends[1]);
    // The thread is cancelled before it reads.
    pthread_t thread;
    void *result = NULL;
    SAY(write(ends[1], "there", 5));
    comes(ends[0]);
    CHECK(pthread_create(&thread, NULL, cancels_itself, &ends[0]) == 0 && pthread_join(thread, &result) == 0);
    SAY(result == PTHREAD_CANCELED);
    reads(ends[0]);
}

// Sends `length` bytes as datagrams of `each` bytes; with 0 the socket's option decides.
static long sends_each(int fd, int length, int each) {
    static char data[70000];
    union {
        char room[CMSG_SPACE(sizeof(uint16_t))];
        struct cmsghdr aligned;
    } control = {.aligned = {.cmsg_len = CMSG_LEN(sizeof(uint16_t)), .cmsg_level = SOL_UDP, .cmsg_type = UDP_SEGMENT}};
    struct iovec parts[] = {{data, length / 3}, {data + length / 3, length - length / 3}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    for (int nth = 0; nth < length; nth++) data[nth] = nth;
    if (each > 0) {
        *(uint16_t *)CMSG_DATA(&control.aligned) = each;
        message.msg_control = &control;
        message.msg_controllen = sizeof control;
    }
    return sendmsg(fd, &message, 0);
}

// Prints what is received: how much, whether it is what was sent from `begin` on, and how long each of several
// datagrams is.
static long receives(int fd, int begin) {
    static char data[70000];
    union {
        char room[256];
        struct cmsghdr aligned;
    } control;
    struct iovec part = {data, sizeof data};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    comes(fd);
    printf("%d bytes wait, ", count(fd, FIONREAD));
    long got = recvmsg(fd, &message, 0);
    for (int nth = 0; nth < got; nth++) CHECK(data[nth] == (char)(begin + nth));
    printf("%ld come, flags %x", got, message.msg_flags);
    for (struct cmsghdr *said = CMSG_FIRSTHDR(&message); said; said = CMSG_NXTHDR(&message, said)) {
        int value = 0;
        memcpy(&value, CMSG_DATA(said), sizeof value);
        if (said->cmsg_level == SOL_UDP)
            printf(", UDP %d of %d bytes says %d", said->cmsg_type, (int)said->cmsg_len, value);
        else
            printf(", level %d says %d", said->cmsg_level, said->cmsg_type);
    }
    printf("\n");
    fflush(stdout);
    return got;
}

static void joined(void) {
    int ends[2], four = 4, value = 0;
    datagrams(ends);
    CHECK(connect(ends[0], (struct sockaddr *)&at, sizeof at) == 0);
    SAY(get(ends[1], SOL_UDP, UDP_GRO));
    SAY(get(ends[0], SOL_UDP, UDP_SEGMENT));
    SAY(sends_each(ends[0], 2500, 1000));
    for (int begin = 0; begin < 2500;) begin += receives(ends[1], begin);
    SAY(is_readable(ends[1]));
    set(ends[1], SOL_UDP, UDP_GRO, 1);
    SAY(get(ends[1], SOL_UDP, UDP_GRO));
    SAY(sends_each(ends[0], 2500, 1000));
    receives(ends[1], 0);
    SAY(sends_each(ends[0], 900, 1000));
    receives(ends[1], 0);
    SAY(is_readable(ends[1]));
    set(ends[1], SOL_IP, IP_PKTINFO, 1);
    SAY(sends_each(ends[0], 65000, 1200));
    receives(ends[1], 0);
    set(ends[1], SOL_IP, IP_PKTINFO, 0);
    SAY(sends_each(ends[0], 65508, 1200));
    SAY(sends_each(ends[0], 70000, 1200));
    SAY(sends_each(ends[0], 1290, 10));
    SAY(sends_each(ends[0], 1280, 10));
    receives(ends[1], 0);
    SAY(setsockopt(ends[0], SOL_UDP, UDP_SEGMENT, &four, sizeof four));
    SAY(get(ends[0], SOL_UDP, UDP_SEGMENT));
    SAY(send(ends[0], "\0\1\2\3\4", 5, 0));
    receives(ends[1], 0);
    SAY(send(ends[0], "", 0, 0));
    receives(ends[1], 0);
    SAY(sends_each(ends[0], 30, 7));
    receives(ends[1], 0);
    SAY(send(ends[0], "\0\1\2", 3, MSG_MORE));
    SAY(send(ends[0], "\3\4\5", 3, 0));
    receives(ends[1], 0);
    SAY(send(ends[0], "\0\1\2\3\4\5", 6, 0));
    SAY(recv(ends[1], &value, 2, MSG_TRUNC));
    for (value = -1; value < 70000; value += 65537)
        said("setsockopt", setsockopt(ends[0], SOL_UDP, UDP_SEGMENT, &value, sizeof value));
    value = 0;
    SAY(setsockopt(ends[0], SOL_UDP, UDP_SEGMENT, &value, sizeof value));
    SAY(sends_each(ends[0], 600, 0));
    receives(ends[1], 0);
    // The options were set before lull or the kernel had the socket.
    CHECK((ends[0] = socket(AF_INET, SOCK_DGRAM, 0)) >= 0);
    set(ends[0], SOL_UDP, UDP_SEGMENT, 300);
    set(ends[0], SOL_UDP, UDP_GRO, 1);
    at.sin_port = 0;
    CHECK(bind(ends[0], (struct sockaddr *)&at, sizeof at) == 0);
    struct sockaddr_in name = at;
    socklen_t length = sizeof name;
    CHECK(getsockname(ends[0], (struct sockaddr *)&name, &length) == 0);
    CHECK(connect(ends[0], (struct sockaddr *)&name, length) == 0);
    SAY(sends_each(ends[0], 650, 0));
    receives(ends[0], 0);
}

// Sends a byte with one ancillary message.
static long sends_with(int fd, int level, int kind, const void *data, size_t length) {
    union {
        char room[64];
        struct cmsghdr aligned;
    } control = {.aligned = {.cmsg_len = CMSG_LEN(length), .cmsg_level = level, .cmsg_type = kind}};
    char byte = 0;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control};
    memcpy(CMSG_DATA(&control.aligned), data, length);
    message.msg_controllen = CMSG_SPACE(length);
    return sendmsg(fd, &message, 0);
}

// Prints everything that recvmsg tells about a datagram's header.
static void hears(int fd, size_t room) {
    union {
        char room[256];
        struct cmsghdr aligned;
    } control;
    char byte;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = room};
    comes(fd);
    CHECK(recvmsg(fd, &message, 0) == 1);
    printf("flags %x, %d bytes", message.msg_flags, (int)message.msg_controllen);
    for (struct cmsghdr *said = CMSG_FIRSTHDR(&message); said; said = CMSG_NXTHDR(&message, said)) {
        int value = 0;
        size_t length = said->cmsg_len - CMSG_LEN(0);
        memcpy(&value, CMSG_DATA(said), length < sizeof value ? length : sizeof value);
        printf(", %d/%d of %d bytes", said->cmsg_level, said->cmsg_type, (int)said->cmsg_len);
        if (length <= sizeof value) printf(" says %d", value);
    }
    printf("\n");
    fflush(stdout);
}

// The IP header of a datagram has the fields that the socket and the call ask for.
static void header(void) {
    int ends[2];
    unsigned char class = 0x28;
    datagrams(ends);
    CHECK(connect(ends[0], (struct sockaddr *)&at, sizeof at) == 0);
    SAY(send(ends[0], "", 1, 0));
    hears(ends[1], 256);
    set(ends[1], SOL_IP, IP_RECVTTL, 1);
    set(ends[1], SOL_IP, IP_RECVTOS, 1);
    SAY(get(ends[1], SOL_IP, IP_RECVTTL));
    SAY(send(ends[0], "", 1, 0));
    hears(ends[1], 256);
    set(ends[0], SOL_IP, IP_TOS, 0xb8);
    set(ends[0], SOL_IP, IP_TTL, 33);
    SAY(get(ends[0], SOL_IP, IP_TOS));
    SAY(get(ends[0], SOL_IP, IP_TTL));
    SAY(send(ends[0], "", 1, 0));
    hears(ends[1], 256);
    SAY(sends_with(ends[0], SOL_IP, IP_TOS, &class, 1));
    hears(ends[1], 256);
    for (int value = -1; value < 400; value += 100) {
        SAY(sends_with(ends[0], SOL_IP, IP_TOS, &value, sizeof value)) == 1 ? hears(ends[1], 256) : (void)0;
        SAY(sends_with(ends[0], SOL_IP, IP_TTL, &value, sizeof value)) == 1 ? hears(ends[1], 256) : (void)0;
    }
    int zero = 0;
    SAY(sends_with(ends[0], SOL_IP, IP_TTL, &zero, sizeof zero));
    SAY(sends_with(ends[0], SOL_IP, IP_TTL, &class, 1));
    set(ends[1], SOL_IP, IP_PKTINFO, 1);
    SAY(send(ends[0], "", 1, 0));
    hears(ends[1], 256);
    SAY(send(ends[0], "", 1, 0));
    hears(ends[1], CMSG_SPACE(12) + CMSG_LEN(4));
    SAY(send(ends[0], "", 1, 0));
    hears(ends[1], CMSG_SPACE(12) + CMSG_LEN(2));
    set(ends[1], SOL_IP, IP_PKTINFO, 0);
    set(ends[1], SOL_IP, IP_RECVTTL, 0);
    SAY(send(ends[0], "", 1, 0));
    hears(ends[1], 256);
    set(ends[0], SOL_IP, IP_TTL, -1);
    set(ends[1], SOL_IP, IP_RECVTTL, 1);
    SAY(send(ends[0], "", 1, 0));
    hears(ends[1], 256);
    // A socket of IPv6 gets those of IPv4's fields that it asked for; it asked before lull or the kernel had it.
    struct sockaddr_in6 mapped = {.sin6_family = AF_INET6};
    mapped.sin6_addr.s6_addr[10] = mapped.sin6_addr.s6_addr[11] = 0xff;
    memcpy(&mapped.sin6_addr.s6_addr[12], &at.sin_addr, 4);
    int both = socket(AF_INET6, SOCK_DGRAM, 0);
    CHECK(both >= 0);
    set(both, SOL_IP, IP_RECVTTL, 1);
    set(both, SOL_IPV6, IPV6_RECVHOPLIMIT, 1);
    set(both, SOL_IPV6, IPV6_RECVTCLASS, 1);
    socklen_t length = sizeof mapped;
    CHECK(bind(both, (struct sockaddr *)&mapped, length) == 0);
    CHECK(getsockname(both, (struct sockaddr *)&mapped, &length) == 0);
    struct sockaddr_in to = at;
    to.sin_port = mapped.sin6_port;
    CHECK(connect(ends[0], (struct sockaddr *)&to, sizeof to) == 0);
    SAY(send(ends[0], "", 1, 0));
    hears(both, 256);
}

// Makes calls by number, bypassing the C library's functions.
static void by_number(void) {
    int ends[2], into[2], pipes[2], value = 0, file = fileno(tmpfile());
    char letters[64];
    struct sockaddr_in name = at;
    socklen_t length = sizeof name;
    struct timespec soon = {.tv_nsec = 1000000}, late = {.tv_sec = 60};
    struct timeval late_us = {.tv_sec = 60};
    long signals[2] = {0, 8}, set = 0;
    signals[0] = (long)&set;
    fd_set asked;
    struct epoll_event event = {.events = EPOLLIN};
    at.sin_port = 0;
    int listener = listening();
    SAY(syscall(SYS_getsockname, listener, &name, &length));
    int fd = syscall(SYS_socket, AF_INET, SOCK_STREAM, 0);
    SAY(syscall(SYS_connect, fd, &name, sizeof name));
    ends[0] = fd;
    ends[1] = syscall(SYS_accept4, listener, 0, 0, 0);
    SAY(ends[1] < 0);
    struct pollfd polled = {.fd = ends[1], .events = POLLIN};
    SAY(syscall(SYS_poll, &polled, 1, 0));
    SAY(syscall(SYS_ppoll, &polled, 1, &soon, 0, 8));
    SAY(syscall(SYS_sendto, ends[0], "letters", 7, 0, 0, 0));
    SAY(syscall(SYS_poll, &polled, 1, 60000));
    SAY(syscall(SYS_ppoll, &polled, 1, &late, &set, 8));
    SAY(polled.revents);
    FD_ZERO(&asked);
    FD_SET(ends[1], &asked);
    SAY(syscall(SYS_select, ends[1] + 1, &asked, 0, 0, &late_us));
    late.tv_sec = 60;
    SAY(syscall(SYS_pselect6, ends[1] + 1, &asked, 0, 0, &late, signals));
    SAY(FD_ISSET(ends[1], &asked) != 0);
    int epfd = epoll_create1(0);
    SAY(syscall(SYS_epoll_ctl, epfd, EPOLL_CTL_ADD, ends[1], &event));
    late.tv_sec = 60;
    SAY(syscall(SYS_epoll_pwait2, epfd, &event, 1, &late, &set, 8));
    CHECK(pipe(pipes) == 0);
    SAY(syscall(SYS_splice, ends[1], 0, pipes[1], 0, 7, 0));
    SAY(syscall(SYS_read, pipes[0], letters, sizeof letters));
    CHECK(write(file, "in a file", 9) == 9 && lseek(file, 0, SEEK_SET) == 0);
    SAY(syscall(SYS_sendfile, ends[0], file, 0, 9));
    reads(ends[1]);
    value = 1;
    SAY(syscall(SYS_setsockopt, ends[0], IPPROTO_TCP, TCP_NODELAY, &value, sizeof value));
    value = 0, length = sizeof value;
    SAY(syscall(SYS_getsockopt, ends[0], IPPROTO_TCP, TCP_NODELAY, &value, &length));
    SAY(value);
    length = sizeof name;
    SAY(syscall(SYS_getpeername, ends[0], &name, &length));
    at.sin_port = 0;
    into[0] = syscall(SYS_socket, AF_INET, SOCK_DGRAM, 0);
    into[1] = syscall(SYS_socket, AF_INET, SOCK_DGRAM, 0);
    SAY(syscall(SYS_bind, into[1], &at, sizeof at));
    SAY(syscall(SYS_getsockname, into[1], &name, &length));
    SAY(syscall(SYS_sendto, into[0], "datagram", 8, 0, &name, sizeof name));
    comes(into[1]);
    SAY(syscall(SYS_recvfrom, into[1], letters, sizeof letters, 0, 0, 0));
    SAY(syscall(SYS_shutdown, ends[0], SHUT_WR));
    comes(ends[1]);
    SAY(syscall(SYS_read, ends[1], letters, sizeof letters));
    SAY(syscall(SYS_close, ends[1]));
}

// Makes bytes that show whether something was lost, doubled or moved.
static unsigned char of_place(long place) { return (unsigned char)(place * 2654435761u >> 13); }

// Writes a chunk at a time until there is no more room; returns how many bytes.
static long fills(int fd, long from, size_t chunk) {
    unsigned char part[65536];
    long sent = 0;
    for (long got;; sent += got) {
        for (size_t nth = 0; nth < chunk; nth++) part[nth] = of_place(from + sent + nth);
        got = send(fd, part, chunk, MSG_DONTWAIT);
        if (got < 0) break;
        CHECK(got > 0);
    }
    CHECK(errno == EAGAIN);
    return sent;
}

// Reads this many bytes, and checks that they are those from this place of the stream on.
static void takes(int fd, long from, long bytes) {
    unsigned char part[16384];
    while (bytes > 0) {
        comes(fd);
        long got = read(fd, part, bytes < (long)sizeof part ? bytes : (long)sizeof part);
        CHECK(got > 0);
        for (long nth = 0; nth < got; nth++) CHECK(part[nth] == of_place(from + nth));
        from += got, bytes -= got;
    }
}

// A writer whose peer does not read stops when as much is unacknowledged as its buffer allows, and becomes writable
// when a third of that is free. Returns how much its peer has not read.
static int packets_are_small;
static long is_bounded(int writer, int reader, size_t chunk) {
    long room = get(writer, SOL_SOCKET, SO_SNDBUF), window = get(reader, SOL_SOCKET, SO_RCVBUF), all = 0, unread;
    // What is under way to a peer that does not read is acknowledged, which makes room once more.
    do {
        all += fills(writer, all, chunk);
        usleep(1000);
    } while (count(writer, SIOCOUTQ) < room / 4 * 3 || told_of(writer).tcpi_unacked || is_writable(writer));
    unread = count(reader, FIONREAD);
    // Linux writes its last packet in full; that packet is small if windows have always been small.
    CHECK(count(writer, SIOCOUTQ) <= room + (packets_are_small ? (long)chunk : 65536));
    SAY(is_writable(writer));
    takes(reader, 0, all);
    struct pollfd polled = {.fd = writer, .events = POLLOUT};
    SAY(poll(&polled, 1, 60000));
    CHECK(unread <= window);
    return unread;
}

static void buffers(void) {
    static const int sizes[] = {-1, 0, 1, 4096, 20000, 100000, 1 << 20, 1 << 30};
    static const int names[] = {SO_SNDBUF, SO_RCVBUF, SO_SNDBUFFORCE, SO_RCVBUFFORCE};
    int ends[2], value, listener;
    // The value is checked, doubled and bounded, before there is a connection and on one.
    pair(ends);
    int fresh = socket(AF_INET, SOCK_STREAM, 0);
    for (size_t name = 0; name < 4; name++)
        for (size_t size = 0; size < sizeof sizes / sizeof *sizes; size++)
            for (int whose = 0; whose < 3; whose++) {
                int fd = whose == 2 ? fresh : ends[whose];
                value = sizes[size];
                said(name < 2 ? "set" : "force", setsockopt(fd, SOL_SOCKET, names[name], &value, sizeof value));
                SAY(get(fd, SOL_SOCKET, name % 2 ? SO_RCVBUF : SO_SNDBUF));
            }
    socklen_t length = sizeof value;
    SAY(setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &value, 2));
    SAY(getsockopt(ends[0], SOL_SOCKET, SO_SNDBUFFORCE, &value, &length));
    // The option is set before the connection is made, on either side.
    for (size_t size = 3; size < 6; size++) {
        int bytes = sizes[size];
        at.sin_port = 0;
        listener = listening();
        set(listener, SOL_SOCKET, SO_SNDBUF, bytes);
        CHECK(close(listener) == 0);
        at.sin_port = 0;
        listener = socket(AF_INET, SOCK_STREAM, 0);
        set(listener, SOL_SOCKET, SO_RCVBUF, bytes);
        set(listener, SOL_SOCKET, SO_SNDBUF, bytes);
        struct sockaddr_in here = at;
        length = sizeof here;
        CHECK(bind(listener, (struct sockaddr *)&here, length) == 0 && listen(listener, 8) == 0);
        CHECK(getsockname(listener, (struct sockaddr *)&here, &length) == 0);
        ends[0] = socket(AF_INET, SOCK_STREAM, 0);
        set(ends[0], SOL_SOCKET, SO_RCVBUF, bytes);
        set(ends[0], SOL_SOCKET, SO_SNDBUF, bytes);
        CHECK(connect(ends[0], (struct sockaddr *)&here, length) == 0);
        comes(listener);
        ends[1] = accept(listener, NULL, NULL);
        SAY(get(ends[1], SOL_SOCKET, SO_RCVBUF));
        SAY(get(ends[1], SOL_SOCKET, SO_SNDBUF));
        packets_are_small = bytes < 100000;
        for (int nth = 0; nth < 2; nth++)
            SAY(is_bounded(ends[nth], ends[!nth], bytes < 10000 ? 500 : 10000) >= bytes / 4 * 3);
    }
    packets_are_small = 0;
    // The option is set on a connection: a writer's bound is in force at once.
    pair(ends);
    set(ends[0], SOL_SOCKET, SO_SNDBUF, 4096);
    set(ends[1], SOL_SOCKET, SO_RCVBUF, 50000);
    SAY(is_bounded(ends[0], ends[1], 1000) >= 4096);
    set(ends[0], SOL_SOCKET, SO_SNDBUF, 300000);
    is_bounded(ends[0], ends[1], 10000);
    // The bound is lower than what is there already; the end of the stream follows all of it.
    pair(ends);
    long sent = fills(ends[0], 0, 1000);
    set(ends[0], SOL_SOCKET, SO_SNDBUF, 4096);
    SAY(is_writable(ends[0]));
    SAY(shutdown(ends[0], SHUT_WR));
    takes(ends[1], 0, sent);
    reads(ends[1]);
    // The receiver's bound is lowered: nothing is lost of what the window had promised, and in the end it takes no more
    // than the bound.
    pair(ends);
    set(ends[0], SOL_SOCKET, SO_SNDBUF, 200000);
    set(ends[1], SOL_SOCKET, SO_RCVBUF, 100000);
    long left = fills(ends[0], 0, 10000);
    SAY(left > 16000);
    set(ends[1], SOL_SOCKET, SO_RCVBUF, 20000);
    takes(ends[1], 0, left);
    for (long from = left; from < left + 400000; from += 1000) {
        unsigned char part[1000];
        for (int nth = 0; nth < 1000; nth++) part[nth] = of_place(from + nth);
        CHECK(send(ends[0], part, sizeof part, 0) == sizeof part);
        takes(ends[1], from, sizeof part);
    }
    SAY(is_bounded(ends[0], ends[1], 10000) <= 40000);
    // The socket is closed with more in its buffer than it can hold by default.
    pair(ends);
    set(ends[0], SOL_SOCKET, SO_SNDBUF, 300000);
    do {
        sent = fills(ends[0], 0, 10000);
    } while (sent < 1);
    SAY(close(ends[0]));
    takes(ends[1], 0, sent);
    reads(ends[1]);
    // Nothing can be written while too much is unsent.
    pair(ends);
    set(ends[0], SOL_SOCKET, SO_SNDBUF, 100000);
    set(ends[0], IPPROTO_TCP, TCP_NOTSENT_LOWAT, 1);
    set(ends[1], SOL_SOCKET, SO_RCVBUF, 20000);
    sent = 0;
    do {
        sent += fills(ends[0], sent, 3000);
        usleep(1000);
    } while (count(ends[0], SIOCOUTQNSD) < 1 || told_of(ends[0]).tcpi_unacked || is_writable(ends[0]));
    SAY(is_writable(ends[0]));
    for (long read = 0; read < sent; read += 500) {
        takes(ends[1], read, sent - read < 500 ? sent - read : 500);
        if (is_writable(ends[0])) CHECK(count(ends[0], SIOCOUTQNSD) == 0);
    }
    struct pollfd polled = {.fd = ends[0], .events = POLLOUT};
    SAY(poll(&polled, 1, 60000));
}

// TCP_INFO of a connection that has had some round trips.
static void info(void) {
    int ends[2];
    pair(ends);
    for (int nth = 0; nth < 5; nth++) {
        char letter = 'a' + nth;
        CHECK(write(ends[0], &letter, 1) == 1);
        comes(ends[1]);
        CHECK(read(ends[1], &letter, 1) == 1 && write(ends[1], &letter, 1) == 1);
        comes(ends[0]);
        CHECK(read(ends[0], &letter, 1) == 1);
    }
    // The last answer is acknowledged after some time.
    while (told_of(ends[1]).tcpi_unacked) usleep(1000);
    for (int nth = 0; nth < 2; nth++) {
        struct tcp_info its = told_of(ends[nth]), peers = told_of(ends[!nth]);
        SAY((long)its.tcpi_state);
        SAY((long)its.tcpi_options & 7);
        SAY(its.tcpi_snd_wscale == peers.tcpi_rcv_wscale);
        SAY(its.tcpi_rtt > 0 && its.tcpi_rtt < 10000000);
        SAY(its.tcpi_rttvar > 0 && its.tcpi_rttvar < 10000000);
        SAY((long)its.tcpi_unacked);
        SAY((long)its.tcpi_total_retrans);
        SAY((long)its.tcpi_snd_ssthresh);
        SAY(its.tcpi_snd_cwnd >= 10 && its.tcpi_snd_cwnd < 100);
        SAY(its.tcpi_snd_mss > 1000 && its.tcpi_snd_mss <= its.tcpi_advmss && its.tcpi_advmss < its.tcpi_pmtu);
        SAY(its.tcpi_rcv_space > 10000 && its.tcpi_rcv_ssthresh > 10000);
        SAY(its.tcpi_last_data_recv < 60000);
    }
    // What is under way to a peer that does not read is acknowledged, and what the peer has no room for is not sent.
    do fills(ends[0], 0, 10000);
    while (told_of(ends[0]).tcpi_unacked);
    SAY(told_of(ends[0]).tcpi_rtt > 0);
    SAY(shutdown(ends[1], SHUT_WR));
    comes(ends[0]);
    SAY((long)told_of(ends[0]).tcpi_state);
}

// As many bytes of datagrams wait for their reader as the buffer has room for.
static void held(void) {
    int ends[2], marks[2];
    datagrams(marks);
    struct sockaddr_in mark = at;
    datagrams(ends);
    for (int size = 1; size <= 200000; size += 199999) {
        set(ends[1], SOL_SOCKET, SO_RCVBUF, size);
        SAY(get(ends[1], SOL_SOCKET, SO_RCVBUF));
        for (unsigned char nth = 0; nth < 50; nth++)
            CHECK(sendto(ends[0], &nth, 1, 0, (struct sockaddr *)&at, sizeof at) == 1);
        CHECK(sendto(ends[0], "", 1, 0, (struct sockaddr *)&mark, sizeof mark) == 1);
        comes(marks[1]);
        CHECK(recv(marks[1], &mark.sin_zero, 1, 0) == 1);
        unsigned char got, all = 0;
        while (recv(ends[1], &got, 1, MSG_DONTWAIT) == 1) CHECK(got == all++);
        SAY(all == 0);
        SAY(all == 50);
        CHECK(errno == EAGAIN);
    }
}

static void *in_a_thread(void *none) {
    low_water();
    return none;
}

// The thread that makes the first call has no larger stack than Varnish's threads.
static void little_stack(void) {
    pthread_t thread;
    pthread_attr_t attributes;
    CHECK(pthread_attr_init(&attributes) == 0 && pthread_attr_setstacksize(&attributes, 80 << 10) == 0);
    CHECK(pthread_create(&thread, &attributes, in_a_thread, NULL) == 0 && pthread_join(thread, NULL) == 0);
}

// Prints the next line of a stream, or how it ended.
static void line(FILE *stream) {
    char letters[64];
    if (fgets(letters, sizeof letters, stream) != NULL)
        printf("line: %s", letters);
    else
        printf("no line: %s\n", feof(stream) ? "it ended" : strerrorname_np(errno));
    fflush(stdout);
}

static int is_member(int context) {
    struct epoll_event event;
    return epoll_wait(context, &event, 1, 60000) == 1 && event.data.u64 == 7;
}

enum { STREAMED = 3000000 };

static void *pours(void *fd) {
    static char letters[STREAMED];
    memset(letters, 'y', sizeof letters);
    for (long at = 0, put; at < STREAMED; at += put)
        CHECK((put = write(*(int *)fd, letters + at, STREAMED - at)) > 0);
    return NULL;
}

static void *takes_all(void *fd) {
    static char letters[65536];
    long all = 0, got;
    while ((got = read(*(int *)fd, letters, sizeof letters)) > 0)
        all += got;
    return (void *)all;
}

static void streams(void) {
    int ends[2], context = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 7};
    struct sockaddr_in name, peer;
    socklen_t length = sizeof name;
    char letters[64];
    pair(ends);
    SAY(epoll_ctl(context, EPOLL_CTL_ADD, ends[1], &event));
    // Data that was only peeked at, and data that is under way, is read by the stream.
    SAY(write(ends[0], "first\nsecond", 12));
    comes(ends[1]);
    SAY(recv(ends[1], letters, 5, MSG_PEEK | MSG_WAITALL));
    set(ends[1], SOL_SOCKET, SO_KEEPALIVE, 1);
    FILE *stream = fdopen(ends[1], "r+");
    CHECK(stream != NULL && fileno(stream) == ends[1]);
    SAY(write(ends[0], " part\n", 6));
    line(stream);
    line(stream);
    SAY(getsockname(ends[0], (struct sockaddr *)&name, &length));
    SAY(getpeername(ends[1], (struct sockaddr *)&peer, &length));
    SAY(name.sin_port == peer.sin_port && name.sin_addr.s_addr == peer.sin_addr.s_addr);
    SAY(get(ends[1], SOL_SOCKET, SO_TYPE));
    // The epoll context has the socket by the same number, with the data that it was added with.
    SAY(write(ends[0], "event\n", 6));
    SAY(is_member(context));
    line(stream);
    SAY(epoll_ctl(context, EPOLL_CTL_MOD, ends[1], &event));
    SAY(epoll_ctl(context, EPOLL_CTL_ADD, ends[1], &event));
    SAY(fprintf(stream, "answer %d\n", 1));
    SAY(is_readable(ends[0]));
    SAY(fflush(stream));
    reads(ends[0]);
    // The descriptor does not block.
    SAY(fcntl(ends[1], F_SETFL, O_NONBLOCK));
    SAY(fgetc(stream) == EOF ? -1 : 1);
    clearerr(stream);
    SAY(fcntl(ends[1], F_SETFL, 0));
    // One direction is closed, and then both.
    SAY(shutdown(fileno(stream), SHUT_WR));
    reads(ends[0]);
    SAY(write(ends[0], "late\n", 5));
    line(stream);
    SAY(shutdown(ends[0], SHUT_WR));
    line(stream);
    SAY(fclose(stream));
    CHECK(close(ends[0]) == 0);

    // There is a stream for each direction, one of which did not block before; what was written is sent before the end.
    pair(ends);
    SAY(fcntl(ends[1], F_SETFL, O_NONBLOCK));
    FILE *in = fdopen(ends[1], "r"), *out = fdopen(dup(ends[1]), "w");
    CHECK(in != NULL && out != NULL);
    SAY(fgetc(in) == EOF ? -1 : 1);
    clearerr(in);
    SAY(fcntl(fileno(out), F_GETFL) & O_NONBLOCK);
    SAY(fcntl(fileno(out), F_SETFL, 0));
    SAY(fclose(in));
    SAY(fputs("last", out));
    SAY(fclose(out));
    reads(ends[0]);
    reads(ends[0]);
    CHECK(close(ends[0]) == 0);

    // Much is sent in both directions at once.
    pair(ends);
    pthread_t pourer, drainer;
    void *all;
    static char much[STREAMED];
    stream = fdopen(ends[1], "r+");
    out = fdopen(dup(ends[1]), "w");
    CHECK(stream != NULL && out != NULL);
    CHECK(pthread_create(&pourer, NULL, pours, &ends[0]) == 0 && pthread_create(&drainer, NULL, takes_all, &ends[0]) == 0);
    SAY(fwrite(much, 1, sizeof much, out));
    SAY(fread(much, 1, sizeof much, stream));
    SAY(much[0] == 'y' && much[STREAMED - 1] == 'y');
    CHECK(fclose(out) == 0 && fclose(stream) == 0);
    CHECK(pthread_join(pourer, NULL) == 0 && pthread_join(drainer, &all) == 0);
    SAY((long)all);
    CHECK(close(ends[0]) == 0);

    // The peer resets the connection.
    pair(ends);
    stream = fdopen(ends[1], "r+");
    setsockopt(ends[0], SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger));
    CHECK(close(ends[0]) == 0);
    comes(ends[1]);
    SAY(fgetc(stream) == EOF);
    fputs("nobody hears this", stream);
    SAY(fflush(stream));
    fclose(stream);
    // The peer reset the connection before.
    pair(ends);
    setsockopt(ends[0], SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger));
    CHECK(close(ends[0]) == 0);
    comes(ends[1]);
    stream = fdopen(ends[1], "r+");
    SAY(stream != NULL && fgetc(stream) == EOF);
    fclose(stream);

    // The sockets replace the program's own standard streams.
    pair(ends);
    int before = dup(1);
    SAY(write(ends[0], "question\n", 9));
    CHECK(dup2(ends[1], 0) == 0 && dup2(ends[1], 1) == 1 && close(ends[1]) == 0);
    CHECK(fgets(letters, sizeof letters, stdin) != NULL);
    printf("answer to %s", letters);
    CHECK(fflush(stdout) == 0 && dup2(before, 1) == 1);
    SAY(close(0));
    reads(ends[0]);
    reads(ends[0]);
    CHECK(close(ends[0]) == 0);
    // This is how older programs do it.
    pair(ends);
    SAY(dup(ends[1]));
    SAY(write(ends[0], "again\n", 6));
    clearerr(stdin);
    line(stdin);

    CHECK(close(0) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0);
    // The number is duplicated by fcntl: the connection ends with the last of its numbers.
    pair(ends);
    SAY(fcntl(ends[1], F_DUPFD, 0));
    SAY(write(0, "by fcntl\n", 9));
    reads(ends[0]);
    CHECK(close(0) == 0 && close(ends[1]) == 0);
    reads(ends[0]);
    CHECK(close(ends[0]) == 0);

    // Here there is no stream.
    pair(ends);
    SAY(dprintf(ends[1], "%d %s %.1f %.1f %d %d %d %.1f\n", 1, "two", 3.5, 4.5, 5, 6, 7, 8.5));
    reads(ends[0]);
    SAY(write(ends[0], "heard\n", 6));
    reads(ends[1]);
    CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);

    // A listener and a UDP socket stay what they were.
    at.sin_port = 0;
    int listener = listening();
    stream = fdopen(listener, "r");
    CHECK(stream != NULL);
    accepted(listener, ends);
    SAY(write(ends[0], "accepted\n", 9));
    reads(ends[1]);
    datagrams(ends);
    CHECK(fdopen(ends[0], "r+") != NULL);
    SAY(sendto(ends[0], "datagram\n", 9, 0, (struct sockaddr *)&at, sizeof at));
    reads(ends[1]);
}

int main(int words, char **word) {
    signal(SIGPIPE, SIG_IGN);
    CHECK(words == 3 && inet_pton(AF_INET, word[2], &at.sin_addr) == 1);
    if (!strcmp(word[1], "cork")) corks();
    if (!strcmp(word[1], "low-water")) low_water();
    if (!strcmp(word[1], "little-stack")) little_stack();
    if (!strcmp(word[1], "splice")) splices();
    if (!strcmp(word[1], "splice-full")) splices_until_full();
    if (!strcmp(word[1], "cancel")) cancels();
    if (!strcmp(word[1], "joined")) joined();
    if (!strcmp(word[1], "header")) header();
    if (!strcmp(word[1], "by-number")) by_number();
    if (!strcmp(word[1], "buffers")) buffers();
    if (!strcmp(word[1], "held")) held();
    if (!strcmp(word[1], "info")) info();
    if (!strcmp(word[1], "streams")) streams();
    return 0;
}
