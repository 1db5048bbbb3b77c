// A server that does between two answers what programs do with their process: it executes others, starts children in
// every way, closes ranges of numbers, and duplicates over open ones. usage: calls CASE ADDRESS [WORD...]
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static char *self;

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "calls.c:%d: not so: %s (%s)\n", __LINE__, #condition, strerror(errno));                   \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static int serve(const char *address) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(7777)};
    CHECK(inet_pton(AF_INET, address, &at.sin_addr) == 1);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    CHECK(fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0);
    CHECK(bind(fd, (struct sockaddr *)&at, sizeof at) == 0 && listen(fd, 8) == 0);
    return fd;
}

static int next(int listener, int flags) {
    int fd = accept4(listener, NULL, NULL, flags);
    CHECK(fd >= 0);
    return fd;
}

// Answers one question of five letters.
static void answer(int fd) {
    char letters[5];
    CHECK(recv(fd, letters, 5, MSG_WAITALL) == 5);
    CHECK(write(fd, letters, 5) == 5);
}

static void ended_well(pid_t child) {
    int status = -1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// Executes this program with more words than there are registers for arguments.
static void again(const char *way, const char *address) {
    char *words[] = {self, "serve", (char *)address, "a", "b", "c", "d", "e", "f", NULL};
    if (!strcmp(way, "execve")) execve(self, words, environ);
    if (!strcmp(way, "execv")) execv(self, words);
    if (!strcmp(way, "execvp")) execvp("calls", words);
    if (!strcmp(way, "execvpe")) execvpe("calls", words, environ);
    if (!strcmp(way, "execl")) execl(self, self, "serve", address, "a", "b", "c", "d", "e", "f", NULL);
    if (!strcmp(way, "execlp")) execlp("calls", self, "serve", address, "a", "b", "c", "d", "e", "f", NULL);
    if (!strcmp(way, "execle")) execle(self, self, "serve", address, "a", "b", "c", "d", "e", "f", NULL, environ);
    if (!strcmp(way, "fexecve")) fexecve(open(self, O_RDONLY | O_CLOEXEC), words, environ);
    if (!strcmp(way, "execveat")) execveat(AT_FDCWD, self, words, environ, 0);
    // The new program listens again, without an environment.
    if (!strcmp(way, "emptied")) execle(self, self, "serve", address, "a", "b", "c", "d", "e", "f", NULL, (char *[]){NULL});
    if (!strcmp(way, "syscall")) syscall(SYS_execve, self, words, environ);
    CHECK(!"it came back");
}

static void executes(const char *way, const char *address) {
    int listener = serve(address);
    int closed = next(listener, SOCK_CLOEXEC), kept = next(listener, 0);
    // A failed exec of a missing program closes nothing.
    CHECK(execlp("lull-has-no-such-program", "x", NULL) == -1 && errno == ENOENT);
    CHECK(execl("/", "x", NULL) == -1 && errno == EACCES);
    answer(closed);
    answer(kept);
    CHECK(write(closed, "bye", 3) == 3);
    again(way, address);
}

// An executable file that is no program: the error comes only after descriptors were closed.
static void fails_to_execute(const char *address) {
    int listener = serve(address), fd = next(listener, SOCK_CLOEXEC);
    int junk = open("junk", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
    CHECK(junk >= 0 && write(junk, "junk", 4) == 4 && close(junk) == 0);
    answer(fd);
    CHECK(execl("./junk", "junk", NULL) == -1 && errno == ENOEXEC);
    CHECK(write(fd, "x", 1) == -1 && errno == EPIPE && close(fd) == 0 && close(listener) == 0);
    fd = next(serve(address), 0);
    answer(fd);
    CHECK(close(fd) == 0);
    fprintf(stderr, "served\n");
}

static void starts_children(const char *address) {
    int fd = next(serve(address), SOCK_CLOEXEC), null = open("/dev/null", O_RDWR);
    char *words[] = {"true", NULL};
    answer(fd);
    pid_t child = vfork();
    if (child == 0) {
        // A child may do all this with its own descriptors before it executes a program.
        if (dup2(null, fd) != fd || close(fd) != 0 || close_range(3, ~0U, 0) != 0) _exit(2);
        execvp("true", words);
        _exit(3);
    }
    ended_well(child);
    answer(fd);
    child = vfork();
    if (child == 0) _exit(0);
    ended_well(child);
    posix_spawn_file_actions_t actions;
    CHECK(posix_spawn_file_actions_init(&actions) == 0);
    CHECK(posix_spawn_file_actions_addclose(&actions, fd) == 0);
    CHECK(posix_spawn_file_actions_adddup2(&actions, null, 1) == 0);
    CHECK(posix_spawnp(&child, "true", &actions, NULL, words, environ) == 0);
    ended_well(child);
    answer(fd);
    child = _Fork();
    if (child == 0) _exit(close(fd) == 0 ? 0 : 4);
    ended_well(child);
    answer(fd);
    child = fork();
    if (child == 0) {
        closefrom(3);
        execlp("true", "true", NULL);
        _exit(5);
    }
    ended_well(child);
    CHECK(system("exit 0") == 0);
    FILE *says = popen("echo said", "r");
    char line[8];
    CHECK(says && fgets(line, sizeof line, says) && !strcmp(line, "said\n") && pclose(says) == 0);
    answer(fd);
    CHECK(close(fd) == 0);
}

// The daemon is a child of the process that has the NIC's queue. That process ends, so the daemon serves only if it
// takes the queue.
static void becomes_a_daemon(const char *address) {
    CHECK(daemon(1, 1) == 0);
    int fd = next(serve(address), 0);
    answer(fd);
    CHECK(close(fd) == 0);
    fprintf(stderr, "served\n");
}

static void closes_and_duplicates(const char *address) {
    int listener = serve(address), fd = next(listener, 0), other = next(listener, 0);
    int null = open("/dev/null", O_RDWR), kept = fcntl(fd, F_DUPFD_CLOEXEC, 100);
    CHECK(kept >= 100);
    answer(fd);
    // The number is duplicated over an open one: the connection behind it is closed with its last number.
    CHECK(dup2(null, fd) == fd && write(fd, "x", 1) == 1);
    answer(kept);
    CHECK(dup2(other, fd) == fd && close(other) == 0);
    answer(fd);
    CHECK(dup3(kept, fd, O_CLOEXEC) == fd && fcntl(fd, F_GETFD) == FD_CLOEXEC);
    answer(fd);
    CHECK(dup2(fd, fd) == fd);
    // The connection is closed with its number: the client sees the end of the other connection.
    CHECK(close_range(fd, fd, CLOSE_RANGE_CLOEXEC) == 0);
    answer(fd);
    CHECK(close_range(3, kept - 1, 0) == 0 && fcntl(fd, F_GETFD) == -1 && errno == EBADF);
    answer(kept);
    closefrom(kept + 1);
    answer(kept);
    closefrom(3);
    CHECK(write(kept, "x", 1) == -1 && errno == EBADF);
}

static volatile sig_atomic_t handled;

static void on_signal(int signal) { handled = signal; }

// A signal that is otherwise blocked comes only during the wait, whose signal set is the kernel's, of one word.
static void waits_by_number(int fd) {
    struct epoll_event event = {.events = EPOLLIN};
    unsigned long none = 0;
    sigset_t blocked;
    int epfd = epoll_create1(0);
    CHECK(epfd >= 0 && syscall(SYS_epoll_ctl, epfd, EPOLL_CTL_ADD, fd, &event) == 0);
#ifdef SYS_epoll_wait
    CHECK(syscall(SYS_epoll_wait, epfd, &event, 1, 0) == 0);
#endif
    signal(SIGUSR1, on_signal);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    CHECK(sigprocmask(SIG_BLOCK, &blocked, NULL) == 0 && raise(SIGUSR1) == 0 && handled == 0);
    CHECK(syscall(SYS_epoll_pwait, epfd, &event, 1, 60000, &none, sizeof none) == -1 && errno == EINTR);
    CHECK(handled == SIGUSR1 && close(epfd) == 0);
}

static volatile pid_t made;

static void makes_a_child(int signal_that_came) {
    pid_t child = fork();
    if (child == 0) {
        handled = 0;
        signal(SIGUSR2, on_signal);
        raise(SIGUSR2);
        _exit(signal_that_came == SIGUSR1 && handled == SIGUSR2 ? 0 : 1);
    }
    made = child;
}

// A handler that runs at the end of a call makes a child that never returns from the handler: signals reach this child
// like any other process (PostgreSQL makes its children in the handler of SIGCHLD).
static void makes_children_in_handlers(int fd) {
    struct pollfd polled = {.fd = fd, .events = POLLIN};
    sigset_t none, blocked;
    struct timespec minute = {60, 0};
    signal(SIGUSR1, makes_a_child);
    sigemptyset(&none);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    CHECK(sigprocmask(SIG_BLOCK, &blocked, NULL) == 0 && raise(SIGUSR1) == 0 && made == 0);
    CHECK(ppoll(&polled, 1, &minute, &none) == -1 && errno == EINTR);
    ended_well(made);
}

static void calls_by_number(const char *address) {
    int listener = serve(address);
    int fd = syscall(SYS_accept4, listener, NULL, NULL, SOCK_CLOEXEC);
    char letters[5];
    CHECK(fd >= 0);
    CHECK(syscall(SYS_recvfrom, fd, letters, 5, MSG_WAITALL, NULL, NULL) == 5);
    CHECK(syscall(SYS_write, fd, letters, 5) == 5);
    int other = syscall(SYS_dup, fd);
    CHECK(other >= 0 && syscall(SYS_close, fd) == 0);
    CHECK(syscall(SYS_read, other, letters, 5) == 5);
    CHECK(syscall(SYS_sendto, other, letters, 5, MSG_NOSIGNAL, NULL, 0) == 5);
    CHECK(syscall(SYS_fcntl, other, F_GETFL) == O_RDWR);
    waits_by_number(other);
    makes_children_in_handlers(other);
    CHECK(syscall(SYS_shutdown, other, SHUT_WR) == 0);
    CHECK(syscall(SYS_sendto, other, letters, 5, MSG_NOSIGNAL, NULL, 0) == -1 && errno == EPIPE);
    CHECK(syscall(SYS_close_range, other, other, 0) == 0);
    CHECK(read(other, letters, 1) == -1 && errno == EBADF);
    CHECK(syscall(SYS_io_uring_setup, 8, letters) == -1 && errno == ENOSYS);
}

int main(int count, char **words) {
    signal(SIGPIPE, SIG_IGN);
    const char *what = words[1], *address = words[2];
    self = realpath("/proc/self/exe", NULL);
    if (!strncmp(what, "exec ", 5)) executes(what + 5, address);
    if (!strcmp(what, "no-program")) fails_to_execute(address);
    if (!strcmp(what, "serve")) {
        CHECK(count == 9 && !strcmp(words[3], "a") && !strcmp(words[8], "f"));
        // The connection that was not to be closed is open as a number, but has no peer.
        answer(next(serve(address), 0));
        fprintf(stderr, "served\n");
    }
    if (!strcmp(what, "children")) starts_children(address);
    if (!strcmp(what, "daemon")) becomes_a_daemon(address);
    if (!strcmp(what, "numbers")) closes_and_duplicates(address);
    if (!strcmp(what, "by-number")) calls_by_number(address);
    return 0;
}
