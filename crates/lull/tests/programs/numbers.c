// Numbers that the program, or the C library, has given to something else mean the same on the kernel and on lull.
// usage: numbers CASE ADDRESS
#include "beside.h"
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { LIMIT = 4096, PAGE = 4096 };

// A set of the size that the C library uses, behind which no memory may be touched.
static fd_set *at_the_end(void) {
    char *pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED && mprotect(pages + PAGE, PAGE, PROT_NONE) == 0);
    return (fd_set *)(pages + PAGE - sizeof(fd_set));
}

static fd_set *set_of(fd_set *set, int one, int other) {
    FD_ZERO(set);
    FD_SET(one, set);
    if (other >= 0) FD_SET(other, set);
    return set;
}

// `select` is called with the count of all possible numbers and sets that are shorter.
static void sets(void) {
    int ends[2], pipes[2];
    fd_set *set = at_the_end(), *write_set = at_the_end();
    static unsigned long many[LIMIT / (8 * sizeof(long))];
    struct rlimit limit;
    struct timeval none = {0};
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_max >= LIMIT);
    limit.rlim_cur = LIMIT;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    CHECK(pipe(pipes) == 0 && write(pipes[1], "x", 1) == 1);
    SAY(select(getdtablesize(), set_of(set, pipes[0], -1), NULL, NULL, &none));
    pair(ends);
    CHECK(write(ends[0], "x", 1) == 1);
    comes(ends[1]);
    SAY(select(getdtablesize(), set_of(set, pipes[0], -1), NULL, NULL, &none));
    SAY(select(getdtablesize(), set_of(set, pipes[0], ends[1]), set_of(write_set, pipes[1], ends[0]), NULL, NULL));
    SAY(FD_ISSET(ends[1], set) && FD_ISSET(pipes[0], set) && FD_ISSET(ends[0], write_set));
    SAY(pselect(getdtablesize(), set_of(set, pipes[0], ends[1]), NULL, NULL, NULL, NULL));
    // These sets are as long as the numbers that are open.
    const int high = 1500, bits = 8 * sizeof(long);
    CHECK(dup2(ends[1], high) == high);
    many[high / bits] |= 1UL << high % bits;
    SAY(select(LIMIT, (fd_set *)many, NULL, NULL, NULL));
    SAY((long)(many[high / bits] >> high % bits));
    CHECK(close(high) == 0);
    SAY(select(LIMIT, (fd_set *)many, NULL, NULL, &none));
    SAY(select(-1, NULL, NULL, NULL, &none));
}

static void ranges(void) {
    int ends[2];
    pair(ends);
    SAY(close_range(ends[0], ends[0], 64));
    SAY(close_range(ends[0], ends[0], 64 | CLOSE_RANGE_CLOEXEC));
    SAY(close_range(ends[0], ends[0] - 1, 0));
    SAY(write(ends[0], "open", 4));
    reads(ends[1]);
    SAY(close_range(ends[0], ends[0], 0));
    reads(ends[1]);
}

// Closes a number without the C library, so that lull does not see it.
static void closed_unseen(int fd) {
    long result;
#if defined __x86_64__
    __asm__ volatile("syscall" : "=a"(result) : "a"(SYS_close), "D"(fd) : "rcx", "r11", "memory");
#elif defined __aarch64__
    register long first __asm__("x0") = fd, number __asm__("x8") = SYS_close;
    __asm__ volatile("svc 0" : "+r"(first) : "r"(number) : "memory");
    result = first;
#endif
    CHECK(result == 0);
}

// Leaves a number of lull's closed, unseen, so that the kernel gives it out next.
static int is_closed(int way) {
    int ends[2];
    datagrams(ends);
    if (way == 0) {
        FILE *stream = fdopen(ends[0], "r+");
        CHECK(stream && fclose(stream) == 0);
    } else {
        closed_unseen(ends[0]);
    }
    return ends[0];
}

static void sends_a_number(int socket, int number) {
    char control[CMSG_SPACE(sizeof number)] = {0};
    struct iovec data = {"x", 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof number);
    memcpy(CMSG_DATA(part), &number, sizeof number);
    CHECK(sendmsg(socket, &message, 0) == 1);
}

