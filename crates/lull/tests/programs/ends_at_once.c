// A server that answers twice in one batch of events, so that the second answer waits for the end of the batch, and
// that ends or stops before that. usage: ends_at_once WAY ADDRESS PORT
#include "beside.h"

static void ends(int signal) {
    (void)signal;
    _exit(0);
}

static int ends_by_number;

static void *answered_by_another(void *one) {
    int fd = *(int *)one;
    char letter;
    int context = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    CHECK(context >= 0 && epoll_ctl(context, EPOLL_CTL_ADD, fd, &event) == 0);
    CHECK(epoll_wait(context, &event, 1, -1) == 1);
    CHECK(read(fd, &letter, 1) == 1);
    CHECK(write(fd, "a", 1) == 1 && write(fd, "b", 1) == 1);
    if (ends_by_number) syscall(SYS_exit, 0);
    __atomic_store_n((int *)one, -1, __ATOMIC_RELEASE);
    // The thread computes, so that its batch does not end.
    for (;;) __atomic_load_n((int *)one, __ATOMIC_RELAXED);
}

static int answered(const char *way, int fd) {
    static int one;
    pthread_t thread;
    one = fd;
    ends_by_number = strcmp(way, "thread-by-number") == 0;
    if (ends_by_number || strcmp(way, "anothers") == 0) {
        CHECK(pthread_create(&thread, NULL, answered_by_another, &one) == 0);
        if (ends_by_number) pause();
        while (__atomic_load_n(&one, __ATOMIC_ACQUIRE) >= 0) usleep(1000);
        return 1;
    }
    char letter;
    CHECK(read(fd, &letter, 1) == 1);
    return write(fd, "a", 1) == 1 && write(fd, "b", 1) == 1;
}

int main(int words, char **word) {
    CHECK(words == 4 && inet_pton(AF_INET, word[2], &at.sin_addr) == 1);
    at.sin_port = htons(atoi(word[3]));
    const char *way = word[1];
    int context = epoll_create1(0), listener = listening();
    struct epoll_event event = {.events = EPOLLIN};
    signal(SIGALRM, ends);
    CHECK(context >= 0 && epoll_ctl(context, EPOLL_CTL_ADD, listener, &event) == 0);
    CHECK(epoll_wait(context, &event, 1, -1) == 1);
    int fd = accept(listener, NULL, NULL);
    set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    CHECK(fd >= 0 && epoll_ctl(context, EPOLL_CTL_ADD, fd, &event) == 0);
    if (strcmp(way, "anothers") != 0 && strcmp(way, "thread-by-number") != 0) {
        do CHECK(epoll_wait(context, &event, 1, -1) == 1);
        while (!is_readable(fd));
    }
    CHECK(answered(way, fd));
    if (strcmp(way, "_exit") == 0 || strcmp(way, "anothers") == 0) _exit(0);
    if (strcmp(way, "_Exit") == 0) _Exit(0);
    if (strcmp(way, "quick_exit") == 0) quick_exit(0);
    if (strcmp(way, "by-number") == 0) syscall(SYS_exit_group, 0);
    if (strcmp(way, "abort") == 0) abort();
    if (strcmp(way, "raise") == 0) raise(SIGABRT);
    if (strcmp(way, "kill") == 0) kill(getpid(), SIGKILL);
    if (strcmp(way, "kill-by-number") == 0) syscall(SYS_kill, getpid(), SIGKILL);
    if (strcmp(way, "group") == 0) kill(0, SIGKILL);
    if (strcmp(way, "killpg") == 0) killpg(getpgrp(), SIGKILL);
    if (strcmp(way, "sigqueue") == 0) sigqueue(getpid(), SIGKILL, (union sigval){0});
    if (strcmp(way, "pthread_kill") == 0) pthread_kill(pthread_self(), SIGQUIT);
    if (strcmp(way, "pthread_sigqueue") == 0) pthread_sigqueue(pthread_self(), SIGQUIT, (union sigval){0});
    if (strcmp(way, "tgkill") == 0) tgkill(getpid(), gettid(), SIGQUIT);
    if (strcmp(way, "stop") == 0) raise(SIGSTOP);
    if (strcmp(way, "parent") == 0) kill(getppid(), SIGKILL);
    if (strcmp(way, "handler") == 0) {
        // The batch does not end before the handler runs.
        alarm(1);
        for (volatile int computes = 1; computes;) {}
    }
    return 1;
}
