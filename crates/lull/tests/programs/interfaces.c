// Lists the addresses of the interfaces: first by getifaddrs, then by SIOCGIFCONF into a buffer for two, and the size
// that SIOCGIFCONF says all would take. Then it listens on each IPv4 address that it has found, and answers clients
// there. usage: interfaces
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

static void say(const char *how, const char *name, const struct sockaddr *at) {
    char text[INET6_ADDRSTRLEN] = "none";
    if (at && at->sa_family == AF_INET) inet_ntop(AF_INET, &((struct sockaddr_in *)at)->sin_addr, text, sizeof text);
    if (at && at->sa_family == AF_INET6) inet_ntop(AF_INET6, &((struct sockaddr_in6 *)at)->sin6_addr, text, sizeof text);
    printf("%s %s %s\n", how, name, text);
}

int main(void) {
    struct pollfd listeners[16];
    int count = 0;
    struct ifaddrs *list;
    for (int round = 0; round < 2; round++) {
        if (getifaddrs(&list) != 0) return 1;
        for (struct ifaddrs *it = list; it; it = it->ifa_next) {
            if (!it->ifa_addr || it->ifa_addr->sa_family == AF_PACKET || !(it->ifa_flags & IFF_UP)) continue;
            if (round == 1) {
                struct sockaddr_in at = *(struct sockaddr_in *)it->ifa_addr;
                if (at.sin_family != AF_INET || count == 16) continue;
                at.sin_port = htons(7777);
                int fd = socket(AF_INET, SOCK_STREAM, 0);
                if (bind(fd, (struct sockaddr *)&at, sizeof at) || listen(fd, 8)) return 2;
                listeners[count++] = (struct pollfd){.fd = fd, .events = POLLIN};
                continue;
            }
            say("listed", it->ifa_name, it->ifa_addr);
            say("mask", it->ifa_name, it->ifa_netmask);
            if (it->ifa_addr->sa_family == AF_INET && it->ifa_flags & IFF_BROADCAST) say("broadcast", it->ifa_name, it->ifa_broadaddr);
        }
        freeifaddrs(list);
    }
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    struct ifconf conf = {.ifc_len = 0, .ifc_buf = NULL};
    if (ioctl(fd, SIOCGIFCONF, &conf)) return 3;
    printf("takes %d\n", conf.ifc_len / (int)sizeof(struct ifreq));
    for (int room = 1; room <= 8; room += 7) {
        struct ifreq found[8];
        conf = (struct ifconf){.ifc_len = room * (int)sizeof found[0], .ifc_req = found};
        if (ioctl(fd, SIOCGIFCONF, &conf) || conf.ifc_len > room * (int)sizeof found[0]) return 4;
        for (int at = 0; at < conf.ifc_len / (int)sizeof found[0]; at++)
            say(room == 1 ? "first" : "configured", found[at].ifr_name, &found[at].ifr_addr);
    }
    puts("serves");
    fflush(stdout);
    while (poll(listeners, count, -1) > 0)
        for (int at = 0; at < count; at++)
            if (listeners[at].revents) {
                int one = accept(listeners[at].fd, NULL, NULL);
                if (write(one, "here\n", 5) != 5) return 5;
                close(one);
            }
}