static int number_that_comes(int socket) {
    char control[CMSG_SPACE(sizeof(int))], letter;
    int number;
    struct iovec data = {&letter, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    CHECK(recvmsg(socket, &message, 0) == 1);
    memcpy(&number, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof number);
    return number;
}

// A number that was closed inside the C library, or without it, does not stand for lull's socket when it is given out
// again.
static void given_out(void) {
    struct in_addr own = at.sin_addr;
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof here;
    int kernels = socket(AF_INET, SOCK_STREAM, 0), pair_of[2], apart[2];
    CHECK(bind(kernels, (struct sockaddr *)&here, sizeof here) == 0 && listen(kernels, 8) == 0);
    CHECK(getsockname(kernels, (struct sockaddr *)&here, &length) == 0);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair_of) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, apart) == 0);
    for (int way = 0; way < 4; way++) {
        int client = socket(AF_INET, SOCK_STREAM, 0), peer = client, fd;
        if (way < 3) CHECK(connect(client, (struct sockaddr *)&here, sizeof here) == 0);
        if (way == 3) {
            sends_a_number(apart[0], pair_of[1]);
            peer = pair_of[0];
        }
        at.sin_addr = own;
        int number = is_closed(way);
        if (way == 3) fd = number_that_comes(apart[1]);
        else fd = way == 2 ? accept4(kernels, NULL, NULL, SOCK_CLOEXEC) : accept(kernels, NULL, NULL);
        SAY((long)(fd == number));
        SAY(write(peer, "kernels", 7));
        reads(fd);
        SAY(close(fd));
        close(client);
    }
}

// A number that was closed unseen has left nothing open when it is given out again.
static void leaves_nothing(void) {
    int ends[2], before = 0;
    pair(ends);
    for (int nth = 0; nth < 100; nth++) {
        struct epoll_event event = {.events = EPOLLIN};
        int context = epoll_create1(0);
        CHECK(epoll_ctl(context, EPOLL_CTL_ADD, ends[1], &event) == 0 && epoll_wait(context, &event, 1, 0) == 0);
        closed_unseen(context);
        CHECK(open("/dev/null", O_RDONLY) == context && close(context) == 0);
        if (nth == 9) before = open_numbers();
        if (nth % 10 == 9) SAY((long)(open_numbers() - before < 10));
    }
}

static int waited_at;
static void *accepts(void *none) {
    main_thread = gettid();
    accept(waited_at, NULL, NULL);
    return none;
}

// A child that has closed a listener keeps nothing of it, though a thread of its parent waited for a connection when it
// was forked.
static void closed_by_a_child(void) {
    int told[2], over[2], status = -1;
    char letter;
    struct sockaddr_in here = {.sin_family = AF_INET};
    socklen_t length = sizeof here;
    CHECK(pipe(told) == 0 && pipe(over) == 0);
    pid_t parent = fork();
    if (!parent) {
        pthread_t thread;
        waited_at = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(bind(waited_at, (struct sockaddr *)&here, sizeof here) == 0 && listen(waited_at, 8) == 0);
        CHECK(getsockname(waited_at, (struct sockaddr *)&here, &length) == 0);
        CHECK(!is_readable(waited_at) && pthread_create(&thread, NULL, accepts, NULL) == 0);
        while (!main_thread) usleep(1000);
        until_main_sleeps();
        if (!fork()) {
            CHECK(close(waited_at) == 0 && close(over[1]) == 0);
            CHECK(write(told[1], &here.sin_port, 2) == 2);
            _exit(read(over[0], &letter, 1));
        }
        // It waits until the child has closed it.
        struct pollfd polled = {.fd = told[0], .events = POLLIN};
        CHECK(poll(&polled, 1, 60000) == 1);
        _exit(7);
    }
    SAY(waitpid(parent, &status, 0) == parent);
    SAY((long)WEXITSTATUS(status));
    CHECK(read(told[0], &here.sin_port, 2) == 2);
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int nth = 0; nth < 4; nth++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        SAY(connect(fd, (struct sockaddr *)&here, sizeof here));
        CHECK(close(fd) == 0);
    }
    CHECK(close(over[1]) == 0);
}

static void talks(FILE *stream, int peer) {
    char letters[64];
    SAY(fprintf(stream, "question\n"));
    SAY(fflush(stream));
    reads(peer);
    SAY(write(peer, "answer\n", 7));
    CHECK(fgets(letters, sizeof letters, stream) != NULL);
    printf("%s", letters);
}

