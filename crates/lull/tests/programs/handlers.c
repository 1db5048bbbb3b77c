// What signal handlers see and do while a thread is in calls; it is the same on the kernel and on lull. usage: handlers
// CASE ADDRESS
#include "beside.h"
#include <setjmp.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>

static sigjmp_buf back;
static volatile sig_atomic_t handled;
static void jumps_back(int signal) {
    (void)signal;
    siglongjmp(back, 1);
}
static void counts(int signal) {
    (void)signal;
    handled++;
}

static pthread_t caller;
static int writer;

// Signals the main thread once it sleeps, and writes a byte when the handler has run.
static void *signals_main(void *signal) {
    int before = handled;
    until_main_sleeps();
    CHECK(pthread_kill(caller, (int)(long)signal) == 0);
    while (handled == before) usleep(1000);
    CHECK(write(writer, "x", 1) == 1);
    return NULL;
}

// Prints what a call that waits returns if this signal comes meanwhile: what is written afterwards, or EINTR.
static void is_signalled(int reader, int signal) {
    pthread_t thread;
    char letter;
    CHECK(pthread_create(&thread, NULL, signals_main, (void *)(long)signal) == 0);
    if (SAY(recv(reader, &letter, 1, 0)) < 0) SAY(recv(reader, &letter, 1, 0));
    CHECK(pthread_join(thread, NULL) == 0);
}

static void *jumps_main(void *none) {
    until_main_sleeps();
    CHECK(pthread_kill(caller, SIGALRM) == 0);
    return none;
}

// A handler that never returns leaves the thread outside of the call, with no lock held.
static void jumps(void) {
    for (int flags = 0; flags <= SA_RESTART; flags += SA_RESTART) {
        int ends[2];
        char letter;
        struct sigaction asked = {.sa_handler = jumps_back, .sa_flags = flags};
        pthread_t thread;
        pair(ends);
        CHECK(sigaction(SIGALRM, &asked, NULL) == 0);
        signal(SIGUSR1, counts);
        CHECK(pthread_create(&thread, NULL, jumps_main, NULL) == 0);
        // sigsetjmp returns twice, and the threads from before still have to be joined.
        if (!sigsetjmp(back, 1)) {
            recv(ends[1], &letter, 1, 0);
            CHECK(!"it came back");
        }
        CHECK(pthread_join(thread, NULL) == 0);
        struct pollfd polled = {.fd = ends[1], .events = POLLIN};
        SAY(poll(&polled, 1, 20));
        SAY(poll(&polled, 1, 20));
        // Outside of calls a handler runs at once.
        handled = 0;
        CHECK(raise(SIGUSR1) == 0);
        SAY((long)handled);
        writer = ends[0];
        is_signalled(ends[1], SIGUSR1);
        // Only its number keeps the connection open.
        CHECK(close(ends[1]) == 0);
        comes(ends[0]);
        SAY(read(ends[0], &letter, 1));
        CHECK(close(ends[0]) == 0);
    }
}

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
// The older calls that install handlers.
static void older(void) {
    int ends[2];
    pair(ends);
    writer = ends[0];
    SAY(sigset(SIGUSR1, counts) == SIG_DFL);
    is_signalled(ends[1], SIGUSR1);
    SAY(sigset(SIGUSR1, SIG_HOLD) == counts);
    handled = 0;
    CHECK(raise(SIGUSR1) == 0);
    SAY((long)handled);
    SAY(sigset(SIGUSR1, counts) == SIG_HOLD);
    SAY((long)handled);
    CHECK(signal(SIGUSR1, counts) == counts);
    is_signalled(ends[1], SIGUSR1);
    SAY(siginterrupt(SIGUSR1, 1));
    is_signalled(ends[1], SIGUSR1);
    SAY(siginterrupt(SIGUSR1, 0));
    is_signalled(ends[1], SIGUSR1);
    SAY(siginterrupt(SIGUSR2, 1));
    SAY(signal(SIGUSR2, counts) == SIG_DFL);
    is_signalled(ends[1], SIGUSR2);
    SAY(sysv_signal(SIGUSR1, counts) == counts);
    is_signalled(ends[1], SIGUSR1);
    SAY(signal(SIGUSR1, SIG_DFL) == SIG_DFL);
}

