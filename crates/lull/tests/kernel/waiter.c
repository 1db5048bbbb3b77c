/* Makes epoll contexts on demand, for tests: a line "epoll" makes another one, "fork" a child that makes one,
 * "daemon" a child that goes on in its place; it ends with its standard input. Prints "made FD", "child PID" and "daemon
 * PID". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

static void make(void) {
	printf("made %d\n", epoll_create1(0));
	fflush(stdout);
}

int main(void) {
	char line[64];
	pid_t child = 0;
	int to_child[2] = {-1, -1};
	make();
	while (fgets(line, sizeof line, stdin)) {
		if (!strcmp(line, "epoll\n")) {
			make();
		} else if (!strcmp(line, "fork\n")) {
			if (pipe(to_child))
				return 1;
			child = fork();
			if (!child) {
				char end;
				close(to_child[1]);
				epoll_create1(0);
				(void)!read(to_child[0], &end, 1);
				_exit(0);
			}
			close(to_child[0]);
			printf("child %d\n", (int)child);
			fflush(stdout);
		} else if (!strcmp(line, "daemon\n")) {
			if (fork())
				_exit(0);
			printf("daemon %d\n", (int)getpid());
			fflush(stdout);
		}
	}
	if (child) {
		close(to_child[1]);
		waitpid(child, NULL, 0);
	}
	return 0;
}