// A stream has the socket before that is connected.
static void stream_first(void) {
    at.sin_port = 0;
    int listener = listening(), peer, number = -1;
    for (int nth = 0; nth < 2; nth++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        SAY((long)(number < 0 || fd == number));
        number = fd;
        FILE *stream = fdopen(fd, "r+");
        SAY(connect(fd, (struct sockaddr *)&at, sizeof at));
        CHECK((peer = accept(listener, NULL, NULL)) >= 0);
        talks(stream, peer);
        SAY(fclose(stream));
        reads(peer);
        CHECK(close(peer) == 0);
    }
    // The same number is used without the stream.
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    SAY(connect(fd, (struct sockaddr *)&at, sizeof at));
    CHECK((peer = accept(listener, NULL, NULL)) >= 0);
    SAY(write(fd, "without\n", 8));
    reads(peer);
}

static volatile sig_atomic_t broken;
static void counts(int signal) {
    (void)signal;
    broken++;
}

// A splice goes into a pipe that nobody reads.
static void no_reader(void) {
    int ends[2], pipes[2];
    pair(ends);
    CHECK(pipe(pipes) == 0 && close(pipes[0]) == 0);
    signal(SIGPIPE, counts);
    SAY(splice(ends[1], NULL, pipes[1], NULL, 10, 0));
    SAY((long)broken);
    SAY(splice(ends[1], NULL, pipes[1], NULL, 10, SPLICE_F_NONBLOCK));
    SAY((long)broken);
    CHECK(write(ends[0], "x", 1) == 1);
    comes(ends[1]);
    SAY(splice(ends[1], NULL, pipes[1], NULL, 10, 0));
    SAY((long)broken);
    SAY((long)count(ends[1], SIOCINQ));
}

enum { BYTES = 1 << 23 };
static int spliced;
static void *splices(void *counts) {
    int pipes[2];
    CHECK(pipe(pipes) == 0);
    for (;;) {
        unsigned char letters[4096];
        long moved = splice(spliced, NULL, pipes[1], NULL, sizeof letters, 0);
        CHECK(moved >= 0);
        if (moved == 0) return NULL;
        for (long got = 0, count; got < moved; got += count) {
            count = read(pipes[0], letters, moved - got);
            CHECK(count > 0);
            for (long nth = 0; nth < count; nth++) ((long *)counts)[letters[nth]]++;
        }
    }
}

// If two threads splice out of one connection, each byte goes to exactly one of them.
static void apart(void) {
    static unsigned char letters[BYTES];
    static long sent[256], got[2][256];
    int ends[2];
    pthread_t thread[2];
    pair(ends);
    spliced = ends[1];
    unsigned state = 1;
    for (int nth = 0; nth < BYTES; nth++) sent[letters[nth] = (state = state * 1103515245 + 12345) >> 16]++;
    for (int nth = 0; nth < 2; nth++) CHECK(pthread_create(&thread[nth], NULL, splices, got[nth]) == 0);
    for (long nth = 0, count; nth < BYTES; nth += count) {
        count = write(ends[0], letters + nth, BYTES - nth);
        CHECK(count > 0);
    }
    SAY(shutdown(ends[0], SHUT_WR));
    long all = 0, same = 0;
    for (int nth = 0; nth < 2; nth++) SAY(pthread_join(thread[nth], NULL));
    for (int letter = 0; letter < 256; letter++) {
        all += got[0][letter] + got[1][letter];
        same += got[0][letter] + got[1][letter] == sent[letter];
    }
    SAY(all);
    SAY(same);
    SAY((long)(got[0][0] + got[1][0]));
}

int main(int words, char **word) {
    signal(SIGPIPE, SIG_IGN);
    CHECK(words == 3 && inet_pton(AF_INET, word[2], &at.sin_addr) == 1);
    if (!strcmp(word[1], "sets")) sets();
    if (!strcmp(word[1], "ranges")) ranges();
    if (!strcmp(word[1], "given-out")) given_out();
    if (!strcmp(word[1], "leaves-nothing")) leaves_nothing();
    if (!strcmp(word[1], "closed-by-a-child")) closed_by_a_child();
    if (!strcmp(word[1], "stream-first")) stream_first();
    if (!strcmp(word[1], "no-reader")) no_reader();
    if (!strcmp(word[1], "apart")) apart();
    return 0;
}
