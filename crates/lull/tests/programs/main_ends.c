// A server whose main thread ends alone, and whose last thread ends when it has answered. usage: main_ends WAY ADDRESS
// PORT
#include "beside.h"

static int listener, context;

static void *answers(void *nothing) {
    char letter;
    struct epoll_event event;
    CHECK(epoll_wait(context, &event, 1, -1) == 1);
    int fd = accept(listener, NULL, NULL);
    CHECK(fd >= 0 && read(fd, &letter, 1) == 1 && write(fd, &letter, 1) == 1);
    return nothing;
}

static void says_so(void) {
    CHECK(write(STDOUT_FILENO, "exits\n", 6) == 6);
}

int main(int words, char **word) {
    pthread_t thread;
    CHECK(words == 4 && inet_pton(AF_INET, word[2], &at.sin_addr) == 1);
    at.sin_port = htons(atoi(word[3]));
    atexit(says_so);
    context = epoll_create1(0);
    listener = listening();
    struct epoll_event event = {.events = EPOLLIN};
    // Either the main thread starts lull's stack, or the thread that goes on does.
    int before = strcmp(word[1], "before") == 0;
    CHECK(context >= 0 && (!before || epoll_ctl(context, EPOLL_CTL_ADD, listener, &event) == 0));
    CHECK(pthread_create(&thread, NULL, answers, NULL) == 0);
    CHECK(before || epoll_ctl(context, EPOLL_CTL_ADD, listener, &event) == 0);
    if (strcmp(word[1], "by-number") == 0) syscall(SYS_exit, 3);
    pthread_exit(NULL);
}
