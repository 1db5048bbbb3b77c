// Calls whose results on lull once differed from Linux's: they are the same on the kernel and on lull. usage: results
// CASE ADDRESS
#include "beside.h"
#include <sys/time.h>
#include <sys/wait.h>

static void polls(int fd, short events) {
    struct pollfd polled = {.fd = fd, .events = events};
    SAY(poll(&polled, 1, 60000));
    SAY((long)polled.revents);
}

// The flags for readiness have two names each.
static void names(void) {
    int ends[2], apart[2];
    at.sin_port = 0;
    int listener = listening();
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(ends[0], (struct sockaddr *)&at, sizeof at) == 0);
    polls(listener, POLLRDNORM);
    ends[1] = accept(listener, NULL, NULL);
    CHECK(write(ends[0], "x", 1) == 1);
    polls(ends[1], POLLRDNORM);
    polls(ends[1], POLLWRNORM);
    polls(ends[1], POLLIN | POLLRDNORM | POLLOUT | POLLWRNORM);
    datagrams(apart);
    CHECK(sendto(apart[0], "x", 1, 0, (struct sockaddr *)&at, sizeof at) == 1);
    polls(apart[1], POLLRDNORM);
    polls(apart[1], POLLWRNORM);
}

static int writer;
static void *writes_in_turn(void *none) {
    for (int nth = 0; nth < 11; nth++) {
        until_main_sleeps();
        CHECK(write(writer, "123456789", 9) == 9);
    }
    return none;
}

// MSG_TRUNC discards as much as it returns, and writes to no memory.
static void thrown_away(void) {
    int ends[2];
    char letters[100];
    pthread_t thread;
    pair(ends);
    writer = ends[0];
    main_thread = gettid();
    CHECK(pthread_create(&thread, NULL, writes_in_turn, NULL) == 0);
    SAY(recv(ends[1], NULL, 30, MSG_TRUNC | MSG_WAITALL));
    memset(letters, '.', sizeof letters);
    SAY(recv(ends[1], letters, 40, MSG_TRUNC | MSG_WAITALL));
    SAY(letters[0] == '.' && letters[39] == '.');
    SAY(recv(ends[1], letters, 20, MSG_WAITALL));
    CHECK(pthread_join(thread, NULL) == 0);
    printf("%.20s\n", letters);
    SAY(recv(ends[1], letters, 3, MSG_TRUNC));
    SAY(letters[0]);
}

// A socket of IPv6 that is bound to an address of IPv4 has names of IPv6.
static void mapped(void) {
    struct sockaddr_in6 here = {.sin6_family = AF_INET6}, name;
    socklen_t length = sizeof name;
    here.sin6_addr.s6_addr[10] = here.sin6_addr.s6_addr[11] = 0xff;
    memcpy(&here.sin6_addr.s6_addr[12], &at.sin_addr, 4);
    int listener = socket(AF_INET6, SOCK_STREAM, 0);
    SAY(bind(listener, (struct sockaddr *)&here, sizeof here));
    SAY(listen(listener, 8));
    SAY(getsockname(listener, (struct sockaddr *)&here, &length));
    SAY((long)length);
    at.sin_port = here.sin6_port;
    int client = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(client, (struct sockaddr *)&at, sizeof at) == 0);
    length = sizeof name;
    int fd = accept(listener, (struct sockaddr *)&name, &length);
    CHECK(fd >= 0);
    SAY((long)length);
    SAY((long)name.sin6_family);
    SAY(memcmp(&name.sin6_addr, &here.sin6_addr, 16));
    SAY((long)get(fd, SOL_SOCKET, SO_DOMAIN));
    length = sizeof name;
    SAY(getsockname(fd, (struct sockaddr *)&name, &length));
    SAY((long)length);
    int class = 8;
    SAY(setsockopt(fd, SOL_IPV6, IPV6_TCLASS, &class, sizeof class));
}

