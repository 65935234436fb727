/* A program that finds the device below /sys, by every call that takes a path. */
#define _GNU_SOURCE
#include "check.h"

#include <dirent.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#define CLASS "/sys/class/infiniband"
#define DEVICE CLASS "/longhaul0"
#define PLACE "/sys/devices/virtual/infiniband/longhaul0"

/* A call that fails with an errno value. */
#define FAILS(expected, call)                                                         \
    do {                                                                              \
        errno = 0;                                                                    \
        long got_ = (long)(call);                                                     \
        if (got_ != -1 || errno != (expected)) {                                      \
            failures++;                                                               \
            printf("%s:%d: %s: %ld, errno %d instead of %d\n", __FILE__, __LINE__, #call, got_, errno, \
                   (expected));                                                       \
        }                                                                             \
    } while (0)

static int reads(int fd, const char *expected)
{
    char text[64] = "";
    ssize_t len = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    return len > 0 && !strcmp(text, expected);
}

static int reads_stream(FILE *stream, const char *expected)
{
    char text[64] = "";
    int right = stream && fgets(text, sizeof text, stream) && !strcmp(text, expected);
    if (stream)
        fclose(stream);
    return right;
}

static int no_dots(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static void is_listed(void)
{
    struct dirent **names;
    int others = 0, own = 0;
    DIR *dir = opendir(CLASS);
    NEED(dir);
    for (struct dirent *entry; (entry = readdir(dir));) {
        own += !strcmp(entry->d_name, "longhaul0");
        others += no_dots(entry) && strcmp(entry->d_name, "longhaul0");
    }
    CHECK(own == 1 && others == 0);
    CHECK(reads(openat(dirfd(dir), "longhaul0/node_type", O_RDONLY), "1: CA\n"));
    closedir(dir);
    CHECK(scandir(CLASS, &names, no_dots, alphasort) == 1 && !strcmp(names[0]->d_name, "longhaul0"));
    glob_t found;
    CHECK(!glob(CLASS "/*/ports/*/gids/*", 0, NULL, &found));
    CHECK(found.gl_pathc == 1 && !strcmp(found.gl_pathv[0], DEVICE "/ports/1/gids/0"));
    globfree(&found);
}

static void is_read(void)
{
    CHECK(reads(open(DEVICE "/node_type", O_RDONLY), "1: CA\n"));
    CHECK(reads(open64(DEVICE "/node_type", O_RDONLY | O_CLOEXEC), "1: CA\n"));
    CHECK(reads(open(PLACE "/ports/1/link_layer", O_RDONLY), "Ethernet\n"));
    CHECK(reads(openat(AT_FDCWD, DEVICE "/ports/1/state", O_RDONLY), "4: ACTIVE\n"));
    CHECK(reads_stream(fopen(DEVICE "/ports/1/pkeys/0", "r"), "0xffff\n"));
    CHECK(reads_stream(fopen64(DEVICE "/ports/1/lid_mask_count", "re"), "0\n"));
    int class = open("/sys/class", O_RDONLY | O_DIRECTORY);
    CHECK(reads(openat(class, "infiniband/longhaul0/node_type", O_RDONLY), "1: CA\n"));
    CHECK(reads(openat(class, "../class/./infiniband//longhaul0/node_type", O_RDONLY), "1: CA\n"));
    struct stat status;
    CHECK(!fstatat(class, "infiniband", &status, 0) && S_ISDIR(status.st_mode));
    close(class);
}

static void is_examined(void)
{
    struct stat status;
    struct statx more;
    char text[PATH_MAX] = "";
    CHECK(!stat(DEVICE, &status) && S_ISDIR(status.st_mode));
    CHECK(!lstat(DEVICE, &status) && S_ISLNK(status.st_mode));
    CHECK(!lstat(DEVICE "/", &status) && S_ISDIR(status.st_mode));
    CHECK(!stat(DEVICE "/node_type", &status) && S_ISREG(status.st_mode));
    CHECK(!fstatat(AT_FDCWD, DEVICE, &status, AT_SYMLINK_NOFOLLOW) && S_ISLNK(status.st_mode));
    CHECK(!statx(AT_FDCWD, DEVICE "/fw_ver", 0, STATX_TYPE, &more) && S_ISREG(more.stx_mode));
    CHECK(!access(DEVICE, R_OK) && !faccessat(AT_FDCWD, DEVICE "/uevent", R_OK, 0));
    CHECK(readlink(DEVICE, text, sizeof text) > 0);
    CHECK(!strcmp(text, "../../devices/virtual/infiniband/longhaul0"));
    CHECK(readlinkat(AT_FDCWD, PLACE "/subsystem", text, sizeof text) > 0);
    CHECK(realpath(DEVICE, text) && !strcmp(text, PLACE));
    char *own = realpath(DEVICE "/subsystem/longhaul0/ports/1/..", NULL);
    CHECK(own && !strcmp(own, PLACE "/ports"));
    free(own);
    own = canonicalize_file_name("/sys/class/../class/infiniband");
    CHECK(own && !strcmp(own, CLASS));
    free(own);
    /* A virtual device has no bus and no vendor's driver. */
    FAILS(ENOENT, readlink(DEVICE "/device", text, sizeof text));
    FAILS(ENOENT, access(DEVICE "/device/vendor", F_OK));
}

static void is_left_alone(void)
{
    FAILS(EACCES, open(DEVICE "/node_type", O_WRONLY));
    FAILS(EACCES, open(DEVICE "/node_desc", O_RDWR | O_TRUNC));
    FAILS(EACCES, open(CLASS "/mine", O_CREAT | O_RDONLY, 0600));
    FAILS(EACCES, creat(DEVICE "/mine", 0600));
    FAILS(EACCES, access(DEVICE "/node_type", W_OK));
    REFUSED(EACCES, fopen(DEVICE "/node_type", "w"));
    REFUSED(EACCES, fopen(DEVICE "/node_type", "r+"));
}

static void resolves_as_the_kernel_does(const char *dir)
{
    char path[3 * PATH_MAX], link[256];
    CHECK(reads(open("//sys///class/./infiniband//longhaul0/.//node_type", O_RDONLY), "1: CA\n"));
    CHECK(reads(open("/../sys/class/net/../infiniband/longhaul0/node_type", O_RDONLY), "1: CA\n"));
    CHECK(reads(open(DEVICE "/../longhaul0/node_type", O_RDONLY), "1: CA\n"));
    CHECK(reads(open(CLASS "/../../../proc/sys/kernel/ostype", O_RDONLY), "Linux\n"));
    FAILS(ENOENT, open("", O_RDONLY));
    FAILS(ENOENT, open(CLASS "/nobody", O_RDONLY));
    FAILS(ENOENT, open(CLASS "_nobody/longhaul0", O_RDONLY));
    FAILS(ENOTDIR, open(DEVICE "/node_type/", O_RDONLY));
    FAILS(ENOTDIR, open(DEVICE "/node_type/..", O_RDONLY));
    FAILS(ELOOP, open(DEVICE, O_RDONLY | O_NOFOLLOW));
    FAILS(EBADF, openat(987, "infiniband/longhaul0", O_RDONLY));
    FAILS(ENOENT, access("infiniband/longhaul0", F_OK));
    for (int parts = 1; parts < 3000; parts += 7) {
        strcpy(path, CLASS);
        for (int part = 0; part < parts; part++)
            strcat(path, "/./");
        strcat(path, "/longhaul0/node_type");
        if (strlen(path) < PATH_MAX)
            CHECK(reads(open(path, O_RDONLY), "1: CA\n"));
        else
            FAILS(ENAMETOOLONG, open(path, O_RDONLY));
    }
    memset(path, 'x', sizeof path);
    memcpy(path, DEVICE "/", strlen(DEVICE "/"));
    path[sizeof path - 1] = 0;
    FAILS(ENAMETOOLONG, open(path, O_RDONLY));
    path[strlen(DEVICE) + 1 + NAME_MAX + 1] = 0;
    FAILS(ENAMETOOLONG, open(path, O_RDONLY));
    /* A link from elsewhere is the kernel's to follow, which has no device. */
    snprintf(link, sizeof link, "%s/link", dir);
    CHECK(!symlink(CLASS, link));
    snprintf(path, sizeof path, "%s/longhaul0/node_type", link);
    FAILS(ENOENT, open(path, O_RDONLY));
    unlink(link);
}

static void is_a_working_directory(void)
{
    char text[PATH_MAX];
    int before = open(".", O_RDONLY);
    CHECK(!chdir(DEVICE "/ports/1"));
    CHECK(getcwd(text, sizeof text) && !strcmp(text, PLACE "/ports/1"));
    CHECK(realpath("gids", text) && !strcmp(text, PLACE "/ports/1/gids"));
    CHECK(reads(open("link_layer", O_RDONLY), "Ethernet\n"));
    CHECK(reads(open("../../node_type", O_RDONLY), "1: CA\n"));
    CHECK(reads(open("../../../../infiniband/longhaul0/node_type", O_RDONLY), "1: CA\n"));
    CHECK(!chdir("/sys/class") && reads(open("infiniband/longhaul0/node_type", O_RDONLY), "1: CA\n"));
    CHECK(!fchdir(before));
    close(before);
}

static void keeps_errno(void)
{
    struct stat status;
    errno = 77;
    CHECK(!stat(DEVICE "/node_type", &status) && errno == 77);
    int fd = open(DEVICE "/node_type", O_RDONLY);
    CHECK(fd >= 0 && errno == 77);
    close(fd);
    fd = open("/dev/null", O_RDWR);
    CHECK(fd >= 0 && errno == 77);
    close(fd);
}

static volatile sig_atomic_t interruptions, mistakes;

static void interrupt(int signal)
{
    (void)signal;
    int before = errno;
    interruptions++;
    mistakes += !reads(open(DEVICE "/node_type", O_RDONLY), "1: CA\n");
    errno = before;
}

static void is_read_in_signal_handlers(void)
{
    struct itimerval often = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};
    signal(SIGALRM, interrupt);
    setitimer(ITIMER_REAL, &often, NULL);
    while (interruptions < 200) {
        char *own = realpath(DEVICE, NULL);
        CHECK(own && !strcmp(own, PLACE));
        free(own);
        FILE *stream = fopen(DEVICE "/ports/1/state", "r");
        CHECK(stream);
        if (stream)
            fclose(stream);
    }
    setitimer(ITIMER_REAL, &never, NULL);
    CHECK(!mistakes);
}

static void *first(void *barrier)
{
    pthread_barrier_wait(barrier);
    return (void *)(long)reads(open(DEVICE "/node_type", O_RDONLY), "1: CA\n");
}

/* Before all others: the first call of a process creates what it reads. */
static void is_found_by_threads_at_once(void)
{
    pthread_t threads[8];
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, NULL, 8);
    for (int i = 0; i < 8; i++)
        NEED(!pthread_create(&threads[i], NULL, first, &barrier));
    for (int i = 0; i < 8; i++) {
        void *right;
        pthread_join(threads[i], &right);
        CHECK(right);
    }
    pid_t child = fork();
    if (child == 0)
        _exit(!reads(open(DEVICE "/node_type", O_RDONLY), "1: CA\n"));
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(int count, char **arguments)
{
    NEED(count == 2);
    is_found_by_threads_at_once();
    is_listed();
    is_read();
    is_examined();
    is_left_alone();
    resolves_as_the_kernel_does(arguments[1]);
    is_a_working_directory();
    keeps_errno();
    is_read_in_signal_handlers();
    return verdict();
}