enum { MANY = 60 };
static volatile sig_atomic_t order[MANY + 1], many, others;
static void takes_its_place(int signal, siginfo_t *told, void *context) {
    (void)signal, (void)context;
    if (many < MANY) order[many] = told->si_value.sival_int;
    many++;
}
static void counts_others(int signal) {
    (void)signal;
    others++;
}

// Of the signals that a wait unblocks all come, however many there are.
static void queued(void) {
    int ends[2];
    pair(ends);
    struct sigaction asked = {.sa_sigaction = takes_its_place, .sa_flags = SA_SIGINFO};
    sigset_t all, none;
    struct pollfd polled = {.fd = ends[1], .events = POLLIN};
    struct timespec minute = {60, 0};
    sigfillset(&all);
    sigemptyset(&none);
    sigfillset(&asked.sa_mask);
    CHECK(sigaction(SIGRTMIN + 3, &asked, NULL) == 0);
    signal(SIGCHLD, counts_others);
    signal(SIGTERM, counts_others);
    CHECK(sigprocmask(SIG_BLOCK, &all, NULL) == 0);
    for (int nth = 0; nth < MANY; nth++)
        CHECK(sigqueue(getpid(), SIGRTMIN + 3, (union sigval){.sival_int = nth}) == 0);
    CHECK(raise(SIGCHLD) == 0 && raise(SIGTERM) == 0);
    SAY(ppoll(&polled, 1, &minute, &none));
    // The signals that are left come with the next wait.
    while (many < MANY || others < 2) ppoll(&polled, 1, &(struct timespec){0, 1000000}, &none);
    SAY((long)many);
    SAY((long)others);
    int in_order = 1;
    for (int nth = 0; nth < MANY; nth++) in_order &= order[nth] == nth;
    SAY(in_order);
    sigset_t now;
    CHECK(sigprocmask(SIG_BLOCK, NULL, &now) == 0);
    SAY(sigismember(&now, SIGUSR1));
    CHECK(sigprocmask(SIG_SETMASK, &none, NULL) == 0);
    SAY(raise(SIGCHLD));
    SAY((long)others);
}

static int talks;
static char told[8];
static volatile sig_atomic_t told_count;
static void tells(int signal) {
    told[told_count++] = signal == SIGUSR1 ? 'a' : 'b';
    // This is a call in the handler, at whose end no blocked signal's handler may run.
    write(talks, "x", 1);
    told[told_count++] = signal == SIGUSR1 ? 'A' : 'B';
}

// The signals of its mask do not interrupt a handler, also while it makes calls.
static void masked(void) {
    int ends[2];
    pair(ends);
    talks = ends[0];
    struct sigaction asked = {.sa_handler = tells};
    struct pollfd polled = {.fd = ends[1], .events = POLLPRI};
    struct timespec minute = {60, 0};
    sigset_t both, none;
    sigemptyset(&none);
    sigemptyset(&both);
    sigaddset(&both, SIGUSR1);
    sigaddset(&both, SIGUSR2);
    asked.sa_mask = both;
    CHECK(sigaction(SIGUSR1, &asked, NULL) == 0 && sigaction(SIGUSR2, &asked, NULL) == 0);
    CHECK(sigprocmask(SIG_BLOCK, &both, NULL) == 0 && raise(SIGUSR1) == 0 && raise(SIGUSR2) == 0);
    SAY(ppoll(&polled, 1, &minute, &none));
    // A signal that is blocked meanwhile may come with the next wait.
    while (told_count < 4) ppoll(&polled, 1, &(struct timespec){0, 1000000}, &none);
    printf("%s\n", told);
    for (int nth = 0; nth < 5; nth++) SAY((long)nth);
}

static void *kills_the_process(void *none) {
    CHECK(kill(getpid(), SIGUSR1) == 0);
    return none;
}