// An epoll context stays the one that its first number was, by whatever number it is used.
static void called_otherwise(void) {
    at.sin_port = 0;
    int listener = listening(), first = epoll_create1(0), epfd = fcntl(first, F_DUPFD_CLOEXEC, 50);
    SAY((long)epfd);
    CHECK(close(first) == 0);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.u64 = 7};
    SAY(epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &event));
    connect(fd, (struct sockaddr *)&at, sizeof at);
    comes(listener);
    int peer = accept(listener, NULL, NULL);
    CHECK(peer >= 0);
    SAY(epoll_wait(epfd, &event, 1, 0));
    SAY(write(peer, "x", 1));
    SAY(epoll_wait(epfd, &event, 1, 60000));
    SAY((long)event.events);
    SAY((long)event.data.u64);
}

// Datagrams that are sent by one call each go to their own address.
static void each_its_own_way(void) {
    struct sockaddr_in to[2] = {at, {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}};
    int reader[2], sender = socket(AF_INET, SOCK_DGRAM, 0);
    for (int nth = 0; nth < 2; nth++) {
        socklen_t length = sizeof to[nth];
        reader[nth] = socket(AF_INET, SOCK_DGRAM, 0);
        CHECK(bind(reader[nth], (struct sockaddr *)&to[nth], sizeof to[nth]) == 0);
        CHECK(getsockname(reader[nth], (struct sockaddr *)&to[nth], &length) == 0);
    }
    for (int first = 1; first >= 0; first--) {
        struct iovec data = {"x", 1};
        struct mmsghdr both[2] = {{.msg_hdr = {.msg_iov = &data, .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = &data, .msg_iovlen = 1}}};
        for (int nth = 0; nth < 2; nth++) {
            both[nth].msg_hdr.msg_name = &to[nth ^ first];
            both[nth].msg_hdr.msg_namelen = sizeof to[0];
        }
        SAY(sendmmsg(sender, both, 2, 0));
        for (int nth = 0; nth < 2; nth++) {
            struct sockaddr_in from;
            socklen_t length = sizeof from;
            char letter;
            comes(reader[nth]);
            CHECK(recvfrom(reader[nth], &letter, 1, 0, (struct sockaddr *)&from, &length) == 1);
            // The stack that has the address sends it.
            SAY(from.sin_addr.s_addr == to[nth].sin_addr.s_addr);
        }
        SAY((long)both[0].msg_len);
        SAY((long)both[1].msg_len);
    }
}

static int lulls, kernels;
static void *polls_both(void *none) {
    struct pollfd polled[2] = {{.fd = lulls, .events = POLLIN}, {.fd = kernels, .events = POLLIN}};
    CHECK(poll(polled, 2, 60000) == 1);
    return none;
}

// Threads that have waited leave no descriptor open.
static void threads(void) {
    int ends[2], pipes[2], before = 0;
    pair(ends);
    CHECK(pipe(pipes) == 0);
    lulls = ends[1], kernels = pipes[0];
    for (int nth = 0; nth < 60; nth++) {
        pthread_t thread;
        main_thread = 0;
        CHECK(pthread_create(&thread, NULL, polls_both, NULL) == 0);
        usleep(1000);
        CHECK(write(pipes[1], "x", 1) == 1 && pthread_join(thread, NULL) == 0);
        char letter;
        CHECK(read(pipes[0], &letter, 1) == 1);
        if (nth == 9) before = open_numbers();
        if (nth % 10 == 9) SAY((long)(open_numbers() - before < 10));
    }
}

static void *polls_for_ever(void *fd) {
    struct pollfd polled = {.fd = *(int *)fd, .events = POLLIN};
    main_thread = gettid();
    poll(&polled, 1, -1);
    return NULL;
}

