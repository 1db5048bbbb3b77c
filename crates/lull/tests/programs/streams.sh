# A server uses its connections by streams of the C library, and exits, executes another program, forks, is killed, or
# lacks descriptors: SCRIPT LULL MODE WHAT.
. "$(dirname "$0")/harness.sh"
what=$3

cat >server.c <<'END_OF_C'
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "line %d: not so: %s (%s)\n", __LINE__, #condition, strerror(errno));                      \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static FILE *next(int listener, const char *mode) {
    int fd = accept(listener, NULL, NULL);
    CHECK(fd >= 0);
    FILE *stream = fdopen(fd, mode);
    CHECK(stream != NULL);
    return stream;
}

static void answer(FILE *stream) {
    char line[100];
    CHECK(fgets(line, sizeof line, stream) != NULL);
    CHECK(fprintf(stream, "you said %s", line) > 0 && fflush(stream) == 0);
}

int main(int words, char **word) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(7777)};
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), fd;
    char line[100];
    CHECK(words == 3 && inet_pton(AF_INET, word[2], &at.sin_addr) == 1);
    CHECK(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 8) == 0);
    if (!strcmp(word[1], "exit")) {
        CHECK((fd = accept(listener, NULL, NULL)) >= 0);
        CHECK(dup2(fd, 0) == 0 && dup2(fd, 1) == 1 && dup2(fd, 2) == 2 && close(fd) == 0);
        CHECK(fgets(line, sizeof line, stdin) != NULL);
        // It stands in the stream when the program ends.
        for (int nth = 0; nth < 100000; nth++)
            printf("%d %s", nth, line);
    } else if (!strcmp(word[1], "exec")) {
        FILE *stays = next(listener, "r+"), *closes = next(listener, "r+e");
        CHECK(fcntl(fileno(closes), F_SETFD, FD_CLOEXEC) == 0);
        answer(stays);
        answer(closes);
        execlp("sleep", "sleep", "0", NULL);
        CHECK(!"executed");
    } else if (!strcmp(word[1], "fork")) {
        FILE *stream = next(listener, "r+");
        answer(stream);
        if (fork() == 0) {
            answer(stream);
            // Its parent is gone.
            CHECK(fgets(line, sizeof line, stream) == NULL);
            CHECK(fopen("ended", "w") != NULL);
            return 0;
        }
        CHECK(fclose(stream) == 0);
        next(listener, "r");
        raise(SIGKILL);
    } else {
        CHECK((fd = accept(listener, NULL, NULL)) >= 0);
        CHECK(setrlimit(RLIMIT_NOFILE, &(struct rlimit){fd + 1, fd + 1}) == 0);
        CHECK(fdopen(fd, "r+") == NULL && errno == EMFILE);
        CHECK(dup2(fd, 0) == 0);
        CHECK(write(0, "none\n", 5) == 5);
    }
    return 0;
}
END_OF_C
cat >client.py <<'END'
import socket, sys, time

def connected():
    for attempt in range(1200):
        try:
            return socket.create_connection((sys.argv[2], 7777), 60)
        except OSError:
            time.sleep(0.1)
    raise SystemExit("no connection")

def all_of(connection):
    chunks = []
    while chunk := connection.recv(1 << 16):
        chunks.append(chunk)
    return b"".join(chunks)

def is_answered(connection):
    connection.sendall(b"this\n")
    heard = b""
    while not heard.endswith(b"\n"):
        heard += connection.recv(100)
    assert heard == b"you said this\n", heard

def is_reset(connection):
    try:
        heard = connection.recv(100)
    except ConnectionResetError:
        return
    raise SystemExit(f"it was not reset: {heard}")

what = sys.argv[1]
first = connected()
if what == "exit":
    first.sendall(b"this\n")
    assert all_of(first) == b"".join(b"%d this\n" % nth for nth in range(100000))
elif what == "exec":
    second = connected()
    is_answered(first)
    is_answered(second)
    assert all_of(second) == b""
    is_reset(first)
elif what == "fork":
    is_answered(first)
    is_answered(first)
    connected()
    is_reset(first)
else:
    assert all_of(first) == b"none\n"
END
cc -o server server.c || fail "the server does not compile"
on_lull ./server "$what" "$own"
timeout 120 python3 client.py "$what" "$own" || fail "the client"
case $what in
exec)
    [ "$(grep -c 'connection 10.0.0.2:7777 - 10.0.0.1:[0-9]*, cannot stay open over the exec of .*sleep: it is reset' said)" = 1 ] ||
        fail "the one that is lost is not named"
    ;;
fork)
    until_it test -e ended
    wait "$launcher"
    [ $? = 137 ] || fail "it was not killed"
    ;;
crowded) grep -q 'cannot use connection [0-9]* by streams of the C library (.*): ' said || fail "it is not said" ;;
esac
[ "$what" = fork ] || wait "$launcher" || fail "the program failed"
grep -q "not so" said && fail "a call went wrong"
echo done