// A signal that a thread sends to its process goes to another thread that waits for it, though the sender has it
// blocked.
static void sent_to_the_process(void) {
    int ends[2], signal_that_came = 0;
    pair(ends);
    sigset_t waited;
    pthread_t thread;
    sigemptyset(&waited);
    sigaddset(&waited, SIGUSR1);
    CHECK(pthread_sigmask(SIG_BLOCK, &waited, NULL) == 0);
    CHECK(pthread_create(&thread, NULL, kills_the_process, NULL) == 0 && pthread_join(thread, NULL) == 0);
    struct timespec minute = {60, 0};
    signal_that_came = sigtimedwait(&waited, NULL, &minute);
    SAY((long)(signal_that_came == SIGUSR1));
    for (int nth = 0; nth < 5; nth++) SAY((long)nth);
}

static pid_t at_first;
static void *jumps_and_waits(void *fd) {
    char letter;
    if (!sigsetjmp(back, 1)) CHECK(raise(SIGALRM) == 0);
    main_thread = gettid();
    recv(*(int *)fd, &letter, 1, 0);
    return NULL;
}

// A thread that has left a handler by a jump is in none, and can be cancelled where it waits.
static void left(void) {
    int ends[2];
    pair(ends);
    at_first = main_thread;
    signal(SIGALRM, jumps_back);
    for (int nth = 0; nth < 3; nth++) {
        pthread_t thread;
        void *result = NULL;
        main_thread = at_first;
        CHECK(pthread_create(&thread, NULL, jumps_and_waits, &ends[1]) == 0);
        while (main_thread == at_first) usleep(1000);
        until_main_sleeps();
        SAY(pthread_cancel(thread));
        SAY(pthread_join(thread, &result));
        SAY((long)(result == PTHREAD_CANCELED));
    }
}

// A signal comes that is unblocked by a call that does not wait.
static void at_once(void) {
    int ends[2], context = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    struct timespec now = {0, 0};
    fd_set set;
    sigset_t blocked, none, pending;
    pair(ends);
    struct pollfd polled = {.fd = ends[1], .events = POLLIN};
    CHECK(epoll_ctl(context, EPOLL_CTL_ADD, ends[1], &event) == 0);
    sigemptyset(&none);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    signal(SIGUSR1, counts);
    CHECK(pthread_sigmask(SIG_BLOCK, &blocked, NULL) == 0 && raise(SIGUSR1) == 0);
    SAY(epoll_pwait(context, &event, 1, 0, &none));
    SAY((long)handled);
    CHECK(sigpending(&pending) == 0);
    SAY(sigismember(&pending, SIGUSR1));
    SAY(epoll_pwait(context, &event, 1, 60000, &none));
    SAY((long)handled);
    CHECK(raise(SIGUSR1) == 0);
    SAY(ppoll(&polled, 1, &now, &none));
    SAY((long)handled);
    FD_ZERO(&set);
    FD_SET(ends[1], &set);
    CHECK(raise(SIGUSR1) == 0);
    SAY(pselect(ends[1] + 1, &set, NULL, NULL, &now, &none));
    SAY((long)handled);
    SAY(ppoll(&polled, 1, &now, &none));
}

static void *interrupts_main_once(void *none) {
    until_main_sleeps();
    CHECK(pthread_kill(caller, SIGUSR1) == 0);
    return none;
}

// A call with no room for a result that still waits returns when a signal comes.
static void nothing(void) {
    int ends[2];
    struct timeval minutes = {.tv_sec = 600};
    pair(ends);
    for (int timed = 0; timed < 2; timed++) {
        if (timed) CHECK(setsockopt(ends[1], SOL_SOCKET, SO_RCVTIMEO, &minutes, sizeof minutes) == 0);
        for (int flags = 0; flags <= SA_RESTART; flags += SA_RESTART) {
            struct sigaction asked = {.sa_handler = counts, .sa_flags = flags};
            pthread_t thread;
            CHECK(sigaction(SIGUSR1, &asked, NULL) == 0);
            CHECK(pthread_create(&thread, NULL, interrupts_main_once, NULL) == 0);
            SAY(recv(ends[1], NULL, 0, 0));
            SAY((long)handled);
            CHECK(pthread_join(thread, NULL) == 0);
        }
    }
}