// Of two processes that share a listener one asks for connections first; in the other one a thread that waits is
// cancelled.
static void cancelled_beside(void) {
    int told[2], over[2], status = -1;
    char letter;
    at.sin_port = 0;
    int listener = listening();
    CHECK(pipe(told) == 0 && pipe(over) == 0);
    pid_t first = fork();
    if (!first) {
        close(over[1]);
        is_readable(listener);
        CHECK(write(told[1], "x", 1) == 1);
        _exit(read(over[0], &letter, 1));
    }
    CHECK(read(told[0], &letter, 1) == 1);
    for (int nth = 0; nth < 3; nth++) {
        pid_t child = fork();
        if (!child) {
            pthread_t thread;
            void *result = NULL;
            CHECK(pthread_create(&thread, NULL, polls_for_ever, &listener) == 0);
            while (!main_thread) usleep(1000);
            until_main_sleeps();
            CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
            _exit(result == PTHREAD_CANCELED ? 7 : 8);
        }
        SAY(waitpid(child, &status, 0) == child);
        SAY((long)WEXITSTATUS(status));
    }
    CHECK(close(over[1]) == 0);
    SAY(waitpid(first, &status, 0) == first);
    SAY((long)WEXITSTATUS(status));
}

static int everywhere;
static void *serves(void *none) {
    for (;;) {
        char letter;
        int fd = accept(everywhere, NULL, NULL);
        CHECK(fd >= 0);
        while (read(fd, &letter, 1) == 1) CHECK(write(fd, &letter, 1) == 1);
        close(fd);
    }
    return none;
}

static int asks(struct in_addr address) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = at.sin_port, .sin_addr = address};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    char letter = 'x';
    CHECK(connect(fd, (struct sockaddr *)&to, sizeof to) == 0 && write(fd, &letter, 1) == 1);
    comes(fd);
    CHECK(read(fd, &letter, 1) == 1);
    return fd;
}

// Threads that wait for connections of lull and of the kernel get those of one while another thread takes one of the
// other.
static void both_worlds(void) {
    struct sockaddr_in here = {.sin_family = AF_INET};
    socklen_t length = sizeof here;
    everywhere = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(everywhere, (struct sockaddr *)&here, sizeof here) == 0 && listen(everywhere, 8) == 0);
    CHECK(getsockname(everywhere, (struct sockaddr *)&here, &length) == 0);
    at.sin_port = here.sin_port;
    // Each thread has one of the two connections.
    for (int nth = 0; nth < 2; nth++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, serves, NULL) == 0);
    }
    for (int nth = 0; nth < 3000; nth++) {
        int one = asks((struct in_addr){htonl(INADDR_LOOPBACK)}), other = asks(at.sin_addr);
        close(one);
        close(other);
        if (nth % 300 == 0) SAY((long)nth);
    }
}

static pthread_barrier_t both;
static int added_to, added;
static void *adds(void *times) {
    struct epoll_event event = {.events = EPOLLIN};
    for (long nth = 0; nth < (long)times; nth++) {
        pthread_barrier_wait(&both);
        // Each time it comes at another moment of the other thread's call.
        for (volatile long later = nth % 400 * 100; later > 0; later--) continue;
        event.data.fd = added;
        CHECK(epoll_ctl(added_to, EPOLL_CTL_ADD, added, &event) == 0);
        pthread_barrier_wait(&both);
    }
    return NULL;
}

// An epoll context reports a socket that one thread adds while another one sends by it for the first time.
static void added_meanwhile(void) {
    enum { TIMES = 2000 };
    int ends[2];
    pthread_t thread;
    struct epoll_event event;
    datagrams(ends);
    added_to = epoll_create1(0);
    CHECK(pthread_barrier_init(&both, NULL, 2) == 0 && pthread_create(&thread, NULL, adds, (void *)TIMES) == 0);
    for (int nth = 0; nth < TIMES; nth++) {
        struct sockaddr_in from;
        socklen_t length = sizeof from;
        char letter;
        CHECK((added = socket(AF_INET, SOCK_DGRAM, 0)) >= 0);
        pthread_barrier_wait(&both);
        CHECK(sendto(added, "x", 1, 0, (struct sockaddr *)&at, sizeof at) == 1);
        pthread_barrier_wait(&both);
        comes(ends[1]);
        CHECK(recvfrom(ends[1], &letter, 1, 0, (struct sockaddr *)&from, &length) == 1);
        CHECK(sendto(ends[1], "y", 1, 0, (struct sockaddr *)&from, length) == 1);
        CHECK(epoll_wait(added_to, &event, 1, 60000) == 1 && event.data.fd == added);
        CHECK(close(added) == 0);
        if (nth % 200 == 0) SAY((long)nth);
    }
    SAY(pthread_join(thread, NULL));
}

