// A child connects by its parent to a peer that does not answer; signals and cancellation end the wait. usage:
// interrupted ADDRESS PEER PORT
#include "beside.h"
#include <sys/wait.h>

static volatile sig_atomic_t handled;
static void counts(int signal) {
    (void)signal;
    handled++;
}

static struct sockaddr_in to = {.sin_family = AF_INET};
static int bound(void) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in here = at;
    here.sin_port = 0;
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&here, sizeof here) == 0);
    return fd;
}

static int connects_by, came_back;
static void *connects(void *none) {
    main_thread = gettid();
    came_back = connect(connects_by, (struct sockaddr *)&to, sizeof to) == 0 ? 0 : errno;
    return none;
}

static pthread_t begun(void) {
    pthread_t thread;
    main_thread = 0;
    CHECK(pthread_create(&thread, NULL, connects, NULL) == 0);
    while (!main_thread) usleep(1000);
    until_main_sleeps();
    return thread;
}

static void child(void) {
    struct sigaction asked = {.sa_handler = counts};
    CHECK(sigaction(SIGUSR1, &asked, NULL) == 0);
    connects_by = bound();
    // The second connect starts again.
    for (int nth = 0; nth < 2; nth++) {
        pthread_t thread = begun();
        CHECK(pthread_kill(thread, SIGUSR1) == 0 && pthread_join(thread, NULL) == 0);
        CHECK(handled == nth + 1 && came_back == EINTR);
    }
    // With SA_RESTART it goes on waiting, and is then cancelled.
    asked.sa_flags = SA_RESTART;
    CHECK(sigaction(SIGUSR1, &asked, NULL) == 0);
    void *result = NULL;
    pthread_t thread = begun();
    CHECK(pthread_kill(thread, SIGUSR1) == 0);
    while (handled < 3) usleep(1000);
    until_main_sleeps();
    CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
    CHECK(result == PTHREAD_CANCELED);
}

int main(int words, char **word) {
    int status = -1;
    CHECK(words == 4 && inet_pton(AF_INET, word[1], &at.sin_addr) == 1 && inet_pton(AF_INET, word[2], &to.sin_addr) == 1);
    to.sin_port = htons(atoi(word[3]));
    // The parent has queues from here on.
    CHECK(!is_readable(listening()));
    pid_t made = fork();
    if (!made) {
        child();
        _exit(7);
    }
    CHECK(waitpid(made, &status, 0) == made && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    printf("ended\n");
    return 0;
}