// Signals the main thread whenever it sleeps, until its call has returned: a call may have done a part of its work
// before.
static volatile sig_atomic_t is_over;
static void *interrupts_main(void *none) {
    do {
        until_main_sleeps();
        CHECK(pthread_kill(caller, SIGUSR1) == 0);
    } while (!is_over);
    return none;
}

// Splices into a connection that has no room. When data under way arrives there is room once more.
static long splices_in_vain(int pipes[2], int fd) {
    static char letters[4096];
    long got;
    do {
        if (!count(pipes[0], FIONREAD)) CHECK(write(pipes[1], letters, sizeof letters) == sizeof letters);
        got = splice(pipes[0], NULL, fd, NULL, sizeof letters, 0);
    } while (got > 0);
    return got;
}

// A splice waits until its peer has read; a handler, its timeout, and a handler that never returns end the wait.
static void splices(void) {
    int ends[2], pipes[2];
    pthread_t thread;
    pair(ends);
    CHECK(pipe(pipes) == 0);
    struct sigaction asked = {.sa_handler = counts};
    CHECK(sigaction(SIGUSR1, &asked, NULL) == 0);
    CHECK(pthread_create(&thread, NULL, interrupts_main, NULL) == 0);
    SAY(splices_in_vain(pipes, ends[1]));
    is_over = 1;
    SAY((long)(handled > 0));
    CHECK(pthread_join(thread, NULL) == 0);
    struct timeval soon = {.tv_usec = 50000};
    CHECK(setsockopt(ends[1], SOL_SOCKET, SO_SNDTIMEO, &soon, sizeof soon) == 0);
    SAY(splices_in_vain(pipes, ends[1]));
    SAY((long)(count(pipes[0], FIONREAD) > 0));
    soon.tv_usec = 0;
    CHECK(setsockopt(ends[1], SOL_SOCKET, SO_SNDTIMEO, &soon, sizeof soon) == 0);
    signal(SIGALRM, jumps_back);
    CHECK(pthread_create(&thread, NULL, jumps_main, NULL) == 0);
    if (!sigsetjmp(back, 1)) {
        splices_in_vain(pipes, ends[1]);
        CHECK(!"it came back");
    }
    SAY(pthread_join(thread, NULL));
    SAY(count(pipes[0], FIONREAD) > 0);
    SAY(write(ends[0], "x", 1));
    comes(ends[1]);
}

static int to_end, ends_by_closing;
static void *ends_main(void *none) {
    until_main_sleeps();
    CHECK((ends_by_closing ? close(to_end) : shutdown(to_end, SHUT_WR)) == 0);
    return none;
}

// A splice waits until its peer has read, but the peer resets the connection, or another thread shuts it down for
// writing.
static void splices_until_the_end(void) {
    for (ends_by_closing = 0; ends_by_closing < 2; ends_by_closing++) {
        int ends[2], pipes[2];
        pthread_t thread;
        pair(ends);
        CHECK(pipe(pipes) == 0);
        to_end = ends[!ends_by_closing];
        CHECK(pthread_create(&thread, NULL, ends_main, NULL) == 0);
        CHECK(splices_in_vain(pipes, ends[1]) < 0);
        // On Linux a splice that has moved something before may be the one that reports the reset.
        SAY(errno == EPIPE || (ends_by_closing && errno == ECONNRESET));
        CHECK(pthread_join(thread, NULL) == 0);
        SAY(count(pipes[0], FIONREAD) > 0);
        SAY(splice(pipes[0], NULL, ends[1], NULL, 5, 0));
        CHECK((ends_by_closing || close(ends[0]) == 0) && close(ends[1]) == 0);
    }
}

// A handler that makes a process, and may run again.
static void forks(int signal) {
    int before = errno, status;
    pid_t child = fork();
    (void)signal;
    if (!child) _exit(0);
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    handled++;
    struct itimerval next = {.it_value.tv_usec = 50 + handled * 37 % 1500};
    CHECK(setitimer(ITIMER_REAL, &next, NULL) == 0);
    errno = before;
}