static volatile sig_atomic_t handled;
static void counts(int signal) {
    (void)signal;
    handled++;
}

// A child connects its parent's socket again and again, whatever signals come.
static void connects_by_a_child(void) {
    int ends[2], status = -1;
    datagrams(ends);
    CHECK(is_readable(ends[0]) == 0);
    pid_t child = fork();
    if (!child) {
        struct sigaction asked = {.sa_handler = counts};
        struct itimerval often = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};
        CHECK(sigaction(SIGALRM, &asked, NULL) == 0 && setitimer(ITIMER_REAL, &often, NULL) == 0);
        for (int nth = 0; nth < 100 || handled < 100; nth++)
            CHECK(connect(ends[0], (struct sockaddr *)&at, sizeof at) == 0);
        CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
        CHECK(write(ends[0], "x", 1) == 1);
        _exit(7);
    }
    reads(ends[1]);
    SAY(waitpid(child, &status, 0) == child);
    SAY((long)WEXITSTATUS(status));
    for (long nth = 0; nth < 5; nth++) SAY(nth);
}

// A listener has no data. The pipe is checked first.
static void spliced_with_a_listener(void) {
    int pipes[2];
    at.sin_port = 0;
    int listener = listening();
    CHECK(pipe2(pipes, O_NONBLOCK) == 0);
    SAY(splice(pipes[0], NULL, listener, NULL, 5, 0));
    SAY(splice(listener, NULL, pipes[1], NULL, 5, 0));
    CHECK(write(pipes[1], "letters", 7) == 7);
    SAY(splice(pipes[0], NULL, listener, NULL, 5, 0));
    SAY((long)count(pipes[0], FIONREAD));
    while (write(pipes[1], "x", 1) == 1) {}
    SAY(splice(listener, NULL, pipes[1], NULL, 5, 0));
    CHECK(shutdown(listener, SHUT_RDWR) == 0);
    SAY(splice(pipes[0], NULL, listener, NULL, 5, 0));
    CHECK(read(pipes[0], (char[8192]){0}, 8192) == 8192);
    SAY(splice(listener, NULL, pipes[1], NULL, 5, 0));
    CHECK(close(pipes[0]) == 0);
    SAY(splice(listener, NULL, pipes[1], NULL, 5, 0));
}

// Whether a connection inherits a value of an option that its listener got before or after it began to listen.
static void has_from_its_listener(int domain, int level, int name, int before) {
    int values[] = {1, 0, 2, 7, 1000, 100000}, first = 0, ends[2], nth = 0;
    socklen_t length = sizeof first;
    struct sockaddr_in6 here = {.sin6_family = domain};
    if (domain == AF_INET6) {
        here.sin6_addr.s6_addr[10] = here.sin6_addr.s6_addr[11] = 0xff;
        memcpy(&here.sin6_addr.s6_addr[12], &at.sin_addr, 4);
    } else {
        ((struct sockaddr_in *)&here)->sin_addr = at.sin_addr;
    }
    int listener = socket(domain, SOCK_STREAM, 0);
    socklen_t size = sizeof here;
    CHECK(bind(listener, (struct sockaddr *)&here, size) == 0 && (before || listen(listener, 8) == 0));
    if (getsockopt(listener, level, name, &first, &length) == 0 && length <= sizeof first) {
        while (nth < 6 && (values[nth] == first || setsockopt(listener, level, name, &values[nth], sizeof values[nth]))) nth++;
        if (nth < 6 && get(listener, level, name) != first) {
            CHECK((!before || listen(listener, 8) == 0) && getsockname(listener, (struct sockaddr *)&here, &size) == 0);
            at.sin_port = here.sin6_port;
            accepted(listener, ends);
            printf("%d %d: %d\n", level, name, get(ends[1], level, name) == get(listener, level, name));
            CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
        }
    }
    CHECK(close(listener) == 0);
}