// The signal may come at any place while the program makes processes itself.
static void forks_beside(void) {
    enum { TIMES = 300 };
    int ends[2], status;
    pair(ends);
    CHECK(write(ends[0], "x", 1) == 1);
    comes(ends[1]);
    signal(SIGALRM, forks);
    CHECK(setitimer(ITIMER_REAL, &(struct itimerval){.it_value.tv_usec = 100}, NULL) == 0);
    for (int nth = 0; nth < TIMES || handled < TIMES; nth++) {
        pid_t child = vfork();
        if (!child) _exit(7);
        CHECK(child > 0 && waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7);
    }
    signal(SIGALRM, SIG_IGN);
    for (long nth = 0; nth < 5; nth++) SAY(nth);
    SAY((long)(handled >= TIMES));
}

// A call waits for room, in a socket of the kernel's or of a child; handlers run meanwhile.
static void jumps_out_of(void (*waits)(int), int fd) {
    pthread_t thread;
    struct sigaction asked = {.sa_handler = counts};
    CHECK(sigaction(SIGUSR1, &asked, NULL) == 0);
    is_over = 0;
    CHECK(pthread_create(&thread, NULL, interrupts_main, NULL) == 0);
    waits(fd);
    CHECK(errno == EINTR);
    is_over = 1;
    CHECK(pthread_join(thread, NULL) == 0);
    // This handler is installed with SA_RESTART.
    signal(SIGALRM, jumps_back);
    CHECK(pthread_create(&thread, NULL, jumps_main, NULL) == 0);
    if (!sigsetjmp(back, 1)) {
        waits(fd);
        CHECK(!"it came back");
    }
    CHECK(pthread_join(thread, NULL) == 0);
}

static void connects(int fd) {
    while (connect(fd, (struct sockaddr *)&at, sizeof at) == 0) continue;
}

static void *is_cancelled(void *fd) {
    main_thread = gettid();
    connects(*(int *)fd);
    return NULL;
}

// A process without a queue, beside one that has all queues, connects by the kernel to where nobody answers.
static void connects_beside(void) {
    int status = -1, told[2];
    CHECK(pipe(told) == 0);
    pid_t child = fork();
    if (!child) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        pthread_t thread;
        void *result = NULL;
        CHECK(read(told[0], &at.sin_port, 2) == 2);
        main_thread = gettid();
        caller = pthread_self();
        jumps_out_of(connects, fd);
        pid_t itself = main_thread;
        CHECK(pthread_create(&thread, NULL, is_cancelled, &fd) == 0);
        while (main_thread == itself) usleep(1000);
        until_main_sleeps();
        CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
        _exit(result == PTHREAD_CANCELED ? 7 : 8);
    }
    at.sin_port = 0;
    int listener = listening();
    // One connection more than the queue has room for waits.
    CHECK(listen(listener, 0) == 0 && is_readable(listener) == 0);
    int first = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(first, (struct sockaddr *)&at, sizeof at) == 0);
    CHECK(write(told[1], &at.sin_port, 2) == 2);
    SAY(waitpid(child, &status, 0) == child);
    SAY((long)WEXITSTATUS(status));
    for (long nth = 0; nth < 5; nth++) SAY(nth);
}

static int passed;
static void passes(int socket) {
    char control[CMSG_SPACE(sizeof passed)] = {0};
    struct iovec data = {"x", 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof passed);
    memcpy(CMSG_DATA(part), &passed, sizeof passed);
    while (sendmsg(socket, &message, 0) > 0) continue;
}