// A connection inherits most options from its listener.
static void inherited(void) {
    // These options are refused, or describe the connection itself, or bind to an interface, or cannot be set on a
    // listener.
    int but[][2] = {{SOL_SOCKET, SO_MARK}, {SOL_SOCKET, SO_LOCK_FILTER}, {SOL_SOCKET, SO_ZEROCOPY}, {SOL_SOCKET, SO_TIMESTAMPING},
                    {SOL_SOCKET, SO_PEEK_OFF}, {SOL_SOCKET, 62}, {SOL_SOCKET, 65}, {SOL_SOCKET, SO_INCOMING_CPU}, {SOL_IP, IP_OPTIONS},
                    {SOL_IP, IP_TRANSPARENT}, {SOL_IPV6, IPV6_TRANSPARENT}, {SOL_TCP, TCP_REPAIR}, {SOL_TCP, TCP_MAXSEG},
                    {SOL_TCP, TCP_QUICKACK}, {SOL_TCP, TCP_FASTOPEN}, {SOL_TCP, TCP_FASTOPEN_CONNECT}};
    int levels[] = {SOL_SOCKET, SOL_TCP, SOL_IP, SOL_IPV6};
    for (int before = 0; before < 2; before++)
        for (int level = 0; level < 4; level++)
            for (int name = 1; name < 90; name++) {
                int is_tried = 1;
                for (unsigned nth = 0; nth < sizeof but / sizeof but[0]; nth++)
                    is_tried &= but[nth][0] != levels[level] || but[nth][1] != name;
                if (is_tried) has_from_its_listener(levels[level] == SOL_IPV6 ? AF_INET6 : AF_INET, levels[level], name, before);
            }
}

// MSG_PROBE sends nothing (`__ip_append_data`, `ip_make_skb`).
enum { MSG_PROBE = 0x10 }; // This is the kernel's name; the C library has another one.
static void probed(void) {
    int ends[2];
    char letters[8];
    datagrams(ends);
    SAY(sendto(ends[0], "probe", 5, MSG_PROBE, (struct sockaddr *)&at, sizeof at));
    SAY(sendto(ends[0], "data", 4, 0, (struct sockaddr *)&at, sizeof at));
    reads(ends[1]);
    SAY(recv(ends[1], letters, sizeof letters, MSG_DONTWAIT));
    SAY(send(ends[0], "probe", 5, MSG_PROBE));
    CHECK(connect(ends[0], (struct sockaddr *)&at, sizeof at) == 0);
    SAY(send(ends[0], "probe", 5, MSG_PROBE));
    SAY(send(ends[0], "more", 4, 0));
    reads(ends[1]);
}

int main(int words, char **word) {
    signal(SIGPIPE, SIG_IGN);
    CHECK(words == 3 && inet_pton(AF_INET, word[2], &at.sin_addr) == 1);
    if (!strcmp(word[1], "spliced-with-a-listener")) spliced_with_a_listener();
    if (!strcmp(word[1], "inherited")) inherited();
    if (!strcmp(word[1], "probed")) probed();
    if (!strcmp(word[1], "names")) names();
    if (!strcmp(word[1], "thrown-away")) thrown_away();
    if (!strcmp(word[1], "mapped")) mapped();
    if (!strcmp(word[1], "called-otherwise")) called_otherwise();
    if (!strcmp(word[1], "each-its-own-way")) each_its_own_way();
    if (!strcmp(word[1], "threads")) threads();
    if (!strcmp(word[1], "cancelled-beside")) cancelled_beside();
    if (!strcmp(word[1], "both-worlds")) both_worlds();
    if (!strcmp(word[1], "added-meanwhile")) added_meanwhile();
    if (!strcmp(word[1], "connects-by-a-child")) connects_by_a_child();
    return 0;
}