// A socket is passed to a process that has no room for the message.
static void passes_on(void) {
    static char letters[65536];
    for (int kind = SOCK_STREAM; kind <= SOCK_DGRAM; kind++) {
        int ends[2], apart[2];
        pair(ends);
        passed = ends[1];
        CHECK(socketpair(AF_UNIX, kind, 0, apart) == 0);
        while (send(apart[0], letters, kind == SOCK_STREAM ? sizeof letters : 1, MSG_DONTWAIT) > 0) continue;
        jumps_out_of(passes, apart[0]);
        struct timeval soon = {.tv_usec = 50000};
        CHECK(setsockopt(apart[0], SOL_SOCKET, SO_SNDTIMEO, &soon, sizeof soon) == 0);
        passes(apart[0]);
        SAY(errno == EAGAIN);
        // The socket is still only this process's.
        SAY(write(ends[0], "open", 4));
        reads(ends[1]);
        CHECK(close(ends[1]) == 0);
        reads(ends[0]);
    }
}

static int child_sends;
static void sends(int fd) {
    // The kernel takes all of them.
    for (int nth = 0; nth < 5000; nth++)
        if (send(fd, "datagram", 8, 0) < 0) return;
    kill(getpid(), SIGUSR1);
    errno = EINTR;
    if (child_sends++) kill(getpid(), SIGALRM);
}

// If the parent has to be asked, this waits, and only a handler that never returns ends the wait.
static void connects_until_jumps(int fd) {
    for (int flags = 0; flags <= SA_RESTART; flags += SA_RESTART) {
        struct sigaction asked = {.sa_handler = jumps_back, .sa_flags = flags};
        pthread_t thread;
        CHECK(sigaction(SIGALRM, &asked, NULL) == 0);
        CHECK(pthread_create(&thread, NULL, jumps_main, NULL) == 0);
        if (!sigsetjmp(back, 1)) {
            CHECK(connect(fd, (struct sockaddr *)&at, sizeof at) == 0);
            for (;;) pause();
        }
        CHECK(pthread_join(thread, NULL) == 0);
    }
}

// A child connects a socket of its parent, which is stopped, and sends by it.
static void sends_beside(void) {
    int ends[2], told[2], status = -1;
    char letter = 0;
    CHECK(pipe(told) == 0);
    pid_t parent = fork();
    if (!parent) {
        datagrams(ends);
        CHECK(connect(ends[0], (struct sockaddr *)&at, sizeof at) == 0 && send(ends[0], "x", 1, 0) == 1);
        reads(ends[1]);
        parent = getpid();
        if (fork()) for (;;) pause();
        CHECK(send(ends[0], "y", 1, 0) == 1 && kill(parent, SIGSTOP) == 0);
        main_thread = gettid();
        caller = pthread_self();
        connects_until_jumps(ends[0]);
        jumps_out_of(sends, ends[0]);
        CHECK(write(told[1], "7", 1) == 1);
        _exit(0);
    }
    CHECK(close(told[1]) == 0 && waitpid(parent, &status, WUNTRACED) == parent);
    SAY((long)WIFSTOPPED(status));
    SAY(read(told[0], &letter, 1));
    SAY((long)letter);
    CHECK(kill(parent, SIGKILL) == 0);
    SAY(waitpid(parent, &status, 0) == parent);
    for (long nth = 0; nth < 5; nth++) SAY(nth);
}

int main(int words, char **word) {
    signal(SIGPIPE, SIG_IGN);
    main_thread = gettid();
    caller = pthread_self();
    CHECK(words == 3 && inet_pton(AF_INET, word[2], &at.sin_addr) == 1);
    if (!strcmp(word[1], "jumps")) jumps();
    if (!strcmp(word[1], "older")) older();
    if (!strcmp(word[1], "queued")) queued();
    if (!strcmp(word[1], "masked")) masked();
    if (!strcmp(word[1], "to-the-process")) sent_to_the_process();
    if (!strcmp(word[1], "left")) left();
    if (!strcmp(word[1], "at-once")) at_once();
    if (!strcmp(word[1], "nothing")) nothing();
    if (!strcmp(word[1], "splices")) splices();
    if (!strcmp(word[1], "splices-until-the-end")) splices_until_the_end();
    if (!strcmp(word[1], "forks")) forks_beside();
    if (!strcmp(word[1], "connects-beside")) connects_beside();
    if (!strcmp(word[1], "passes-on")) passes_on();
    if (!strcmp(word[1], "sends-beside")) sends_beside();
    return 0;
}
